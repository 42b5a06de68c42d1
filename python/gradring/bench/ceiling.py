"""What the plain link can carry, measured by our own ranks in the same rounds as the libraries."""

from __future__ import annotations

import statistics

from gradring.bench.cases import Link
from gradring.bench.groups import Group

_REPEATS = 3  # In a round; the best of all rounds counts.
_HALF_TRIPS = 200
_LEAST_COPY_BYTES = 64 << 10  # Below, the call itself would be measured.
_LEAST_STREAM_BYTES = 4 << 20  # Below, the start would be.
_MOST_BYTES = 64 << 20
_ENOUGH_SECONDS = 3.0  # Of streams of a size, or of half trips: over a slow link one look takes it.


class Ceiling:
    """The best that was seen of copies in memory, or of TCP streams.

    Messages that are smaller than what can be measured share the figures of the smallest that can.
    """

    def __init__(self, ranks: Group, is_tcp: bool) -> None:
        """Measure nothing yet."""
        self._ranks = ranks
        self._is_tcp = is_tcp
        self._alone: dict[int, float] = {}
        self._together: dict[int, float] = {}
        self._half_trip = 0.0
        self._cpu: dict[int, list[float]] = {}  # Seconds a byte that was sent and received.
        self._streamed: dict[int, float] = {}  # Seconds so far, and the next too.
        self._tripped = 0.0

    def measure(self, nbytes: int) -> None:
        """Look once more at what the link does with messages of this size."""
        if self._ranks.size == 1:
            return
        size = self._clamped(nbytes)
        if self._streamed.get(size, 0.0) < _ENOUGH_SECONDS:
            for rates, together in ((self._alone, False), (self._together, True)):
                rates[size] = max(rates.get(size, 0.0), self._rate(size, together))
        if self._is_tcp and self._tripped < _ENOUGH_SECONDS:
            answers = self._ranks.ask(do="half_trip", repeats=_HALF_TRIPS)
            halves = answers[0]["ns"]
            self._tripped += 2 * sum(halves) * 1e-9
            shortest = float(min(halves)) * 1e-9
            self._half_trip = min(self._half_trip or shortest, shortest)

    def link(self, nbytes: int) -> Link | None:
        """Return what was seen; ``None`` in a world of one."""
        if self._ranks.size == 1:
            return None
        size = self._clamped(nbytes)
        together = self._together[size]
        spent = statistics.median(self._cpu.get(size, [0.0]))
        return Link(max(together, self._alone[size]), together, self._half_trip, spent)

    def _clamped(self, nbytes: int) -> int:
        least = _LEAST_STREAM_BYTES if self._is_tcp else _LEAST_COPY_BYTES
        return max(least, min(nbytes, _MOST_BYTES))

    def _rate(self, nbytes: int, together: bool) -> float:
        do = "stream" if self._is_tcp else "copy"
        answers = self._ranks.ask(do=do, nbytes=nbytes, repeats=_REPEATS, together=together)
        if self._is_tcp:
            if together:
                spent = sum(answer["cpu_ns"] for answer in answers) * 1e-9
                moved = nbytes * _REPEATS * len(answers)
                self._cpu.setdefault(nbytes, []).append(spent / moved)
            slowest = [max(times) for times in zip(*(a["ns"] for a in answers), strict=True)]
            self._streamed[nbytes] = self._streamed.get(nbytes, 0.0) + sum(slowest) * 1e-9
            return nbytes / (float(min(slowest)) * 1e-9)
        answers = [answer for answer in answers if answer["begin"]]
        begins = [min(times) for times in zip(*(a["begin"] for a in answers), strict=True)]
        ends = [max(times) for times in zip(*(a["end"] for a in answers), strict=True)]
        shortest = float(min(end - begin for begin, end in zip(begins, ends, strict=True)))
        return nbytes * int(answers[0]["copies"]) / (shortest * 1e-9)
