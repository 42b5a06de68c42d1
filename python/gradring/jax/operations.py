"""What each collective does with the leaves of a tree: shapes, buffers, derivatives.

An operation is a value: programs traced with equal ones are one program to JAX. It knows nothing of
tracing (`gradring.jax.staged`), and all arrays here are NumPy's, also those over JAX's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gradring.collectives.communicator import Communicator
from gradring.collectives.fusion import assign_buckets
from gradring.compression import Compression
from gradring.dtypes import code_of
from gradring.errors import InvalidArgument

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

BUCKET_BYTES = 25 << 20

LINEAR = ("sum", "avg")


@dataclass(frozen=True)
class Operation:
    """A collective call with all its options.

    Attributes:
        comm: The ranks.
        timeout: As for `Communicator.all_reduce`.
        name: What users call it.
        is_in_place: Results lie where the operands are, which are then in ``outs`` already.
        is_batchable: What it does to a leaf it does to each part of it along its last axis.
    """

    name: ClassVar = "all_reduce"
    is_in_place: ClassVar = True
    is_batchable: ClassVar = True

    comm: Communicator
    timeout: float | None

    def result_shape(self, shape: Shape) -> Shape:
        """Return the shape that a leaf of this shape becomes."""
        return shape

    def run(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:
        """Do it: a collective call.

        Args:
            ins: Contiguous; not written.
            outs: Contiguous, of `result_shape`; written. Of an operation in place these are copies
                of ``ins``, or ``ins`` themselves.
        """
        raise NotImplementedError

    def linear(self) -> Operation:
        """Return what it does with tangents.

        Raises:
            InvalidArgument: It has no derivative here.
        """
        return self

    def transposed(self) -> Operation:
        """Return what it does with cotangents, for the sum of all ranks' losses."""
        raise NotImplementedError


