"""GEO's arithmetic: a worker's replica of a dense parameter or of a sparse table's rows.

Beside the values that are trained (`weights`) a replica has its `base`: what it believes servers
hold. An exchange offers the difference, which moves the base on; the servers' answer moves both by
what others did. The progress, weights - base, is thus kept whatever arrives when. Touched by the
training thread only, between steps: what the background thread carries are copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gradring import _core
from gradring.arrays.buffers import as_ids
from gradring.errors import InvalidArgument
from gradring.modes.geo.room import Room
from gradring.modes.parameters.rows import IdIndex, Slots
from gradring.modes.stores.store import Array, Ids
from gradring.optim.local_rows import enlarged

# What a flush pushes and reads of a sparse table at a time: rows and their progress stay in the
# cache until they are sent, and a table's worth of fresh memory is not needed.
_SLICE_BYTES = 2 << 20
# Pushes of a flush that may be under way: servers add one up while the next is put together.
PUSHES_UNDER_WAY = 2


def require_exact_rows(who: str, settings: Collection[str]) -> None:
    """Refuse settings of a table under which servers leave rows out, drop or round them.

    Args:
        who: Has them.
        settings: Their names.

    Raises:
        InvalidArgument: There are some.
    """
    if settings:
        raise InvalidArgument(
            f"{who}: {', '.join(settings)}: not with GEO, whose replicas are to be equal to the "
            "servers' rows; use gradring.Async() for it"
        )


@dataclass(slots=True)
class Offer:
    """What one exchange, or a slice of a flush, says of one replica.

    Attributes:
        delta: Progress that servers are to add. Nobody writes there until the next exchange, or
            until the slice has been sent (`SparseReplica.offer_all`).
        server: Room for what servers have after it, as large; empty in a flush, which reads later.
        ids: Of the rows, ``None`` for a dense parameter.
        slots: The rows in the replica, ``None`` for a dense parameter.
    """

    delta: Array
    server: Array
    ids: Ids | None = None
    slots: Slots | None = None


def offer(weights: Array, base: Array, workers: int) -> Array:
    """Return 1/``workers`` of the progress; the base moves on by it, in place.

    `_core.offer_rows` is the same on rows, and `_core.accept_rows` what `accept` is.
    """
    with np.errstate(invalid="ignore"):  # Infinity - infinity: servers refuse what is not finite.
        delta = weights - base
    if workers > 1:
        delta /= np.float32(workers)
    base += delta
    return delta


def accept(weights: Array, base: Array, server: Array) -> float:
    """Take servers' values as the new base, in place; what was trained since stays on top.

    Returns:
        Sum of squares of how far servers were from the base.
    """
    moved = server - base
    # Where nothing was trained the values are the servers' own, not their rounded neighbours.
    is_base = (weights == base) & (moved != 0)
    weights += moved
    np.copyto(weights, server, where=is_base)
    base[...] = server
    return _squared_norm(moved)


def _first_of_each(ids: Ids) -> Ids:
    # In the order of first appearance, so that ids 0, 1, 2, ... get these very slots.
    distinct, first = np.unique(ids, return_index=True)
    return np.asarray(distinct[np.argsort(first)])


def _squared_norm(values: Array) -> float:
    flat = values.reshape(-1)
    return float(np.dot(flat, flat))


class _Held(Protocol):
    @property
    def weights(self) -> Array: ...

    @property
    def base(self) -> Array: ...


class _Replica:
    def progress(self: _Held) -> Array:
        """Return a copy of what was not offered yet."""
        with np.errstate(invalid="ignore"):  # Infinity - infinity.
            return np.asarray(self.weights - self.base)

    def put_on_top(self: _Held, progress: Array) -> None:
        """Have this progress beyond the base, which has moved since; what is not finite is left."""
        is_moved = np.isfinite(progress) & (progress != 0)
        np.add(self.base, progress, out=self.weights, where=is_moved)

    def squared_progress(self: _Held) -> float:
        """Return the sum of squares of what was not offered yet."""
        return _squared_norm(self.weights - self.base)


class DenseReplica(_Replica):
    """A parameter's array, trained in place, and its base."""

    def __init__(self, table: Any, weights: Array) -> None:
        """Begin with weights that are the servers'."""
        self.table = table
        self.weights = weights
        self.base = weights.copy()

    def offer(self, workers: int) -> Offer:
        """Offer a share of the progress."""
        delta = offer(self.weights, self.base, workers)
        return Offer(delta, np.empty_like(delta))

    def accept(self, offered: Offer) -> float:
        """Take the answer to an offer; see the module's `accept`."""
        return accept(self.weights, self.base, offered.server.reshape(self.weights.shape))

    def offer_all(self) -> Offer:
        """Offer all progress, but what is not finite only once: NaN never becomes equal."""
        was_offered = ~np.isfinite(self.base)
        offered = self.offer(1)
        if was_offered.any():
            offered.delta = np.where(was_offered, np.float32(0), offered.delta)
        return offered

    def drop_refused(self, offered: Offer) -> None:
        """Take the servers' values, before `accept`, where what was offered was not finite."""
        server, is_refused = offered.server.reshape(self.base.shape), ~np.isfinite(offered.delta)
        for values in (self.weights, self.base):
            np.copyto(values, server, where=is_refused)

    def adopt(self, server: Array) -> float:
        """Forget the progress: weights and base are the servers' values; returns as `accept`."""
        server = server.reshape(self.weights.shape)
        moved = _squared_norm(server - self.base)
        for values in (self.weights, self.base):
            values[...] = server
        return moved


