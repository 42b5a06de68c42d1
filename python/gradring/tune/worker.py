"""A rank of `gradring tune`, in `gradring run`: `python -m gradring.tune.worker SOCKET`."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gradring as gr
from gradring import _core
from gradring.bench.peers import control, ours
from gradring.bench.peers.timing import Rank, Reply
from gradring.collectives import calling
from gradring.tune.choices import OPERATIONS

# What plans add at once (csrc/collectives/plan/plan.h).
_PIECE_BYTES = 256 << 10


# What is measured may be to replace the one that GRADRING_PROFILE names, broken or missing.
NO_PROFILE = ""


class Tuner:
    """What a rank does between two commands of `gradring tune`."""

    def __init__(self, comm: gr.Communicator) -> None:
        """Measure on ``comm``."""
        self._comm = comm
        self._x = self._y = np.empty(0, np.float32)

    def place(self) -> Reply:
        """Say whether this rank is the first of its host, and whether all are on one."""
        return {
            "is_first": self._comm.local_rank == 0,
            "is_one_host": self._comm.local_world_size == self._comm.world_size,
            "streams": self._comm._core.streams,  # noqa: SLF001
        }

    def measure(self, cases: list[tuple[str, str, int]], calls: list[int]) -> Reply:
        """Time a batch of calls of each case; every batch starts on all ranks together.

        Args:
            cases: Operation, algorithm and bytes of the whole message.
            calls: In each case's batch.

        Returns:
            ``seconds``: a call of each case, on this rank.
        """
        count = max(nbytes for _, _, nbytes in cases) // 4
        if self._x.size < count:
            self._x, self._y = np.full(count, 0.0, np.float32), np.full(count, 0.0, np.float32)
        was_enabled = gc.isenabled()
        gc.disable()
        seconds = []
        for (op, algorithm, nbytes), number in zip(cases, calls, strict=True):
            call = self._call(op, algorithm, nbytes // 4)
            self._comm.barrier()
            begin = time.perf_counter()
            for _ in range(number):
                call()
            seconds.append((time.perf_counter() - begin) / number)
        if was_enabled:
            gc.enable()
        return {"seconds": seconds}

    def additions(self, repeats: int) -> Reply:
        """Time the addition of two pieces, on all ranks at once.

        Returns:
            ``seconds`` that half of them took at most, ``nbytes`` of a piece.
        """
        self._comm.barrier()
        seconds = _core.time_additions(_PIECE_BYTES, repeats)
        return {"seconds": float(np.median(seconds)), "nbytes": _PIECE_BYTES}

    def _call(self, op: str, algorithm: str, count: int) -> Callable[[], object]:
        # Below the public methods, whose checks take as long as a step through shared memory.
        core = self._comm._core  # noqa: SLF001
        part = count // self._comm.world_size
        whole, own = self._x[:count], self._x[:part]
        source, target = {
            "all_reduce": (whole, whole),
            "reduce_scatter": (whole, self._y[:part]),
            "all_gather": (own, self._y[:count]),
        }[op]
        options: dict[str, Any] = {"count": count, "algorithm": calling.ALGORITHMS[algorithm]}
        code = OPERATIONS[op]
        return lambda: core.run(code, source, target, **options)


def program(comm: gr.Communicator) -> Rank:
    """Make the rank that measures on ``comm``."""
    rank = ours.program(comm, "auto")
    tuner = Tuner(comm)
    rank.add("place", tuner.place)
    rank.add("measure", tuner.measure)
    rank.add("additions", tuner.additions)
    return rank


def main(path: str) -> None:
    """Join and obey."""
    with gr.init(profile=NO_PROFILE) as comm:
        control.serve(path, comm.rank, program(comm))


if __name__ == "__main__":
    main(*sys.argv[1:])
