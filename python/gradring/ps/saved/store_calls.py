"""Calls of stores, which may hang: each on a thread beside, and with a deadline.

Used by who saves and loads, and by the servers' threads. Nobody can end a call that hangs in a
kernel or a library: it is left alone, and its place is refused until it has ended.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from gradring.errors import DeviceError, InvalidArgument, TimedOut
from gradring.timeouts import milliseconds

MOST_HANGING = 16  # Each has a thread, and what it was writing.
FOR_GOOD = threading.TIMEOUT_MAX / 2  # In seconds: centuries.

T = TypeVar("T")


class Deadline:
    """Until when a save or a load has to be over, and what its caller gave for it, in seconds."""

    def __init__(self, seconds: float, given: float | None = None, asked: str = "") -> None:
        """Begin to count.

        Args:
            seconds: Until it has passed.
            given: What errors say, where ``seconds`` are what was left of it.
            asked: What errors begin with.
        """
        self.given = seconds if given is None else given
        self.asked = asked
        self._end = time.monotonic() + seconds

    @classmethod
    def of(cls, timeout: float | None, default: float, asked: str = "") -> Deadline:
        """Begin one as users give it, or else ``default`` seconds.

        Raises:
            InvalidArgument: It makes no sense as a timeout.
        """
        seconds = default if timeout is None else milliseconds(timeout) / 1000
        return cls(seconds, seconds, asked)

    def later(self, seconds: float) -> Deadline:
        """Begin one that passes so much later and says the same."""
        return Deadline(self.left() + seconds, self.given, self.asked)

    def end_now(self) -> None:
        """Have it pass at once: nobody waits any more."""
        self._end = 0.0

    def left(self) -> float:
        """Return how many seconds are left, 0 at the end and after it."""
        return max(0.0, self._end - time.monotonic())

    def require_left(self, place: str) -> None:
        """Refuse to begin anything at a path or URL once it has passed.

        Raises:
            TimedOut: It has.
        """
        if not self.left():
            raise TimedOut(
                f"{self.asked}{place}: the {self.given:g} s were over before the next step began, "
                "which was left out; unless a store hangs, try again with a longer timeout"
            )


class Behind:
    """A call on a thread of its own, which keeps no program from ending."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        """Begin it.

        Raises:
            DeviceError: The machine has no thread for it.
        """
        self._lock = threading.Lock()  # Of what it returns late, and of being over.
        self._over = threading.Event()
        self._late: Callable[[Any], object] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        thread = threading.Thread(
            target=self._run, args=(call, args), name="gradring-store", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise DeviceError(f"there is no thread to call a store on: {error}") from error

    def is_over(self, seconds: float | None = 0.0) -> bool:
        """Wait for its end so long, for ever if None, and tell whether it has come."""
        return self._over.wait(seconds)

    def result(self) -> Any:
        """Wait for its end, and return or raise what it did."""
        self._over.wait()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._value
        finally:
            del error  # Its traceback has this frame: held here too, both would stay for long.

    def give_up(self, late: Callable[[Any], object] | None) -> None:
        """Have ``late`` called with what it returns, if it ever does."""
        with self._lock:
            if not self._over.is_set():
                self._late = late
                return
        self._clear_away(late)

    def _run(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._value = call(*args)
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it, whatever it is
            self._error = error
        with self._lock:
            self._over.set()
            late = self._late
        self._clear_away(late)

    def _clear_away(self, late: Callable[[Any], object] | None) -> None:
        if late is not None and self._error is None:
            late(self._value)


class _Hanging:
    """Calls that were given up."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        self.lock = threading.RLock()  # A signal handler may save, too.
        self.calls: list[tuple[str, Behind]] = []


_hanging = _Hanging()


def within(
    deadline: Deadline,
    place: str,
    call: Callable[..., Any],
    *args: Any,
    late: Callable[[Any], object] | None = None,
) -> Any:
    """Call what may hang in a store, and return what it does.

    Args:
        deadline: Once it has passed, nothing is begun.
        place: Path or URL, for errors; while a call that was given up hangs there, others are
            refused.
        call: What is called, on another thread.
        args: Of the call.
        late: Takes what the call returns after it was given up, to clear that away.

    Raises:
        InvalidArgument: An earlier call hangs at this place, or too many do at others.
        TimedOut: It was not over at the deadline. It may go on, or end at any time. Or the deadline
            had passed before, whatever hangs at this place: it may be what took the time.
        DeviceError: The machine has no thread for it.
    """
    deadline.require_left(place)
    _require_free(place)
    behind = Behind(call, *args)
    is_over = False
    try:
        is_over = behind.is_over(deadline.left())
    finally:
        if not is_over:
            behind.give_up(late)
            with _hanging.lock:
                _hanging.calls.append((place, behind))
    if not is_over:
        raise TimedOut(
            f"{deadline.asked}{place} was not done within {deadline.given:g} s: its store hangs, "
            "or is slow. The call is left alone; use another place until it has ended"
        )
    return behind.result()


def read_within(
    deadline: Deadline,
    place: str,
    pieces: Callable[[], Iterator[T]],
    take: Callable[[T], object],
) -> None:
    """Give all ``pieces`` of a store to ``take``, both called as `within` calls.

    Who gives up, or is interrupted, has no more than the next piece read.
    """
    is_given_up = threading.Event()

    def read() -> None:
        for piece in pieces():
            if is_given_up.is_set() or not deadline.left():  # Who waits here may be given up, too.
                break
            take(piece)
        else:
            return
        deadline.require_left(place)

    try:
        within(deadline, place, read)
    finally:
        is_given_up.set()


def _require_free(place: str) -> None:
    with _hanging.lock:
        _hanging.calls = [one for one in _hanging.calls if not one[1].is_over()]
        places = [where for where, _ in _hanging.calls]
    if place in places:
        raise InvalidArgument(
            f"{place}: an earlier call that was given up still hangs in its store; use another "
            "place until that has ended"
        )
    if len(places) >= MOST_HANGING:
        raise InvalidArgument(
            f"{place}: {len(places)} calls that were given up still hang in stores, as many as are "
            f"left alone: {', '.join(sorted(set(places)))}. See to these stores, or start this "
            "process again"
        )


os.register_at_fork(after_in_child=_hanging.begin_anew)  # The threads are the parent's.
