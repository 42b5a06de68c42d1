"""Waiting in a test: for something to read, and for a process to stand still."""

from __future__ import annotations

import os
import selectors
import signal
import time
from pathlib import Path
from socket import socket

PATIENCE = 60.0  # Seconds; only a machine that has lost the process needs them.


def readable(*files: int | socket, seconds: float | None = None) -> list[int | socket]:
    """Wait until any can be read without blocking: those that can, or none when the time is up.

    Descriptors may have any number: a process of pytest keeps ranks of every size open, and
    select() takes none from 1,024 on.
    """
    with selectors.PollSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ, file)
        return [key.data for key, _ in selector.select(seconds)]


def freeze(pid: int) -> float:
    """Stop a process with SIGSTOP; returns when none of its threads runs any more, and the time.

    The signal alone comes back before that: until a thread has been on a processor again it does
    not see it, and a server can still answer what is sent right after ``kill``.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE
    while any(state_of(thread) != "T" for thread in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        os.sched_yield()
    return time.monotonic()


def state_of(thread: Path) -> str:
    """Read the letter of a thread's state: R, S, T; T for one that is gone."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "T"
