"""all_reduce of sparse COO tensors: the union of all ranks' indices, their values added up.

It takes several operations, of which each needs the result of the one before, so it runs on a
thread and a communicator of its own: the order of the group's other operations does not depend on
when its steps happen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradring.collectives.communicator import Communicator
from gradring.errors import InvalidArgument, Mismatch
from gradring.torch.c10d.calls import entries
from gradring.torch.c10d.calls.call import Call
from gradring.torch.c10d.calls.job import Job
from gradring.torch.c10d.calls.lanes import Lane
from gradring.torch.c10d.calls.streams import CallStream, stream_of
from gradring.torch.c10d.operations.operators import Operator

_OPERATORS = ("sum", "avg")
_DIMS_MAX = 14


class SparseReducer:
    """Reduces the sparse tensors of one group, one after another."""

    def __init__(self, comm: Communicator, name: str) -> None:
        """Keep what the first call needs; nothing is started yet."""
        self._comm = comm
        self._name = name
        self._lane = Lane(f"{name} sparse")
        self._side: Communicator | None = None

    def reduce(self, tensor: Tensor, op: Any, call: Call) -> Job | None:
        """Combine a COO tensor over all ranks, in place.

        Args:
            tensor: Need not be coalesced; the result is.
            op: SUM, AVG or PREMUL_SUM.
            call: What it belongs to.

        Returns:
            The operation in flight, or ``None`` where the call blocks.

        Raises:
            InvalidArgument: Another operator, or too many dimensions.
            Mismatch: The ranks' tensors have different shapes; the group stays usable.
        """
        operator = Operator(op, tensor.dtype)
        if operator.name not in _OPERATORS:
            raise InvalidArgument(f"a sparse all_reduce adds up; '{operator.name}' is not defined")
        if tensor.dim() > _DIMS_MAX:
            raise InvalidArgument(f"a sparse tensor of {tensor.dim()} dimensions; at most 14")
        if self._side is None:
            self._side = self._comm.subgroup(range(self._comm.world_size), f"{self._name} sparse")
        side = self._side
        # Here, on the stream that has made it; the lane's thread has another.
        stream = stream_of([tensor])
        mine = tensor.detach().to(entries.wider(tensor.dtype)).coalesce().cpu()

        def carry_out() -> None:
            _write(tensor, _reduced(side, mine, operator, call.timeout), stream)

        job = Job(self._lane, carry_out, "all_reduce of a sparse tensor")
        if call.is_async:
            return job
        job.wait()
        return None

    def close(self, *, linger: bool) -> None:
        """Leave; `linger` as in `Communicator.close`."""
        self._lane.stop()
        if self._side is not None:
            self._side.close(linger=linger)


def _reduced(comm: Communicator, mine: Tensor, op: Operator, timeout: float) -> Tensor:
    counts = _agree(comm, mine, timeout)
    prepared = entries.with_values(mine, op.prepared(mine.values().clone()))
    (total,) = entries.merged(comm, [prepared], [[count] for count in counts], timeout)
    if op.name == "avg":
        total = entries.with_values(total, total.values() / comm.world_size)
    return total


def _write(tensor: Tensor, total: Tensor, stream: CallStream | None) -> None:
    # As in `tensors`; and the tensor may be a leaf.
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        if stream is None:
            tensor.copy_(total.to(tensor.dtype))  # Not into detach(): its indices are its own.
            return
        # Its new indices and values belong to the stream that they are allocated on: the memory of
        # another one would go to others there while the user's still works with it.
        with stream.finishing():
            tensor.copy_(total.to(tensor.dtype))
    stream.synchronize()


def _agree(comm: Communicator, mine: Tensor, timeout: float) -> list[int]:
    # How many entries each rank has; and that all tensors are alike, before anything is added up.
    head = torch.zeros(3 + _DIMS_MAX, dtype=torch.int64)
    head[0] = mine.indices().shape[1]
    head[1] = mine.sparse_dim()
    head[2] = mine.dim()
    head[3 : 3 + mine.dim()] = torch.tensor(mine.shape, dtype=torch.int64)
    heads = comm.all_gather(head, timeout=timeout)
    for rank in range(comm.world_size):
        if not torch.equal(heads[rank, 1:], head[1:]):
            theirs = heads[rank, 3 : 3 + int(heads[rank, 2])].tolist()
            raise Mismatch(
                f"all_reduce of a sparse tensor: rank {comm.rank} has shape {list(mine.shape)} "
                f"({mine.sparse_dim()} sparse), rank {rank} {theirs} ({int(heads[rank, 1])} sparse)"
            )
    return [int(count) for count in heads[:, 0]]
