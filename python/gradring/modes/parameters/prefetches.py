"""`Prefetches`: an optimizer's: those under way, and those kept until its step was pushed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradring.modes.parameters.tables import Prefetched
from gradring.modes.stores.store import Store

_MOST = 64  # Under way: a connection carries so many calls only.


class Prefetches:
    """Those of an optimizer. Used by the training thread."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: dict[str, Prefetched] = {}
        self._under_way: list[Prefetched] = []  # One of each call.

    def begin(self, coming: Sequence[Prefetched], store: Store, gate: Any) -> None:
        """Ask for rows in one call; not where many are under way already."""
        self._under_way = [each for each in self._under_way if each.is_under_way]
        if coming and len(self._under_way) < _MOST:
            Prefetched.begin(coming, store, gate)
            self._under_way.append(coming[0])

    def keep(self, coming: Sequence[Prefetched]) -> None:
        """Keep some; a table's next pull is of the one that was asked for last."""
        self._kept |= {each.table.name: each for each in coming}

    def take_kept(self) -> list[Prefetched]:
        """Return those that were kept, and keep them no more."""
        kept, self._kept = self._kept, {}
        return list(kept.values())
