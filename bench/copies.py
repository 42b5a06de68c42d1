"""Time of an all_reduce over shared memory beside plain copies of as many bytes.

    gradring run -n 2 bench/copies.py --json bench/results/copies-2.json

Every rank copies its vector with memcpy while the others copy theirs, reduces a vector of its own,
and one in memory that the ranks share (`Communicator.empty`), in turn: A B C A B C. A round's ratio
is that of the slowest rank's times in it, so that whatever else the machine does hits all three.
A copy writes to other memory than it reads; the reductions are in place.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from compare import records

import gradring as gr
from gradring.bench.report import machine_facts

_KINDS = ("memcpy", "private", "shared")
_CALLS = 3  # In a round, after one that is not timed.


def main() -> None:
    """Measure every size and let rank 0 report."""
    options = parse()
    if options.bind:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["GRADRING_RANK"]) % len(cores)]})
    comm = gr.init()
    sizes = [int(size) for size in options.mib.split(",")]
    results = [measure(comm, size << 20, options.rounds) for size in sizes]
    if comm.rank == 0:
        print("\n".join(table(result) for result in results))
        if options.json is not None:
            options.json.write_text(json.dumps(document(comm, options, results), indent=1) + "\n")
    comm.close()


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", default="16,64,256", help="sizes of the vector (16,64,256)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bind", action=argparse.BooleanOptionalAction, default=True,
                        help="every rank to one core, in turn (on)")  # fmt: skip
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def document(comm: gr.Communicator, options: argparse.Namespace, results: Any) -> dict[str, Any]:
    """Return what goes into the JSON file."""
    words = [word for word in sys.argv[1:] if not word.endswith(".json") and word != "--json"]
    command = shlex.join(["gradring", "run", "-n", str(comm.world_size), "bench/copies.py", *words])
    return {
        "measured": records.stamp() | {"command": command},
        "machine": machine_facts(),
        "ranks": comm.world_size,
        "bound": options.bind,
        "results": results,
    }


def measure(comm: gr.Communicator, nbytes: int, rounds: int) -> dict[str, Any]:
    """Return microseconds a call of the slowest rank, by kind and round."""
    count = nbytes // 4
    private, target = np.zeros(count, "float32"), np.zeros(count, "float32")
    shared = comm.empty(count)
    shared[:] = 0
    calls: dict[str, Callable[[], Any]] = {
        "memcpy": lambda: np.copyto(target, private),
        "private": lambda: comm.all_reduce(private),
        "shared": lambda: comm.all_reduce(shared),
    }
    check(comm, private)
    check(comm, shared)
    times: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for _ in range(rounds):
        for kind in _KINDS:
            times[kind].append(slowest(comm, calls[kind]))
    return {"bytes": nbytes, "us": times}


def check(comm: gr.Communicator, array: Any) -> None:
    """Reduce what is known, and leave zeros, whose sums stay zero however often."""
    array[:] = np.arange(array.size) % 7 + comm.rank
    comm.all_reduce(array)
    ranks = comm.world_size
    if not np.array_equal(array, np.arange(array.size) % 7 * ranks + ranks * (ranks - 1) // 2):
        raise SystemExit("wrong sums")
    array[:] = 0


def slowest(comm: gr.Communicator, call: Callable[[], Any]) -> float:
    """Return the microseconds a call took the rank that was slowest."""
    call()
    comm.barrier()
    begin = time.perf_counter()
    for _ in range(_CALLS):
        call()
    mine = np.array([(time.perf_counter() - begin) / _CALLS * 1e6])
    comm.all_reduce(mine, op="max")
    return float(mine[0])


def table(result: dict[str, Any]) -> str:
    """Return a line: medians, and by rounds how many times a copy's time a reduction takes."""
    times = result["us"]
    cells = [f"{result['bytes'] >> 20:4d} MiB"]
    for kind in _KINDS:
        ratios = [ours / copy for ours, copy in zip(times[kind], times["memcpy"], strict=True)]
        spread = f"{statistics.median(ratios):.2f}x; {min(ratios):.2f} to {max(ratios):.2f}"
        cells.append(f"{kind} {statistics.median(times[kind]):.0f} us ({spread})")
    return "  ".join(cells)


if __name__ == "__main__":
    main()
