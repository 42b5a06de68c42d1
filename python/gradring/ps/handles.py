"""`Pending`: a pull or push that was started with ``async_op=True``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gradring.timeouts import milliseconds

T = TypeVar("T")


@dataclass(frozen=True)
class Pushed:
    """What became of a push; all of it was applied exactly once.

    Attributes:
        rows: Rows that were sent, equal ids of a table as one; those refused or not admitted are
            among them. Of a dense table its floats.
        refused: Rows left alone because their gradient had a NaN or an infinity in it; a dense
            table counts as one. In a round, which is applied later, 0: `stats` counts them.
        not_admitted: Ids that are no rows yet: they were counted only.
        staleness: The largest number of pushes that came to a table between this client's last
            finished pull of it and this push.
    """

    rows: int = 0
    refused: int = 0
    not_admitted: int = 0
    staleness: int = 0


class Pending(Generic[T]):
    """A request in flight: its arrays live, and must not be touched, until it is done."""

    def __init__(
        self,
        core: Any,
        finish: Callable[[Any], T],
        explaining: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        """Wrap a compiled handle; made by tables.

        Args:
            core: The handle.
            finish: Makes the result from what its ``wait`` returned; called once, by the first
                thread that waits, or hears from `done` that all went well.
            explaining: What to wait in: it may raise another error that says more.
        """
        self._core = core
        self._explaining = explaining
        self._finish: Callable[[Any], T] | None = finish
        self._finishing = threading.RLock()  # A signal handler may ask, too.
        self._result: T

    def wait(self, timeout: float | None = None) -> T:
        """Wait until it is done; may be called again.

        Args:
            timeout: Longest time without progress, in seconds; ``None`` is the connection's.

        Returns:
            What the blocking call would have returned.

        Raises:
            TimedOut: It is not done yet, and the message names what is not acknowledged; it goes
                on, so wait again.
            PeerLost: As in the blocking call, and so for every other error.
        """
        timeout_ms = milliseconds(timeout)
        with self._explaining():
            outcome = self._core.wait(timeout_ms)
        return self._finished(outcome)

    def done(self) -> bool:
        """Tell, without waiting, whether it has ended, well or not.

        If well, an array that was given to a pull holds what was pulled.
        """
        if not self._core.done():
            return False
        # A failure is left to who waits for it, or flushes.
        if self._finish is not None and not self._core.failed():
            self._finished(self._core.wait(0))
        return True

    def _finished(self, outcome: Any) -> T:
        with self._finishing:
            if self._finish is not None:
                self._result = self._finish(outcome)
                self._finish = None
            return self._result
