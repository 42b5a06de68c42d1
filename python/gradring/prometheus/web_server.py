"""The HTTP server that scrapes come to, and whoever else reaches its port.

Strangers may hold its few connections, and so keep scrapes away, but cost the program neither
descriptors nor threads beyond that, and write nothing into its output. No name server is asked for
their names, or for ours.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

MOST_AT_ONCE = 32

# Of a connection: a scrape takes some for each source that hangs, and is sent at once.
LONGEST_SECONDS = 30.0

# What a newcomer waits for one that had to make room.
_ROOM_SECONDS = 1.0


class WebServer(ThreadingMixIn, WSGIServer):
    """Answers each request from a thread of its own.

    Attributes:
        server_port: Where.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, app: Callable[..., Any]) -> None:
        """Listen; 0 is a free port.

        Raises:
            OSError: It cannot be done.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._room = threading.Semaphore(MOST_AT_ONCE)
        self._lock = threading.Lock()
        self._ends: dict[socket.socket, float] = {}  # Who came first is first.
        address: Any = found[0][4]  # Of IPv6 it has four.
        super().__init__(address, _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        """Bind."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for it; without room the oldest connection ends."""
        if not self._room.acquire(blocking=False):
            self._end_those_before(float("inf"), most=1)
            if not self._room.acquire(timeout=_ROOM_SECONDS):
                self.shutdown_request(request)
                return
        with self._lock:
            self._ends[request] = time.monotonic() + LONGEST_SECONDS
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # No thread can be had.
            self._left(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._left(request)

    def service_actions(self) -> None:
        """End connections that have lasted too long; called twice a second."""
        self._end_those_before(time.monotonic(), most=MOST_AT_ONCE)

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Say nothing: it is about somebody who hung up or asked for nonsense."""

    def _left(self, request: socket.socket) -> None:
        with self._lock:
            self._ends.pop(request, None)
        self._room.release()

    def _end_those_before(self, moment: float, most: int) -> None:
        with self._lock:
            late = [request for request, ends in self._ends.items() if ends < moment][:most]
            for request in late:
                del self._ends[request]
        for request in late:
            # Its thread is at an end then, and closes it.
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""
