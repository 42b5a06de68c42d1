"""A rank of whatever MPI its mpiexec belongs to: `mpiexec -n N python -m peers.mpi SOCKET NAME`.

mpi4py's wheels load the MPI library at run time; the bench says by variables which one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import control
from .pattern import Array, Case
from .timing import Bound, Call, Rank, Reply, Unsupported

if TYPE_CHECKING:
    from mpi4py import MPI

_DTYPES = {
    "float64": "DOUBLE", "float32": "FLOAT", "int8": "INT8_T", "int16": "INT16_T",
    "int32": "INT32_T", "int64": "INT64_T", "uint8": "UINT8_T",
}  # fmt: skip
_REDUCE_OPS = {
    "sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX",
    "band": "BAND", "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip


class Mpi:
    """The library as the bench sees it."""

    def __init__(self) -> None:
        """Join; mpi4py initialises MPI when it is imported."""
        from mpi4py import MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank = self._world.Get_rank()
        self.size = self._world.Get_size()

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._world.Barrier()

    def about(self) -> Reply:
        """Say which MPI was loaded."""
        first = self._mpi.Get_library_version().splitlines()[0]
        return {"version": " ".join(first.split(",")[0].strip("\0 ").split())}

    def bind(self, case: Case, x: Array, y: Array) -> Bound:
        """Prepare an operation; all_reduce and broadcast are in place."""
        if case.dtype not in _DTYPES:
            raise Unsupported(f"this MPI has no {case.dtype}")
        if case.reduce_op not in _REDUCE_OPS:
            raise Unsupported(f"MPI has no {case.reduce_op}")
        kind = getattr(self._mpi, _DTYPES[case.dtype])
        in_place = case.op in ("all_reduce", "broadcast")
        return Bound(self._call(case, [x, kind], [y, kind]), x if in_place else y)

    def _call(self, case: Case, x: list[Any], y: list[Any]) -> Call:
        world: MPI.Intracomm = self._world
        op = getattr(self._mpi, _REDUCE_OPS[case.reduce_op])
        in_place = self._mpi.IN_PLACE
        is_root = self.rank == 0
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        sent = x if is_root else None
        received = y if is_root else None
        calls: dict[str, Call] = {
            "all_reduce": lambda: world.Allreduce(in_place, x, op),
            "broadcast": lambda: world.Bcast(x, 0),
            "reduce": lambda: world.Reduce(x, received, op, 0),
            "reduce_scatter": lambda: world.Reduce_scatter_block(x, y, op),
            "all_gather": lambda: world.Allgather(x, y),
            "gather": lambda: world.Gather(x, received, 0),
            "scatter": lambda: world.Scatter(sent, y, 0),
            "all_to_all": lambda: world.Alltoall(x, y),
            "sendrecv": lambda: world.Sendrecv(x, after, 0, y, before, 0),
            "barrier": world.Barrier,
        }
        return calls[case.op]


def main(path: str) -> None:
    """Join and obey."""
    library = Mpi()
    control.serve(path, library.rank, Rank(library))


if __name__ == "__main__":
    main(*sys.argv[1:])
