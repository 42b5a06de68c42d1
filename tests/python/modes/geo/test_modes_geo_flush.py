"""GEO: a flush goes slice by slice, and is none the worse for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from exact_server import ExactServer
from geo_steps import IDENTITY, geo
from mode_servers import Servers
from thread_ranks import on_workers

DIM, SLICE_ROWS = 4, 3


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradring.modes.geo.replica._SLICE_BYTES", SLICE_ROWS * DIM * 4)


class Watched:
    """A store whose pushes are done when they are asked for, and which counts rows it reads."""

    def __init__(self, rank: int, server: ExactServer) -> None:
        self.store = server.client(rank)
        self.rank, self.lost = rank, -1
        self.pushes: list[Pushing] = []
        self.read: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def push(self, pushes: Any, *more: Any) -> Any:
        pushing = Pushing(self, pushes, lambda: self.store.push(pushes, *more).result())
        self.pushes.append(pushing)
        return pushing

    def pull(self, pulls: Any, *more: Any) -> Any:
        for pull in pulls:
            self.read += [] if pull.ids is None else pull.ids.tolist()
        return self.store.pull(pulls, *more)

    def changed(self, *arguments: Any, **options: Any) -> Any:
        changed = self.store.changed(*arguments, **options)
        for ids, _ in changed.pages:
            self.read += ids.tolist()
        return changed

    @property
    def under_way(self) -> int:
        return sum(not pushing.is_over for pushing in self.pushes)


class Pushing:
    def __init__(self, store: Watched, pushes: Any, do: Any) -> None:
        self.values = [push.values for push in pushes]
        self.copies = [values.copy() for values in self.values]
        self.is_lost = len(store.pushes) == store.lost
        self.do, self.is_over = do, False

    def result(self) -> Any:
        for values, copy in zip(self.values, self.copies, strict=True):
            np.testing.assert_array_equal(values, copy)
        self.is_over = True
        if self.is_lost:
            raise gr.PeerLost("server 0 is gone")
        return self.do()


def trained(store: Any, rows: int, workers: int = 1) -> tuple[gr.GeoOptimizer, Any]:
    optimizer = geo([np.zeros(2, np.float32)], store, workers, k_steps=100)
    table = optimizer.sparse_table("t", DIM, IDENTITY)
    gradients = np.random.default_rng(rows).standard_normal((rows, DIM))
    optimizer.step([np.ones(2, np.float32)], rows=[(table, np.arange(rows), gradients)])
    return optimizer, table


@pytest.mark.parametrize("rows", [0, 1, SLICE_ROWS, 50])
def test_all_workers_have_the_same_after_it(servers: Servers, rows: int) -> None:
    def work(rank: int) -> Any:
        optimizer, table = trained(servers.client(rank), rows, workers=2)
        with optimizer:
            for scale in (1e-6, 1e6, 1e-3):  # The sums are rounded: several pushes of a row.
                ids = np.random.default_rng(rank).permutation(rows)[: rows - rows // 4]
                gradients = np.random.default_rng(rank).standard_normal((len(ids), DIM)) * scale
                optimizer.step([np.full(2, scale, np.float32)], rows=[(table, ids, gradients)])
                optimizer.flush()
            assert not optimizer.residual_norm()
            return table.pull(np.arange(rows)), optimizer.params[0].copy()

    (first, param), (second, other) = on_workers(2, work)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(param, other)
    held = servers.sparse("t", DIM, gr.optim.Sum())
    np.testing.assert_array_equal(
        first, np.array([held[row] for row in range(rows)]).reshape(-1, DIM)
    )


def test_a_push_under_way_keeps_its_values_and_few_are() -> None:
    most: list[int] = []
    store = Watched(0, ExactServer())
    push = store.push
    store.push = lambda *arguments: (most.append(store.under_way), push(*arguments))[1]  # type: ignore[method-assign]
    optimizer, table = trained(store, 50)
    optimizer.flush()
    optimizer.close()
    assert len(most) >= 50 / SLICE_ROWS
    assert max(most) == 1  # And the one that begins.
    assert not store.under_way
    assert table.pull(np.arange(50)).any(axis=1).all()


def test_every_row_is_read_once() -> None:
    server = ExactServer()
    stores = [Watched(rank, server) for rank in range(2)]
    optimizers = [trained(store, 20, workers=2)[0] for store in stores]
    for store in stores:
        store.read.clear()
    on_workers(2, lambda rank: optimizers[rank].flush())
    for store in stores:
        assert sorted(store.read) == list(range(20))
    on_workers(2, lambda rank: optimizers[rank].close())


def test_rows_that_only_others_changed_come_in_many_answers(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradring.modes.stores.served._PAGE_BYTES", 4 * (8 + 4 * DIM))
    ids = np.arange(40)

    def work(rank: int) -> Any:
        with geo([], servers.client(rank), 2, k_steps=100) as optimizer:
            table = optimizer.sparse_table("t", DIM, IDENTITY)
            table.pull(ids)
            for row in ids[:30] if rank == 1 else ids[:3]:  # One change each: pages end at changes.
                optimizer.step(rows=[(table, [row], -np.ones((1, DIM)))])
                if rank == 1:
                    optimizer.replicas.begin()
            optimizer.flush()
            return table.pull(ids)[:, 0]

    for rows in on_workers(2, work):
        np.testing.assert_array_equal(rows, [2] * 3 + [1] * 27 + [0] * 10)


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_nobody_is_left_waiting_for_pushes_when_one_fails(lost: int) -> None:
    store = Watched(0, ExactServer())
    optimizer, _ = trained(store, 30)
    store.lost = len(store.pushes) + lost
    with pytest.raises(gr.PeerLost, match="server 0"):
        optimizer.flush()
    assert not store.under_way
    with pytest.raises(gr.Closed, match="could not be pushed"):
        optimizer.flush()
    optimizer.abandon()


def test_rows_that_a_flush_has_sent_are_counted() -> None:
    optimizer = geo([], ExactServer().client(0), 1, k_steps=100)
    table = optimizer.sparse_table("t", DIM, IDENTITY)
    for ids in ([1, 2, 3, 4], [4, 5]):
        optimizer.step(rows=[(table, ids, np.ones((len(ids), DIM), np.float32))])
        optimizer.flush()
    assert optimizer.report.pushed_rows == 6
    optimizer.close()
