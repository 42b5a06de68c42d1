"""Rows of sparse tables on the worker: gradients merged by id, and a growing map id -> row.

Whole arrays at a time, no loop over ids in Python. Used by one thread.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring import _core
from gradring.modes.stores.store import Array, Ids
from gradring.ps.arguments.requests import fitting_rows

Slots = npt.NDArray[np.int64]

_FEWEST = 1024


def merge(ids: Any, grads: Any, dim: int) -> tuple[Ids, Array]:
    """Add up the gradients of equal ids, in the order given.

    Args:
        ids: Any shape.
        grads: One row of ``dim`` for each id: ``ids.shape + (dim,)`` or ``(ids.size, dim)``.
        dim: Floats a row.

    Returns:
        The distinct ids in the order of their first occurrence, and a row of float32 for each.

    Raises:
        InvalidArgument: Shapes or dtypes do not fit.
    """
    return summed(*fitting_rows("rows to add up", dim, ids, grads))


def summed(ids: Ids, rows: Array) -> tuple[Ids, Array]:
    """Do the same with a contiguous row for each of ``ids``, which are flat.

    Both arrays are new also where no id is there twice.
    """
    distinct, sums = np.empty_like(ids), np.empty_like(rows)
    count = _core.sum_rows(ids, rows, distinct, sums)
    return distinct[:count], sums[:count]


class IdIndex:
    """A map from ids to slots 0, 1, 2, ... in the order of first appearance.

    Open addressing with linear probing, a whole array of ids at a time.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._count = 0
        self._asked: deque[tuple[Ids, Slots]] = deque(maxlen=2)  # A step's, and the next one's.
        self._allocate(2 * _FEWEST)

    def __len__(self) -> int:
        """Return the number of ids."""
        return self._count

    @property
    def ids(self) -> Ids:
        """The ids, by slot; a view that is valid until the next `add`."""
        return self._ids[: self._count]

    def find(self, ids: Ids) -> Slots:
        """Return the slot of each id; -1 where there is none."""
        slots = np.empty(len(ids), np.int64)
        _core.find_ids(self._slots, self._ids, np.ascontiguousarray(ids, np.uint64), slots)
        return slots

    def find_again(self, ids: Ids) -> Slots:
        """Do the same where the same ids come several times: before, in and after their step.

        An id keeps its slot, so that only those are looked up again that had none.
        """
        for asked, known in self._asked:
            if np.array_equal(asked, ids):
                is_unknown = known < 0
                if is_unknown.any():
                    known[is_unknown] = self.find(ids[is_unknown])
                return np.array(known)
        slots = self.find(ids)
        self._asked.append((np.array(ids), slots))
        return np.array(slots)

    def add(self, ids: Ids) -> Slots:
        """Give slots to ids that are distinct and have none; return them."""
        needed = self._count + len(ids)
        if 2 * needed > len(self._slots):
            known = self.ids.copy()
            capacity = len(self._slots)
            while 2 * needed > capacity:
                capacity *= 2
            self._allocate(capacity)
            self._ids[: len(known)] = known
            _core.place_ids(self._slots, self._ids, 0, len(known))
        self._ids[self._count : needed] = ids
        _core.place_ids(self._slots, self._ids, self._count, needed)
        slots = np.arange(self._count, needed)
        self._count = needed  # Last: what could not be placed is not counted.
        return slots

    def _allocate(self, capacity: int) -> None:
        self._slots = np.full(capacity, -1, np.int64)
        self._ids = np.zeros(capacity // 2 + 1, np.uint64)
