"""One worker of `gradring bench pull|push|train`: a program that the command starts as a rank.

Its arguments are the options as JSON and the file that rank 0 writes all workers' figures to.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gradring as gr
from gradring.bench.rows import bounds, rules
from gradring.bench.rows.ids import Ids, zipf_ids
from gradring.bench.rows.options import Options
from gradring.collectives.texts import gather_texts

_BATCHES = 16  # Of ids, drawn before anything is timed, and used in turn.
_MOST_CALLS = 2000  # In a round: every call's time is kept.


class Worker:
    """Times calls on one table. One thread."""

    def __init__(self, options: Options, comm: gr.Communicator, ps: Any) -> None:
        """Make the table and draw the ids."""
        self._options = options
        self._comm = comm
        self._ps = ps
        codec = None if options.codec == "float32" else options.codec
        self._table = ps.sparse_table(
            "bench", dim=options.dim, optimizer=rules.rule_of(options), codec=codec
        )
        self._batches = [
            zipf_ids(options.rows, options.ids, options.zipf, comm.rank * _BATCHES + nth)
            for nth in range(_BATCHES)
        ]
        self._pushed = np.zeros(_BATCHES, np.int64)
        if options.distinct:
            self._batches = [np.unique(batch) for batch in self._batches]
        shape = (options.ids, options.dim)
        self._rows = np.empty(shape, np.float32)
        self._gradients = np.full(shape, rules.GRADIENT, np.float32)
        self._next = 0
        self._filled = bounds.fill(options, self._fill, comm.rank, comm.world_size)
        comm.barrier()

    def _fill(self, ids: Ids, gradients: Any) -> None:
        self._table.push(ids, gradients, distinct=True)

    def measure(self, operation: str) -> dict[str, Any]:
        """Time an operation in rounds; all workers call it at once."""
        call: Callable[[int], None] = getattr(self, f"_{operation}")
        for _ in range(self._options.warmup):
            self._turn(call)
        calls = self._calls_a_round(call)
        rounds, latencies = [], []
        cpu, sent = _cpu_seconds(), self._bytes()
        for _ in range(self._options.rounds):
            self._comm.barrier()
            times = [time.perf_counter()]
            for _ in range(calls):
                self._turn(call)
                times.append(time.perf_counter())
            self._comm.barrier()
            rounds.append(time.perf_counter() - times[0])
            latencies += list(np.diff(times))
        total = calls * self._options.rounds
        return {
            "rounds": rounds,
            "calls": calls,
            "latencies": latencies,
            "cpu_seconds": _cpu_seconds() - cpu,
            "bytes_a_call": (self._bytes() - sent) / total,
        }

    def wrong(self) -> int:
        """Compare rows with what all workers have pushed; all call it at once.

        Returns:
            Floats that are wrong, or rows that the servers count too many or too few in pushes.
        """
        options = self._options
        if not rules.is_linear(options):
            # A part of a push goes only to shards that own one of its ids: rows count, not pushes.
            sizes = np.array([np.unique(batch).size for batch in self._batches])
            mine = np.array([self._filled + int((self._pushed * sizes).sum())])
            done = sum(table["rows_pushed"] for one in self._ps.stats() for table in one["tables"])
            return abs(int(self._comm.all_gather(mine).sum()) - int(done))
        counts = self._comm.all_gather(self._pushed).reshape(-1)
        every = [
            zipf_ids(options.rows, options.ids, options.zipf, nth) for nth in range(counts.size)
        ]
        if options.distinct:
            every = [np.unique(batch) for batch in every]
        pushed = rules.pushed_of(every, counts)
        return rules.count_wrong(options, pushed, self._table.pull(pushed.ids))

    def _turn(self, call: Callable[[int], None]) -> None:
        call(self._next)
        self._next = (self._next + 1) % _BATCHES

    def _calls_a_round(self, call: Callable[[int], None]) -> int:
        self._comm.barrier()
        start = time.perf_counter()
        self._turn(call)
        seconds = np.array([time.perf_counter() - start])
        self._comm.all_reduce(seconds, op="max")
        return min(_MOST_CALLS, max(3, round(self._options.seconds / float(seconds[0]))))

    def _pull(self, nth: int) -> None:
        ids = self._batches[nth]
        self._table.pull(ids, out=self._rows[: ids.size])

    def _push(self, nth: int) -> None:
        self._pushed[nth] += 1
        ids = self._batches[nth]
        gradients = self._gradients[: ids.size]
        self._table.push(ids, gradients, distinct=self._options.distinct)

    def _train(self, nth: int) -> None:
        self._pull(nth)
        self._push(nth)

    def _bytes(self) -> int:
        return int(self._ps.bytes_sent + self._ps.bytes_received)


def main(argv: list[str]) -> int:
    """Run as one rank."""
    options = Options.from_text(argv[0])
    with gr.init() as comm, gr.ps.connect() as ps:
        worker = Worker(options, comm, ps)
        figures = {}
        for name in options.operations:
            comm.barrier()
            before = _staleness(ps)
            comm.barrier()  # Nobody pushes in between.
            figures[name] = worker.measure(name)
            comm.barrier()
            figures[name]["staleness"] = _since(before, _staleness(ps))
        comm.barrier()
        mine = {"figures": figures, "wrong": worker.wrong()}
        comm.barrier()
        everybody = gather_texts(comm, json.dumps(mine).encode())
        if comm.rank == 0:
            Path(argv[1]).write_text(json.dumps([json.loads(text) for text in everybody]))
    return 0


def _staleness(ps: Any) -> list[int]:
    """Return how many pushes had which staleness, over all shards."""
    total: list[int] = []
    for shard in ps.stats():
        for table in shard["tables"]:
            counts = table["staleness"]
            total += [0] * (len(counts) - len(total))
            for nth, count in enumerate(counts):
                total[nth] += count
    return total


def _since(before: list[int], now: list[int]) -> list[int]:
    padded = before + [0] * (len(now) - len(before))
    counts = [after - earlier for earlier, after in zip(padded, now, strict=True)]
    while counts and counts[-1] == 0:  # An operation before may have had more.
        counts.pop()
    return counts


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
