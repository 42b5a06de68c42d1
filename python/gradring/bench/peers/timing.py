"""One rank's side of a measurement, the same for every library.

A rank does what it is told: prepare a case, run a batch of calls and time each, check the result.
Between commands it waits for the next one in a read, so that libraries which are not measured take
no CPU. Every library is seen through `Library`.
"""

from __future__ import annotations

import gc
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from . import pattern
from .pattern import Array, Case

Call = Callable[[], object]
Reply = dict[str, Any]


class Unsupported(Exception):  # noqa: N818 - not a failure: a word for the table
    """The library cannot do this case."""


@dataclass(frozen=True)
class Bound:
    """An operation on its buffers.

    Attributes:
        call: Runs it once.
        result: Where the result is.
        algorithm: Its name, where the library tells.
        put: Brings what the host's buffers hold to where the call reads it.
        get: Brings the result back to the host's buffers.
    """

    call: Call
    result: Array
    algorithm: str = ""
    put: Call = lambda: None
    get: Call = lambda: None


class Library(Protocol):
    """What a measured library has to offer."""

    rank: int
    size: int

    def barrier(self) -> None:
        """Wait for all ranks."""

    def bind(self, case: Case, x: Array, y: Array) -> Bound:
        """Prepare the operation from ``x`` (or in place) to ``y``; sizes by `buffer_counts`.

        Raises:
            Unsupported: The library cannot do it.
        """

    def about(self) -> Reply:
        """Return what to say about it: ``version``, and what else is worth knowing."""


class Rank:
    """Carries out commands on one library."""

    def __init__(self, library: Library) -> None:
        """Start with nothing prepared."""
        self._library = library
        self._case: Case | None = None
        self._bound: Bound | None = None
        self._x = self._y = np.empty(0, np.uint8)
        self._commands: dict[str, Callable[..., Reply]] = {
            "about": self.about,
            "bind": self.bind,
            "prepare": self.prepare,
            "run": self.run,
        }

    def add(self, name: str, command: Callable[..., Reply]) -> None:
        """Let the rank understand one more command."""
        self._commands[name] = command

    def obey(self, command: Reply) -> Reply:
        """Carry out one command; it comes and its answer goes as JSON."""
        options = {name: value for name, value in command.items() if name != "do"}
        return self._commands[command["do"]](**options)

    def about(self) -> Reply:
        """Tell what library this is and what its sockets do."""
        cores = len(os.sched_getaffinity(0))
        return {**self._library.about(), "congestion": congestion_in_force(), "cores": cores}

    def bind(self) -> Reply:
        """Keep the calling thread on one core, ranks in turn; a library's own threads stay free."""
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[self._library.rank % len(cores)]})
        return {}

    def prepare(self, op: str, count: int, dtype: str, reduce_op: str) -> Reply:
        """Allocate the buffers of a case."""
        self._bound = None
        self._x = self._y = np.empty(0, np.uint8)  # Before the next ones are made.
        case = Case(op, count, dtype, reduce_op)
        sizes = pattern.buffer_counts(case, self._library.rank, self._library.size)
        try:
            kind = pattern.numpy_dtype(dtype)
            self._x, self._y = (np.empty(size, kind) for size in sizes)
            self._case, self._bound = case, self._library.bind(case, self._x, self._y)
        except (ImportError, Unsupported) as error:
            return {"unsupported": str(error)}
        self._fill()
        return {"algorithm": self._bound.algorithm}

    def run(self, calls: int, check: bool) -> Reply:
        """Run a batch that starts on all ranks together, time every call, and check the result."""
        assert self._bound is not None
        if check:
            self._fill()
        call = self._bound.call
        clock = time.perf_counter_ns
        stamps = [0] * (calls + 1)
        was_enabled = gc.isenabled()
        gc.disable()
        self._library.barrier()
        cpu = time.process_time_ns()
        stamps[0] = clock()
        for i in range(1, calls + 1):
            call()
            stamps[i] = clock()
        cpu = time.process_time_ns() - cpu
        if was_enabled:
            gc.enable()
        times = [after - before for before, after in itertools.pairwise(stamps)]
        return {"ns": times, "cpu_ns": cpu, "wrong": self._check() if check else 0}

    def _fill(self) -> None:
        assert self._case is not None
        is_overwritten = self._case.op == "broadcast" and self._library.rank != 0
        if is_overwritten:
            pattern.poison(self._x)
        else:
            pattern.fill(self._x, self._case, self._library.rank)
        pattern.poison(self._y)
        assert self._bound is not None
        self._bound.put()

    def _check(self) -> int:
        assert self._case is not None
        assert self._bound is not None
        if self._bound.result is self._x and self._case.op in ("all_reduce", "reduce"):
            # In place, so that the timed calls have reduced results of one another.
            self._fill()
            self._bound.call()
        self._bound.get()
        ranks = self._library.rank, self._library.size
        return pattern.count_wrong(self._bound.result, self._case, *ranks)


def congestion_in_force() -> dict[str, int]:
    """Return how many of this process's TCP connections use which congestion control."""
    found: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as probe:
                probe.getpeername()  # Fails on one that listens.
                raw = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        except OSError:
            continue
        control = raw.split(b"\0")[0].decode()
        found[control] = found.get(control, 0) + 1
    return found


def python_version() -> str:
    """Return this interpreter's version."""
    return ".".join(str(number) for number in sys.version_info[:3])
