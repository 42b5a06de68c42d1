"""Processes forked from one that has imported NumPy and gradring: a rank starts in milliseconds.

Half of the processors' time of tests with ranks as processes went into importing the same modules
again. `Nursery` is what a test's process has of it; `serve` is the process that forks.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waiting import readable

_PR_SET_PDEATHSIG = 1
_MESSAGE_BYTES = 1 << 18  # The environment is the most of it.
_DESCRIPTORS_MAX = 16
_PATIENCE = 60.0


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends, however that does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ForkedProcess:
    """One child of the nursery, with what the tests need of `subprocess.Popen`."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._end = os.pidfd_open(pid)  # Not collected before poll() has seen its end.
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal, of one that has ended."""
        if self._code is None and readable(self._end, seconds=0):
            status = self._nursery.ask({"collect": self.pid})["status"]
            self._code = os.waitstatus_to_exitcode(status)
            os.close(self._end)
        return self._code

    def wait(self, seconds: float = _PATIENCE) -> int:
        """Wait for its end and return what `poll` does."""
        if self._code is None and not readable(self._end, seconds=seconds):
            raise TimeoutError(f"process {self.pid} has not ended in {seconds:g} s")
        code = self.poll()
        assert code is not None
        return code

    def kill(self) -> None:
        """End it with SIGKILL, if it has not ended."""
        if self._code is None:
            signal.pidfd_send_signal(self._end, signal.SIGKILL)


class Nursery:
    """A running ``program``, whose main is `serve`; it ends with this process.

    ``program`` gets a descriptor to serve, and the names of further modules to import before.
    """

    def __init__(self, program: Path, *modules: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_PATIENCE)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MESSAGE_BYTES)
        self._process = subprocess.Popen(
            [sys.executable, str(program), str(theirs.fileno()), *modules],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # A threaded BLAS would be threads that a fork leaves behind.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        theirs.close()

    def fork(self, command: int, log: int, inherited: Sequence[int]) -> ForkedProcess:
        """Fork a process with this one's variables and folder.

        Args:
            command: A socket that `serve` returns in it.
            log: Its standard output and error.
            inherited: Descriptors that have the same numbers there.
        """
        order = {
            "inherited": list(inherited),
            "environ": dict(os.environ),
            "folder": str(Path.cwd()),
        }
        return ForkedProcess(self, self.ask(order, [command, log, *inherited])["pid"])

    def ask(self, order: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Send an order and return the answer."""
        socket.send_fds(self._socket, [json.dumps(order).encode()], descriptors)
        data = self._socket.recv(_MESSAGE_BYTES)
        assert data, f"the process that forks ranks has ended: {self._process.wait(_PATIENCE)}"
        answer: dict[str, Any] = json.loads(data)
        return answer


def serve(orders: socket.socket) -> socket.socket | None:
    """Carry out orders to their end and return ``None``; in each child, its socket for commands."""
    end_with_parent()
    while True:
        data, descriptors, _, _ = socket.recv_fds(orders, _MESSAGE_BYTES, _DESCRIPTORS_MAX)
        if not data:
            return None
        order = json.loads(data)
        if "collect" in order:
            orders.sendall(json.dumps({"status": os.waitpid(order["collect"], 0)[1]}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            orders.close()
            return _settle(order, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        orders.sendall(json.dumps({"pid": pid}).encode())


def _settle(order: dict[str, Any], descriptors: list[int]) -> socket.socket:
    """Take the place that the order gives to a new child."""
    end_with_parent()
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["folder"])
    inherited = order["inherited"]
    # First out of the way of the numbers that they shall have.
    above = max([*descriptors, *inherited, 2]) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in descriptors]
    for each in descriptors:
        os.close(each)
    command, log, *others = moved
    for target in (1, 2):
        os.dup2(log, target)
    for each, target in zip(others, inherited, strict=True):
        os.dup2(each, target)
    commands = os.dup(command)
    for each in moved:
        os.close(each)
    return socket.socket(fileno=commands)
