"""A batch over several tables is one round trip: no request of it waits for an answer."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import gradring as gr
from gradring.modes.stores.served import ServedStore
from gradring.modes.stores.store import Pull, Push
from gradring.ps import ParameterServer
from ps_servers import join, serving

HEADER, LENGTH_AT = 64, 56
TABLES = 5


class HoldingProxy:
    """Stands before a server. After `hold(n)` no answer passes before n requests have."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._passes = threading.Event()
        self._passes.set()
        self._missing = 0
        self._seen = bytearray()
        self._head_at = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, requests: int) -> None:
        """Call it while nothing is under way."""
        self._missing, self._head_at = requests, 0
        self._seen.clear()
        self._passes.clear()

    def close(self) -> None:
        self._passes.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                for source, sink, see in ((near, far, self._count), (far, near, self._wait)):
                    threading.Thread(
                        target=self._pump, args=(source, sink, see), daemon=True
                    ).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, see: Callable[[bytes], None]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                see(data)
                sink.sendall(data)
        for end in (source, sink):
            end.close()

    def _wait(self, _: bytes) -> None:
        self._passes.wait()

    def _count(self, data: bytes) -> None:
        if self._passes.is_set():
            return
        self._seen += data
        while self._missing and len(self._seen) >= self._head_at + HEADER:
            (length,) = struct.unpack_from("<Q", self._seen, self._head_at + LENGTH_AT)
            self._head_at += HEADER + length
            self._missing -= 1
        if not self._missing:
            self._passes.set()


@pytest.fixture
def held() -> Iterator[tuple[HoldingProxy, ParameterServer]]:
    with serving(transport="tcp") as (address,):
        proxy = HoldingProxy(address)
        with join([proxy.address], transport="tcp", timeout=5) as ps:
            yield proxy, ps
            proxy.close()


def test_answers_that_are_held_back_hold_a_second_round_trip_back(
    held: tuple[HoldingProxy, ParameterServer],
) -> None:
    # What the others rely on: were a batch two round trips, it would time out.
    proxy, ps = held
    table = ps.sparse_table("t", 2, gr.optim.Sum())
    proxy.hold(2)
    with pytest.raises(gr.TimedOut):
        table.pull([1], timeout=0.2)
    proxy.close()


def test_who_waits_too_briefly_is_told_what_has_no_acknowledgement(
    held: tuple[HoldingProxy, ParameterServer],
) -> None:
    proxy, ps = held
    table = ps.sparse_table("t", 2, gr.optim.Sum())
    proxy.hold(100)
    pending = table.push([1, 2, 3], np.ones((3, 2)), async_op=True)
    missing = r"push to table 't'.* 100 ms; 0 of 1 requests.*: 1 of 1 changes .*, 3 rows"
    with pytest.raises(gr.TimedOut, match=missing):
        pending.wait(timeout=0.1)
    with pytest.raises(gr.TimedOut, match=missing):
        ps.flush(timeout=0.1)
    proxy.close()
    ps.flush()
    assert pending.wait().rows == 3
    assert (table.pull([1, 2, 3]) == 1).all()


def test_tables_of_a_batch_are_pulled_and_pushed_in_one_round_trip(
    held: tuple[HoldingProxy, ParameterServer],
) -> None:
    proxy, ps = held
    tables = [ps.sparse_table(f"t{n}", 2 + n, gr.optim.Sum()) for n in range(TABLES)]
    ids = np.arange(50)
    proxy.hold(TABLES)
    pushed = ps.push_many([(table, ids, np.ones((50, table.dim))) for table in tables])
    assert pushed.rows == TABLES * 50
    proxy.hold(TABLES)
    for table, rows in zip(tables, ps.pull_many([(t, ids) for t in tables]), strict=True):
        assert rows.tolist() == np.ones((50, table.dim)).tolist()
    proxy.hold(TABLES)
    ps.set_optimizers([(table, gr.optim.Sum(clip_value=1.0)) for table in tables])
    # A pull that was started before it is not waited for either.
    proxy.hold(1 + TABLES)
    first = tables[0].pull(ids, async_op=True)
    assert len(ps.pull_many([(table, ids) for table in tables])) == TABLES
    assert (first.wait() == 1).all()


def test_a_step_of_a_model_is_one_round_trip_each_way(
    held: tuple[HoldingProxy, ParameterServer],
) -> None:
    proxy, ps = held
    store = ServedStore(ps, 5)
    ids, outs = np.arange(4, dtype=np.uint64), [np.empty((4, 2), np.float32) for _ in range(2)]
    sparse = [
        store.sparse_table("s", 2, gr.optim.Sum()),
        store.sparse_table("h", 2, gr.optim.Sum(), codec="bf16"),
    ]
    dense = [store.dense_table(f"d{n}", (3,), gr.optim.Sum()) for n in range(3)]
    arrays = [np.ones(3, np.float32) for _ in dense]
    pushes = [Push(table, None, array) for table, array in zip(dense, arrays, strict=True)]
    pushes += [Push(table, ids, np.ones((4, 2), np.float32)) for table in sparse]
    pulls = [Pull(table, None, array) for table, array in zip(dense, arrays, strict=True)]
    pulls += [Pull(table, ids, out) for table, out in zip(sparse, outs, strict=True)]
    proxy.hold(len(pushes))
    store.push(pushes).result()
    proxy.hold(len(pulls))
    store.pull(pulls)
    assert all((values == 1).all() for values in [*arrays, *outs])
