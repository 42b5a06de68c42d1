"""A barrier that says who did not come, and leaves the group usable.

Rank 0 hears from everybody and answers everybody, by messages on a communicator of their own.
Nothing is waited for longer than the timeout and nothing is closed when it passes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradring.collectives.communicator import Communicator
from gradring.collectives.work import Work
from gradring.errors import TimedOut
from gradring.torch.c10d.calls.errors import for_torch

_PASS, _FAIL = 1, 2
_LOOK_EVERY = 0.001  # Seconds.
_ANSWER_SECONDS = 5.0  # Whoever is answered is waiting for it.


class MonitoredBarrier:
    """The monitored barriers of one group."""

    def __init__(self, comm: Communicator, name: str) -> None:
        """Keep what the first one needs."""
        self._comm = comm
        self._name = name
        self._side: Communicator | None = None
        self._count = 0
        self._late: list[Any] = []  # Messages that never came, and their buffers.

    def wait(self, timeout: float, ranks: Sequence[int], *, wait_all_ranks: bool) -> None:
        """Pass when all ranks have come.

        Args:
            timeout: Seconds.
            ranks: Global rank of each rank of the group, for the messages.
            wait_all_ranks: Name all ranks that are missing, not only the first.

        Raises:
            TimedOut: On rank 0, names who is missing; elsewhere says that rank 0 did not answer, or
                that somebody is missing.
        """
        if self._side is None:
            self._side = self._comm.subgroup(range(self._comm.world_size), f"{self._name} barrier")
        self._count += 1
        if self._comm.rank == 0:
            self._lead(timeout, ranks, wait_all_ranks)
        else:
            self._follow(timeout, ranks)

    def _lead(self, timeout: float, ranks: Sequence[int], wait_all_ranks: bool) -> None:
        if timeout <= 0:
            raise _timed_out(f"Rank {ranks[0]} timed out in monitoredBarrier after 0 ms")
        deadline = time.monotonic() + timeout
        others = range(1, self._comm.world_size)
        calls = {rank: self._receive(rank) for rank in others}
        missing: list[int] = []
        answers: list[Work] = []
        for rank, (work, _) in calls.items():
            if not _is_done_by(work, deadline):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        for rank, (work, buffer) in calls.items():
            if work.done():
                work.wait()
                answers.append(self._send(rank, _FAIL if missing else _PASS))
            else:
                self._late.append((work, buffer))
        for answer in answers:  # Or closing the group at once would take them back.
            _is_done_by(answer, time.monotonic() + _ANSWER_SECONDS)
        if missing:
            names = ", ".join(str(ranks[rank]) for rank in missing)
            raise _timed_out(
                f"{'Ranks' if wait_all_ranks else 'Rank'} {names} failed to pass monitoredBarrier "
                f"in {timeout * 1000:.0f} ms: see the log of {'them' if wait_all_ranks else 'it'}; "
                "the group stays usable"
            )

    def _follow(self, timeout: float, ranks: Sequence[int]) -> None:
        deadline = time.monotonic() + timeout
        self._send(0, _PASS)
        work, answer = self._receive(0)
        reached = (
            f"Rank {ranks[self._comm.rank]} successfully reached monitoredBarrier, but received "
            f"errors while waiting for send/recv from rank {ranks[0]}"
        )
        if not _is_done_by(work, deadline):
            self._late.append((work, answer))
            raise _timed_out(f"{reached}: no answer within {timeout * 1000:.0f} ms")
        work.wait()
        if answer[0] != _PASS:
            raise _timed_out(f"{reached}: its error names who is missing")

    def _send(self, rank: int, text: int) -> Work:
        assert self._side is not None
        buffer = np.full(1, text, np.int64)
        self._late = [late for late in self._late if not late[0].done()]
        work: Work = self._side.send(buffer, rank, self._count, async_op=True)
        self._late.append((work, buffer))
        return work

    def _receive(self, rank: int) -> tuple[Work, Any]:
        assert self._side is not None
        buffer = np.zeros(1, np.int64)
        work: Work = self._side.recv(buffer, rank, self._count, async_op=True)
        return work, buffer

    def close(self, *, linger: bool) -> None:
        """Leave; `linger` as in `Communicator.close`."""
        if self._side is not None:
            self._side.close(linger=linger)


def _is_done_by(work: Work, deadline: float) -> bool:
    while not work.done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY)
    return True


def _timed_out(text: str) -> TimedOut:
    error = for_torch(TimedOut(text))
    assert isinstance(error, TimedOut)
    return error
