"""`ModeTable`: a sparse table as a mode reads it, and `Prefetched`: rows of one on their way."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gradring.arrays.buffers import as_ids
from gradring.errors import Error, Mismatch
from gradring.modes.stores.store import Array, Ids, PendingPull, Pull, Store
from gradring.optim.state import require_successor


class Owner(Protocol):
    """What a table asks of the optimizer whose mode says what a read is."""

    timeout: float

    def read(self, asked: Sequence[Asked]) -> list[Array]:
        """Return rows of several tables, as old as the mode allows; ids may repeat."""

    def set_table_rule(self, table: ModeTable, rule: Any) -> None:
        """Go on with other settings of a table's rule."""

    def begin_prefetch(self, coming: Sequence[Prefetched]) -> None:
        """Begin to bring rows of several tables, now or after the step."""


class ModeTable:
    """A sparse table as the mode of its optimizer reads it; made by `ModeOptimizer.sparse_table`.

    Attributes:
        name: Of the table.
        dim: Floats a row.
        rule: How a gradient changes a row.
        table: The table on the servers.
        seen: What the last pull said of it.
        owner: The optimizer.
    """

    def __init__(
        self, owner: Owner, name: str, dim: int, rule: Any, settings: Mapping[str, Any]
    ) -> None:
        """Belong to an optimizer; ``settings`` are those of its `sparse_table` beyond the rule."""
        self.name = name
        self.dim = dim
        self.rule = rule
        self._made_with = (rule, dict(settings))
        self.table: Any = None
        self.seen: Any = None
        self.owner = owner
        self._coming: Prefetched | None = None

    def require_same(self, dim: int, rule: Any, settings: Mapping[str, Any]) -> None:
        """Refuse to be opened again with other settings than these.

        Raises:
            Mismatch: They differ; names both.
        """
        first, made_with = self._made_with
        if dim == self.dim and rule in (self.rule, first) and settings == made_with:
            return
        raise Mismatch(
            f"table {self.name!r} is open already in this optimizer with dim={self.dim}, "
            f"{self.rule}, {_listed(made_with)}, and now with dim={dim}, {rule}, "
            f"{_listed(settings)}; open it again with the same settings, or under another name"
        )

    def pull(self, ids: Any) -> Array:
        """Return the rows of ids; the mode says how old they may be.

        Args:
            ids: Int64 or uint64, any shape; NumPy, torch (CPU), DLPack or a sequence; may repeat.

        Returns:
            Float32 of shape ``ids.shape + (dim,)``; a copy.

        Raises:
            InvalidArgument: The ids are no whole numbers; nothing was sent.
            TimedOut: Servers did not answer, or workers that the mode waits for did not come.
            PeerLost: A server, or with ``Sync(via="ps")`` a worker, was lost.
            Closed: The connection was closed, or this worker has left the mode's rounds or clocks.
            DeviceError: They are on a device.
        """
        shaped = as_ids(ids)
        return self.pull_flat(shaped.reshape(-1)).reshape(*shaped.shape, self.dim)

    def pull_flat(self, ids: Ids) -> Array:
        """Return one row for each of ``ids``, which are flat."""
        rows = self.take_prefetched(ids)
        return self.owner.read([(self, ids)])[0] if rows is None else rows

    def take_prefetched(self, ids: Ids) -> Array | None:
        """Return rows if these are the ids that were expected, and expect no more.

        Raises:
            TimedOut: They are on their way, and too late.
        """
        coming, self._coming = self._coming, None
        if (
            coming is not None
            and coming.has_begun
            and np.array_equal(coming.ids, ids)
            and coming.wait(self.owner.timeout)
        ):
            self.seen = coming.seen
            return coming.rows
        return None

    def set_rule(self, rule: Any) -> None:
        """Go on with other settings of the rule; see `ModeOptimizer.set_rule`.

        Raises:
            InvalidArgument: It is another rule, or keeps another state; nothing was sent.
        """
        require_successor(self.rule, rule)
        self.owner.set_table_rule(self, rule)
        self.rule = rule

    def forget_prefetch(self) -> None:
        """Expect nothing: what was asked for is too old now, or is kept somewhere else."""
        self._coming = None

    def forget_begun_prefetch(self) -> None:
        """Expect nothing that was asked for before this step."""
        if self._coming is not None and self._coming.has_begun:
            self._coming = None

    def prefetch(self, ids: Any) -> None:
        """Begin to bring the rows that the next `pull` will ask for.

        It is a hint: a pull of other ids is as right, only later. What comes is as new as the mode
        promises of a pull after the next `step`.
        """
        prefetch_together([(self, as_ids(ids).reshape(-1))])

    def expect(self, ids: Ids) -> Prefetched:
        """Expect these flat ids in the next pull."""
        # A copy: the caller may write the next ids there before these have come.
        self._coming = Prefetched(self, ids.copy())
        return self._coming


