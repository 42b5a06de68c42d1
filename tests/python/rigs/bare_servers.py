"""Compiled servers and clients of the parameter server without the Python over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradring import _core

SECRET = b"of this test"
NEVER = 20_000


def spec(name: str = "counts", *, dim: int = 4, rule: str = "sum", **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "sparse", "dim": dim, "rule": {"kind": rule}, **more}


def dense_spec(name: str, count: int, **rule: Any) -> dict[str, Any]:
    return {"name": name, "kind": "dense", "count": count, "rule": rule}


def start(index: int = 0, servers: int = 1, **options: Any) -> _core.PsServer:
    settings: dict[str, Any] = {
        "host": "127.0.0.1", "port": 0, "listen_fd": -1, "threads": 1, "index": index,
        "servers": servers, "secret": SECRET, "transport": "auto", "log_directory": "",
        "fsync": "none",
    }  # fmt: skip
    return _core.PsServer(**{**settings, **options})


def connect(*servers: _core.PsServer, **options: Any) -> _core.PsClient:
    settings: dict[str, Any] = {
        "servers": [server.address for server in servers],
        "secret": SECRET, "client": 0, "transport": "auto", "timeout_ms": NEVER,
    }  # fmt: skip
    return _core.PsClient(**{**settings, **options})


@contextmanager
def service(servers: int = 1, **options: Any) -> Iterator[list[_core.PsServer]]:
    started = [start(index, servers, **options) for index in range(servers)]
    try:
        yield started
    finally:
        for server in started:
            server.stop()


def pull(client: _core.PsClient, table: int, ids: Any, dim: int = 4, **options: Any) -> Any:
    out = np.full((len(ids), dim), -1, np.float32)
    client.pull([table], [np.asarray(ids, np.int64)], [out], **options)
    return out


def push(client: _core.PsClient, table: int, ids: Any, dim: int = 4, **options: Any) -> Any:
    ones = np.ones((len(ids), dim), np.float32)
    return client.push([table], [np.asarray(ids, np.int64)], [ones], **options)
