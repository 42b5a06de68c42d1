"""`Background`: one thread that does what it is told in order, behind a queue of bounded length.

Owned by an optimizer. What a task raises comes out of the owner's next call, and every later one:
after a failed push there is no way to go on as if nothing had happened. Of an owner that nobody has
any more the tasks are done, and then the thread ends.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from gradring.errors import Closed, TimedOut

Task = Callable[[], None]


def require_process(process: int, what: str) -> None:
    """Raise `Closed` in any process but the one with that number: a child that was forked."""
    if os.getpid() != process:
        raise Closed(
            f"{what} belongs to the parent process: a forked child cannot use it. Make an "
            "optimizer in the child, over a connection of its own, or start workers with the "
            "'spawn' method"
        )


@dataclass(slots=True)
class _Work:
    """What the thread knows; it does not know the `Background`, which may go before it.

    Attributes:
        tasks: Not begun yet, in order; ``None`` ends the thread. A `SimpleQueue`, into which the
            garbage collector may put something at any moment.
        room: Of the queue.
        ended: How many tasks have been done, or left out after a failure.
        has_failed: A task has. What it raised is its owner's: it has frames that know the owner,
            which the thread would keep for ever.
        is_dropped: Those that have not begun are left out.
    """

    tasks: SimpleQueue[Task | threading.Event | None] = field(default_factory=SimpleQueue)
    room: threading.Semaphore = field(default_factory=threading.Semaphore)
    ended: int = 0
    has_failed: bool = False
    is_dropped: bool = False


class Background:
    """Runs tasks one after the other on a thread of its own."""

    def __init__(self, name: str, length: int) -> None:
        """Start the thread.

        Args:
            name: Of the thread, for debuggers.
            length: Tasks that may wait; `submit` waits for room.
        """
        self._work = _Work(room=threading.Semaphore(length))
        self._handing_in = threading.RLock()  # A signal handler may step, too.
        self._handed_in = 0
        self._is_closed = False
        self._failure: BaseException | None = None
        self._process = os.getpid()
        self.waited_seconds = 0.0  # That submit() and wait_for_room() spent waiting for it.
        self._thread = threading.Thread(
            target=_serve, args=(self._work, weakref.ref(self)), name=name, daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._work.tasks.put, None).atexit = False

    def submit(self, task: Task, timeout: float) -> None:
        """Hand in a task; wait while the queue is full.

        Args:
            task: Called on the thread.
            timeout: Seconds.

        Raises:
            TimedOut: There was no room for ``timeout`` seconds.
            Error: An earlier task failed; it raises what that raised.
        """
        self._wait_for_room(timeout)
        self._put(task)

    def wait_for_room(self, timeout: float) -> None:
        """Wait until one task could be handed in at once, if nobody else hands in any.

        Raises:
            TimedOut: As `submit`, and so for its other errors.
        """
        self._wait_for_room(timeout)
        self._work.room.release()

    def _wait_for_room(self, timeout: float) -> None:
        begin = time.perf_counter()
        try:
            self._take_room(timeout)
        finally:
            self.waited_seconds += time.perf_counter() - begin

    def _take_room(self, timeout: float) -> None:
        self.require_well()
        if not self._work.room.acquire(timeout=timeout):
            self.require_well()
            raise TimedOut(
                f"{self._thread.name}: the queue was full for {timeout:g} s; servers are too slow "
                "or gone"
            )
        try:
            self.require_well()  # What failed meanwhile has made the room.
        except BaseException:
            self._work.room.release()
            raise

    def _put(self, task: Task | threading.Event) -> None:
        with self._handing_in:
            self._handed_in += 1
        self._work.tasks.put(task)

    def drain(self, timeout: float) -> None:
        """Wait until all tasks handed in so far are done.

        Raises:
            TimedOut: They are not after ``timeout`` seconds.
            Error: One failed.
        """
        done = threading.Event()
        self._take_room(timeout)
        self._put(done)
        if not done.wait(timeout):
            self.require_well()
            raise TimedOut(
                f"{self._thread.name}: still at work after {timeout:g} s; servers are too slow or "
                "gone"
            )
        self.require_well()

    @property
    def waiting(self) -> int:
        """Tasks that have not ended."""
        return self._handed_in - self._work.ended

    def require_well(self) -> None:
        """Raise what a task has raised.

        Raises:
            Closed: That was `TimedOut`, which would say to try again; or this is a forked child,
                which has no such thread.
            Error: A task has raised it.
        """
        require_process(self._process, self._thread.name)
        failure = self._failure
        if isinstance(failure, TimedOut):
            raise Closed(
                f"{self._thread.name} has failed, and what it carried may be with the servers or "
                f"not: {failure}. It cannot go on from that: abandon() this optimizer and "
                "make another one, which takes the servers' values, or go on from a checkpoint"
            ) from failure
        if failure is not None:
            raise failure
        if self._is_closed:
            raise Closed(
                f"{self._thread.name} has ended: the optimizer is closed: it takes no further steps"
            )

    def fail(self, failure: BaseException) -> None:
        """Raise this from now on, as if a task had; an earlier failure stays."""
        if self._failure is None:
            self._failure = failure
        self._work.has_failed = True

    def close(self, timeout: float) -> None:
        """Let the tasks handed in end, and the thread with them. May be called again.

        Args:
            timeout: Seconds to wait for that; 0: drop what has not begun, and do not wait.
        """
        if self._is_closed or os.getpid() != self._process:  # A forked child has no such thread.
            return
        self._is_closed = True
        self._work.is_dropped = timeout <= 0
        self._work.tasks.put(None)
        self._thread.join(timeout)


def _serve(work: _Work, owner: weakref.ref[Background]) -> None:
    while (task := work.tasks.get()) is not None and not work.is_dropped:
        work.room.release()
        if isinstance(task, threading.Event):
            task.set()
        elif not work.has_failed:
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - raised on the owner's thread
                work.has_failed = True
                if (background := owner()) is not None:
                    background.fail(error)
                del background
        del task  # Else it would keep its owner while the next one is waited for.
        work.ended += 1
