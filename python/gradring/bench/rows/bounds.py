"""What the parts could do alone: the table without a wire, the wire without a table.

Measured in the command's own process before any worker runs, so that every figure has its bounds
beside it, from the same minute.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradring import _core
from gradring.bench.rows import rules
from gradring.bench.rows.ids import Ids, all_ids, zipf_ids
from gradring.bench.rows.options import Options
from gradring.errors import InvalidArgument

_STREAM_BYTES = 256 << 20
_BLOCK_BYTES = 1 << 20
_REPEATS = 3
_BATCHES = 8
_SECONDS = 60.0
_FILLED_AT_ONCE = 1 << 16
_BESIDE_A_ROW = 64  # Bytes of a row's id, version and place in the index, about.
_OF_MEMORY = 0.8


def table_speed(options: Options) -> dict[str, float]:
    """Return rows per second of one thread that reads and updates a table in its own memory.

    Rows are the distinct ids of batches like those of the workers.
    """
    batches = [
        np.unique(zipf_ids(options.rows, options.ids, options.zipf, seed))
        for seed in range(_BATCHES)
    ]
    table = _core.TableProbe(options.dim, rules.rule_of(options).to_core())
    fill(options, table.apply)
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


def fill(options: Options, push: Callable[[Ids, Any], Any], nth: int = 0, of: int = 1) -> int:
    """Make all rows by gradients of zero, which leave them where they begin.

    Args:
        options: Whether, and how many.
        push: Takes ids and gradients.
        nth: The share to do, ...
        of: ... of so many.

    Returns:
        Rows made.
    """
    if not options.fills:
        return 0
    nothing = np.zeros((_FILLED_AT_ONCE, options.dim), np.float32)
    rows = 0
    for ids in itertools.islice(all_ids(options.rows, _FILLED_AT_ONCE), nth, None, of):
        push(ids, nothing[: ids.size])
        rows += ids.size
    return rows


def require_memory(options: Options) -> None:
    """Refuse more rows than fit into this machine's memory.

    Raises:
        InvalidArgument: They do not.
    """
    fields = _core.state_fields(rules.rule_of(options).to_core(), options.dim)
    floats = options.dim + sum(width for _, width, _ in fields)
    needed = options.rows * (floats * 4 + _BESIDE_A_ROW)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, KeyError, ValueError):
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(facts["MemAvailable"].split()[0]) << 10
    if options.fills and needed > available * _OF_MEMORY:
        raise InvalidArgument(
            f"--rows {options.rows}: they need about {needed / 1e9:.1f} GB, and this machine has "
            f"{available / 1e9:.1f} GB to give; say fewer, or --no-fill"
        )


def stream_gbs() -> float:
    """Return GB/s of one plain TCP stream over loopback, the best of a few."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_SECONDS)
        with socket.create_connection(listener.getsockname(), _SECONDS) as sender:
            receiver = listener.accept()[0]
            with receiver:
                for end in (sender, receiver):
                    end.settimeout(_SECONDS)
                    _core.tune_data_socket(end.fileno())
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
