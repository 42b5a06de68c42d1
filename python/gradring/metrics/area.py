"""Area under the ROC curve, exact over all ranks or by buckets.

Exact: every rank has the examples of a range of scores, sorted, after one exchange (sample sort),
so no rank holds all. By buckets of scores as Paddle's fleet.metrics.auc does it, with a bound of
what the buckets hide.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradring.core_arguments import whole_number
from gradring.errors import InvalidArgument
from gradring.metrics import batches
from gradring.metrics.batches import Floats
from gradring.metrics.exact_sum import add_up, exact_sum, products, quotient
from gradring.metrics.exchange import exchange

# So many examples are kept as they come, and more where there were more different scores before:
# sorting them all again for each few would take quadratic time.
_KEPT = 1 << 20
_SAMPLES_A_RANK = 64  # For each rank there is: shares differ by a few percent then.
_MOST_BUCKETS = 1 << 24
_WHOLE = 2.0**52  # Up to it float64 has twice each whole number.
_MOST_WEIGHT = 2.0**960  # As many as there may be add up to less than the largest float64.


class AUC:
    """The probability that an example of class 1 has a higher score than one of class 0.

    Equal scores count half. Whole-numbered weights (1 where none are given) are counted exactly
    while they are 2**52 at most in all: the value is the true quotient, rounded once. With others
    it is as exact as float64 adds.

    Example:
        >>> import gradring as gr
        >>> auc = gr.metrics.AUC()
        >>> auc.update(labels=[0, 1, 1], scores=[0.2, 0.7, 0.1])
        >>> auc.compute()
        0.5

    Attributes:
        error_bound: How far the last `compute` may be from the exact value; 0 without buckets.
    """

    def __init__(self, *, buckets: int | None = None) -> None:
        """Begin without examples.

        Args:
            buckets: ``None``: exact; memory is 24 bytes for each different score of a rank, and for
                up to as many examples more, or 1,048,576, that are not sorted yet. Else so many of
                the same width from 0 to 1, which scores must lie in; two numbers each.

        Raises:
            InvalidArgument: It is no number from 1 to 16,777,216.
        """
        if buckets is not None:
            buckets = whole_number(buckets, "buckets", 1, _MOST_BUCKETS)
        self._buckets = buckets
        self.reset()

    def reset(self) -> None:
        """Forget all examples."""
        self.error_bound = 0.0
        self._count = self._different = 0  # Of what is kept as it came, and of scores before it.
        self._parts: list[tuple[Floats, Floats, Floats]] = []  # Scores, and weights by class 0, 1.
        self._sums = np.zeros((2, self._buckets or 0))

    def update(self, labels: Any, scores: Any, weights: Any = None) -> None:
        """Add examples.

        Args:
            labels: 0 or 1 each, of any real dtype and shape, on any device.
            scores: As many; only their order counts, and with buckets that they are from 0 to 1.
            weights: As many, from 0 to 2**960; ``None``: 1 each.

        Raises:
            InvalidArgument: They differ in size, or one is not what it may be; nothing was added.
        """
        true, said, counts = batches.batch(("labels", labels), ("scores", scores), weights=weights)
        if (counts > _MOST_WEIGHT).any():
            raise InvalidArgument("weights: one of them is above 2**960; scale them down")
        by_class = [counts * (batches.labels_of_two_classes(true) == which) for which in (0, 1)]
        if self._buckets is None:
            self._parts.append((said, *by_class))
            self._count += said.size
            if self._count > max(_KEPT, self._different):
                self._merge()
            return
        if ((said < 0) | (said > 1)).any():
            raise InvalidArgument("scores: one of them is not from 0 to 1, as buckets need them")
        places = np.minimum((said * self._buckets).astype(np.int64), self._buckets - 1)
        self._sums += [
            np.bincount(places, weights=counted, minlength=self._buckets) for counted in by_class
        ]

    def compute(self, comm: Any = None) -> float:
        """Return the value over the examples of all ranks; every rank calls it.

        Args:
            comm: ``None``: the communicator of this process; without one its own examples alone.

        Returns:
            The same on all ranks; NaN where there are not both classes.

        Raises:
            Error: As `Communicator.all_to_all`.
        """
        comm = batches.ranks_of(comm)
        if self._buckets is None:
            below, above = _of_own_range(comm, *self._merge())
        else:
            below, above = self._sums if comm is None else comm.all_reduce(self._sums.copy())
            comm = None  # All ranks have all of it.
        area, mixed, pairs = _areas(comm, below, above)
        self.error_bound = 0.0 if self._buckets is None else quotient(mixed, 2 * pairs)
        return quotient(area, 2 * pairs)

    def _merge(self) -> tuple[Floats, Floats, Floats]:
        none = np.zeros(0)
        columns = zip((none, none, none), *self._parts, strict=True)
        merged = _by_score(*(np.concatenate(column) for column in columns))
        self._parts = [merged]
        self._count, self._different = 0, merged[0].size
        return merged


def _by_score(scores: Floats, below: Floats, above: Floats) -> tuple[Floats, Floats, Floats]:
    """Return each different score once, in order, with the weights of both classes."""
    different, places = np.unique(scores, return_inverse=True)
    size = different.size

    def summed(weights: Floats) -> Floats:
        if size == 0:
            return weights
        return np.bincount(places, weights=weights, minlength=size).astype(np.float64, copy=False)

    return different, summed(below), summed(above)


def _of_own_range(comm: Any, scores: Floats, below: Floats, above: Floats) -> tuple[Floats, Floats]:
    """Return the weights by score of all ranks' examples in this rank's range of scores, sorted."""
    if comm is None or comm.world_size == 1:
        return below, above
    samples = np.full(_SAMPLES_A_RANK * comm.world_size, np.nan)
    if scores.size > 0:
        samples = scores[np.linspace(0, scores.size - 1, samples.size).astype(np.int64)]
    samples = np.sort(comm.all_gather(samples).reshape(-1))
    samples = samples[~np.isnan(samples)]
    if samples.size == 0:
        return below, above
    ends = samples[np.arange(1, comm.world_size) * samples.size // comm.world_size]
    targets = np.searchsorted(ends, scores, side="right")
    _, below, above = _by_score(*exchange(comm, targets, scores, below, above))
    return below, above


def _areas(comm: Any, below: Floats, above: Floats) -> tuple[int, int, int]:
    """Return twice the pairs in order, those of one score, and all pairs, in one common unit.

    Args:
        comm: Where each rank has a range of scores, higher ones than the rank before; or ``None``.
        below: Weights of class 0 by score, ascending.
        above: Those of class 1.
    """
    is_whole = all((each == np.floor(each)).all() for each in (below, above))
    own = np.array([below.sum(), above.sum(), float(is_whole)])
    everybodys = (own if comm is None else comm.all_gather(own)).reshape(-1, 3)
    lower = everybodys[: 0 if comm is None else comm.rank, 0].sum()
    classes = everybodys[:, :2].sum(axis=0)
    twice_below = 2 * (lower + np.cumsum(below)) - below
    if everybodys[:, 2].all() and classes.sum() <= _WHOLE:
        pairs = int(classes[0]) * int(classes[1])
        own_sums = products(above, twice_below), products(above, below)
    else:
        # Each class in units of about all that it has: no product is too large or too small.
        zeros, ones = (-np.frexp(classes)[1]).tolist()
        with np.errstate(under="ignore"):
            below, twice_below = np.ldexp(below, zeros), np.ldexp(twice_below, zeros)
            above = np.ldexp(above, ones)
            own_sums = exact_sum(above * twice_below), exact_sum(above * below)
        pairs = exact_sum(np.array([np.ldexp(classes, (zeros, ones)).prod()]))
    area, mixed = add_up(comm, *own_sums)
    return min(area, 2 * pairs), mixed, pairs  # Rounding must not make it more than 1.
