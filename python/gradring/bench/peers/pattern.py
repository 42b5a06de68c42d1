"""What buffers hold before a call and must hold after it, on every rank.

Values are small whole numbers, so that the right result is exact in any order of additions. They
repeat with a short period: filling and comparing work on one tile that stays in the cache, and the
check of a large buffer takes no second one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_TILE_BYTES = 64 << 10
POISON = 0x55


@dataclass(frozen=True)
class Case:
    """One operation on one size.

    Attributes:
        op: As on the command line.
        count: Elements of the whole message; for operations that cut it, a multiple of the ranks.
        dtype: NumPy's name, or bfloat16.
        reduce_op: As in `all_reduce`.
    """

    op: str
    count: int
    dtype: str
    reduce_op: str = "sum"


@dataclass(frozen=True)
class Segment:
    """A stretch of a result: whose elements (``None``: everybody's, reduced), and from where on."""

    count: int
    owner: int | None
    start: int


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the element type.

    Raises:
        ImportError: bfloat16 without ml_dtypes.
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError("bfloat16 needs ml_dtypes: pip install ml_dtypes") from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def buffer_counts(case: Case, rank: int, size: int, root: int = 0) -> tuple[int, int]:
    """Return the elements that this rank's input and output buffers have; 0 where there is none."""
    part = case.count // size
    is_root = rank == root
    return {
        "all_reduce": (case.count, 0),
        "broadcast": (case.count, 0),
        "reduce": (case.count, case.count if is_root else 0),
        "reduce_scatter": (case.count, part),
        "all_gather": (part, case.count),
        "gather": (part, case.count if is_root else 0),
        "scatter": (case.count if is_root else 0, part),
        "all_to_all": (case.count, case.count),
        "sendrecv": (case.count, case.count),
        "barrier": (0, 0),
    }[case.op]


def result_segments(case: Case, rank: int, size: int, root: int = 0) -> list[Segment]:
    """Return what this rank's result consists of; nothing where it gets none."""
    part = case.count // size
    everybody = [Segment(part, owner, 0) for owner in range(size)]
    is_root = rank == root
    return {
        "all_reduce": [Segment(case.count, None, 0)],
        "broadcast": [Segment(case.count, root, 0)],
        "reduce": [Segment(case.count, None, 0)] if is_root else [],
        "reduce_scatter": [Segment(part, None, rank * part)],
        "all_gather": everybody,
        "gather": everybody if is_root else [],
        "scatter": [Segment(part, root, rank * part)],
        "all_to_all": [Segment(part, owner, rank * part) for owner in range(size)],
        "sendrecv": [Segment(case.count, (rank - 1) % size, 0)],
        "barrier": [],
    }[case.op]


def fill(x: Array, case: Case, rank: int) -> None:
    """Write rank's own elements."""
    tile = _tile(case, Segment(x.size, rank, 0), 1)
    for begin in range(0, x.size, tile.size):
        end = min(begin + tile.size, x.size)
        x[begin:end] = tile[: end - begin]


def poison(x: Array) -> None:
    """Write what no result holds, so that a call that does nothing is seen."""
    x.view(np.uint8).fill(POISON)


def count_wrong(result: Array, case: Case, rank: int, size: int) -> int:
    """Return how many elements of this rank's result are not what they must be, bit for bit."""
    wrong = 0
    position = 0
    bits = np.dtype(f"u{result.dtype.itemsize}")
    for segment in result_segments(case, rank, size):
        tile = _tile(case, segment, size).view(bits)
        for begin in range(0, segment.count, tile.size):
            length = min(tile.size, segment.count - begin)
            got = result[position + begin : position + begin + length].view(bits)
            wrong += int(np.count_nonzero(got != tile[:length]))
        position += segment.count
    return wrong


def _tile(case: Case, segment: Segment, size: int) -> Array:
    """Return the segment's first elements, as many as fit into a whole number of periods."""
    dtype = numpy_dtype(case.dtype)
    period = _period(case, dtype)
    length = period * max(1, _TILE_BYTES // dtype.itemsize // period)
    index = segment.start % period + np.arange(min(length, max(1, segment.count)))
    if segment.owner is not None:
        return _values(case, dtype, segment.owner, index)
    operands = [_values(case, dtype, rank, index) for rank in range(size)]
    return _reduced(operands, case.reduce_op, dtype)


def _period(case: Case, dtype: np.dtype[Any]) -> int:
    # So small that sums over many ranks stay exact, and products within what halves can hold.
    if case.reduce_op == "prod" or dtype == np.bool_:
        return 2
    return 3 if dtype.itemsize <= 2 else 11


def _values(case: Case, dtype: np.dtype[Any], rank: int, index: Array) -> Array:
    period = _period(case, dtype)
    first = 0 if dtype == np.bool_ else 1
    return (first + (index * 7 + rank * 5) % period).astype(dtype)


def _reduced(operands: list[Array], op: str, dtype: np.dtype[Any]) -> Array:
    if dtype == np.bool_:
        op = {"sum": "bor", "max": "bor", "prod": "band", "min": "band"}.get(op, op)
    is_float = dtype.kind not in "iub"
    wide = np.float64 if is_float else (np.bool_ if dtype == np.bool_ else np.int64)
    combine = {
        "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }[op]  # fmt: skip
    total = operands[0].astype(wide)
    for operand in operands[1:]:
        total = combine(total, operand.astype(wide))
    if op == "avg":
        if not is_float:
            total = total // len(operands)
        else:  # In the type that the library divides in: halves are averaged as float32.
            narrow = np.float64 if dtype.itemsize == 8 else np.float32
            total = total.astype(narrow) / narrow(len(operands))
    return total.astype(dtype)
