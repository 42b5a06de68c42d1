"""`Pace`: how many local steps GEO does between two exchanges. Pure: it is told what time took."""

from __future__ import annotations

import math

# What closeness alone leads to; a slow network may ask for more.
SLOWEST = 1000
_START = 10
# Relative to the norm of what was exchanged: servers moved so far from what a replica knew.
_CLOSE = 0.005
_FAR = 0.02


class Pace:
    """Chooses k: the number given, or one that follows what was measured.

    "auto" never asks for more exchanges than the network can do in the meantime; it halves k while
    replicas drift apart, and doubles it, up to 1000, while they stay close (as those of a worker
    alone do).

    Attributes:
        k_steps: The present number.
        step_seconds: Time of a local step, smoothed; 0: not known yet.
        exchange_seconds: Time of an exchange, smoothed.
    """

    def __init__(self, k_steps: int | str) -> None:
        """Take the mode's ``k_steps``."""
        self._is_auto = k_steps == "auto"
        self.k_steps = _START if isinstance(k_steps, str) else k_steps
        self.step_seconds = 0.0
        self.exchange_seconds = 0.0

    def note_step(self, seconds: float) -> None:
        """Take the time from one step to the next."""
        self.step_seconds = _smoothed(self.step_seconds, seconds)

    def note_exchange(self, seconds: float, divergence: float) -> None:
        """Take an exchange's time, and how far servers had moved relative to the values' norm."""
        self.exchange_seconds = _smoothed(self.exchange_seconds, seconds)
        if not self._is_auto:
            return
        fewest = 1
        if self.step_seconds > 0:
            fewest = math.ceil(self.exchange_seconds / max(self.step_seconds, 1e-9))
        if divergence > _FAR:
            self.k_steps //= 2
        elif divergence < _CLOSE:
            self.k_steps *= 2
        self.k_steps = max(min(self.k_steps, SLOWEST), fewest, 1)


def _smoothed(before: float, seconds: float) -> float:
    return seconds if before == 0 else 0.9 * before + 0.1 * seconds