class SparseReplica(_Replica):
    """The rows of a sparse table that this worker has asked for so far.

    Row ``slots(ids)[i]`` of `weights` belongs to id i. A training loop may write there itself (a
    compiled kernel, say) and `mark` what it wrote. `weights` is another array after new ids came.
    """

    def __init__(
        self, table: Any, dim: int, pull: Callable[[Ids], Array], since: Any, rare_every: int = 1
    ) -> None:
        """Begin without rows.

        Args:
            table: The store's.
            dim: Floats a row.
            pull: Brings rows of new ids from the servers.
            since: Changes up to now, as `Store.changed` says it.
            rare_every: As `Geo`'s.
        """
        self.table = table
        self.dim = dim
        self.since = since
        self._pull = pull
        self._rare_every = rare_every
        self._turn = 0
        self._index = IdIndex()
        self._weights = np.empty((0, dim), np.float32)
        self._base = np.empty((0, dim), np.float32)
        self._touches = np.empty(0, np.int32)  # Steps that wrote a row since it was offered.
        self._is_unread = np.empty(0, np.bool_)
        self._delta, self._server = Room(), Room()
        self._slices = [Room() for _ in range(PUSHES_UNDER_WAY + 1)]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._index)

    @property
    def weights(self) -> Array:
        """The rows that are trained, by slot; written in place."""
        return self._weights[: len(self._index)]

    @property
    def base(self) -> Array:
        """What servers are believed to hold, by slot."""
        return self._base[: len(self._index)]

    @property
    def ids(self) -> Ids:
        """The rows' ids, by slot."""
        return self._index.ids

    def slots(self, ids: Any) -> Slots:
        """Return the slot of each id, flat; rows of new ones come from the servers first.

        Args:
            ids: As `ModeTable.pull` takes them.

        Raises:
            InvalidArgument: They are no whole numbers; nothing was asked.
            TimedOut: Servers did not bring rows that are new here; nothing has changed.
            DeviceError: They are on a device.
        """
        ids = as_ids(ids).reshape(-1)
        found = self._index.find_again(ids)
        is_new = found < 0
        if is_new.any():
            fresh = _first_of_each(ids[is_new])
            self.insert(fresh, self._pull(fresh))
            found = self._index.find_again(ids)
        return found

    def missing(self, ids: Ids) -> Ids:
        """Return which of these flat ids this worker has no row of; each once."""
        return _first_of_each(ids[self._index.find_again(ids) < 0])

    def insert(self, ids: Any, rows: Array) -> None:
        """Take rows that the servers have now; those that are here already are left alone."""
        ids = as_ids(ids).reshape(-1)
        is_new = self._index.find(ids) < 0
        slots = self._index.add(ids[is_new])
        self._grow(len(self._index))
        self._put(slots, rows[is_new])

    def mark(self, slots: Slots) -> None:
        """Note that a step has trained rows: an exchange will offer them."""
        _core.mark_rows(np.ascontiguousarray(slots, np.int64), self._touches)

    def offer(self, workers: int) -> Offer:
        """Offer a share of the progress of rows touched since they were offered.

        Those that `rare_every` steps have touched, and of the others those whose turn it is.
        """
        touches, every = self._touches[: len(self._index)], self._rare_every
        is_due = touches >= every
        is_due[self._turn :: every] = touches[self._turn :: every] > 0
        self._turn = (self._turn + 1) % every
        slots = np.flatnonzero(is_due)
        delta, server = (room.rows(len(slots), self.dim) for room in (self._delta, self._server))
        return self._offer(slots, workers, delta, server)

    @property
    def has_waiting(self) -> bool:
        """Whether touched rows have not been offered."""
        return bool(self._touches.any())

    def offer_all(self, among: Slots | None = None) -> Iterator[Offer]:
        """Offer all progress of rows that have any, but what is not finite only once.

        Slice by slice: an offer's memory is written again once ``PUSHES_UNDER_WAY`` more were made.

        Args:
            among: Where to look; ``None``: everywhere. What this offered just before, say, if
                weights and base are as it left them: no other row has progress then.
        """
        if among is None:
            self._touches[:] = 0
            among = np.arange(len(self._index))
        found = np.empty(self.slice_rows, np.int64)
        rooms = itertools.cycle(self._slices)
        for begin in range(0, len(among), len(found)):
            slots = among[begin : begin + len(found)]
            count = _core.find_progress(self._weights, self._base, self.dim, slots, found)
            if count == 0:
                continue
            slots = found[:count].copy()
            self._is_unread[slots] = True
            delta = next(rooms).rows(count, self.dim)
            yield self._offer(slots, 1, delta, delta[:0])

    @property
    def slice_rows(self) -> int:
        """Rows of which a flush pushes or reads so many at a time."""
        return max(1, _SLICE_BYTES // (4 * self.dim))

    def expect(self, ids: Ids) -> None:
        """Count rows as `unread`; those this worker never asked for are left out."""
        slots = self._index.find(ids)
        self._is_unread[slots[slots >= 0]] = True

    @property
    def unread(self) -> Ids:
        """The rows that were offered by `offer_all` or expected, and not adopted since.

        Others may have changed them before that push; servers name the last writer's rows only.
        """
        return self._index.ids[np.flatnonzero(self._is_unread[: len(self._index)])]

    def _offer(self, slots: Slots, workers: int, delta: Array, server: Array) -> Offer:
        self._touches[slots] = 0
        _core.offer_rows(self._weights, self._base, slots, workers, delta)
        return Offer(delta, server, self._index.ids[slots], slots)

    def accept(self, offered: Offer) -> float:
        """Take the answer to an offer; see the module's `accept`."""
        assert offered.slots is not None
        return self._accept(offered.slots, offered.server)

    def drop_refused(self, offered: Offer) -> None:
        """Take the servers' rows, before `accept`, where what was offered was not finite."""
        assert offered.slots is not None
        is_refused = ~np.isfinite(offered.delta).all(axis=1)
        self._put(offered.slots[is_refused], offered.server[is_refused])

    def accept_changed(self, ids: Ids, server: Array) -> float:
        """Take rows that others changed; those this worker never asked for are left out."""
        slots = self._index.find(ids)
        is_held = slots >= 0
        if not is_held.all():
            slots, server = slots[is_held], server[is_held]
        return self._accept(slots, server)

    def room(self, count: int) -> Array:
        """Return room for so many of the servers' rows, until it is asked for or offered again.

        No offer may be under way: its answer goes there.
        """
        return self._server.rows(count, self.dim)

    def forget_room(self) -> None:
        """Use other memory from now on: a pull that was given up may still write there."""
        self._server = Room()

    def adopt(self, slots: Slots, server: Array) -> float:
        """Forget the progress of some rows, as `DenseReplica.adopt`."""
        moved = self._accept(slots, server)
        self._put(slots, server)
        return moved

    def adopt_changed(self, ids: Ids, server: Array) -> float:
        """The same by id; rows this worker never asked for are left out."""
        slots = self._index.find(ids)
        is_held = slots >= 0
        return self.adopt(slots[is_held], server[is_held])

    def find(self, ids: Any) -> Slots:
        """Return the slot of each id, flat; -1 where this worker has none."""
        return self._index.find_again(as_ids(ids).reshape(-1))

    def _put(self, slots: Slots, server: Array) -> None:
        self._weights[slots] = server
        self._base[slots] = server
        self._is_unread[slots] = False

    def _accept(self, slots: Slots, server: Array) -> float:
        server = np.ascontiguousarray(server, np.float32)
        return float(_core.accept_rows(self._weights, self._base, slots, server))

    def _grow(self, count: int) -> None:
        capacity = len(self._touches)
        if count <= capacity:
            return
        capacity = max(count, 2 * capacity)
        self._weights = enlarged(self._weights, capacity)
        self._base = enlarged(self._base, capacity)
        self._touches = enlarged(self._touches, capacity)
        self._is_unread = enlarged(self._is_unread, capacity)
