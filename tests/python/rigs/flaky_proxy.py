"""A TCP proxy that breaks connections: every so many bytes, both ways at once, in mid-message."""

from __future__ import annotations

import contextlib
import socket
import threading

import numpy as np


class FlakyProxy:
    """Stands before one server; each connection lives for a seeded number of bytes.

    Attributes:
        address: To connect to instead of the server.
        broken: Connections broken so far.
    """

    def __init__(self, target: str, seed: int, most_bytes: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._random = np.random.default_rng(seed)
        self._most_bytes = most_bytes
        self._is_calm = False
        self._is_out = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.broken = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def calm_down(self) -> None:
        """Break no more connections."""
        self._is_calm = True

    def go_out(self) -> None:
        """Carry no byte until `come_back`: connections break at the next."""
        self._is_out = True

    def come_back(self) -> None:
        """Carry connections again."""
        self._is_out = False

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                left = [int(self._random.integers(self._most_bytes // 4, self._most_bytes))]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(
                        target=self._pump, args=(source, sink, left), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                left[0] -= len(data)
                if self._is_out:
                    break
                if left[0] < 0 and not self._is_calm:
                    self.broken += 1
                    sink.sendall(data[: len(data) // 2])
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
