"""`Job`: an operation of several steps that a thread of the group carries out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from gradring.errors import Error, TimedOut
from gradring.torch.c10d.calls.lanes import Lane


class Job:
    """An operation that a lane carries out; to its users like a `gradring.Work`."""

    source = None

    def __init__(self, lane: Lane, carry_out: Callable[[], None], name: str) -> None:
        """Queue it; ``name`` is what errors call it."""
        self._future: Future[None] = Future()
        self._name = name

        def run() -> None:
            try:
                carry_out()
            except Error as error:
                self._future.set_exception(error)
            except Exception as error:  # noqa: BLE001 - raised again by whoever waits
                failed = Error(f"{name} failed: {error}")
                failed.__cause__ = error
                self._future.set_exception(failed)
            else:
                self._future.set_result(None)

        lane.add(run)

    def wait(self, timeout: float | None = None, *, stream: Any = None) -> None:
        """Wait until it is done.

        Args:
            timeout: Seconds; ``None``: as long as it takes.
            stream: Not needed: when this returns, what ran on a device has ended.

        Raises:
            TimedOut: It is not done yet, and goes on.
        """
        del stream
        try:
            self._future.result(timeout)
        except NotYet as error:
            if isinstance(error, Error):
                raise
            raise TimedOut(
                f"{self._name}: not done after {timeout} s; it goes on, wait again"
            ) from None

    def done(self) -> bool:
        """Tell, without waiting, whether it has ended."""
        return self._future.done()
