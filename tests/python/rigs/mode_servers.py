"""Parameter servers for the tests of modes: the exact reference, and real ones in this process."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

import gradring as gr
from exact_server import ExactServer, Faults
from flaky_proxy import FlakyProxy
from gradring import _core

KINDS = ("exact", "tcp", "shm")
SERVERS, THREADS = 2, 2
CONNECTION_BYTES = 8000  # At most, both ways together, where connections break: a step or two.


class RealServers:
    """Two servers of two shards each, and clients by rank; like `ExactServer` to a test."""

    def __init__(self, transport: str) -> None:
        self._transport = transport
        self.secret = secrets.token_hex(16)
        self._servers = [
            _core.PsServer(
                host="127.0.0.1", port=0, listen_fd=-1, threads=THREADS, index=index,
                servers=SERVERS, secret=self.secret.encode(), transport=transport,
                log_directory="", fsync="none",
            )
            for index in range(SERVERS)
        ]  # fmt: skip
        self.addresses = [server.address for server in self._servers]
        self._clients: list[Any] = []
        self._proxies: list[FlakyProxy] = []

    @property
    def faults_played(self) -> int | None:
        """Connections broken so far; None where there is nothing between a client and servers."""
        return sum(proxy.broken for proxy in self._proxies) if self._transport == "tcp" else None

    def client(
        self,
        rank: int,
        faults: Faults | None = None,
        addresses: list[str] | None = None,
        timeout: float = 20,
    ) -> Any:
        """A new connection, maybe through something that stands before the servers.

        Over TCP `faults` are connections that break in mid-message, whatever their percentage.
        """
        if faults is not None and faults.percent and self._transport == "tcp":
            before = [FlakyProxy(a, faults.seed, CONNECTION_BYTES) for a in self.addresses]
            self._proxies += before
            addresses = [proxy.address for proxy in before]
        self._clients.append(
            gr.ps.connect(
                addresses or self.addresses, secret=self.secret, client=rank,
                transport=self._transport, timeout=timeout,
            )
        )  # fmt: skip
        return self._clients[-1]

    def dense(self, name: str, shape: tuple[int, ...], rule: Any) -> Any:
        """A dense table's values, as a stranger reads them."""
        return self.client(1 << 31).dense_table(name, shape or (1,), rule).pull()

    def sparse(self, name: str, dim: int, rule: Any) -> dict[int, Any]:
        """All rows of a sparse table by id."""
        saved = self.client(1 << 31).sparse_table(name, dim, rule).state_dict()
        return dict(zip(saved["ids"].tolist(), saved["rows"], strict=True))

    def close(self) -> None:
        for client in self._clients:
            with contextlib.suppress(gr.Error):  # A test may have left something under way.
                client.close(timeout=1)
        for proxy in self._proxies:
            proxy.close()
        for server in self._servers:
            server.stop()


class ExactServers(ExactServer):
    """The reference, asked in the same words."""

    def dense(self, name: str, shape: tuple[int, ...], rule: Any) -> Any:
        return self.values(name)

    def sparse(self, name: str, dim: int, rule: Any) -> dict[int, Any]:
        return dict(self.values(name))

    def close(self) -> None:
        """Nothing runs."""


Servers = RealServers | ExactServers


def make_servers(kind: str) -> Servers:
    return ExactServers() if kind == "exact" else RealServers(kind)
