"""The launcher's end of one agent: starts it, here or through ssh, and speaks its protocol.

Launcher's thread only. Nothing secret is ever an argument: variables travel over the agent's
standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gradring.commands.own_modules import module_command
from gradring.errors import ProtocolError
from gradring.launch import agent
from gradring.launch.children import STDERR, STDOUT
from gradring.launch.hosts import HostPlan
from gradring.launch.numbers import name, server_number
from gradring.launch.options import Options
from gradring.launch.outcome import name_ranks

# More than this before the greeting is not a login message.
_NOISE_BYTES_MAX = 1 << 16
_FRAME_BYTES_MAX = 1 << 24
_OTHER_GREETING = re.compile(rb"^gradring-agent \d+$", re.MULTILINE)
# How often it is asked whether an end is urgent.
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Frame:
    """One message of an agent: ``kind`` is a stream of process ``number`` or an event."""

    kind: bytes
    number: int
    payload: bytes


class FrameReader:
    """Cuts an agent's bytes into frames, once its greeting was found."""

    def __init__(self) -> None:
        """Expect the greeting."""
        self._pending = b""
        self.has_greeted = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take the next piece and yield what it completes.

        Raises:
            ProtocolError: This is not an agent of our version.
        """
        self._pending += data
        if not self.has_greeted:
            noise, greeting, rest = self._pending.partition(agent.GREETING)
            if not greeting and (other := _OTHER_GREETING.search(noise[: noise.rfind(b"\n") + 1])):
                theirs, here = other[0].decode(), agent.GREETING.decode().strip()
                raise ProtocolError(
                    f"another version of Gradring: its agent says '{theirs}', the one here '{here}'"
                    "; install the same Gradring everywhere"
                )
            if len(noise) > _NOISE_BYTES_MAX:
                raise ProtocolError(f"no agent answered, but: {noise[:200]!r}")
            if not greeting:
                return
            self.has_greeted, self._pending = True, rest
        start = 0
        while len(self._pending) - start >= agent.HEADER.size:
            kind, number, length = agent.HEADER.unpack_from(self._pending, start)
            if kind not in (STDOUT, STDERR, agent.EVENT) or length > _FRAME_BYTES_MAX:
                raise ProtocolError(f"an agent sent a frame of kind {kind!r} and {length} bytes")
            end = start + agent.HEADER.size + length
            if len(self._pending) < end:
                break
            yield Frame(kind, number, self._pending[start + agent.HEADER.size : end])
            start = end
        self._pending = self._pending[start:]


class AgentLink:
    """One host's agent, running."""

    def __init__(self, host: HostPlan, options: Options) -> None:
        """Start it.

        Raises:
            OSError: The ssh command cannot be run.
        """
        self.host = host
        self.reader = FrameReader()
        self.has_started = False  # Its host's ranks and servers run, or have.
        self.is_done = False  # Its last event has come.
        self.is_open = True  # Its output has not ended.
        self._complaint = b""  # A line that has not ended.
        self._unsent = b""  # Of commands.
        self._process = subprocess.Popen(
            _argv(host, options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C in the terminal is for us alone; we pass it on.
            start_new_session=True,
            bufsize=0,
        )
        # An ssh that still connects reads nothing, and a pipe holds less than a long command line.
        os.set_blocking(self.commands.fileno(), False)

    @property
    def pid(self) -> int:
        """Its process, or that of its ssh; it leads a session."""
        return self._process.pid

    @property
    def commands(self) -> IO[bytes]:
        """What the agent is told through; does not block."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def frames(self) -> IO[bytes]:
        """What the agent says."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def complaints(self) -> IO[bytes]:
        """What ssh or a broken agent writes to standard error."""
        assert self._process.stderr is not None
        return self._process.stderr

    def send(self, **command: object) -> None:
        """Tell the agent something, without waiting for room; `write_on` writes the rest."""
        if self.is_open:
            self._unsent += json.dumps(command).encode() + b"\n"
            self.write_on()

    @property
    def wants_room(self) -> bool:
        """Whether something waits to be written."""
        return self.is_open and bool(self._unsent)

    def write_on(self) -> None:
        """Write what fits; an agent that is gone is noticed by the end of its output."""
        try:
            while self.wants_room:
                self._unsent = self._unsent[os.write(self.commands.fileno(), self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent = b""

    def read(self) -> bytes:
        """Return what has arrived; empty at the end."""
        return os.read(self.frames.fileno(), agent.READ_BYTES)

    def complain(self, data: bytes) -> list[str]:
        """Take a piece of what it wrote to standard error; return the lines that are whole now."""
        *lines, self._complaint = (self._complaint + data).split(b"\n")
        if len(self._complaint) > agent.READ_BYTES:
            lines.append(self._complaint)
            self._complaint = b""
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def last_complaints(self) -> list[str]:
        """Return the rest of what it wrote to standard error, without waiting for an end."""
        os.set_blocking(self.complaints.fileno(), False)
        lines: list[str] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.complaints.fileno(), agent.READ_BYTES):
                lines += self.complain(data)
        return [*lines, *(self.complain(b"\n") if self._complaint else [])]

    def loss(self, how: str) -> str:
        """Say that it was lost, with all that it had to run, or that it could not be started."""
        what = "lost" if self.reader.has_greeted else "could not start anything on"
        servers = [name(server_number(index)) for index in self.host.servers]
        parts = ", ".join([name_ranks(list(self.host.ranks)), *servers])
        return f"{what} {self.host.name} ({parts}): {how}"

    def close(self, timeout: float, is_urgent: Callable[[], bool] = lambda: False) -> int:
        """Let the agent go, if need be by force, and return how it (or ssh) ended.

        Args:
            timeout: Seconds that it has.
            is_urgent: Asked meanwhile: whether it has hardly any.
        """
        self.is_open = False
        self.commands.close()
        until = time.monotonic() + timeout
        try:
            while True:
                try:
                    return self._process.wait(min(timeout, _LOOK_SECONDS))
                except subprocess.TimeoutExpired:
                    if is_urgent() or time.monotonic() >= until:
                        self._process.kill()
                        return self._process.wait()
        finally:
            self.frames.close()
            self.complaints.close()


def _argv(host: HostPlan, options: Options) -> list[str]:
    if host.is_here:
        # Without site-packages: it needs the standard library only and starts at once.
        packages = str(Path(agent.__file__).parents[2])
        start = "import sys; sys.path.append(sys.argv[1]); from gradring.launch.agent import main"
        return [sys.executable, "-I", "-S", "-c", f"{start}; main()", packages]
    remote = ["env"]
    if "PYTHONPATH" in os.environ:
        remote.append(f"PYTHONPATH={os.environ['PYTHONPATH']}")
    remote += module_command(agent.__name__, python=options.python)
    return [*options.ssh_words(), host.name, shlex.join(["exec", *remote])]
