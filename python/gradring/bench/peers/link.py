"""What the link below the library can do by itself: plain copies in memory, plain TCP streams.

Measured by gradring's own ranks, with the same buffers' sizes and in the same run, so that a figure
has its ceiling beside it. Sockets are set up as the library sets up its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import numpy as np

import gradring as gr
from gradring import _core
from gradring.bench.peers.pattern import Array
from gradring.bench.peers.timing import Reply
from gradring.launchers import roles
from gradring.machine import host_facts
from gradring.settings import config, port_range

_ADDRESS_BYTES = 64
_BLOCK_BYTES = 1 << 20
_LEAST_COPIED_BYTES = 16 << 20  # Or ranks would take turns on a core without it being seen.
_SECONDS = 60.0  # For a transfer that should take milliseconds.


class RawLink:
    """Sockets in a ring, opened on first use, and the buffers to send from and receive into."""

    def __init__(self, comm: gr.Communicator) -> None:
        """Open nothing yet."""
        self._comm = comm
        self._next: socket.socket | None = None
        self._previous: socket.socket | None = None
        self._source = self._target = np.empty(0, np.uint8)

    def copy(self, nbytes: int, repeats: int, together: bool) -> Reply:
        """Copy memory, on all ranks at once or on rank 0 alone.

        Returns:
            ``begin`` and ``end``: nanoseconds on the clock that all processes of a host share, of
            each repeat; none where this rank had nothing to do. ``copies``: in a repeat.
        """
        source, target = self._buffers(nbytes)
        copies = max(1, _LEAST_COPIED_BYTES // nbytes)
        begin, end = [], []
        for _ in range(repeats):
            self._comm.barrier()
            if together or self._comm.rank == 0:
                begin.append(time.monotonic_ns())
                for _ in range(copies):
                    np.copyto(target, source)
                end.append(time.monotonic_ns())
        return {"begin": begin, "end": end, "copies": copies}

    def stream(self, nbytes: int, repeats: int, together: bool) -> Reply:
        """Send to the next rank while receiving from the one before, or from rank 0 to 1 alone.

        Returns:
            ``ns``: of each repeat. ``cpu_ns``: this process's processor time of all of them.
        """
        self._connect()
        source, target = self._buffers(nbytes)
        sends = together or self._comm.rank == 0
        receives = together or self._comm.rank == 1
        times = []
        cpu = 0
        for _ in range(repeats):
            self._comm.barrier()
            start = time.perf_counter_ns()
            cpu -= time.process_time_ns()
            sender = threading.Thread(target=self._send, args=(source,))
            if sends:
                sender.start()
            if receives:
                self._receive(target)
            if sends:
                sender.join()
            times.append(time.perf_counter_ns() - start)
            cpu += time.process_time_ns()
        return {"ns": times, "cpu_ns": cpu}

    def half_trip(self, repeats: int) -> Reply:
        """Let ranks 0 and 1 pass four bytes back and forth; nanoseconds of half of each."""
        self._connect()
        ends = {0: self._next, 1: self._previous}
        end = ends.get(self._comm.rank)
        times: list[int] = []
        self._comm.barrier()
        if end is not None:
            end.setblocking(False)
            for _ in range(repeats):
                start = time.perf_counter_ns()
                if self._comm.rank == 0:
                    end.send(b"ping")
                _poll(end)
                if self._comm.rank == 1:
                    end.send(b"pong")
                times.append((time.perf_counter_ns() - start) // 2)
            end.settimeout(_SECONDS)
        self._comm.barrier()
        return {"ns": times}

    def _buffers(self, nbytes: int) -> tuple[Array, Array]:
        # Written once, or the kernel would lend one page of zeros for all of it.
        if self._source.size != nbytes:
            self._source, self._target = (np.full(nbytes, 1, np.uint8) for _ in range(2))
        return self._source, self._target

    def _connect(self) -> None:
        if self._next is not None:
            return
        comm = self._comm
        role = roles.discover(os.environ)
        host = "127.0.0.1"
        if role is not None:
            host = host_facts.route_source(role.rendezvous_host, role.rendezvous_port or 9) or host
        ports = config.Settings.from_environ(os.environ).ports
        with port_range.listen_at_free_port(
            host, ports, lambda port: socket.create_server((host, port), family=_family(host))
        ) as listener:
            mine = np.zeros(_ADDRESS_BYTES, np.uint8)
            text = f"{host} {listener.getsockname()[1]}".encode()
            mine[: len(text)] = np.frombuffer(text, np.uint8)
            everybody = comm.all_gather(mine)
            after = bytes(everybody[(comm.rank + 1) % comm.world_size]).rstrip(b"\0").decode()
            name, port = after.split()
            listener.settimeout(_SECONDS)
            self._next = socket.create_connection((name, int(port)), _SECONDS)
            self._previous = listener.accept()[0]
        for end in (self._next, self._previous):
            end.settimeout(_SECONDS)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _core.tune_data_socket(end.fileno())
            if comm.local_world_size == comm.world_size:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")

    def _send(self, source: Array) -> None:
        assert self._next is not None
        data = source.data
        for begin in range(0, len(data), _BLOCK_BYTES):
            self._next.sendall(data[begin : begin + _BLOCK_BYTES])

    def _receive(self, target: Array) -> None:
        assert self._previous is not None
        data = target.data
        got = 0
        while got < len(data):
            count = self._previous.recv_into(data[got : got + _BLOCK_BYTES])
            if count == 0:
                raise ConnectionError("the rank before this one left while the link was measured")
            got += count


def _poll(end: socket.socket) -> None:
    """Receive four bytes without sleeping in the kernel, as the library waits at first."""
    deadline = time.monotonic() + _SECONDS
    while not _receive_now(end):
        if time.monotonic() > deadline:
            raise TimeoutError("no answer over the plain link")
        os.sched_yield()


def _receive_now(end: socket.socket) -> bool:
    try:
        if not end.recv(4):
            raise ConnectionError("the other rank left while the link was measured")
    except BlockingIOError:
        return False
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
