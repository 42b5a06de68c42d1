"""How a job ended: which rank failed first and how, what became of the others, the exit code.

Pure bookkeeping; the job loop tells it what happened, in order.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from gradring.launch.numbers import is_server, name


@dataclass(frozen=True)
class Failure:
    """What went wrong.

    Attributes:
        text: What to tell.
        code: The job's exit code.
        process: The number of the rank or server; ``None`` where it was a host or ourselves.
        how: How that process ended, without its name.
        lost: The ranks that were lost with a host, where the others go on without it.
        is_told: Whether the text was told when it happened.
    """

    text: str
    code: int
    process: int | None = None
    how: str = ""
    lost: tuple[int, ...] = ()
    is_told: bool = False

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """What has failed, by number."""
        return self.lost or (self.process,)

    @property
    def is_of_job(self) -> bool:
        """Whether the job cannot go on: it is none of ranks alone."""
        return not self.lost and (self.process is None or is_server(self.process))


class Outcome:
    """The state of all ranks; the first failure wins and stays."""

    def __init__(self, world_size: int) -> None:
        """Nothing has ended yet."""
        self.failure: Failure | None = None
        self.interrupt: int | None = None
        self.has_begun = False  # Whether any rank may have been started.
        self._world_size = world_size
        self._ends: dict[int, int | None] = {}  # None: with its host, which did not say.

    @property
    def running(self) -> int:
        """Number of ranks that have not ended."""
        return self._world_size - len(self._ends)

    def end(self, rank: int, status: int) -> None:
        """Note that a rank ended."""
        self._ends[rank] = status

    def lose(self, ranks: Iterable[int]) -> None:
        """Note that ranks were lost with their host; those that had ended before stay as noted."""
        for rank in ranks:
            self._ends.setdefault(rank, None)

    def begin_again(self, rank: int) -> None:
        """Note that a rank that had ended was started again."""
        self._ends.pop(rank, None)

    def status_line(self, seconds: int, *, is_stopping: bool) -> str:
        """Say how many ranks there still are, after so many seconds."""
        what = "stopping" if is_stopping else "running"
        ranks = f"{self.running} of {self._world_size} ranks {what}"
        return f"gradring: {ranks}, {seconds // 60}:{seconds % 60:02}"

    def has_ended(self, rank: int) -> bool:
        """Tell whether a rank's end was noted."""
        return rank in self._ends

    def awaits_end(self, rank: int) -> bool:
        """Tell whether a number is that of a rank of the job, whose end was not noted yet."""
        return 0 <= rank < self._world_size and rank not in self._ends

    def interrupt_by(self, number: int) -> int:
        """Note the signal that asks for the end, and return the one that says so to the ranks.

        Who sends SIGTERM (systemd, Kubernetes, Slurm) may tell the launcher alone: ranks that save
        a checkpoint at it are to hear it. A closed terminal is as Ctrl-C.
        """
        self.interrupt = number
        return signal.SIGTERM if number == signal.SIGTERM else signal.SIGINT

    def fail(self, failure: Failure) -> bool:
        """Note a failure; True when it is the first one, and nobody had asked for the end."""
        if self.failure is not None or self.interrupt is not None:
            return False
        self.failure = failure
        return True

    def told(self, number: int, how: str) -> str:
        """Return what to tell of a rank or server that failed in this way."""
        return f"{name(number)} failed{' first' if self.failure is None else ''}: {how}"

    @property
    def exit_code(self) -> int:
        """0, the first failed rank's code, or 128 + signal as shells count."""
        if self.failure is not None:
            return self.failure.code
        return 0 if self.interrupt is None else 128 + self.interrupt

    def aftermath(self) -> str:
        """Say what became of the other ranks after a failure that was told; empty otherwise."""
        if self.failure is None or not self.failure.text or not self.has_begun:
            return ""
        groups: dict[str, list[int]] = {}
        for rank in range(self._world_size):
            if rank not in self.failure.ranks:
                groups.setdefault(_became(self._ends.get(rank)), []).append(rank)
        return "; ".join(f"{name_ranks(ranks)} {what}" for what, ranks in groups.items())


class Restarts:
    """Tells whether one more start may help a server, rank or host that has ended, and when.

    What ends a server, such as a full disk, may take a while to pass: pauses grow.
    """

    MOST = 10  # In a row, each after a short life.
    LONG_LIFE_SECONDS = 60.0
    FIRST_PAUSE_SECONDS = 0.1  # Each pause after a short life is twice the one before.
    LONGEST_PAUSE_SECONDS = 5.0

    def __init__(self, now: float) -> None:
        """Take everybody's first start to be now."""
        self._first = now
        self._last: dict[int | str, tuple[float, int]] = {}  # (last start, starts in a row).

    def note_end(self, who: int | str, now: float, began: float | None = None) -> float | None:
        """Take the end of a process, or of a host.

        Args:
            who: Number of the process, or name of the host.
            now: Seconds.
            began: Since when its life counts; ``None``: its start.

        Returns:
            When to start it again; ``None``: not any more.
        """
        started, in_a_row = self._last.get(who, (self._first, 0))
        started = started if began is None else began
        in_a_row = 1 if now - started >= self.LONG_LIFE_SECONDS else in_a_row + 1
        pause = min(self.FIRST_PAUSE_SECONDS * 2 ** (in_a_row - 1), self.LONGEST_PAUSE_SECONDS)
        self._last[who] = (now + pause, in_a_row)
        return now + pause if in_a_row <= self.MOST else None


def name_ranks(ranks: list[int]) -> str:
    """Return "rank 3" or "ranks 0-2, 5".

    >>> name_ranks([0, 1, 2, 5])
    'ranks 0-2, 5'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def describe(status: int) -> str:
    """Say how a process ended, from its exit code or minus its signal."""
    if status >= 0:
        return f"exit code {status}"
    try:
        which = signal.Signals(-status).name
    except ValueError:  # Real-time signals have no names.
        which = f"signal {-status}"
    hint = " (kill -9, or the kernel when memory ran out)" if -status == signal.SIGKILL else ""
    return f"killed by {which}{hint}"


def exit_code(status: int) -> int:
    """Turn how a process ended into an exit code, as shells do."""
    return status if status >= 0 else 128 - status


def _became(status: int | None) -> str:
    if status is None:
        return "unknown: the host did not say"
    if status == 0:
        return "finished"
    if status in (-signal.SIGTERM, -signal.SIGINT):
        return "stopped"
    if status == -signal.SIGKILL:
        return "killed"
    return f"ended with {describe(status)}"
