"""What `gradring tune` measures: named algorithms on some sizes, and how often."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# All that reduce or gather between equals. In a broadcast the root runs ahead, so batches of calls
# show less than one call takes.
_ALGORITHMS = {
    "all_reduce": ("ring", "doubling", "halving", "direct", "gather"),
    "reduce_scatter": ("ring", "doubling", "halving", "direct"),
    "all_gather": ("ring", "doubling", "direct"),
}
_ITEM_BYTES = 4
# Beyond, whole vectors to everybody only take time: nobody would choose that.
_MOST_GATHERED = 256 << 10


@dataclass(frozen=True)
class Case:
    """One algorithm on one size.

    Attributes:
        op: An operation.
        algorithm: By name.
        nbytes: Of the whole message; whole elements for every rank.
    """

    op: str
    algorithm: str
    nbytes: int


@dataclass(frozen=True)
class Pace:
    """How long to measure.

    Attributes:
        sizes: Bytes.
        rounds: Over all cases.
        seconds: For a case in a round.
        additions: How often the kernel is timed, on every rank.
    """

    sizes: tuple[int, ...]
    rounds: int
    seconds: float
    additions: int


_SIZES = (64, 1 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20)
FULL = Pace(_SIZES, 9, 0.01, 200)
QUICK = Pace((64, 8 << 10, 64 << 10, 512 << 10), 7, 0.001, 50)
WARM_ROUNDS = 3

_MOST_CALLS = 500


def make_cases(pace: Pace, ranks: int, *, has_flat: bool) -> list[Case]:
    """Return the cases, small ones first.

    Args:
        pace: Which sizes.
        ranks: Each of them has a whole number of elements.
        has_flat: Whether all ranks share memory, so that there is ``flat`` too.
    """
    grain = _ITEM_BYTES * ranks
    return [
        Case(op, algorithm, math.ceil(size / grain) * grain)
        for size in pace.sizes
        for op, algorithms in _ALGORITHMS.items()
        for algorithm in (*algorithms, *(["flat"] if has_flat else []))
        if algorithm != "gather" or size <= _MOST_GATHERED
    ]


def calls_of(seconds: Sequence[float], pace: Pace) -> list[int]:
    """Return how many calls of each case fit a round's time, from what one took."""
    return [max(1, min(_MOST_CALLS, int(pace.seconds / max(each, 1e-7)))) for each in seconds]
