"""`Background`: one thread that does what it is told in order, behind a queue of bounded length.

Owned by an optimizer. What a task raises comes out of the owner's next call, and every later one:
after a failed push there is no way to go on as if nothing had happened.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

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


class Background:
    """Runs tasks one after the other on a thread of its own."""

    def __init__(self, name: str, length: int) -> None:
        """Start the thread.

        Args:
            name: Of the thread, for debuggers.
            length: Tasks that may wait; `submit` waits for room.
        """
        self._tasks: queue.Queue[Task | threading.Event | None] = queue.Queue()
        self._room = threading.Semaphore(length)  # Of the queue.
        self._failure: BaseException | None = None
        self._is_closed = False
        self._is_dropped = False
        self._process = os.getpid()
        self.waited_seconds = 0.0  # That submit() and wait_for_room() spent waiting for it.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

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
        self._tasks.put(task)

    def wait_for_room(self, timeout: float) -> None:
        """Wait until one task could be handed in at once, if nobody else hands in any.

        Raises:
            TimedOut: As `submit`, and so for its other errors.
        """
        self._wait_for_room(timeout)
        self._room.release()

    def _wait_for_room(self, timeout: float) -> None:
        begin = time.perf_counter()
        try:
            self._take_room(timeout)
        finally:
            self.waited_seconds += time.perf_counter() - begin

    def _take_room(self, timeout: float) -> None:
        self.require_well()
        if not self._room.acquire(timeout=timeout):
            self.require_well()
            raise TimedOut(
                f"{self._thread.name}: the queue was full for {timeout:g} s; servers are too slow "
                "or gone"
            )
        try:
            self.require_well()  # What failed meanwhile has made the room.
        except BaseException:
            self._room.release()
            raise

    def drain(self, timeout: float) -> None:
        """Wait until all tasks handed in so far are done.

        Raises:
            TimedOut: They are not after ``timeout`` seconds.
            Error: One failed.
        """
        done = threading.Event()
        self._take_room(timeout)
        self._tasks.put(done)
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
        return self._tasks.unfinished_tasks

    def require_well(self) -> None:
        """Raise what a task has raised.

        Raises:
            Closed: That was `TimedOut`, which would say to try again; or this is a forked child,
                which has no such thread.
            Error: A task has raised it.
        """
        require_process(self._process, self._thread.name)
        if isinstance(self._failure, TimedOut):
            raise Closed(
                f"{self._thread.name} has failed, and what it carried may be with the servers or "
                f"not: {self._failure}. It cannot go on from that: abandon() this optimizer and "
                "make another one, which takes the servers' values, or go on from a checkpoint"
            ) from self._failure
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise Closed(
                f"{self._thread.name} has ended: the optimizer is closed: it takes no further steps"
            )

    def fail(self, failure: BaseException) -> None:
        """Raise this from now on, as if a task had; an earlier failure stays."""
        if self._failure is None:
            self._failure = failure

    def close(self, timeout: float) -> None:
        """Let the tasks handed in end, and the thread with them. May be called again.

        Args:
            timeout: Seconds to wait for that; 0: drop what has not begun, and do not wait.
        """
        if self._is_closed or os.getpid() != self._process:  # A forked child has no such thread.
            return
        self._is_closed = True
        self._is_dropped = timeout <= 0
        self._tasks.put(None)
        self._thread.join(timeout)

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None and not self._is_dropped:
            self._room.release()
            if isinstance(task, threading.Event):
                task.set()
            elif self._failure is None:
                try:
                    task()
                except BaseException as error:  # noqa: BLE001 - raised on the owner's thread
                    self._failure = error
            self._tasks.task_done()
