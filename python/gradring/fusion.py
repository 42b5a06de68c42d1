"""Buckets: many small arrays in few operations.

`Communicator.all_reduce_many` and the optimizers pack arrays of one dtype into contiguous buckets,
because an operation costs a latency whatever its size (Horovod calls this tensor fusion, PyTorch
gradient bucketing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradring import arrays
from gradring.errors import InvalidArgument

if TYPE_CHECKING:
    from gradring.reductions import Reductions


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


def reduce_many(
    comm: Reductions, xs: Sequence[Any], op: str, bucket_bytes: int, timeout: float | None
) -> list[Any]:
    """Do the work of `Communicator.all_reduce_many`."""
    if bucket_bytes <= 0:
        raise InvalidArgument(f"bucket_bytes must be positive, got {bucket_bytes}")
    results = list(xs)
    views = [arrays.view(x, f"xs[{index}]", writes=True) for index, x in enumerate(results)]
    sizes_bytes = [view.buffer.nbytes for view in views]
    buckets = assign_buckets(sizes_bytes, [view.dtype for view in views], bucket_bytes)
    for bucket in buckets:
        if len(bucket) == 1:
            comm.all_reduce(results[bucket[0]], op, timeout=timeout)
            continue
        members = [views[index].buffer.reshape(-1) for index in bucket]
        fused = np.concatenate(members)
        dtype = views[bucket[0]].dtype
        comm.reduce_bucket(arrays.View(fused, dtype, fused.shape), op, timeout)
        begin = 0
        for index, member in zip(bucket, members, strict=True):
            np.copyto(member, fused[begin : begin + member.size])
            begin += member.size
            unpack = views[index].unpack
            if unpack is not None:
                unpack()
    return results
