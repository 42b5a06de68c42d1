"""`RowWrites`: how often a connection has written rows of each table.

Servers name to nobody what its own connection has changed last. So replicas of rows (GEO) ask here
whether something else has written to their table over the connection that they use.
"""

from __future__ import annotations

import threading
from collections import Counter


class RowWrites:
    """Counts the pushes and writes of a connection, by the tables' names. For any thread."""

    def __init__(self) -> None:
        """Begin at 0."""
        self._lock = threading.RLock()  # A signal handler may push in here, too.
        self._counts: Counter[str] = Counter()

    def note(self, table: str) -> None:
        """Count one that requests which are made from now on come after."""
        with self._lock:
            self._counts[table] += 1

    def of(self, table: str) -> int:
        """Return how many there were."""
        with self._lock:
            return self._counts[table]
