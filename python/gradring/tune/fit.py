"""From the times of real algorithms to the cost model's figures, and how good both are.

The model (csrc/collectives/plan/choose.cc) is linear in latency, latency times further links, and
the inverse of each rate. What an addition costs is known from the kernel alone; the others are the
weighted least squares of what is left, none of them negative. Errors count as parts of what was
measured, so that a microsecond of a short call weighs as much as a millisecond of a long one, and
less where they are large (Huber's weights): a round that the machine was busy in must not bend
everything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.settings.cost_profile import Costs
from gradring.tune import choices
from gradring.tune.choices import Question
from gradring.tune.schedule import Case

Array = npt.NDArray[np.float64]

_BYTES_PER_US = 1e3  # Of one GB/s.
_REWEIGHTINGS = 20
_HUBER = 0.1  # An error of more than this part counts less than in full.
# What a profile may hold; a fit at the edge has seen nothing of that figure.
_LEAST_LATENCY_US = 0.01
_MOST_GB_S = 1e4
_MOST_FURTHER = 8.0


@dataclass(frozen=True)
class Quality:
    """How far costs can be trusted where they were measured.

    Attributes:
        error: Median of |estimated / measured - 1| over all cases.
        lost: By how much, as a part, the algorithms that the planner would take were slower than
            the fastest that was measured; mean over operations and sizes.
        worst: The largest of those.
    """

    error: float
    lost: float
    worst: float


@dataclass(frozen=True)
class Times:
    """What was measured.

    Attributes:
        seconds: A call of each case, float32.
        ranks: Between so many ranks.
    """

    seconds: Mapping[Case, float]
    ranks: int

    def over_links(self) -> Times:
        """Leave out what goes through a shared segment, which the model does not cover."""
        kept = {case: each for case, each in self.seconds.items() if case.algorithm != "flat"}
        return Times(kept, self.ranks)

    def by_size(self) -> dict[tuple[str, int], dict[str, float]]:
        """Return the seconds by operation and bytes, then by algorithm."""
        found: dict[tuple[str, int], dict[str, float]] = {}
        for case, each in self.seconds.items():
            found.setdefault((case.op, case.nbytes), {})[case.algorithm] = each
        return found


def fit(measured: Times, reduce_gb_s: float) -> Costs:
    """Return the costs that explain the times over links best.

    Args:
        measured: The times.
        reduce_gb_s: The kernel's rate, as it was measured.
    """
    cases = list(measured.over_links().seconds)
    times = np.array([measured.seconds[case] for case in cases]) * 1e6
    terms = np.array([_terms(case, measured.ranks) for case in cases])
    known = terms[:, 3] / (reduce_gb_s * _BYTES_PER_US)
    # A piece in the cache is added faster than the kernel alone was seen to; never all of a call.
    rest = np.maximum(times - known, 0.1 * times)
    has_further = bool(np.any(terms[:, 1] > 0))
    columns = [0, 1, 2] if has_further else [0, 2]
    found = np.zeros(3)
    found[columns] = _solve(terms[:, columns] / times[:, None], rest / times)
    latency = max(float(found[0]), _LEAST_LATENCY_US)
    further = float(found[1]) / latency
    if not has_further:  # Two ranks have one link.
        further = choices.default_costs()["tcp"].further_link
    bandwidth = _MOST_GB_S if found[2] <= 0 else min(_MOST_GB_S, 1 / found[2] / _BYTES_PER_US)
    return Costs(latency, float(bandwidth), reduce_gb_s, min(further, _MOST_FURTHER))


def quality_of(measured: Times, costs: Costs) -> Quality:
    """Compare costs with what was measured over links."""
    times = measured.over_links()
    errors = [
        abs(_estimates(case, times.ranks, costs.as_tuple())[case.algorithm] / (each * 1e6) - 1)
        for case, each in times.seconds.items()
    ]
    lost = []
    for (op, nbytes), seconds in times.by_size().items():
        # Over links, also where ranks that share memory would not use them.
        question = Question(op, times.ranks, "tcp")
        possible = choices.estimates(question, nbytes, costs.as_tuple()).keys() & seconds.keys()
        taken = choices.choose(question, nbytes, costs).algorithm
        if taken in possible:
            lost.append(seconds[taken] / min(seconds[name] for name in possible) - 1)
    return Quality(float(np.median(errors)), float(np.mean(lost)), float(max(lost)))


def flat_wins(measured: Times) -> tuple[int, int]:
    """Return in how many cases the shared segment was the fastest, and of how many."""
    groups = [seconds for seconds in measured.by_size().values() if "flat" in seconds]
    won = sum(seconds["flat"] == min(seconds.values()) for seconds in groups)
    return won, len(groups)


def typical_of(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
    """Return each case's seconds: of the slowest rank, and of those the lower quartile of rounds.

    Whatever else runs only adds to a time. The median would still hold it where more than half of
    the rounds were hit; the shortest would be the luckiest round of ranks that share cores.
    """
    slowest = np.array([np.max([rank["seconds"] for rank in each], axis=0) for each in rounds])
    return [float(value) for value in np.quantile(slowest, 0.25, axis=0)]


def _terms(case: Case, ranks: int) -> tuple[float, float, float, float]:
    """Return what the model multiplies with latency, with latency of further links, and divides."""

    def of(*costs: float) -> float:
        return _estimates(case, ranks, costs)[case.algorithm]

    never = math.inf
    steps = of(1, never, never, 0)
    return (
        steps,
        of(1, never, never, 1) - steps,
        of(0, 1, never, 0) * _BYTES_PER_US,
        of(0, never, 1, 0) * _BYTES_PER_US,
    )


def _estimates(case: Case, ranks: int, costs: Sequence[float]) -> dict[str, float]:
    question = Question(case.op, ranks, "tcp")
    return choices.estimates(question, case.nbytes, costs, any_order=True)


def _solve(matrix: Array, wanted: Array) -> Array:
    """Least squares with Huber's weights and no negative solution."""
    weights = np.ones(len(wanted))
    solution = np.zeros(matrix.shape[1])
    for _ in range(_REWEIGHTINGS):
        solution = _least_squares(matrix * weights[:, None], wanted * weights)
        errors = np.abs(matrix @ solution - wanted)
        weights = np.sqrt(_HUBER / np.maximum(errors, _HUBER))
    return solution


def _least_squares(matrix: Array, wanted: Array) -> Array:
    """Return the best solution without a negative part: the best of those with parts left out."""
    columns = range(matrix.shape[1])
    best, least = np.zeros(len(columns)), math.inf
    for count in range(1, len(columns) + 1):
        for kept in map(list, itertools.combinations(columns, count)):
            part = np.linalg.lstsq(matrix[:, kept], wanted, rcond=None)[0]
            if np.any(part < 0):
                continue
            left = float(np.sum((matrix[:, kept] @ part - wanted) ** 2))
            if left < least:
                best, least = np.zeros(len(columns)), left
                best[kept] = part
    return best
