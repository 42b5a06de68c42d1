"""Parameter servers inside the test's process, and clients of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gradring import _core
from gradring.ps import ParameterServer, connect
from gradring.ps.serving import Serving

SECRET = "the secret of a test's servers, long enough"


def start_server(index: int = 0, servers: int = 1, **options: Any) -> Serving:
    """Start one server; the caller stops it."""
    settings = {
        "host": "127.0.0.1", "port": 0, "listen_fd": -1, "threads": 1, "index": index,
        "servers": servers, "secret": SECRET.encode(), "transport": "auto", "log_directory": "",
        "fsync": "none", **options,
    }  # fmt: skip
    return Serving(_core.PsServer(**settings))


@contextlib.contextmanager
def serving(count: int = 1, **options: Any) -> Iterator[list[str]]:
    """Run servers and yield their addresses."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(start_server(index, count, **options)) for index in range(count)
        ]
        yield [server.address for server in servers]


@contextlib.contextmanager
def connected(count: int = 1, *, client: int = 0, **options: Any) -> Iterator[ParameterServer]:
    """Run servers and yield a client of them."""
    with serving(count, **options) as addresses, join(addresses, client=client) as ps:
        yield ps


def join(addresses: list[str], **options: Any) -> ParameterServer:
    """Connect to servers of this test."""
    return connect(addresses, **{"secret": SECRET, "timeout": 20, **options})


def together(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Call every task in a thread of its own and return what they returned."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]
