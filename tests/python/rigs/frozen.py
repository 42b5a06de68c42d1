"""Freezing a process for a test: the signal alone comes back before the process has stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PATIENCE = 60.0  # Seconds; only a machine that has lost the process needs them.


def freeze(pid: int) -> float:
    """Stop a process with SIGSTOP; returns when none of its threads runs any more, and the time.

    Until a thread has been on a processor again it does not see the signal: a server can still
    answer what is sent right after ``kill``.
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
