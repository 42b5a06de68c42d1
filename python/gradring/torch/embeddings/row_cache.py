"""`RowCache`: the rows of a table that a worker uses most, kept on a device.

Rows come from the servers when they are not here or were asked for too many steps ago, and leave
when others that were used later need their place. Gradients never go through the cache: they are
pushed as without one. Where servers do nothing but subtract each gradient times a learning rate,
the cache does so too, so that the worker reads what it has written. Used by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch

from gradring import optim
from gradring.errors import InvalidArgument
from gradring.modes.asynchronous import AsyncOptimizer
from gradring.modes.contracts import Async, BoundedStaleness, Geo, Mode
from gradring.modes.geo.replica import require_exact_rows
from gradring.modes.parameters.rows import IdIndex, Slots
from gradring.modes.stepping.optimizer import ModeOptimizer
from gradring.modes.stores.store import Ids

Pull = Callable[[Ids], Any]

_NEVER = -(1 << 62)
_ENTRIES_A_SLOT = 8  # Ids that were here once are forgotten when there are so many of them.


class RowCache:
    """Rows by id, in a tensor on a device.

    Attributes:
        weights: Float32 of shape (capacity, dim).
        hits: Rows that were here when they were asked for.
        misses: Rows that servers were asked for.
    """

    def __init__(self, dim: int, capacity: int, age: int, device: torch.device) -> None:
        """Begin empty.

        Args:
            dim: Floats a row.
            capacity: Rows; more where one batch has more.
            age: Steps in which a row may be used: 1 is the step it has come in.
            device: Where the rows are.

        Raises:
            InvalidArgument: There is no room, or no step.
        """
        if capacity < 1 or age < 1:
            raise InvalidArgument(f"a cache of {capacity} rows for {age} steps; both are 1 or more")
        self._age = age
        self._step = 0
        self.hits = 0
        self.misses = 0
        self.weights = torch.empty((capacity, dim), dtype=torch.float32, device=device)
        self._came = np.full(capacity, _NEVER, np.int64)  # Step in which the row was pulled.
        self._used = np.full(capacity, _NEVER, np.int64)
        self._entry_of = np.full(capacity, -1, np.int64)
        # Ids that are or were here have an entry each, and that has a slot or -1.
        self._index = IdIndex()
        self._slot_of: Slots = np.full(1, -1, np.int64)

    def clear(self) -> None:
        """Ask servers for every row anew."""
        self._came[:] = _NEVER

    def advance(self) -> None:
        """A step has been done."""
        self._step += 1

    def missing(self, ids: Ids, ahead: int = 0) -> Ids:
        """Return which of these distinct ids servers have to be asked for, so many steps ahead."""
        stale: Ids = ids[~self._is_fresh(self._slots_of(ids), ahead)]
        return stale

    def bring(self, ids: Ids, pull: Pull) -> torch.Tensor:
        """Have rows here.

        Args:
            ids: Distinct.
            pull: Returns float32 rows of ids from the servers.

        Returns:
            Where in `weights` they are: int64, on its device.
        """
        slots = self._slots_of(ids)
        is_fresh = self._is_fresh(slots)
        self.hits += int(is_fresh.sum())
        self.misses += int(len(ids) - is_fresh.sum())
        if not is_fresh.all():
            slots = self._make_room(ids, slots)
            rows = torch.from_numpy(np.ascontiguousarray(pull(ids[~is_fresh])))
            stale = slots[~is_fresh]
            self.weights[self._place(stale)] = rows.to(self.weights.device)
            self._came[stale] = self._step
        self._used[slots] = self._step
        return self._place(slots)

    def descend(self, ids: Ids, grads: Any, rate: float) -> None:
        """Do what servers do to rows: subtract ``rate`` times the gradient.

        Args:
            ids: Distinct; those that are not here are left out.
            grads: One row of float32 for each; those with NaN or infinity are left out.
            rate: In float32, as servers have it.
        """
        slots = self._slots_of(ids)
        is_here = (slots >= 0) & np.isfinite(grads).all(axis=1)
        where = self._place(slots[is_here])
        given = torch.from_numpy(grads[is_here]).to(self.weights.device)
        # As the servers' fused multiply-add: the product is exact in float64, the sum rounded once.
        rows = self.weights[where].double() - given.double() * float(np.float32(rate))
        self.weights[where] = rows.float()

    def _is_fresh(self, slots: Slots, ahead: int = 0) -> Any:
        return (slots >= 0) & (self._came[slots] > self._step + ahead - self._age)

    def _slots_of(self, ids: Ids) -> Slots:
        entries = self._index.find(ids)
        return np.where(entries >= 0, self._slot_of[entries], -1)

    def _make_room(self, ids: Ids, slots: Slots) -> Slots:
        is_homeless = slots < 0
        homeless = int(is_homeless.sum())
        if homeless == 0:
            return slots
        if len(ids) > len(self._came):
            self._grow(len(ids))
        # Those of this batch stay; of the others the ones that were used longest ago go.
        self._used[slots[~is_homeless]] = self._step + 1
        places = np.argpartition(self._used, homeless - 1)[:homeless]
        evicted = self._entry_of[places]
        self._slot_of[evicted[evicted >= 0]] = -1
        self._entry_of[places] = -1
        self._came[places] = _NEVER  # Else a pull that fails would leave others' rows as fresh.
        entries = self._entries(ids[is_homeless])
        self._slot_of[entries] = places
        self._entry_of[places] = entries
        slots = slots.copy()
        slots[is_homeless] = places
        return slots

    def _entries(self, ids: Ids) -> Slots:
        entries = self._index.find(ids)
        is_new = entries < 0
        if is_new.any():
            if len(self._index) + int(is_new.sum()) > _ENTRIES_A_SLOT * (
                len(self._came) + len(ids)
            ):
                self._compact()
                return self._entries(ids)
            entries[is_new] = self._index.add(ids[is_new])
            known = len(self._slot_of)
            if len(self._index) > known:
                more = np.full(max(len(self._index), 2 * known) - known, -1, np.int64)
                self._slot_of = np.concatenate([self._slot_of, more])
        return entries

    def _compact(self) -> None:
        slots = np.flatnonzero(self._entry_of >= 0)
        ids = self._index.ids[self._entry_of[slots]].copy()
        self._index = IdIndex()
        self._slot_of = np.full(max(1, len(ids)), -1, np.int64)
        if len(ids):
            entries = self._index.add(ids)
            self._slot_of[entries] = slots
            self._entry_of[slots] = entries

    def _grow(self, capacity: int) -> None:
        more = max(capacity, 2 * len(self._came)) - len(self._came)
        room = self.weights.new_empty((more, self.weights.shape[1]))
        self.weights = torch.cat([self.weights, room])
        self._came = np.concatenate([self._came, np.full(more, _NEVER, np.int64)])
        self._used = np.concatenate([self._used, np.full(more, _NEVER, np.int64)])
        self._entry_of = np.concatenate([self._entry_of, np.full(more, -1, np.int64)])

    def _place(self, slots: Slots) -> torch.Tensor:
        return torch.from_numpy(slots).to(self.weights.device)


def require_allowed(name: str, age: int, settings: Collection[str], mode: Mode) -> None:
    """Refuse rows that would be older than a mode allows, and tables that it cannot train.

    Args:
        name: Of the layer.
        age: Steps in which one of its rows may be used; 1 without a cache.
        settings: Names of those that its table has.
        mode: That is to train it.

    Raises:
        InvalidArgument: It allows fewer, or not these settings.
    """
    if isinstance(mode, Geo):
        require_exact_rows(f"Embedding {name!r}", settings)
    if age == 1 or isinstance(mode, Async):
        return
    bound = mode.staleness + 1 if isinstance(mode, BoundedStaleness) else 1
    if age > bound:
        raise InvalidArgument(
            f"Embedding {name!r}: cache_age={age}, but the mode allows rows to be used for "
            f"{bound} step{'s' if bound > 1 else ''}; with gradring.Async() they may be as old as "
            "you like"
        )


def is_subtracted(rule: Any, driver: ModeOptimizer | None) -> bool:
    """Tell whether servers subtract each gradient times a rate, from all workers alike.

    Args:
        rule: Of the rows.
        driver: The mode that trains them.
    """
    return (
        isinstance(driver, AsyncOptimizer)
        and isinstance(rule, optim.SGD)
        and rule == optim.SGD(lr=rule.lr)
    )
