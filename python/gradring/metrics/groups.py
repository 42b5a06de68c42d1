"""Order within groups of examples: those of one query, one session, one user.

Examples of a group may come in any batch, on any rank: all of them are brought to one rank first.
Paddle's positive_negative_pair pairs those of one batch on one worker only, so its ratio depends
on how the data was cut. Pairs are counted in integers; each group's area is rounded to float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradring.errors import InvalidArgument
from gradring.metrics import batches
from gradring.metrics.batches import Floats
from gradring.metrics.exact_sum import add_up, exact_sum, products, quotient
from gradring.metrics.exchange import exchange

_MOST_LABELS = 1000  # Each costs a pass over the examples.

Counts = NDArray[np.int64]


class PairCounts(NamedTuple):
    """How pairs of examples of one group with different labels are ordered by their scores.

    Attributes:
        concordant: Those whose example with the higher label has the higher score.
        discordant: Those where it has the lower one.
        tied: Those with one score.
    """

    concordant: int
    discordant: int
    tied: int

    @property
    def ratio(self) -> float:
        """Concordant over discordant pairs (PNR); infinite without the latter, NaN without both."""
        if self.discordant == 0:
            return float("inf") if self.concordant else float("nan")
        return quotient(self.concordant, self.discordant)


class _Groups:
    """Examples of groups, as they come."""

    def __init__(self) -> None:
        """Begin without examples."""
        self.reset()

    def reset(self) -> None:
        """Forget all examples."""
        self._parts: list[tuple[Counts, Floats, Floats]] = []  # Groups, scores, labels.

    def update(self, labels: Any, scores: Any, groups: Any) -> None:
        """Add examples; 24 bytes each are kept until `reset`, and `compute` needs some 80 more.

        Args:
            labels: Numbers of any real dtype and shape, on any device.
            scores: As many; only their order counts.
            groups: As many whole numbers that int64 holds: which group each example is of.

        Raises:
            InvalidArgument: They differ in size, or one is not what it may be; nothing was added.
        """
        true, said, _ = batches.batch(("labels", labels), ("scores", scores))
        ids = _group_ids(groups, true.size)
        self._check(true)
        self._parts.append((ids, said, true))

    def _check(self, labels: Floats) -> None:
        raise NotImplementedError

    def _cells(self, comm: Any) -> tuple[_Cells, Floats]:
        """Return the cells of whole groups that are this rank's to count, and their labels."""
        none = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        columns = zip(none, *self._parts, strict=True)
        groups, scores, labels = (np.concatenate(column) for column in columns)
        if comm is not None and comm.world_size > 1:
            # Mixed, as numbers of groups often have a pattern: splitmix64's first step.
            mixed = groups.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(33)
            targets = (mixed % np.uint64(comm.world_size)).astype(np.int64)
            groups, scores, labels = exchange(comm, targets, groups, scores, labels)
        order = np.lexsort((scores, groups))
        return _Cells(groups[order], scores[order]), labels[order]


class GroupAUC(_Groups):
    """The mean of the groups' areas under the ROC curve, each group as often as it has examples.

    Labels are 0 or 1. Groups without both are left out. As in Zhu et al., "Optimized Cost per Click
    in Taobao Display Advertising" (2017).
    """

    def compute(self, comm: Any = None) -> float:
        """Return the value over the examples of all ranks; every rank calls it.

        Args:
            comm: ``None``: the communicator of this process; without one its own examples alone.

        Returns:
            The same on all ranks; NaN where no group has both labels.

        Raises:
            Error: As `Communicator.all_to_all`.
        """
        comm = batches.ranks_of(comm)
        cells, labels = self._cells(comm)
        below, above = (cells.count(labels == which) for which in (0, 1))
        twice = cells.by_group(above * (2 * cells.before(below) + below))
        zeros, ones = cells.by_group(below), cells.by_group(above)
        has_both = (zeros > 0) & (ones > 0)
        twice, zeros, ones = twice[has_both], zeros[has_both], ones[has_both]
        sizes = (zeros + ones).astype(np.float64)
        areas = twice / (2.0 * zeros * ones)
        return quotient(*add_up(comm, exact_sum(areas * sizes), exact_sum(sizes)))

    def _check(self, labels: Floats) -> None:
        batches.labels_of_two_classes(labels)


