"""The collectives of a process group that work on one tensor a rank, under torch's names.

Each takes lists, for historic reasons, of one tensor. `gradring.torch.c10d.operations.gathering`
has those that work on one tensor for every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from gradring.collectives.communicator import Communicator
from gradring.errors import InvalidArgument
from gradring.torch.c10d.calls.call import Call
from gradring.torch.c10d.calls.work import Work
from gradring.torch.c10d.operations.operators import Operator
from gradring.torch.c10d.operations.short_forms import also_short
from gradring.torch.c10d.operations.sparse import SparseReducer

Tensors = Sequence[Tensor]


class Collectives:
    """What a process group does with whole tensors; see torch.distributed for each."""

    comm: Communicator
    _sparse: SparseReducer

    def _call(self, name: str, options: Any, result: Any) -> Call:
        raise NotImplementedError

    @also_short("AllreduceOptions", "op", "timeout", one="tensors")
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Combine each tensor over all ranks, in place; sparse COO tensors too.

        Args:
            tensors: Dense or sparse, of any strides, on the CPU or a device.
            opts: ``AllreduceOptions``.

        Raises:
            InvalidArgument: As `gradring.Communicator.all_reduce`, and so for the other errors.
        """
        with self._call("all_reduce", opts, list(tensors)) as call:
            for tensor in tensors:
                if tensor.is_sparse:
                    call.started(self._sparse.reduce(tensor, _op(opts), call))
                    continue
                op = Operator(_op(opts), tensor.dtype)
                x = call.both(tensor, reduces=True, copies=op.factor is not None)
                call.started(self.comm.all_reduce(op.prepared(x), op.name, **call.options))
        return call.work

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Combine many tensors, packed by dtype into one operation each."""
        with self._call("all_reduce", opts, list(tensors)) as call:
            ordered = sorted(tensors, key=lambda tensor: str(tensor.dtype))
            for dtype, group in groupby(ordered, key=lambda tensor: tensor.dtype):
                op = Operator(_op(opts), dtype)
                parts = list(group)
                if len(parts) == 1:
                    x = call.both(parts[0], reduces=True, copies=op.factor is not None)
                else:
                    x = call.boths(parts, reduces=True, copies=op.factor is not None)
                call.started(self.comm.all_reduce(op.prepared(x), op.name, **call.options))
        return call.work

    @also_short("BroadcastOptions", "root", "timeout", one="tensors")
    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:
        """Give every rank the root's tensors."""
        root = opts.rootRank
        with self._call("broadcast", opts, list(tensors)) as call:
            for tensor in tensors:
                x = call.input(tensor) if self.comm.rank == root else call.both(tensor)
                call.started(self.comm.broadcast(x, root, **call.options))
        return call.work

    @also_short("ReduceOptions", "root", "op", "timeout", one="tensors")
    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Combine tensors over all ranks; only the root's are written."""
        root = opts.rootRank
        with self._call("reduce", opts, list(tensors)) as call:
            for tensor in tensors:
                op = Operator(_op(opts), tensor.dtype)
                copies = op.factor is not None
                if self.comm.rank == root:
                    x = call.both(tensor, reduces=True, copies=copies)
                else:
                    x = call.input(tensor, reduces=True, copies=copies)
                call.started(self.comm.reduce(op.prepared(x), root, op.name, **call.options))
        return call.work

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        """Give every rank everybody's tensor, one after another in ``output``."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        """Gather each of several tensors."""
        with self._call("all_gather", opts, list(outputs)) as call:
            for output, source in zip(outputs, inputs, strict=True):
                check_fit("all_gather", output, source, self.comm.world_size)
                x = call.input(source)
                out = call.output(output, beside=x, shift=-self.comm.rank * x.numel())
                call.started(self.comm.all_gather(x, out, **call.options))
        return call.work

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        """Combine ``input`` over all ranks and leave each rank its part of it."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        """Reduce and scatter each of several tensors."""
        with self._call("reduce_scatter", opts, list(outputs)) as call:
            for output, source in zip(outputs, inputs, strict=True):
                check_fit("reduce_scatter", source, output, self.comm.world_size)
                op = Operator(_op(opts), source.dtype)
                x = op.prepared(call.input(source, reduces=True, copies=op.factor is not None))
                mine = self.comm.rank * (x.numel() // self.comm.world_size)
                out = call.output(output, reduces=True, beside=x, shift=mine)
                call.started(self.comm.reduce_scatter(x, out, op.name, **call.options))
        return call.work

    @also_short("BarrierOptions", "timeout")
    def barrier(self, opts: Any = None) -> Work:
        """Wait until every rank has come here."""
        with self._call("barrier", opts, []) as call:
            call.started(self.comm.barrier(**call.options))
        return call.work

    # What torch before 2.13 calls them.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _op(opts: Any) -> Any:
    return torch.distributed.ReduceOp.SUM if opts is None else opts.reduceOp


def check_fit(name: str, whole: Tensor, part: Tensor, world_size: int) -> None:
    """Refuse tensors of which one is not as long as ``world_size`` of the other.

    Raises:
        InvalidArgument: They are of other lengths, or of two dtypes.
    """
    if whole.dtype != part.dtype:
        raise InvalidArgument(f"{name}: dtypes {whole.dtype} and {part.dtype} differ")
    if whole.numel() != part.numel() * world_size:
        raise InvalidArgument(
            f"{name}: the whole tensor has {whole.numel()} elements, a part {part.numel()}; "
            f"the world has {world_size} ranks"
        )
