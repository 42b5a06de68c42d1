"""A rank of gradring, in `gradring run`: `python -m ...ours SOCKET ALGORITHM DEVICE`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import gradring as gr
from gradring.dtypes import DTYPE_CODES
from gradring.machine import host_facts

from . import control
from .link import RawLink
from .pattern import Array, Case
from .timing import Bound, Call, Rank, Reply

# The codes of csrc/base/types.h, to ask which algorithm will run.
_OP_CODES = {
    "barrier": 0, "all_reduce": 1, "reduce_scatter": 2, "all_gather": 3, "broadcast": 4,
    "reduce": 5, "gather": 6, "scatter": 7, "all_to_all": 8,
}  # fmt: skip


def cuda_devices() -> int:
    """Return the number of CUDA devices.

    Raises:
        DeviceError: There is none, or no plugin for them.
    """
    from gradring import gpu

    count = gpu.device_count()
    if count == 0:
        raise gr.DeviceError("--device cuda: there is no CUDA device")
    return count


class Ours:
    """The library as the bench sees it."""

    def __init__(self, comm: gr.Communicator, algorithm: str, device: str) -> None:
        """Measure on ``comm``, with arrays on ``cpu`` or ``cuda``."""
        self.comm = comm
        self._algorithm = algorithm
        self._device: int | None = None
        if device == "cuda":
            self._device = comm.local_rank % cuda_devices()
        self.rank = comm.rank
        self.size = comm.world_size

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.comm.barrier()

    def about(self) -> Reply:
        """Say which version it is, and where the ranks are."""
        return {
            "version": f"gradring {host_facts.own_version()}",
            "is_one_host": self.comm.local_world_size == self.size,
            "device": self._about_device(),
        }

    def _about_device(self) -> str | None:
        if self._device is None:
            return None
        from gradring import gpu

        return f"{gpu.device_facts(self._device)['name']}, {gpu.build()}"

    def staging(self, count: int) -> Reply:
        """Measure the stages of an all_reduce of float32 on the device, each alone, and all."""
        from gradring import gpu

        assert self._device is not None
        x = gpu.from_numpy(np.ones(count, np.float32), self._device)
        calls = self.comm._device_calls()  # noqa: SLF001 - stages are no question for users
        stages: Reply = calls.staged.measure(x.pointer, count, self._device)
        return stages

    def bind(self, case: Case, x: Array, y: Array) -> Bound:
        """Prepare an operation; all_reduce and broadcast are in place."""
        in_place = case.op in ("all_reduce", "broadcast")
        result = x if in_place else y
        if self._device is None:
            return Bound(self._call(case, x, y), result, self._algorithm_of(case))
        from gradring import gpu

        here = gpu.empty(x.shape, x.dtype, self._device)
        there = gpu.empty(y.shape, y.dtype, self._device)

        def put() -> None:
            here.copy_from(x)
            there.copy_from(y)

        def get() -> None:
            np.copyto(result, (here if in_place else there).to_numpy())

        call = self._call(case, here, there)
        return Bound(call, result, self._algorithm_of(case), put, get)

    def _call(self, case: Case, x: Any, y: Any) -> Call:
        comm, op = self.comm, case.reduce_op
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        is_root = self.rank == 0
        rows = x.reshape(self.size, -1) if case.op == "scatter" and is_root else None
        choice: dict[str, Any] = {}  # Nothing where nothing is asked for: the call users make.
        if self._algorithm != "auto":
            choice["algorithm"] = self._algorithm

        def sendrecv() -> None:
            sent = comm.send(x, after, async_op=True)
            comm.recv(y, before)
            sent.wait()

        calls: dict[str, Call] = {
            "all_reduce": lambda: comm.all_reduce(x, op, **choice),
            "broadcast": lambda: comm.broadcast(x, **choice),
            "reduce": lambda: comm.reduce(x, 0, op, out=y if is_root else None, **choice),
            "reduce_scatter": lambda: comm.reduce_scatter(x, y, op, **choice),
            "all_gather": lambda: comm.all_gather(x, y, **choice),
            "gather": lambda: comm.gather(x, 0, out=y if is_root else None),
            "scatter": lambda: comm.scatter(rows, 0, out=y),
            "all_to_all": lambda: comm.all_to_all(x, y),
            "sendrecv": sendrecv,
            "barrier": comm.barrier,
        }
        if case.op == "all_reduce" and not choice:
            return lambda: comm.all_reduce(x, op)
        return calls[case.op]

    def _algorithm_of(self, case: Case) -> str:
        if self._algorithm != "auto" or case.op not in _OP_CODES or self.size == 1:
            return self._algorithm if self._algorithm != "auto" else ""
        core = self.comm._core  # noqa: SLF001 - what will run is no question for users
        name: str = core.algorithm_for(_OP_CODES[case.op], DTYPE_CODES[case.dtype], case.count)
        return name


def program(comm: gr.Communicator, algorithm: str, device: str = "cpu") -> Rank:
    """Make the rank that measures on ``comm``; it also measures the plain link below it."""
    ours = Ours(comm, algorithm, device)
    rank = Rank(ours)
    link = RawLink(comm)
    rank.add("copy", link.copy)
    rank.add("stream", link.stream)
    rank.add("half_trip", link.half_trip)
    rank.add("staging", ours.staging)
    return rank


def main(path: str, algorithm: str, device: str = "cpu") -> None:
    """Join and obey."""
    with gr.init() as comm:
        control.serve(path, comm.rank, program(comm, algorithm, device))


if __name__ == "__main__":
    main(*sys.argv[1:])
