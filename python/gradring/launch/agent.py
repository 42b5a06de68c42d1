"""What runs on each host of a job: starts its ranks and servers, carries their output, ends them.

The launcher starts one agent a host, without site-packages on its own machine and as this module
through ssh elsewhere, and talks to it over its standard input (one JSON command a line) and output
(frames, below). The end of standard input means that the launcher is
gone, by whatever death, and ends the job here as well. Standard library only and one thread: it
starts in a moment, and preexec_fn is safe.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from gradring.launch import children, listeners, predecessor, processes
from gradring.launch.children import OF_ANOTHER_JOB, STDERR, Child, Start, search_path
from gradring.launch.numbers import is_server, server_index

# What a login shell prints before is not ours. Counted up with every change of what is said after.
GREETING = b"gradring-agent 5\n"

# kind, number of the process (0 for events), bytes that follow.
HEADER = struct.Struct(">cII")
EVENT = b"j"  # Besides those of output.

READ_BYTES = 1 << 16
# An agent that is silent for so long says so: where its connection is dead, only what is sent on it
# makes its host notice, and end the job there too.
BEAT_SECONDS = 5.0
# Above this the ranks' pipes wait until the launcher has read on.
BACKLOG_BYTES = 1 << 20


class Agent:
    """The loop. Everything happens on the thread that calls `run`."""

    def __init__(self, commands: int, frames: int) -> None:
        """Speak over two descriptors: ``commands`` is read, ``frames`` is written."""
        self._commands = commands
        self._frames = frames
        self._partial = b""
        self._outgoing: deque[bytes] = deque([GREETING])
        self._outgoing_bytes = len(GREETING)
        self._listeners: dict[int, socket.socket] = {}  # By the number of who will inherit it.
        self._children: dict[int, Child] = {}  # By process id, those still running.
        self._groups: dict[int, int] = {}  # That each number's last process has led.
        self._pipes: dict[int, tuple[Child, bytes]] = {}
        self._lines: dict[int, Child] = {}  # By descriptor, of ranks that tell of themselves.
        self._command: dict[str, Any] = {}  # What ranks and servers were started by.
        self._rank_environ: dict[str, str] = {}  # What all ranks have.
        self._place: socket.socket | None = None  # That we have on this host.
        self._grace = 5.0
        self._signals: deque[tuple[float, int]] = deque()  # (when, which), soonest first.
        self._give_up_at = 0.0
        self._is_ending = False
        self._spares_servers = False  # They are needed until the last rank has ended.
        self._is_launcher_gone = False
        self._is_over = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve one job and return when none of its processes is left."""
        processes.adopt_orphans()
        wake, wakened = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop(signal.SIGTERM))
        os.set_blocking(self._frames, False)
        self._selector.register(wake, selectors.EVENT_READ)
        self._selector.register(self._commands, selectors.EVENT_READ)
        while not (self._is_over and (self._is_launcher_gone or not self._outgoing)):
            self._watch_output()
            ready = self._selector.select(self._seconds_to_next_step())
            if not (ready or self._outgoing or self._is_ending):
                self._tell(event="beat")
            for key, _ in ready:
                if key.fd == wake:
                    os.read(wake, READ_BYTES)
                elif key.fd == self._commands:
                    self._read_commands()
                elif key.fd in self._pipes:
                    self._read_pipe(key.fd)
                elif key.fd in self._lines:
                    self._hear(key.fd)
            self._write_frames()
            self._reap()
            if self._is_ending and not self._is_over:
                self._proceed_with_end()

    # Talking to the launcher.

    def _read_commands(self) -> None:
        data = os.read(self._commands, READ_BYTES)
        if not data:
            self._selector.unregister(self._commands)
            self._lose_launcher()
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
        try:
            if command["do"] == "stop":
                self._stop(command["signal"], servers=command["servers"])
            elif self._is_ending:
                return  # Whoever is started now is seen by no stop that has begun.
            elif command["do"] == "listen":
                self._listen(*(command[name] for name in ("number", "host", "port", "ports")))
            elif command["do"] == "start":
                self._start(command)
            elif command["do"] == "come back":
                self._tell(event="started", pids={}, threads=self._prepare(command))
            elif command["do"] == "restart":
                self._restart(command["number"], command["place"])
            elif command["do"] == "place":
                for child in self._children.values():
                    if child.is_newcomer:
                        child.tell(command["place"])
        except (OSError, subprocess.SubprocessError) as error:
            self._tell(event="refused", text=processes.refusal(command["do"], error))
            self._stop(signal.SIGTERM, servers=True)

    def _lose_launcher(self) -> None:
        self._is_launcher_gone = True
        self._outgoing.clear()
        self._stop(signal.SIGTERM)

    def _tell(self, **event: object) -> None:
        self._queue(EVENT, 0, json.dumps(event).encode())

    def _queue(self, kind: bytes, number: int, payload: bytes) -> None:
        if self._is_launcher_gone:
            return
        frame = HEADER.pack(kind, number, len(payload)) + payload
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)

    def _write_frames(self) -> None:
        while self._outgoing:
            data = self._outgoing.popleft()
            try:
                written = os.write(self._frames, data)
            except BlockingIOError:
                written = 0
            except OSError:  # Nobody reads any more.
                self._lose_launcher()
                return
            self._outgoing_bytes -= written
            if written < len(data):
                self._outgoing.appendleft(data[written:])
                return

    def _watch_output(self) -> None:
        is_watched = self._frames in self._selector.get_map()
        wants = bool(self._outgoing)
        if wants and not is_watched:
            self._selector.register(self._frames, selectors.EVENT_WRITE)
        elif is_watched and not wants:
            self._selector.unregister(self._frames)
        has_room = self._outgoing_bytes < BACKLOG_BYTES
        for descriptor in self._pipes:
            is_read = descriptor in self._selector.get_map()
            if has_room and not is_read:
                self._selector.register(descriptor, selectors.EVENT_READ)
            elif is_read and not has_room:
                self._selector.unregister(descriptor)

    # Starting.

    def _listen(self, number: int, host: str, port: int, ports: str | None) -> None:
        listener = listeners.open_listener(host, port, ports, is_for_ranks=not is_server(number))
        self._listeners[number] = listener
        self._tell(event="listening", number=number, port=listener.getsockname()[1])

    def _prepare(self, command: dict[str, Any]) -> int | None:
        """Take what ranks and servers are started by; return the threads that we choose."""
        self._command = command
        self._grace = command["grace"]
        if command["restarts"]:
            self._place = predecessor.take_place(command["mark"])
        environ = self._environ()
        environ["PATH"] = search_path(environ, command["programs"])
        _, beside = command["share"]
        threads = max(1, len(os.sched_getaffinity(0)) // beside)
        is_set = "OMP_NUM_THREADS" in environ
        environ.setdefault("OMP_NUM_THREADS", str(threads))
        self._rank_environ = environ
        return None if is_set else threads

    def _start(self, command: dict[str, Any]) -> None:
        threads = self._prepare(command)
        for server in command["servers"]:
            self._spawn_server(server)
        for rank in command["ranks"]:
            self._spawn_rank(rank, {})
        # Ours would keep accepting on behalf of a rank 0 that has died.
        if 0 in self._listeners:
            self._listeners.pop(0).close()
        pids = {child.number: pid for pid, child in self._children.items()}
        self._tell(event="started", pids=pids, threads=threads)

    def _restart(self, number: int, place: str | None) -> None:
        if is_server(number):
            self._spawn_server(number)
        else:
            # The one before may have been another agent's.
            group = self._groups.get(number)
            if group is not None and group not in self._children:
                processes.end_group(group)
            as_newcomer = {"GRADRING_NEWCOMER": "1", "GRADRING_RENDEZVOUS": place or ""}
            try:
                self._spawn_rank(number, as_newcomer if place else {})
            except (OSError, subprocess.SubprocessError) as error:
                # The others go on, and what is in the way may have passed by the next try.
                self._queue(STDERR, number, f"{processes.refusal('restart', error)}\n".encode())
                self._tell(event="exited", number=number, status=1)
                return
        pids = {child.number: pid for pid, child in self._children.items()}
        self._tell(event="started", pids={number: pids[number]}, threads=None)

    def _environ(self) -> dict[str, str]:
        environ: dict[str, str] = {**os.environ, **self._command["environ"]}
        return {name: value for name, value in environ.items() if name not in OF_ANOTHER_JOB}

    def _spawn_rank(self, rank: int, besides: Mapping[str, str]) -> None:
        ranks, (before, beside) = self._command["ranks"], self._command["share"]
        local = ranks.index(rank)
        role = {
            "GRADRING_RANK": str(rank),
            "GRADRING_LOCAL_RANK": str(local),
            "GRADRING_LOCAL_WORLD_SIZE": str(len(ranks)),
        }
        cores = processes.share_of_cores(before + local, beside) if self._command["bind"] else None
        environ = {**self._rank_environ, **role, **besides}
        self._spawn(rank, self._command["argv"], environ, cores)

    def _spawn_server(self, number: int) -> None:
        # Its listener stays open here, so a server that is started again has the same address and
        # finds in it who came meanwhile.
        own = [*self._command["server_argv"], "--index", str(server_index(number))]
        own += ["--listen-fd", str(self._listeners[number].fileno())]
        if (metrics := self._command["metrics"].get(str(number))) is not None:
            own += ["--metrics", metrics]
        self._spawn(number, own, self._environ(), None)

    def _spawn(
        self, number: int, argv: list[str], environ: dict[str, str], cores: set[int] | None
    ) -> None:
        listener = self._listeners.get(number)
        if number == 0 and listener is not None:
            environ["GRADRING_LISTEN_FD"] = str(listener.fileno())
        has_line = self._command["restarts"] and not is_server(number)
        cwd = self._command["cwd"]
        child = Child(Start(number, argv, environ, cwd, cores, listener, has_line))
        self._children[child.process.pid] = child
        self._groups[number] = child.process.pid
        self._pipes.update({fd: (child, kind) for fd, kind in child.pipes.items()})
        if child.line is not None:
            self._lines[child.line.fileno()] = child
            self._selector.register(child.line, selectors.EVENT_READ)

    def _hear(self, descriptor: int) -> None:
        """Pass on what a rank tells of itself; whatever waits in its pipes."""
        child = self._lines[descriptor]
        for text in child.hear():
            self._tell(event="told", number=child.number, text=text)
        if child.has_let_go:
            self._tell(event="told", number=child.number, text="")
            self._hang_up(descriptor)

    def _hang_up(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        self._lines.pop(descriptor).hang_up()

    # Output and ends.

    def _read_pipe(self, descriptor: int) -> bool:
        """Pass on what is there; False once there is no more for now."""
        child, kind = self._pipes[descriptor]
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._queue(kind, child.number, data)
            return True
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
        del self._pipes[descriptor]
        return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if pid == 0:
                break
            child = self._children.pop(pid, None)
            if child is None:
                continue  # An orphan that came to us.
            child.process.returncode = os.waitstatus_to_exitcode(status)
            for descriptor in child.pipes:
                self._drain(descriptor)
            if child.line is not None:
                line = child.line.fileno()
                self._hear(line)
                if line in self._lines:
                    self._hang_up(line)
            self._tell(event="exited", number=child.number, status=child.process.returncode)
            self._stop_what_is_left()

    def _drain(self, descriptor: int) -> None:
        # What a rank said before it ended is told before its end; a child of it may go on writing.
        for _ in range(BACKLOG_BYTES // READ_BYTES):
            if descriptor not in self._pipes or not self._read_pipe(descriptor):
                break

    def _stop_what_is_left(self) -> None:
        # Also for what the ranks left behind. Where there are servers, or ranks may come again, the
        # launcher says when the last rank of all hosts has ended, unless it is gone itself.
        if any(not is_server(child.number) for child in self._children.values()):
            return
        is_awaited = self._command["servers"] or self._command["restarts"]
        if not is_awaited or self._is_launcher_gone:
            self._stop(signal.SIGTERM, servers=True)

    def _stop(self, number: int, *, servers: bool = False) -> None:
        """Ask with ``number``, insist, kill when the grace is over. Only SIGKILL hurries a stop.

        Servers are spared until the grace is over, unless this stop is meant for them too.
        """
        now = time.monotonic()
        if number == signal.SIGKILL:
            self._signals = deque([(now, signal.SIGKILL)])
        elif not self._is_ending or (servers and self._spares_servers):
            self._signals = deque([(now, number), (now + self._grace, signal.SIGKILL)])
            if number == signal.SIGINT:
                self._signals.insert(1, (now + self._grace / 2, signal.SIGTERM))
            self._spares_servers = not servers
        self._is_ending = True

    def _seconds_to_next_step(self) -> float:
        if not self._is_ending or self._is_over:
            return BEAT_SECONDS
        when = self._signals[0][0] if self._signals else self._give_up_at
        return max(0.0, when - time.monotonic())

    def _proceed_with_end(self) -> None:
        now = time.monotonic()
        left = processes.descendants(os.getpid())
        if not left:
            # One that has died since is told before we say that all is over. What cannot be reaped
            # yet has lost its first thread only.
            self._reap()
            left = list(self._children)
        while left and self._signals and self._signals[0][0] <= now:
            _, number = self._signals.popleft()
            self._send(number, left)
            self._give_up_at = now + processes.UNKILLABLE_SECONDS
        if left and (self._signals or now < self._give_up_at):
            if not self._signals:
                self._send(signal.SIGKILL, left)  # Those born while we were killing.
            return
        for descriptor in list(self._pipes):
            self._drain(descriptor)
        self._is_over = True
        self._tell(event="done", left=left)

    def _send(self, number: int, pids: list[int]) -> None:
        is_spared = self._spares_servers and number != signal.SIGKILL
        children.signal_all(number, pids, self._children, spares_servers=is_spared)


def main() -> None:
    """Serve the launcher at our standard input and output."""
    Agent(sys.stdin.fileno(), sys.stdout.fileno()).run()


if __name__ == "__main__":
    main()
