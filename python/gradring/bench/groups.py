"""The ranks of a library, as the bench commands them.

`LaunchedGroup` starts them on this machine and talks to each through a Unix socket. `JoinedGroup`
is for when a launcher has started `gradring bench` itself as every rank: then rank 0 passes
commands on through the communicator that is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

import gradring as gr
from gradring.bench.peers.timing import Rank, Reply
from gradring.bench.starts import Start
from gradring.collectives.texts import gather_texts

_LONGEST_FOLDER = 64  # Bytes; names of ours that come behind it are up to 40 long.
_START_SECONDS = 120.0
_ANSWER_SECONDS = 300.0
_LEAVE_SECONDS = 15.0
_LOG_LINES = 8


class GroupFailed(Exception):  # noqa: N818 - says what happened
    """A library's rank failed, died or did not answer; the text says which and what it wrote."""


class Group(Protocol):
    """The ranks of one library."""

    name: str
    size: int

    def ask(self, **command: Any) -> list[Reply]:
        """Give all ranks a command and return their answers by rank.

        Raises:
            GroupFailed: A rank could not do it.
        """

    def close(self) -> None:
        """Let the ranks end."""


def folder_for_sockets(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Make a private folder for the sockets of groups; it goes with the context.

    Not where temporary files usually go if that is a long way down: the system takes no socket's
    name of more than 107 bytes.
    """
    is_long = len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER
    return tempfile.TemporaryDirectory(prefix=prefix, dir="/tmp" if is_long else None)


def _started(start: Start, log: BinaryIO) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            start.argv,
            cwd=start.cwd,
            # What is measured has nothing to do with servers that this shell knows.
            env={**os.environ, "GRADRING_SERVERS": "", **start.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        raise GroupFailed(f"{start.name}: could not start {start.argv[0]}: {error}") from error


class LaunchedGroup:
    """Ranks that this process has started. Between commands they sleep in a read."""

    def __init__(
        self, start: Start, size: int, path: Path, patience: float = _ANSWER_SECONDS
    ) -> None:
        """Start them and wait until all have connected.

        Args:
            start: The library's launcher.
            size: Ranks that will come.
            path: The socket's; a private folder. The ranks' output goes into a file beside it.
            patience: Seconds after which a rank that has not answered is given up.

        Raises:
            GroupFailed: They did not come.
        """
        self.name = start.name
        self.size = size
        self._log = path.with_suffix(".log")
        self._patience = patience
        self._ranks: list[Any] = [None] * size
        self._connections: list[socket.socket] = []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(size)
            with self._log.open("wb") as log:
                self._process = _started(start, log)
            try:
                self._welcome(listener)
            except BaseException:
                self.close()
                raise

    def ask(self, **command: Any) -> list[Reply]:
        """Give all ranks a command; see `Group`."""
        line = json.dumps(command).encode() + b"\n"
        try:
            for rank in self._ranks:
                with contextlib.suppress(ConnectionError):  # It ended: reading finds who.
                    rank.write(line)
                    rank.flush()
            answers = [self._answer(number) for number in range(self.size)]
        except OSError as error:
            raise GroupFailed(self._complaint(f"no answer: {error}")) from error
        for number, answer in enumerate(answers):
            if "error" in answer:
                raise GroupFailed(self._complaint(f"rank {number}: {answer['error']}"))
        return answers

    def close(self) -> None:
        """Close the sockets, which the ranks take as the end, and wait for the launcher."""
        for rank in self._ranks:
            if rank is not None:
                with contextlib.suppress(OSError):
                    rank.close()
        for connection in self._connections:
            connection.close()
        try:
            self._process.wait(_LEAVE_SECONDS if self._connections else 0.0)
        except subprocess.TimeoutExpired:
            # First a chance for the launcher to take its ranks along.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_LEAVE_SECONDS)
                    break

    def _welcome(self, listener: socket.socket) -> None:
        seconds = min(_START_SECONDS, self._patience)
        deadline = time.monotonic() + seconds
        ended = os.pidfd_open(self._process.pid)
        poll = select.poll()
        for descriptor in (listener.fileno(), ended):
            poll.register(descriptor, select.POLLIN)
        try:
            while None in self._ranks:
                left = max(0.0, deadline - time.monotonic())
                ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
                if listener.fileno() not in ready:
                    what = "it ended" if ready else f"not all ranks came in {seconds:g} s"
                    raise GroupFailed(self._complaint(f"could not start: {what}"))
                connection = listener.accept()[0]
                connection.settimeout(self._patience)
                self._connections.append(connection)
                stream = connection.makefile("rwb")
                self._ranks[json.loads(stream.readline())["rank"]] = stream
        finally:
            os.close(ended)

    def _answer(self, number: int) -> Reply:
        line = b""
        with contextlib.suppress(ConnectionError):  # It ended with a command unread.
            line = self._ranks[number].readline()
        if not line:
            # The launcher says how, but only once it has stopped the others.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_SECONDS)
            raise GroupFailed(self._complaint(f"rank {number} ended"))
        answer: Reply = json.loads(line)
        return answer

    def _complaint(self, what: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n    ".join([f"{self.name}: {what}", *lines])


class JoinedGroup:
    """All ranks of the job that this process belongs to. Rank 0 asks; the others `follow`."""

    def __init__(self, comm: gr.Communicator, program: Rank) -> None:
        """Command this process's own program and, through ``comm``, everybody else's."""
        self.name = "gradring"
        self.size = comm.world_size
        self._comm = comm
        self._program = program
        self._is_in_step = True  # Between commands; not if the communicator failed in one.

    def ask(self, **command: Any) -> list[Reply]:
        """Give all ranks a command; see `Group`."""
        self._is_in_step = False
        answers = self._answers(self._broadcast(json.dumps(command).encode()))
        self._is_in_step = True
        for number, answer in enumerate(answers):
            if "error" in answer:
                raise GroupFailed(f"gradring: rank {number}: {answer['error']}")
        return answers

    def follow(self) -> None:
        """Obey rank 0 until it has no more commands."""
        while True:
            line = self._broadcast(b"")
            if not line:
                return
            self._answers(line)

    def close(self) -> None:
        """Tell the others that there are no more commands, unless they know of a failure."""
        if self._is_in_step:
            self._broadcast(b"")

    def _broadcast(self, line: bytes) -> bytes:
        length = np.array([len(line)], np.int64)
        self._comm.broadcast(length)
        data = np.zeros(int(length[0]), np.uint8)
        data[: len(line)] = np.frombuffer(line, np.uint8)
        self._comm.broadcast(data)
        return data.tobytes()

    def _answers(self, line: bytes) -> list[Reply]:
        try:
            answer = self._program.obey(json.loads(line))
        except gr.Error:
            raise  # Then there is no way to tell the others, nor a need to.
        except Exception as error:  # noqa: BLE001 - rank 0 has to say what happened elsewhere
            answer = {"error": f"{type(error).__name__}: {error}"}
        texts = gather_texts(self._comm, json.dumps(answer).encode())
        return [json.loads(text) for text in texts]
