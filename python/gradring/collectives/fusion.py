"""Buckets: many small arrays in few operations.

`Communicator.all_reduce_many` and the optimizers pack arrays of one dtype into contiguous buckets,
because an operation costs a latency whatever its size (Horovod calls this tensor fusion, PyTorch
gradient bucketing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradring import _core
from gradring.arrays import buffers, memory_spans
from gradring.arrays.device_arrays import DeviceView
from gradring.collectives import calling
from gradring.dtypes import name_of
from gradring.errors import InvalidArgument

if TYPE_CHECKING:
    from gradring.collectives.reductions import Reductions


def assign_buckets(
    sizes_bytes: Sequence[int], keys: Sequence[Any], bucket_bytes: int
) -> list[list[int]]:
    """Group consecutive items of one key so that no group exceeds ``bucket_bytes``.

    Args:
        sizes_bytes: Bytes of each item.
        keys: Items share a bucket only if their keys are equal (the dtype, say).
        bucket_bytes: Most bytes in a bucket; a larger item gets one of its own.

    Returns:
        Lists of indices; every index once, ascending within a bucket.
    """
    buckets: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}
    for index, (size_bytes, key) in enumerate(zip(sizes_bytes, keys, strict=True)):
        bucket, used = filling.get(key, ([], 0))
        if not bucket or used + size_bytes > bucket_bytes:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(index)
        filling[key] = (bucket, used + size_bytes)
    return buckets


def require_bucket_bytes(bucket_bytes: Any) -> None:
    """Refuse what is no size of a bucket.

    Raises:
        InvalidArgument: It is no whole number, or not positive.
    """
    is_number = isinstance(bucket_bytes, (int, float, np.integer, np.floating))
    if not is_number or isinstance(bucket_bytes, bool) or not bucket_bytes > 0:
        raise InvalidArgument(f"bucket_bytes must be positive, got {bucket_bytes!r}")
    if bucket_bytes % 1 != 0:
        raise InvalidArgument(f"bucket_bytes must be a whole number, got {bucket_bytes!r}")


def reduce_many(
    comm: Reductions,
    xs: Sequence[Any],
    op: str,
    bucket_bytes: int,
    *,
    timeout: float | None,
    stream: Any,
) -> list[Any]:
    """Do the work of `Communicator.all_reduce_many`."""
    code = calling.reduction(op, "auto", None)["reduce_op"]
    require_bucket_bytes(bucket_bytes)
    try:
        results = list(xs)
    except TypeError:
        raise InvalidArgument(f"all_reduce_many: xs is a {type(xs).__name__}, no list") from None
    views = [
        buffers.operand(x, f"xs[{index}]", writes=True, stream=stream)
        for index, x in enumerate(results)
    ]
    # Of all of them first: nothing may be reduced when one is refused.
    dtypes = [view.dtype for view in views]
    for dtype in set(dtypes):
        if not _core.is_defined(dtype, code):
            odd = f"xs[{dtypes.index(dtype)}]: {name_of(dtype)}"
            raise InvalidArgument(f"all_reduce_many: {op} is not defined for {odd}")
    _require_apart(views)
    sizes_bytes = [view.nbytes for view in views]
    for bucket in assign_buckets(sizes_bytes, [_kind(view) for view in views], bucket_bytes):
        if len(bucket) == 1:
            comm.all_reduce(results[bucket[0]], op, timeout=timeout, stream=stream)
            continue
        members = [views[index] for index in bucket]
        on_device = [member for member in members if isinstance(member, DeviceView)]
        if on_device:
            comm.reduce_bucket(on_device, op, timeout)
        else:
            _reduce_packed(comm, [m for m in members if isinstance(m, buffers.View)], op, timeout)
    return results


def _require_apart(views: Sequence[buffers.Operand]) -> None:
    # What two of them share would get two results, one over the other.
    if (pair := memory_spans.first_shared(views)) is not None:
        raise InvalidArgument(
            f"xs[{pair[0]}] and xs[{pair[1]}] overlap: each array is written in place, so "
            "none may share memory with another"
        )


def _kind(view: buffers.Operand) -> tuple[int, int | None]:
    # What may share a bucket.
    return (view.dtype, view.device if isinstance(view, DeviceView) else None)


def _reduce_packed(
    comm: Reductions, views: Sequence[buffers.View], op: str, timeout: float | None
) -> None:
    comm.settle(sum(view.count for view in views), views[0].dtype, timeout)
    members = [view.array.reshape(-1) for view in views]  # Copies of those that are strided.
    fused = np.concatenate(members)
    comm.reduce_bucket(buffers.View(fused, views[0].dtype, fused.shape), op, timeout)
    begin = 0
    for view, member in zip(views, members, strict=True):
        part = fused[begin : begin + member.size]
        if view.memory is None:
            np.copyto(member, part)
        else:
            np.copyto(view.memory, part.reshape(view.shape))
        begin += member.size
