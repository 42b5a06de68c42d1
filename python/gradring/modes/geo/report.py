"""`GeoReport`: what GEO measures; `Divergence` and `Exposed`, of which parts of it are made."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from gradring.modes.stores.store import Array


@dataclass(slots=True)
class Divergence:
    """Sums of squares over what one exchange, or flush, has brought.

    Attributes:
        moved: Of how far servers' values were from what replicas knew of them.
        values: Of these values.
    """

    moved: float = 0.0
    values: float = 0.0

    def add(self, moved: float, values: Array) -> None:
        """Take one replica's share: its sum of squares, and the servers' values."""
        flat = values.reshape(-1)
        self.moved += moved
        self.values += float(np.dot(flat, flat))


@dataclass
class GeoReport:
    """What GEO measures.

    Attributes:
        exchanges: Exchanges that have ended, flushes among them.
        divergence: Norm of how far servers' values were from what this replica knew of them, over
            what the last exchange brought.
        relative_divergence: The same, divided by the norm of these values.
        exposed_seconds: Seconds of the training thread that went to others: offers, answers, rows
            that were new here, flushes, and all waits. The rest of the time is its own.
        stalled_seconds: Seconds that steps and flushes have waited for an exchange to end.
        pushed_rows: Rows of sparse tables sent so far.
        taken_rows: Rows that others changed, received so far.
        refused: Rows, and dense parameters, left alone because they were not finite: gradients by
            the local rule, progress by servers. With `Nesterov` gradients alone: servers refuse the
            mean of all workers' progress, once all have pushed, which is no answer to a push.
        workers: Living workers as of the last exchange.
    """

    exchanges: int = 0
    divergence: float = 0.0
    relative_divergence: float = 0.0
    exposed_seconds: float = 0.0
    stalled_seconds: float = 0.0
    pushed_rows: int = 0
    taken_rows: int = 0
    refused: int = 0
    workers: int = 1

    def note_exchange(self, brought: Divergence) -> None:
        """Take how far servers were from what was known of them."""
        self.exchanges += 1
        self.divergence = brought.moved**0.5
        self.relative_divergence = (
            (brought.moved / brought.values) ** 0.5 if brought.values else 0.0
        )


class Exposed:
    """Counts in a report what the training thread does for others in here; may be entered again."""

    def __init__(self, report: GeoReport) -> None:
        """Count there."""
        self._report = report
        self._depth = 0
        self._since = 0.0

    def __enter__(self) -> None:
        """Begin."""
        if self._depth == 0:
            self._since = time.perf_counter()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        """End."""
        self._depth -= 1
        if self._depth == 0:
            self._report.exposed_seconds += time.perf_counter() - self._since
