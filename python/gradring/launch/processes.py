"""What an agent asks the kernel for: descendants, cores, and children that die with it.

Standard library only; the agent's one thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def adopt_orphans() -> None:
    """Have orphans come to this process instead of to init, so that no grandchild escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(ancestor: int) -> list[int]:
    """Return the processes below ``ancestor``, parents before children, without zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_bytes()
        except OSError:
            continue  # Gone meanwhile.
        state, parent = stat.rpartition(b")")[2].split()[:2]
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(entry.name))
    found = list(children.get(ancestor, ()))
    for pid in found:  # Grows while we walk.
        found.extend(children.get(pid, ()))
    return found


def share_of_cores(local_rank: int, ranks: int) -> set[int] | None:
    """Return the cores of one rank; none of its own where there are more ranks than cores.

    Left alone, the kernel often puts two ranks that wait for each other on one core, and every wait
    then costs a switch behind whatever else runs there. Servers get no share: what they do, they do
    while a rank waits for it.
    """
    cores = sorted(os.sched_getaffinity(0))
    if ranks > len(cores):
        return None
    return set(cores[local_rank * len(cores) // ranks : (local_rank + 1) * len(cores) // ranks])


def in_child(parent: int, cores: set[int] | None) -> Callable[[], None]:
    """Return what a child does before it becomes the rank.

    It leads a group of its own, dies with us, and binds itself.
    """

    def prepare() -> None:
        # Not a session: where each session has its share of the cores (autogroup), a rank that
        # yields would yield to nobody.
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # It died before the line above.
            os._exit(1)
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return prepare
