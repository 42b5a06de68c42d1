"""What reductions must give, in NumPy: slow, plain, and adding in the documented order.

The orders are those of docs/semantics.md: ``ring`` starts chunk c at rank c + 1, ``tree`` adds
neighbours pairwise, ``rank`` goes 0, 1, 2, ... 16-bit floats are added in float32 and rounded once.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
DTYPES = (*FLOATS, *INTEGERS, "bool")
_ARITHMETIC = ("sum", "avg", "prod", "min", "max")
_BITWISE = ("band", "bor", "bxor")


def ops_of(dtype: str) -> tuple[str, ...]:
    """Return the operators that are defined for a dtype."""
    if dtype in FLOATS:
        return _ARITHMETIC
    return (
        (*_ARITHMETIC, *_BITWISE)
        if dtype != "bool"
        else (*_ARITHMETIC[:1], *_ARITHMETIC[2:], *_BITWISE)
    )


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def sample(dtype: str, count: int, *seed: object) -> Array:
    """Make values of many magnitudes, whose sum shows the order; both zeros included.

    The same arguments give the same values, in an array that is the caller's own.
    """
    made = _short_sample if count <= _SHORT else _long_sample
    return made(dtype, count, repr((dtype, count, *seed))).copy()


def _made(dtype: str, count: int, seed: str) -> Array:
    random = np.random.default_rng(zlib.crc32(seed.encode()))
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, count, dtype, endpoint=True)
    values = random.standard_normal(count) * 2.0 ** random.integers(-6, 6, count)
    values[random.random(count) < 0.05] = random.choice([0.0, -0.0])
    return values.astype(numpy_dtype(dtype))


# Every rank makes its own and the test all of them, once for each operator: making them took longer
# than what is tested. At most 128 MiB of short ones; of long ones as many as 8 ranks have in the
# three cases of a test.
_SHORT = 2048  # Elements.
_short_sample = functools.lru_cache(maxsize=8192)(_made)
_long_sample = functools.lru_cache(maxsize=24)(_made)


def order_for(op: str, world_size: int, nbytes: int) -> str:
    """Tell the order of the default algorithm."""
    most = max(min(256 * 1024 * world_size, 2 << 20), 32 * 1024 * world_size)
    reduces = op in ("all_reduce", "reduce_scatter", "reduce")
    return "tree" if reduces and world_size > 2 and nbytes <= most else "ring"


def even_parts(count: int, world_size: int) -> list[int]:
    edges = [rank * count // world_size for rank in range(world_size + 1)]
    return [end - begin for begin, end in itertools.pairwise(edges)]


def reduced(
    inputs: Sequence[Array], op: str, order: str, parts: Sequence[int] | None = None
) -> Array:
    """Combine all ranks' vectors: the bits that every rank must get."""
    size = len(inputs)
    parts = even_parts(inputs[0].size, size) if parts is None else parts
    chunks = []
    begin = 0
    for owner, count in enumerate(parts):
        operands = [x.reshape(-1)[begin : begin + count] for x in inputs]
        if order == "ring":
            operands = [operands[(owner + 1 + step) % size] for step in range(size)]
        chunks.append(_folded(operands, op, is_tree=order == "tree"))
        begin += count
    return np.concatenate(chunks).reshape(inputs[0].shape)


def _folded(operands: list[Array], op: str, *, is_tree: bool) -> Array:
    dtype = operands[0].dtype
    is_half = dtype.itemsize == 2 and dtype.kind not in "iu"
    work = [x.astype(np.float32) for x in operands] if is_half else operands
    if dtype.kind == "b":
        # NumPy 1.24.0 makes True of some bytes other than 1 in `^` of two arrays of bool.
        work = [x.view(np.uint8) for x in operands]
    combine = _COMBINE[op if dtype.kind != "b" else _OF_BOOL[op]]
    with np.errstate(all="ignore"):
        total = _tree(work, combine) if is_tree else _left(work, combine)
        if op == "avg":
            total = _divided(total, len(operands))
        return total.astype(dtype)


def _left(operands: Sequence[Array], combine: Callable[[Array, Array], Array]) -> Array:
    total = operands[0]
    for operand in operands[1:]:
        total = combine(total, operand)
    return total


def _tree(operands: Sequence[Array], combine: Callable[[Array, Array], Array]) -> Array:
    width = 1 << (len(operands).bit_length() - 1)
    level = [
        combine(operands[i], operands[i + width]) if i + width < len(operands) else operands[i]
        for i in range(width)
    ]
    while len(level) > 1:
        level = [combine(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def _divided(total: Array, divisor: int) -> Array:
    if total.dtype.kind not in "iu":
        return total / total.dtype.type(divisor)
    quotient = total // total.dtype.type(divisor)
    was_cut_down = (total < 0) & (quotient * total.dtype.type(divisor) != total)
    return quotient + was_cut_down.astype(total.dtype)


def _smaller(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        return np.minimum(a, b)
    # IEEE 754-2019: -0 is less than +0, which NumPy does not promise.
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.minimum(a, b))


def _larger(a: Array, b: Array) -> Array:
    return np.maximum(a, b) if a.dtype.kind in "iu" else -_smaller(-a, -b)


_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add, "avg": np.add, "prod": np.multiply, "min": _smaller, "max": _larger,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
_OF_BOOL = {
    "sum": "bor", "max": "bor", "bor": "bor", "prod": "band", "min": "band", "band": "band",
    "bxor": "bxor",
}  # fmt: skip
