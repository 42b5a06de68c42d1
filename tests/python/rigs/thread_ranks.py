"""Ranks and workers as threads of this process: the quick way to run many small cases.

A `ThreadWorld` has real communicators: it joins once and then runs one function after another on
all its ranks. Tests take them from the `world` fixture (conftest.py), which keeps one for each size
and transport.
"""

from __future__ import annotations

import contextlib
import queue
import random
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gradring as gr

TIMEOUT = 30.0
WORKER_SECONDS = 60.0
TRANSPORTS = ("tcp", "shm")


def listening_socket(host: str = "127.0.0.1") -> tuple[int, str]:
    """Open a socket for rank 0: its descriptor, and the address to write into the rendezvous."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((host, 0))
    listener.listen(64)
    port = listener.getsockname()[1]
    return listener.detach(), f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def free_ports(count: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of so many ports in a row that nobody listens at.

    The socket beside them is held, so that tests that run at once have others.
    """
    while True:
        first = random.randrange(10001, 30000, 64)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(socket.create_server(("127.0.0.1", first - 1)))
                for port in range(first, first + count):
                    socket.create_server(("127.0.0.1", port)).close()
            except OSError:
                continue
            yield first, first + count - 1
            return


class ThreadWorld:
    """All ranks of one job, each on a thread of its own.

    Attributes:
        comms: Each rank's communicator.
    """

    def __init__(self, world_size: int, transport: str, **options: Any) -> None:
        self.size = world_size
        self.transport = transport
        self.comms: list[Any] = [None] * world_size
        self._calls = [queue.SimpleQueue[Any]() for _ in range(world_size)]
        self._answers = queue.SimpleQueue[tuple[int, Any, BaseException | None]]()
        self._threads = [
            threading.Thread(target=self._serve, args=(rank,), daemon=True)
            for rank in range(world_size)
        ]
        for thread in self._threads:
            thread.start()
        listen_fd, address = listening_socket()
        secret = secrets.token_bytes(32)

        def join(rank: int) -> None:
            self.comms[rank] = gr.init(
                rank=rank, world_size=world_size, rendezvous=address, secret=secret,
                transport=transport, listen_fd=listen_fd if rank == 0 else None,
                **{"timeout": TIMEOUT, **options},
            )  # fmt: skip

        self._on_all(join)

    def run(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call ``function(comm)`` on every rank at once: the results, or the first error."""
        return self._on_all(lambda rank: function(self.comms[rank]))

    def errors(self, function: Callable[[Any], Any]) -> list[BaseException | None]:
        """Call it on every rank and return what each raised."""

        def caught(comm: Any) -> BaseException | None:
            try:
                function(comm)
            except gr.Error as error:
                return error
            return None

        return self.run(caught)

    @property
    def is_usable(self) -> bool:
        return all(comm is not None and not comm.is_closed for comm in self.comms)

    def close(self) -> None:
        """Leave on all ranks and end the threads."""
        self._on_all(lambda rank: self.comms[rank].close())
        for calls in self._calls:
            calls.put(None)
        for thread in self._threads:
            thread.join()

    def _on_all(self, function: Callable[[int], Any]) -> list[Any]:
        for calls in self._calls:
            calls.put(function)
        results: list[Any] = [None] * self.size
        first: BaseException | None = None
        for _ in range(self.size):
            rank, results[rank], error = self._answers.get()
            first = first or error
        if first is not None:
            raise first
        return results

    def _serve(self, rank: int) -> None:
        while (function := self._calls[rank].get()) is not None:
            try:
                self._answers.put((rank, function(rank), None))
            except BaseException as error:  # noqa: BLE001 - raised again on the test's thread
                self._answers.put((rank, None, error))


def on_workers(size: int, function: Callable[[int], Any]) -> list[Any]:
    """Call ``function(rank)`` on a new thread for each: the results, or the first error."""
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = function(rank)
        except BaseException as error:  # noqa: BLE001 - raised again on the test's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WORKER_SECONDS)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a worker is still waiting"
    return results
