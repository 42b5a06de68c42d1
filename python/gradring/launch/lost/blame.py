"""Which rank to name, where one that failed tells that it has lost another one first.

A rank whose script raises leaves its communicator, and then takes a while to end. The others hear
of it at once, fail too, and may well have ended before it: theirs is not the failure to look at.
Pure but for the clock; the job loop asks, one thread.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from gradring.launch.outcome import Failure, Outcome

# What errors of the core say of a rank that left or died, and servers of a worker.
_LOST = re.compile(
    rb"\b(?:rank|worker) (\d{1,9})(?: \(\S+\))? "
    rb"(?:has left[:,] |closed (?:its control|the) connection\b|was lost after |left after )"
)

# How long a rank that others have lost may take to end before the first of these is named.
PATIENCE_SECONDS = 3.0


def lost_rank(lines: Iterable[bytes]) -> int | None:
    """Return the rank that the last lines of a process' standard error say it has lost."""
    found = _LOST.findall(b"\n".join(lines))
    return int(found[-1]) if found else None


class Blame:
    """Holds back failures until it is known which of them is the first cause."""

    def __init__(self) -> None:
        """Nothing has failed yet."""
        self._held: dict[int | None, tuple[Failure, int | None]] = {}
        self._until = 0.0

    def hold(self, failure: Failure, lost: int | None) -> None:
        """Take a failure of a rank, or of all of a lost host, and which other rank it says it lost.

        None: it names none.
        """
        if not self._held:
            self._until = time.monotonic() + PATIENCE_SECONDS
        self._held.update(dict.fromkeys(failure.ranks, (failure, lost)))

    @property
    def waits(self) -> list[float]:
        """Seconds until `settled` has an answer at the latest; empty where nothing is held."""
        return [max(0.0, self._until - time.monotonic())] if self._held else []

    def settled(self, outcome: Outcome) -> Failure | None:
        """Return the failure to name, once; None while there is none, or it is not known yet."""
        if not self._held:
            return None
        first, lost = next(iter(self._held.values()))
        cause, passed = first, {*first.ranks}
        while lost in self._held and lost not in passed:
            passed.add(lost)
            cause, lost = self._held[lost]
        if lost is not None:
            # Two name each other, or the lost one has not failed, or not yet, or is none of ours:
            # a job may have taken in ranks that were started by hand.
            if lost not in passed and outcome.awaits_end(lost) and self.waits != [0.0]:
                return None
            cause = first
        self._held.clear()
        return cause
