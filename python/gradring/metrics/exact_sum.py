"""Sums of floats without rounding: the same in any order, on any number of ranks.

A float64 is a whole number of units of 2**-1126, so a sum is a Python integer. It is rounded once,
when a quotient of two is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradring.errors import Mismatch

UNITS_BITS = 1126  # A unit is 2**-1126: the last bit of the least subnormal number's mantissa.

_MANTISSA_BITS = 53
_LOW_BITS = 26
# So many halves of mantissas add up exactly in float64, which is what bincount adds in.
_AT_ONCE = 1 << 25
# The largest float64 has 2,150 bits in units; the rest is for as many of them as there may be.
_WIRE_BYTES = 320
_NAME_BYTES = 32


def exact_sum(values: NDArray[np.float64]) -> int:
    """Return the sum of finite numbers, in units."""
    total = 0
    for first in range(0, values.size, _AT_ONCE):
        mantissas, exponents = np.frexp(values[first : first + _AT_ONCE])
        whole = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
        shifts = exponents.astype(np.int64) + (UNITS_BITS - _MANTISSA_BITS)
        high, low = whole >> _LOW_BITS, whole & ((1 << _LOW_BITS) - 1)
        highs, lows = (np.bincount(shifts, weights=half) for half in (high, low))
        for shift in np.flatnonzero((highs != 0) | (lows != 0)).tolist():
            total += ((int(highs[shift]) << _LOW_BITS) + int(lows[shift])) << shift
    return total


def products(first: NDArray[Any], second: NDArray[Any]) -> int:
    """Return the sum of the products of whole numbers, none negative and none above 2**53."""
    half = 27
    total = 0
    for one, one_shift in _halves(first, half):
        for other, other_shift in _halves(second, half):
            each = one * other  # Below 2**54, and their sum perhaps above 2**63.
            high, low = int((each >> 32).sum()), int((each & 0xFFFFFFFF).sum())
            total += ((high << 32) + low) << (one_shift + other_shift)
    return total


def _halves(whole: NDArray[Any], bits: int) -> list[tuple[NDArray[np.int64], int]]:
    whole = whole.astype(np.int64)
    return [(whole & ((1 << bits) - 1), 0), (whole >> bits, bits)]


def add_up(comm: Any, *totals: int, of: str = "") -> list[int]:
    """Return the sums over all ranks of some integers.

    Args:
        comm: ``None``: this process alone.
        totals: This rank's.
        of: What is computed; calls for other things look alike otherwise. 32 bytes of it count.

    Raises:
        Mismatch: A rank computes something else.
    """
    if comm is None or comm.world_size == 1:
        return list(totals)
    own = [of.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")]
    own += [total.to_bytes(_WIRE_BYTES, "little", signed=True) for total in totals]
    everybodys = comm.all_gather(np.frombuffer(b"".join(own), np.uint8))
    sums = [0] * len(totals)
    for rank, row in enumerate(everybodys.reshape(comm.world_size, -1)):
        if (name := row[:_NAME_BYTES].tobytes()) != own[0]:
            other = name.rstrip(b"\0").decode(errors="replace")
            raise Mismatch(f"rank {comm.rank} computes {of}, but rank {rank} computes {other}")
        for place, part in enumerate(np.split(row[_NAME_BYTES:], len(totals))):
            sums[place] += int.from_bytes(part.tobytes(), "little", signed=True)
    return sums


def quotient(dividend: int, divisor: int) -> float:
    """Return a quotient, rounded once; of nothing by nothing it is NaN, beyond float64 infinite."""
    if divisor == 0:
        return float("nan")
    try:
        return dividend / divisor
    except OverflowError:
        return float("inf") if (dividend > 0) == (divisor > 0) else float("-inf")
