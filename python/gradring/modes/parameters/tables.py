"""`ModeTable`: a sparse table as a mode reads it, and `Prefetched`: rows of one on their way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gradring.arrays.buffers import as_ids
from gradring.errors import Error, InvalidArgument, Mismatch
from gradring.modes.stores.store import Array, Ids, PendingPull, Pull, Store
from gradring.optim.state import require_successor
from gradring.ps.arguments.requests import push_request


class Owner(Protocol):
    """What a table asks of the optimizer whose mode says what a read is."""

    timeout: float

    def read(self, table: ModeTable, ids: Ids) -> Array:
        """Return rows of ids, as old as the mode allows; they may repeat."""

    def set_table_rule(self, table: ModeTable, rule: Any) -> None:
        """Go on with other settings of a table's rule."""

    def begin_prefetch(self, coming: Prefetched) -> None:
        """Begin to bring rows, now or after the step."""


class ModeTable:
    """A sparse table as the mode of its optimizer reads it; made by `ModeOptimizer.sparse_table`.

    Attributes:
        name: Of the table.
        dim: Floats a row.
        rule: How a gradient changes a row.
        table: The table on the servers.
        seen: What the last pull said of it.
    """

    def __init__(
        self, optimizer: Owner, name: str, dim: int, rule: Any, settings: Mapping[str, Any]
    ) -> None:
        """Belong to an optimizer; ``settings`` are those of its `sparse_table` beyond the rule."""
        self.name = name
        self.dim = dim
        self.rule = rule
        self._made_with = (rule, dict(settings))
        self.table: Any = None
        self.seen: Any = None
        self._optimizer = optimizer
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
        coming, self._coming = self._coming, None
        if (
            coming is not None
            and coming.has_begun
            and np.array_equal(coming.ids, ids)
            and coming.wait(self._optimizer.timeout)
        ):
            self.seen = coming.seen
            return coming.rows
        return self._optimizer.read(self, ids)

    def set_rule(self, rule: Any) -> None:
        """Go on with other settings of the rule; see `ModeOptimizer.set_rule`.

        Raises:
            InvalidArgument: It is another rule, or keeps another state; nothing was sent.
        """
        require_successor(self.rule, rule)
        self._optimizer.set_table_rule(self, rule)
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
        # A copy: the caller may write the next ids there before these have come.
        self._coming = Prefetched(self, as_ids(ids).reshape(-1).copy())
        self._optimizer.begin_prefetch(self._coming)


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

    def begin(self, store: Store, gate: Any) -> None:
        """Ask for them. It is a hint: where it fails they are asked for when they are needed."""
        self.has_begun = True
        with contextlib.suppress(Error):
            self._pending = store.begin_pull([Pull(self.table.table, self.ids, self.rows)], gate)

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
                self.seen = self._pending.result(timeout)[0]
            except Error:
                if self.is_under_way:
                    raise
        return self.seen is not None


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


RowGradients = tuple[ModeTable, Any, Any]  # Table, ids, one gradient row for each id.


def listed(rows: Iterable[RowGradients]) -> list[RowGradients]:
    """Return what a step was given for sparse tables as a list.

    Raises:
        InvalidArgument: It is something else than entries of a table, its ids and its gradients.
    """
    try:
        return [(table, ids, grads) for table, ids, grads in rows]
    except (TypeError, ValueError):
        raise InvalidArgument(
            "rows: entries (table, ids, gradients) are wanted, one for each table that was used; "
            f"got {type(rows).__name__}: {rows!r:.80}"
        ) from None


def joined(entries: Sequence[RowGradients]) -> list[tuple[ModeTable, Ids, Array]]:
    """Return one entry for each table that has gradients: contiguous, maybe the caller's arrays.

    Raises:
        InvalidArgument: Shapes or dtypes do not fit.
        DeviceError: An array lives on a device.
    """
    by_table: dict[str, list[RowGradients]] = {}
    for entry in entries:
        by_table.setdefault(entry[0].name, []).append(entry)
    result = []
    for each in by_table.values():
        table = each[0][0]
        checked = [push_request(table.name, table.dim, ids, grads) for _, ids, grads in each]
        given = [one for one in checked if len(one[0])]
        if len(given) == 1:
            result.append((table, *given[0]))
        elif given:
            flats, grads = zip(*given, strict=True)
            result.append((table, np.concatenate(flats), np.concatenate(grads)))
    return result