class PairOrder(_Groups):
    """Pairs of examples of one group: how many have their scores in the order of their labels.

    Labels may be grades; up to 1,000 different ones.
    """

    def reset(self) -> None:
        """Forget all examples."""
        super().reset()
        self._labels = np.zeros(0)

    def compute(self, comm: Any = None) -> PairCounts:
        """Return the pairs of the examples of all ranks; every rank calls it.

        Args:
            comm: ``None``: the communicator of this process; without one its own examples alone.

        Returns:
            The same on all ranks.

        Raises:
            Error: As `Communicator.all_to_all`.
        """
        comm = batches.ranks_of(comm)
        cells, labels = self._cells(comm)
        pairs = concordant = tied = 0
        for grade in np.unique(labels)[1:]:
            lower, higher = cells.count(labels < grade), cells.count(labels == grade)
            pairs += products(cells.by_group(lower), cells.by_group(higher))
            concordant += products(higher, cells.before(lower))
            tied += products(higher, lower)
        pairs, concordant, tied = add_up(comm, pairs, concordant, tied)
        return PairCounts(concordant, pairs - concordant - tied, tied)

    def _check(self, labels: Floats) -> None:
        known = np.union1d(self._labels, labels)
        if known.size > _MOST_LABELS:
            raise InvalidArgument(
                f"labels: more than {_MOST_LABELS} different ones; give grades, not measurements"
            )
        self._labels = known


class _Cells:
    """Examples of one group and one score, in the order of both."""

    def __init__(self, groups: Counts, scores: Floats) -> None:
        """Cut what is sorted by group, then score."""
        begins_group = np.ones(groups.size, bool)
        begins_group[1:] = groups[1:] != groups[:-1]
        begins = begins_group.copy()
        begins[1:] |= scores[1:] != scores[:-1]
        self._cell_of = np.cumsum(begins) - 1
        self._size = int(begins.sum())
        self._first_of_group = self._cell_of[begins_group]  # The first cell of each.
        self._group_of = np.cumsum(begins_group[begins]) - 1  # By cell.

    def count(self, which: NDArray[np.bool_]) -> Counts:
        """Return how many of some examples each cell has."""
        return np.bincount(self._cell_of[which], minlength=self._size)

    def by_group(self, counts: Counts) -> Counts:
        """Add up what cells have, for each group."""
        if self._size == 0:
            return counts
        sums: Counts = np.add.reduceat(counts, self._first_of_group)
        return sums

    def before(self, counts: Counts) -> Counts:
        """Return how many cells of lower scores of the same group have."""
        if self._size == 0:
            return counts
        before: Counts = np.cumsum(counts) - counts
        of_lower_groups: Counts = before[self._first_of_group][self._group_of]
        return before - of_lower_groups


def _group_ids(groups: Any, size: int) -> Counts:
    try:
        found = np.asarray(groups.detach().cpu() if hasattr(groups, "detach") else groups)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"groups: whole numbers are wanted: {error}") from None
    found = found.reshape(-1)
    if found.dtype.kind not in "iu" and found.size > 0:
        raise InvalidArgument(f"groups: whole numbers are wanted, not {found.dtype}")
    if found.size != size:
        raise InvalidArgument(f"groups: {found.size} of them, but {size} labels")
    if found.dtype == np.uint64 and (found > np.iinfo(np.int64).max).any():
        raise InvalidArgument("groups: one of them is above 2**63 - 1, which int64 does not hold")
    return found.astype(np.int64)
