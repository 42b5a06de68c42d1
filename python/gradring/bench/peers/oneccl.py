"""A rank of oneCCL, in Intel MPI's mpiexec: `python -m peers.oneccl SOCKET STORE CALLS`.

oneCCL has no Python interface for memory of the host; CALLS is a library of C functions around its
C++ one, from bench/compare/oneccl_calls.cc.
"""

from __future__ import annotations

import ctypes
import os
import sys

from . import control
from .pattern import Array, Case
from .timing import Bound, Call, Rank, Reply, Unsupported


class OneCcl:
    """The library as the bench sees it."""

    def __init__(self, store: str, calls: str) -> None:
        """Join the others through a file."""
        self.rank = int(os.environ["PMI_RANK"])
        self.size = int(os.environ["PMI_SIZE"])
        self._calls = ctypes.CDLL(calls)
        self._calls.oneccl_version.restype = ctypes.c_char_p
        self._calls.oneccl_join(store.encode(), self.rank, self.size)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._calls.oneccl_barrier()

    def about(self) -> Reply:
        """Say which version it is."""
        return {"version": f"oneCCL {self._calls.oneccl_version().decode()}"}

    def bind(self, case: Case, x: Array, y: Array) -> Bound:
        """Prepare an operation; all_reduce and broadcast are in place."""
        if (case.dtype, case.reduce_op) != ("float32", "sum"):
            raise Unsupported("only sums of float32 are written for oneCCL")
        in_place = case.op in ("all_reduce", "broadcast")
        return Bound(self._call(case, x, y), x if in_place else y)

    def _call(self, case: Case, x: Array, y: Array) -> Call:
        here, there = (ctypes.c_void_p(array.ctypes.data) for array in (x, y))
        whole, part = (ctypes.c_size_t(n) for n in (case.count, case.count // self.size))
        calls = self._calls
        known: dict[str, Call] = {
            "all_reduce": lambda: calls.oneccl_all_reduce(here, whole),
            "broadcast": lambda: calls.oneccl_broadcast(here, whole),
            "reduce_scatter": lambda: calls.oneccl_reduce_scatter(here, there, part),
            "all_gather": lambda: calls.oneccl_all_gather(here, there, part),
            "barrier": calls.oneccl_barrier,
        }
        if case.op not in known:
            raise Unsupported(f"{case.op} is not written for oneCCL")
        return known[case.op]

    def close(self) -> None:
        """Leave the others."""
        self._calls.oneccl_leave()


def main(path: str, store: str, calls: str) -> None:
    """Join and obey."""
    library = OneCcl(store, calls)
    control.serve(path, library.rank, Rank(library))
    library.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
