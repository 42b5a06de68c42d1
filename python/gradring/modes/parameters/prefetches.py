"""`Prefetches`: an optimizer's: those under way, and those kept until its step was pushed."""

from __future__ import annotations

from typing import Any

from gradring.modes.parameters.tables import Prefetched
from gradring.modes.stores.store import Store

_MOST = 64  # Under way: a connection carries so many calls only.


class Prefetches:
    """Those of an optimizer. Used by the training thread."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: dict[str, Prefetched] = {}
        self._under_way: list[Prefetched] = []

    def begin(self, coming: Prefetched, store: Store, gate: Any) -> None:
        """Ask for rows; not where many are under way already."""
        self._under_way = [each for each in self._under_way if each.is_under_way]
        if len(self._under_way) < _MOST:
            coming.begin(store, gate)
            self._under_way.append(coming)

    def keep(self, coming: Prefetched) -> None:
        """Keep one; a table's next pull is of the one that was asked for last."""
        self._kept[coming.table.name] = coming

    def take_kept(self) -> list[Prefetched]:
        """Return those that were kept, and keep them no more."""
        kept, self._kept = self._kept, {}
        return list(kept.values())