@dataclass(frozen=True)
class AllReduce(Operation):
    """`Communicator.all_reduce_many` over the leaves.

    Attributes:
        op: The reduction.
        bucket_bytes: As there.
    """

    op: str
    bucket_bytes: int = BUCKET_BYTES

    def run(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:  # noqa: ARG002
        """See `Operation.run`."""
        self.comm.all_reduce_many(
            outs, self.op, bucket_bytes=self.bucket_bytes, timeout=self.timeout
        )

    def linear(self) -> Operation:
        """See `Operation.linear`."""
        if self.op not in LINEAR:
            raise _no_derivative(f"all_reduce with op='{self.op}'")
        return self

    def transposed(self) -> Operation:
        """Return itself: what a rank gave has gone into the results of all."""
        return self


@dataclass(frozen=True)
class Broadcast(Operation):
    """`Communicator.broadcast` of the leaves, those of a dtype in one operation.

    Attributes:
        root: Whose leaves they are.
    """

    root: int

    name: ClassVar = "broadcast"

    def run(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:  # noqa: ARG002
        """See `Operation.run`."""

        def send(flat: Array) -> None:
            self.comm.broadcast(flat, self.root, timeout=self.timeout)

        _in_buckets([_sendable(out) for out in outs], send)

    def transposed(self) -> Operation:
        """Return the sum that goes to the root."""
        return SumAtRoot(self.comm, self.timeout, self.root)


@dataclass(frozen=True)
class SumAtRoot(Operation):
    """What `Broadcast` does with cotangents: the root gets their sum, the others zeros.

    Attributes:
        root: Who gets it.
    """

    root: int

    name: ClassVar = "the derivative of broadcast"

    def run(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:  # noqa: ARG002
        """See `Operation.run`."""

        def reduce(flat: Array) -> None:
            self.comm.reduce(flat, self.root, timeout=self.timeout)
            if self.comm.rank != self.root:
                flat[...] = 0

        _in_buckets([_summable(out) for out in outs], reduce)

    def transposed(self) -> Operation:
        """Return the broadcast."""
        return Broadcast(self.comm, self.timeout, self.root)


@dataclass(frozen=True)
class AllGather(Operation):
    """`Communicator.all_gather` of each leaf.

    Attributes:
        is_tiled: Parts follow each other along the first axis, rather than in a new one.
    """

    is_tiled: bool

    is_in_place: ClassVar = False
    name: ClassVar = "all_gather"

    def result_shape(self, shape: Shape) -> Shape:
        """See `Operation.result_shape`."""
        if not self.is_tiled:
            return (self.comm.world_size, *shape)
        if not shape:
            raise InvalidArgument("all_gather: a leaf is a number, which has no axis to be tiled")
        return (self.comm.world_size * shape[0], *shape[1:])

    def run(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:
        """See `Operation.run`."""
        for x, out in zip(ins, outs, strict=True):
            self.comm.all_gather(_sendable(x), _sendable(out), timeout=self.timeout)

    def transposed(self) -> Operation:
        """Return the reduce_scatter that gives each rank what came of its own part."""
        return ReduceScatter(self.comm, self.timeout, "sum", self.is_tiled)


@dataclass(frozen=True)
class ReduceScatter(Operation):
    """`Communicator.reduce_scatter` of each leaf, cut along its first axis.

    Attributes:
        op: The reduction.
        is_tiled: Parts keep that axis, rather than lose it.
    """

    op: str
    is_tiled: bool

    is_in_place: ClassVar = False
    name: ClassVar = "reduce_scatter"

    def result_shape(self, shape: Shape) -> Shape:
        """See `Operation.result_shape`."""
        size = self.comm.world_size
        if not self.is_tiled:
            if shape[:1] != (size,):
                raise InvalidArgument(
                    f"reduce_scatter: a leaf has shape {shape}; its first axis must be {size}, "
                    "the number of ranks, or with tiled=True a multiple of it"
                )
            return shape[1:]
        return (_rows_of_a_part("reduce_scatter", shape, size), *shape[1:])

    def run(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:
        """See `Operation.run`."""
        for x, out in zip(ins, outs, strict=True):
            self.comm.reduce_scatter(_summable(x), _summable(out), self.op, timeout=self.timeout)

    def linear(self) -> Operation:
        """See `Operation.linear`."""
        if self.op not in LINEAR:
            raise _no_derivative(f"reduce_scatter with op='{self.op}'")
        return self

    def transposed(self) -> Operation:
        """Return the all_gather of all parts' cotangents."""
        gather = AllGather(self.comm, self.timeout, self.is_tiled)
        return gather if self.op == "sum" else Divided(self.comm, self.timeout, gather)


@dataclass(frozen=True)
class Divided(Operation):
    """Another operation whose results are divided by the number of ranks.

    Attributes:
        whole: The other one.
    """

    whole: Operation

    is_in_place: ClassVar = False
    name: ClassVar = "the derivative of reduce_scatter"

    def result_shape(self, shape: Shape) -> Shape:
        """See `Operation.result_shape`."""
        return self.whole.result_shape(shape)

    def run(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:
        """See `Operation.run`."""
        self.whole.run(ins, outs)
        for out in outs:
            np.divide(out, self.comm.world_size, out=out)

    def transposed(self) -> Operation:
        """See `Operation.transposed`."""
        return Divided(self.comm, self.timeout, self.whole.transposed())


@dataclass(frozen=True)
class AllToAll(Operation):
    """`Communicator.all_to_all` of each leaf, cut along its first axis."""

    is_in_place: ClassVar = False
    name: ClassVar = "all_to_all"

    def result_shape(self, shape: Shape) -> Shape:
        """See `Operation.result_shape`."""
        _rows_of_a_part("all_to_all", shape, self.comm.world_size)
        return shape

    def run(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:
        """See `Operation.run`."""
        for x, out in zip(ins, outs, strict=True):
            self.comm.all_to_all(_sendable(x), _sendable(out), timeout=self.timeout)

    def transposed(self) -> Operation:
        """Return itself: what came from a rank goes back to it."""
        return self


@dataclass(frozen=True)
class AverageCompressed(Operation):
    """`Communicator.all_reduce_compressed` of one vector; the second leaf is what is left out.

    Attributes:
        compress: The codec.
    """

    compress: Compression

    name: ClassVar = "average_gradients with compress"
    is_batchable: ClassVar = False

    def run(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:  # noqa: ARG002
        """See `Operation.run`."""
        flat, residual = outs
        self.comm.all_reduce_compressed(
            flat, self.compress, residual, op="avg", timeout=self.timeout
        )

    def linear(self) -> Operation:
        """See `Operation.linear`."""
        raise _no_derivative(self.name)


@dataclass(frozen=True)
class Barrier(Operation):
    """`Communicator.barrier`."""

    name: ClassVar = "barrier"

    def run(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:  # noqa: ARG002
        """See `Operation.run`."""
        self.comm.barrier(timeout=self.timeout)


def _rows_of_a_part(name: str, shape: Shape, size: int) -> int:
    if not shape or shape[0] % size:
        raise InvalidArgument(
            f"{name}: a leaf has shape {shape}; its first axis must be a multiple of {size}, the "
            "number of ranks"
        )
    return shape[0] // size


def _no_derivative(what: str) -> InvalidArgument:
    return InvalidArgument(f"{what} has no derivative here; only 'sum' and 'avg' have")


def _sendable(x: Array) -> Array:
    """See an array flat; as bytes where its dtype is only moved (uint32, complex64)."""
    flat = x.reshape(-1)
    return flat if code_of(flat.dtype) is not None else flat.view(np.uint8)


def _summable(x: Array) -> Array:
    """See an array flat; complex numbers, which cotangents may be, as pairs of real ones."""
    flat = x.reshape(-1)
    return flat.view(flat.real.dtype) if np.iscomplexobj(flat) else flat


def _in_buckets(flats: Sequence[Array], call: Callable[[Array], None]) -> None:
    """Call an operation in place on few arrays, into which these are packed by dtype."""
    sizes, keys = [flat.nbytes for flat in flats], [flat.dtype for flat in flats]
    for bucket in assign_buckets(sizes, keys, BUCKET_BYTES):
        if len(bucket) == 1:
            call(flats[bucket[0]])
            continue
        packed = np.concatenate([flats[index] for index in bucket])
        call(packed)
        begin = 0
        for index in bucket:
            end = begin + flats[index].size
            flats[index][...] = packed[begin:end]
            begin = end
