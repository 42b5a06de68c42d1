"""A lock in place of one of ours: tests go on when a thread has come to wait for it."""

from __future__ import annotations

import threading


class Telling:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, is_waited_for: threading.Event) -> None:
        self._lock = threading.RLock()
        self._is_waited_for = is_waited_for

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._is_waited_for.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
