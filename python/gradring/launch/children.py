"""How an agent starts one rank or server, and what it has of it then.

Standard library only; the agent's one thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradring.launch import processes
from gradring.launch.numbers import is_server

# The kinds of frames that its output becomes.
STDOUT, STDERR = b"o", b"e"

_MESSAGE_BYTES_MAX = 4096

# What the job around this one, if there is one, has said to its own ranks.
OF_ANOTHER_JOB = ("GRADRING_LISTEN_FD", "GRADRING_LAUNCHER", "GRADRING_NEWCOMER")


def search_path(environ: Mapping[str, str], programs: str) -> str:
    """Return the PATH of ranks: ours, in which their interpreter's folder is if it was not.

    Its folder is ``programs``, or where that is empty, our own interpreter's.

    A virtual environment that nobody has activated is in no PATH, least of all in that of sshd:
    `python` and `gradring` would be others than here, or none.
    """
    path = environ.get("PATH", os.defpath)
    folder = programs or str(Path(sys.executable).parent)
    is_known = not (programs or sys.executable) or folder in path.split(os.pathsep)
    return path if is_known else f"{folder}{os.pathsep}{path}"


@dataclass(frozen=True)
class Start:
    """What a process is started by.

    Attributes:
        number: Of the rank or server.
        argv: Program and arguments.
        environ: All of its variables.
        cwd: Its folder.
        cores: Those that are its own; ``None``: all.
        listener: A socket that it inherits; ``None``: none.
        has_line: Whether it can tell us where its job is found.
    """

    number: int
    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: str
    cores: set[int] | None = None
    listener: socket.socket | None = None
    has_line: bool = False


class Child:
    """A rank or a server. It leads its own process group: it and its children."""

    def __init__(self, start: Start) -> None:
        """Start it.

        Raises:
            OSError: The system refuses, and so for subprocess.SubprocessError.
        """
        self.number = start.number
        self.is_newcomer = "GRADRING_NEWCOMER" in start.environ
        self.line: socket.socket | None = None  # What it tells of itself, and hears.
        self.has_let_go = False  # Of the line's other end: by its own end, or a wrapper has.
        environ = dict(start.environ)
        with contextlib.ExitStack() as theirs:
            inherited = [] if start.listener is None else [start.listener.fileno()]
            if start.has_line:
                self.line, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                theirs.enter_context(end)
                self.line.setblocking(False)
                environ["GRADRING_LAUNCHER"] = f"{end.fileno()}:{os.fstat(end.fileno()).st_ino}"
                inherited.append(end.fileno())
            parent = os.getpid()
            self.process = subprocess.Popen(
                start.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=start.cwd,
                env=environ,
                pass_fds=inherited,
                preexec_fn=processes.in_child(parent, start.cores),  # noqa: PLW1509 (one thread)
            )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.pipes = {self.process.stdout.fileno(): STDOUT, self.process.stderr.fileno(): STDERR}
        for descriptor in self.pipes:
            os.set_blocking(descriptor, False)

    def hear(self) -> list[str]:
        """Return what it has told since the last time."""
        told: list[str] = []
        while self.line is not None and not self.has_let_go:
            try:
                message = self.line.recv(_MESSAGE_BYTES_MAX)
            except BlockingIOError:
                break
            except OSError:  # It went without hearing what we had told it.
                message = b""
            self.has_let_go = not message
            if message:
                told.append(message.decode(errors="replace"))
        return told

    def tell(self, text: str) -> None:
        """Tell it something, if it has a line and takes it."""
        if self.line is not None:
            with contextlib.suppress(OSError):
                self.line.send(text.encode())

    def hang_up(self) -> None:
        """Let go of the line."""
        if self.line is not None:
            self.line.close()
            self.line = None


def signal_all(
    number: int, pids: Sequence[int], leaders: Mapping[int, Child], *, spares_servers: bool
) -> None:
    """Send a signal to processes.

    Args:
        number: The signal.
        pids: What is to hear it.
        leaders: Ranks and servers by process id: a group that one of them leads is told as one.
        spares_servers: Whether servers, and what they lead, are left alone.
    """
    targets: dict[tuple[Callable[[int, int], None], int], None] = {}
    for pid in pids:
        try:
            group = os.getpgid(pid)
        except ProcessLookupError:
            continue
        leader = leaders.get(group)
        if spares_servers and leader is not None and is_server(leader.number):
            continue
        # A group that its leader still leads is told as one, and once; strays one by one.
        targets[(os.kill, pid) if leader is None else (os.killpg, group)] = None
    for send, target in targets:
        # One of another user (a rank may start sudo) is told of as what would not die.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(target, number)
            if number != signal.SIGKILL:
                send(target, signal.SIGCONT)  # A stopped process could not hear us.
