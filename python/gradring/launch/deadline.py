"""A time by which something has to have happened; it begins anew while nobody could see it."""

from __future__ import annotations

import time


class Deadline:
    """One, or none yet."""

    def __init__(self) -> None:
        """There is none."""
        self._seconds = 0.0
        self._at: float | None = None

    def set(self, seconds: float) -> None:
        """Have it in so many seconds."""
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def clear(self) -> None:
        """Have none any more."""
        self._at = None

    @property
    def left(self) -> float | None:
        """Seconds until then, at least 0; ``None``: there is none."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def has_passed(self, *, is_held: bool) -> bool:
        """Tell whether it is over; while it is held its time begins anew."""
        if self._at is not None and is_held:
            self.set(self._seconds)
        return self.left == 0.0
