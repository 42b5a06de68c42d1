"""What an agent asks the kernel for: descendants, cores, and children that die with it.

Standard library only; the agent's one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

# After SIGKILL only a process stuck in the kernel is still there.
UNKILLABLE_SECONDS = 5.0

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def adopt_orphans() -> None:
    """Have orphans come to this process instead of to init, so that no grandchild escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True)
class Orphans:
    """Processes that come to this one when their parents die.

    Attributes:
        before: Children that this process had before; they are none.
    """

    before: frozenset[int]

    def end(self, except_for: Collection[int], session: int | None) -> None:
        """Kill them with all that is below them, until no more come.

        Args:
            except_for: Children that are no orphans.
            session: Only those of this session; ``None``: all.
        """
        kept = self.before.union(except_for)
        while found := [pid for pid in _children() if pid not in kept and _is_in(pid, session)]:
            for pid in (*found, *(below for top in found for below in descendants(top))):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            # One that is stuck in the kernel, or another user's, is left alone: nothing helps.
            kept |= {pid for pid in found if not _is_gone(pid)}


@contextlib.contextmanager
def adopting_orphans() -> Iterator[Orphans]:
    """Have orphans come to this process for a while; their later deaths are noticed by nobody."""
    before = frozenset(_children())
    adopt_orphans()
    try:
        yield Orphans(before)
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children() -> list[int]:
    # With zombies, which descendants() leaves out: whoever waits for one gets its children.
    own = os.getpid()
    return [pid for pid, parent, _ in _stats() if parent == own]


def _is_in(pid: int, session: int | None) -> bool:
    if session is None:
        return True
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False


def _is_gone(pid: int) -> bool:
    """Wait for a child that was killed; False where it takes too long."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if not _is_readable_by(time.monotonic() + UNKILLABLE_SECONDS, descriptor):
            return False
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        return True
    finally:
        os.close(descriptor)


def _is_readable_by(until: float, descriptor: int) -> bool:
    # Not select(), which knows only the first 1,024 descriptors.
    end = select.poll()
    end.register(descriptor, select.POLLIN)
    return bool(end.poll(max(0.0, until - time.monotonic()) * 1000))


def descendants(ancestor: int) -> list[int]:
    """Return the processes below ``ancestor``, parents before children, without zombies."""
    children: dict[int, list[int]] = {}
    for pid, parent, state in _stats():
        if state not in (b"Z", b"X"):
            children.setdefault(parent, []).append(pid)
    found = list(children.get(ancestor, ()))
    for pid in found:  # Grows while we walk.
        found.extend(children.get(pid, ()))
    return found


def end_tree(top: int) -> list[int]:
    """Kill a process of which we are no part, and before it all below it, while it adopts orphans.

    Returns:
        Those that would not die.
    """
    until = time.monotonic() + UNKILLABLE_SECONDS
    while found := [*descendants(top)]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not all(_has_ended_by(until, pid) for pid in found):
            return found
    with contextlib.suppress(ProcessLookupError):
        os.kill(top, signal.SIGKILL)
    return [] if _has_ended_by(until, top) else [top]


def _has_ended_by(until: float, pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return _is_readable_by(until, descriptor)
    finally:
        os.close(descriptor)


def end_group(group: int) -> None:
    """End what a lost rank has left in its group: it would be in the way, on a GPU or a port.

    A group without processes may have a successor by its number, but not among those below us.
    """
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == group:
                os.kill(pid, signal.SIGKILL)


def _stats() -> Iterator[tuple[int, int, bytes]]:
    """Yield every process with its parent and its state."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_bytes()
        except OSError:
            continue  # Gone meanwhile.
        state, parent = stat.rpartition(b")")[2].split()[:2]
        yield int(entry.name), int(parent), state


def share_of_cores(place: int, ranks: int) -> set[int] | None:
    """Return the cores of one of a machine's ranks; none of its own where cores are fewer.

    Left alone, the kernel often puts two ranks that wait for each other on one core, and every wait
    then costs a switch behind whatever else runs there. Servers get no share: what they do, they do
    while a rank waits for it.
    """
    cores = sorted(os.sched_getaffinity(0))
    if ranks > len(cores):
        return None
    return set(cores[place * len(cores) // ranks : (place + 1) * len(cores) // ranks])


def refusal(what: str, error: Exception) -> str:
    """Say why the system let us not do it, and which limit of this host that is."""
    limits = {errno.EMFILE: "ulimit -n", errno.ENFILE: "fs.file-max", errno.EAGAIN: "ulimit -u"}
    limit = limits.get(getattr(error, "errno", None) or 0)
    hint = "" if limit is None else f"; see this host's {limit}"
    return f"cannot {what}: {error}{hint}"


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