Asked = tuple[ModeTable, Ids]  # Ids are flat, and may repeat.


def pull_together(asked: Sequence[Asked]) -> list[Array]:
    """Return one row for each id of several tables: one round trip for those of one optimizer.

    Raises:
        TimedOut: As `ModeTable.pull`, and so for every other error.
    """
    found = [table.take_prefetched(ids) for table, ids in asked]
    missing = [place for place, rows in enumerate(found) if rows is None]
    for owner, places in _by_owner([asked[place] for place in missing]):
        chosen = [missing[place] for place in places]
        for place, rows in zip(chosen, owner.read([asked[at] for at in chosen]), strict=True):
            found[place] = rows
    return [rows for rows in found if rows is not None]


def prefetch_together(asked: Sequence[Asked]) -> None:
    """Do `ModeTable.prefetch` of several tables: one round trip for those of one optimizer."""
    coming = [table.expect(ids) for table, ids in asked]
    for owner, places in _by_owner(asked):
        owner.begin_prefetch([coming[place] for place in places])


def _by_owner(asked: Sequence[Asked]) -> list[tuple[Owner, list[int]]]:
    found: dict[int, tuple[Owner, list[int]]] = {}
    for place, (table, _) in enumerate(asked):
        found.setdefault(id(table.owner), (table.owner, []))[1].append(place)
    return list(found.values())


def read_rows(store: Store, asked: Sequence[Asked], gate: Any) -> list[Array]:
    """Return what servers have, in one round trip, and note what the tables have seen."""
    rows = [np.empty((len(ids), table.dim), np.float32) for table, ids in asked]
    pulls = [Pull(table.table, ids, out) for (table, ids), out in zip(asked, rows, strict=True)]
    for (table, _), seen in zip(asked, store.pull(pulls, gate), strict=True):
        table.seen = seen
    return rows


class Prefetched:
    """Rows that are on their way.

    Attributes:
        table: Their table.
        ids: Flat; may repeat.
        rows: One for each id, once they are here.
        seen: What the pull said.
        has_begun: Whether they were asked for.
    """

    def __init__(self, table: ModeTable, ids: Ids) -> None:
        """Nothing is asked yet."""
        self.table = table
        self.ids = ids
        self.rows = np.empty((len(ids), table.dim), np.float32)
        self.seen: Any = None
        self.has_begun = False
        self._pending: PendingPull | None = None
        self._place = 0  # Among what came with it.

    @staticmethod
    def begin(coming: Sequence[Prefetched], store: Store, gate: Any) -> None:
        """Ask for rows of several tables in one round trip.

        It is a hint: where it fails they are asked for when they are needed.
        """
        pending: PendingPull | None = None
        with contextlib.suppress(Error):
            pulls = [Pull(each.table.table, each.ids, each.rows) for each in coming]
            pending = store.begin_pull(pulls, gate)
        for place, each in enumerate(coming):
            each.wait_for(pending, place)

    def wait_for(self, pending: PendingPull | None, place: int) -> None:
        """Have begun: what is at a place of this pull; ``None``: it has failed already."""
        self.has_begun, self._pending, self._place = True, pending, place

    @property
    def is_under_way(self) -> bool:
        """Whether they may still come."""
        return self._pending is not None and not self._pending.is_done()

    def wait(self, timeout: float) -> bool:
        """Wait until they are here, and tell whether they are: asking may have failed.

        Raises:
            TimedOut: They are not after ``timeout`` seconds.
        """
        if self.seen is None and self._pending is not None:
            try:
                self.seen = self._pending.result(timeout)[self._place]
            except Error:
                if self.is_under_way:
                    raise
        return self.seen is not None


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
