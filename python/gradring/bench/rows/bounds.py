"""What the parts could do alone: the table without a wire, the wire without a table.

Measured in the command's own process before any worker runs, so that every figure has its bounds
beside it, from the same minute.
"""

from __future__ import annotations

import socket
import threading
import time

import numpy as np

from gradring import _core
from gradring.bench.rows import rules
from gradring.bench.rows.ids import zipf_ids
from gradring.bench.rows.options import Options

_STREAM_BYTES = 256 << 20
_BLOCK_BYTES = 1 << 20
_SOCKET_BUFFER_BYTES = 4 << 20
_REPEATS = 3
_BATCHES = 8
_SECONDS = 60.0


def table_speed(options: Options) -> dict[str, float]:
    """Return rows per second of one thread that reads and updates a table in its own memory.

    Rows are the distinct ids of batches like those of the workers.
    """
    batches = [
        np.unique(zipf_ids(options.rows, options.ids, options.zipf, seed))
        for seed in range(_BATCHES)
    ]
    table = _core.TableProbe(options.dim, rules.rule_of(options).to_core())
    most = max(batch.size for batch in batches)
    rows = np.empty((most, options.dim), np.float32)
    gradients = np.full((most, options.dim), 2.0**-10, np.float32)
    for batch in batches:
        table.apply(batch, gradients[: batch.size])
    total = sum(batch.size for batch in batches)
    best = {"gather": 0.0, "apply": 0.0}
    for _ in range(_REPEATS):
        start = time.perf_counter()
        for batch in batches:
            table.gather(batch, rows[: batch.size])
        best["gather"] = max(best["gather"], total / (time.perf_counter() - start))
        start = time.perf_counter()
        for batch in batches:
            table.apply(batch, gradients[: batch.size])
        best["apply"] = max(best["apply"], total / (time.perf_counter() - start))
    return best


def stream_gbs() -> float:
    """Return GB/s of one plain TCP stream over loopback, the best of a few."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_SECONDS)
        with socket.create_connection(listener.getsockname(), _SECONDS) as sender:
            receiver = listener.accept()[0]
            with receiver:
                for end in (sender, receiver):
                    end.settimeout(_SECONDS)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
                return max(_stream(sender, receiver) for _ in range(_REPEATS))


def copy_gbs() -> float:
    """Return GB/s of one thread that copies memory larger than the caches, the best of a few."""
    source, target = (np.full(_STREAM_BYTES, 1, np.uint8) for _ in range(2))
    best = 0.0
    for _ in range(_REPEATS):
        start = time.perf_counter()
        np.copyto(target, source)
        best = max(best, _STREAM_BYTES / (time.perf_counter() - start) / 1e9)
    return best


def _stream(sender: socket.socket, receiver: socket.socket) -> float:
    block = np.full(_BLOCK_BYTES, 1, np.uint8)

    def send() -> None:
        for _ in range(_STREAM_BYTES // _BLOCK_BYTES):
            sender.sendall(block.data)

    target = np.empty(_BLOCK_BYTES, np.uint8)
    start = time.perf_counter()
    thread = threading.Thread(target=send)
    thread.start()
    got = 0
    while got < _STREAM_BYTES:
        count = receiver.recv_into(target.data)
        if count == 0:
            raise ConnectionError("the plain stream ended while it was measured")
        got += count
    thread.join()
    return _STREAM_BYTES / (time.perf_counter() - start) / 1e9
