"""`ReadIds`: which ids of a table were read already, while others push to it and remove rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class ReadIds:
    """The ids that pages of one shard had; 8 bytes each.

    Rows are read in the order of their places. One that is removed and made again meanwhile may get
    a place further on, with a stamp that is later than everything read before.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._runs: list[Array] = []  # Sorted, each more than twice as long as the next one.
        self._first_stamp: int | None = None  # The latest of the first page that had rows.

    def take(self, ids: Array, stamps: Array) -> Array:
        """Note a page's ids.

        Args:
            ids: uint64 (n,), distinct.
            stamps: uint64 (n,), when each row changed last.

        Returns:
            bool (n,): which of them no page before had.
        """
        is_new = np.ones(len(ids), np.bool_)
        if len(ids) == 0:
            return is_new
        if self._first_stamp is None:
            self._first_stamp = int(stamps.max())
        else:
            # Others are as old as what was read first: nobody has made them since.
            late = np.flatnonzero(stamps > self._first_stamp)
            is_new[late] = ~self._had(ids[late])
        self._add(np.sort(ids[is_new]))
        return is_new

    def _had(self, ids: Array) -> Array:
        found = np.zeros(len(ids), np.bool_)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, ids), len(run) - 1)
            found |= run[at] == ids
        return found

    def _add(self, run: Array) -> None:
        if len(run) == 0:
            return
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]))
        self._runs.append(run)
