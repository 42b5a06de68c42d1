"""`StepClock`: how long a local step of GEO takes, for `gradring.modes.geo.pace`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from gradring.modes.geo.pace import Pace


class StepClock:
    """Runs from the end of a step to the end of the next one; used by the training thread.

    What passes between two epochs, in a flush and an evaluation say, is no step's; nor is waiting
    for an exchange, by which the pace would take the network's time for the worker's.
    """

    def __init__(self) -> None:
        """Stand still until a step has ended."""
        self._since: float | None = None

    def start(self) -> None:
        """Run: a step has ended here, and the next one begins."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Stand still until another step has ended."""
        self._since = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is done in here."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            if self._since is not None:
                self._since += time.perf_counter() - begin

    def tell(self, pace: Pace) -> None:
        """Have the pace note the step that ends now, where the clock has run since the last."""
        if self._since is not None:
            pace.note_step(time.perf_counter() - self._since)
