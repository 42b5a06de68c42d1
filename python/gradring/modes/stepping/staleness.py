"""`Histogram`: how often each staleness was seen. Added to by one thread, read by any."""

from __future__ import annotations

from collections import Counter

_LARGEST = 1 << 16  # Bounds the memory; larger ones are counted here.


class Histogram:
    """Counts of small whole numbers: 0, 1, 2, ...

    Attributes:
        counts: How often each number was seen.
        max: The largest; 0 if none was seen.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.counts: Counter[int] = Counter()
        self.max = 0
        self._sum = 0
        self._count = 0

    def add(self, value: int) -> None:
        """Count one."""
        self.counts[min(value, _LARGEST)] += 1
        self.max = max(self.max, value)
        self._sum += value
        self._count += 1

    @property
    def total(self) -> int:
        """How many were counted."""
        return self._count

    @property
    def mean(self) -> float:
        """Their mean; 0 if there are none."""
        return self._sum / self._count if self._count else 0.0

    def __repr__(self) -> str:
        """Show mean, largest and number."""
        return f"Histogram(mean={self.mean:.2f}, max={self.max}, total={self.total})"
