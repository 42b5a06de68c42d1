"""Streams of ids as recommenders see them: few are hot, most are rare."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: scatters what is neighboured.


def zipf_ids(rows: int, count: int, skew: float, seed: int) -> Ids:
    """Draw ids of which the k-th most frequent comes about k^-skew as often as the first.

    The continuous distribution's inverse, rounded down: exact enough, and it needs no tables.
    Hot ids are scattered over all 64 bits, as hashed features are.

    Args:
        rows: Different ids there are.
        count: Ids to draw.
        skew: Zipf's exponent; 0 draws all ids alike.
        seed: Same seed, same ids.

    Returns:
        uint64, shape ``(count,)``.
    """
    uniform = np.random.default_rng(seed).random(count)
    if skew == 0:
        ranks = uniform * rows
    elif skew == 1:
        ranks = np.exp(uniform * np.log(rows + 1)) - 1
    else:
        power = 1 - skew
        ranks = (uniform * ((rows + 1) ** power - 1) + 1) ** (1 / power) - 1
    return _scattered(np.minimum(ranks.astype(np.uint64), np.uint64(rows - 1)))


def all_ids(rows: int, at_once: int) -> Iterator[Ids]:
    """Go through every id that `zipf_ids` can draw, the most frequent first, in blocks."""
    for begin in range(0, rows, at_once):
        yield _scattered(np.arange(begin, min(rows, begin + at_once), dtype=np.uint64))


def _scattered(ranks: Ids) -> Ids:
    scattered: Ids = (ranks + np.uint64(1)) * _ODD
    return scattered
