"""Threads that wait for operations which nobody else waits for.

A future that was asked for has to be completed, and an operation whose handle was dropped has to be
kept alive until it is done. Collectives end in the order they were started, so one thread waits for
them one by one; messages end in any order, so another looks at all of them. They start when first
needed and end with their group.

A future's callbacks run on the thread that completes it, in order, and may themselves start an
operation and wait for its future, as PowerSGD's do. So each such thread has a level, and what is
asked for on it is completed by threads of the next.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

Task = Callable[[], None]

_LOOK_EVERY = 0.0005  # Seconds between two looks at messages under way.

_here = threading.local()


class Pending(Protocol):
    """What a `Watch` looks at."""

    def is_ready(self) -> bool:
        """Tell whether `complete` would not wait."""

    def complete(self, timeout: float | None = None) -> None:
        """Do what is left to do, once it is ready or so many seconds have passed; never raises."""


class Lane:
    """One thread that carries out tasks in order. A task must not raise."""

    def __init__(self, name: str, level: int = 1) -> None:
        """Name the thread; it starts with the first task."""
        self._name = name
        self._level = level
        self._tasks: deque[Task] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def add(self, task: Task) -> None:
        """Queue a task; callable from any thread.

        Raises:
            RuntimeError: No thread can be started for it, as at the end of the interpreter.
        """
        with self._changed:
            if self._thread is None:
                self._thread = self._started()
            self._tasks.append(task)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread after the tasks that are queued; does not wait for it."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()

    def _started(self) -> threading.Thread:
        # Before Python 3.12 a thread that is started then never runs, and start() waits for it.
        if sys.is_finalizing():
            raise RuntimeError(f"{self._name}: the interpreter ends, and starts no more threads")
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        _here.level = self._level
        while True:
            with self._changed:
                while not self._tasks:
                    if self._is_stopping:
                        self._thread = None
                        return
                    self._changed.wait()
                task = self._tasks.popleft()
            task()
            del task  # It may be all that keeps an operation's tensors.


class Watch:
    """Completes what is under way as it gets ready, in any order."""

    def __init__(self, name: str, level: int = 1) -> None:
        """Name the thread; it starts with the first one to watch."""
        self._lane = Lane(name, level)
        # Handles are dropped wherever the garbage collector runs, under this lock too.
        self._lock = threading.RLock()
        self._watched: list[tuple[Pending, float]] = []

    def add(self, pending: Pending, timeout: float) -> None:
        """Complete it when it is ready, or fail it when ``timeout`` seconds have passed.

        Raises:
            RuntimeError: As `Lane.add`.
        """
        with self._lock:
            if not self._watched:
                self._lane.add(self._look)
            self._watched.append((pending, time.monotonic() + timeout))

    def stop(self) -> None:
        """End the thread when nothing is left to watch."""
        self._lane.stop()

    def _look(self) -> None:
        while True:
            now = time.monotonic()
            with self._lock:
                due = [item for item in self._watched if item[0].is_ready() or now >= item[1]]
            for pending, _ in due:
                pending.complete(_LOOK_EVERY)  # It is ready, or has had its time.
            with self._lock:
                self._watched = [item for item in self._watched if item not in due]
                if not self._watched:
                    return
            time.sleep(_LOOK_EVERY)


class Completion:
    """The threads of one group: a `Lane` and a `Watch` for each level."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.RLock()  # As a `Watch`'s.
        self._lanes: list[tuple[Lane, Watch]] = []

    def in_order(self, pending: Pending) -> None:
        """Complete a collective, after those that were given before."""
        self._next_level()[0].add(pending.complete)

    def when_ready(self, pending: Pending, timeout: float) -> None:
        """Complete a message as soon as it is ready; see `Watch`."""
        self._next_level()[1].add(pending, timeout)

    def stop(self) -> None:
        """End the threads when nothing is left to complete."""
        for lane, watch in self._lanes:
            lane.stop()
            watch.stop()

    def _next_level(self) -> tuple[Lane, Watch]:
        level: int = getattr(_here, "level", 0)
        with self._lock:
            while len(self._lanes) <= level:
                here = len(self._lanes) + 1
                self._lanes.append(
                    (Lane(f"gradring collectives {here}", here), Watch(f"messages {here}", here))
                )
            return self._lanes[level]
