"""Ranks as real processes that a test drives: starts them, tells them what to call, kills them.

Nothing here sleeps: answers come through a socket, and every wait for one has a deadline.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import ForkedProcess, Nursery
from thread_ranks import listening_socket
from waiting import freeze, readable

PROGRAM = Path(__file__).with_name("rank_process.py")
PATIENCE = 60.0  # For what should happen at once, on a machine that may be busy.
ASKED_BY_ANOTHER_JOB = "a connection from a local process: it does not know this job's secret"


@dataclass(frozen=True)
class Outcome:
    """How a call on a rank ended.

    Attributes:
        at: `time.monotonic()` of that rank, which all processes of a machine share.
        result: What the code left in ``result``.
        error: Name of the exception's class.
        text: The exception's text.
        lost: Its ``rank``, where it has one.
        cause: The same for its ``__cause__``.
    """

    at: float
    result: Any = None
    error: str | None = None
    text: str = ""
    lost: int | None = None
    cause: dict[str, Any] | None = None


@functools.cache
def nursery(*modules: str) -> Nursery:
    """Return this process's one of ranks that have imported these, besides what all have."""
    return Nursery(PROGRAM, *modules)


class RankProcess:
    """One rank's process."""

    def __init__(self, forks: Nursery, rank: int, log: Path, *inherited: int) -> None:
        self.rank = rank
        self.log_path = log
        self.socket, theirs = socket.socketpair()
        with log.open("wb") as stderr:
            self.process: ForkedProcess = forks.fork(theirs.fileno(), stderr.fileno(), inherited)
        theirs.close()
        self._received = b""
        self._messages: deque[dict[str, Any]] = deque()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """What it has written to its standard output and error.

        Without what it says of a test of ``gradring doctor --job`` beside this one: looking for
        its own ranks, that knocks at every local door of this machine.
        """
        lines = self.log_path.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if ASKED_BY_ANOTHER_JOB not in line)

    def begin(self, code: str, *, is_fatal: bool = False) -> None:
        """Let it run code; an exception is its outcome, or with ``is_fatal`` its end."""
        self.socket.sendall((json.dumps({"code": code, "is_fatal": is_fatal}) + "\n").encode())

    def call(self, code: str) -> Any:
        """Run code to its end and return its ``result``; it must not fail."""
        self.begin(code)
        outcome = self.outcome()
        assert outcome.error is None, outcome
        return outcome.result

    def expect(self, event: str) -> float:
        """Wait until the code says ``say(event)``; returns when it did."""
        message = self._next()
        assert (message["kind"], message.get("event")) == ("event", event), (message, self.log)
        at: float = message["at"]
        return at

    def outcome(self) -> Outcome:
        """Wait for the end of what was begun first."""
        message = self._next()
        assert message.pop("kind") == "outcome", message
        return Outcome(**message)

    def wait_until_it_sleeps(self) -> None:
        """Return when it is asleep in the kernel: after ``say``, in the call behind that."""
        deadline = time.monotonic() + PATIENCE
        while not Path(f"/proc/{self.pid}/syscall").read_text().split()[0].isdecimal():
            assert time.monotonic() < deadline, f"rank {self.rank} never waits"
            os.sched_yield()

    def has_answered(self) -> bool:
        """Tell, without waiting, whether there is an answer that nobody has read."""
        return bool(self._messages) or bool(readable(self.socket, seconds=0))

    def kill(self) -> float:
        """End it with SIGKILL; returns when."""
        self.process.kill()
        at = time.monotonic()
        self.process.wait(PATIENCE)
        return at

    def freeze(self) -> float:
        """Stop it with SIGSTOP; returns when it has stopped."""
        return freeze(self.pid)

    def interrupt(self) -> float:
        """Send the SIGINT of a Ctrl-C; returns when."""
        os.kill(self.pid, signal.SIGINT)
        return time.monotonic()

    def leave(self) -> int:
        """Send no more commands; the exit status of the script's end."""
        if self.process.poll() is None:
            self.socket.shutdown(socket.SHUT_WR)
        return self.process.wait(PATIENCE)

    def clean_up(self) -> None:
        self.process.kill()
        self.process.wait()
        self.socket.close()

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while not self._messages:
            left = max(0.0, deadline - time.monotonic())
            ready = readable(self.socket, seconds=left)
            assert ready, f"rank {self.rank} said nothing for {PATIENCE} s; its log: {self.log}"
            chunk = self.socket.recv(1 << 16)
            assert chunk, f"rank {self.rank} ended; its log: {self.log}"
            *lines, self._received = (self._received + chunk).split(b"\n")
            self._messages.extend(json.loads(line) for line in lines)
        return self._messages.popleft()


class Job:
    """Several rank processes, by rank, each with these modules imported."""

    def __init__(self, directory: Path, *modules: str) -> None:
        directory.mkdir()
        self._nursery = nursery(*modules)
        self._directory = directory
        self.ranks: list[RankProcess] = []

    def spawn(self, rank: int, *inherited: int) -> RankProcess:
        """Start a process that has not joined anything yet; it inherits these descriptors."""
        log = self._directory / f"rank{len(self.ranks)}.log"
        process = RankProcess(self._nursery, rank, log, *inherited)
        self.ranks.append(process)
        return process

    def start(self, world_size: int, *, host: str = "127.0.0.1", **options: Any) -> None:
        """Start that many ranks and let them join one another; with 0 the test spawns them."""
        if world_size == 0:
            return
        listen_fd, address = listening_socket(host)
        settings = {
            "world_size": world_size, "rendezvous": address, "secret": secrets.token_hex(16),
            "timeout": 20.0, "heartbeat_timeout": 5.0, **options,
        }  # fmt: skip
        self.spawn(0, listen_fd).begin(f"join(rank=0, listen_fd={listen_fd}, **{settings!r})")
        os.close(listen_fd)
        for rank in range(1, world_size):
            self.spawn(rank).begin(f"join(rank={rank}, **{settings!r})")
        for outcome in self.outcomes():
            assert outcome.error is None, outcome

    def begin(self, code: str) -> None:
        """Let every rank run code."""
        for rank in self.ranks:
            rank.begin(code)

    def call(self, code: str) -> list[Any]:
        """Run code on every rank to its end; the ``result`` of each."""
        self.begin(code)
        outcomes = self.outcomes()
        assert not any(outcome.error for outcome in outcomes), outcomes
        return [outcome.result for outcome in outcomes]

    def meeting_point(self) -> str:
        """Return where newcomers come to, as rank 0 says it."""
        point: str = self.ranks[0].call("result = comm.meeting_point")
        return point

    def expect(self, event: str) -> None:
        """Wait until every rank has said ``say(event)``."""
        for rank in self.ranks:
            rank.expect(event)

    def others(self, *victims: int) -> list[RankProcess]:
        """Return all ranks but those."""
        return [rank for rank in self.ranks if rank.rank not in victims]

    def says_anything_within(self, seconds: float) -> bool:
        """Tell whether any rank answers in that time."""
        sockets = [rank.socket for rank in self.ranks]
        return bool(readable(*sockets, seconds=seconds))

    def outcomes(self, ranks: Iterable[RankProcess] | None = None) -> list[Outcome]:
        """Wait for the end of what these ranks were told to do, or all of them."""
        return [rank.outcome() for rank in (self.ranks if ranks is None else ranks)]

    def clean_up(self) -> None:
        for rank in self.ranks:
            rank.clean_up()


StartJob = Callable[..., Job]
