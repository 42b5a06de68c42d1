"""GEO: what a worker's own connection writes past its replica is in the replica after a flush."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from geo_steps import IDENTITY, geo
from mode_servers import RealServers
from thread_ranks import on_workers

IDS = np.arange(6)
NINES = np.full((6, 1), 9, np.float32)
ADD = gr.optim.Sum()


def load(ps: Any) -> None:
    ps.sparse_table("t", 1, ADD).load_state_dict({"ids": IDS, "rows": NINES})


def push(ps: Any) -> None:
    ps.sparse_table("t", 1, ADD).push(IDS, NINES)


def push_many(ps: Any) -> None:
    ps.push_many([(ps.sparse_table("t", 1, ADD), IDS, NINES)], async_op=True)


@pytest.mark.parametrize("write", [load, push, push_many])
def test_replicas_are_the_servers_after_a_flush_whatever_a_worker_wrote_past_its_own(
    real_servers: RealServers, write: Callable[[Any], None]
) -> None:
    clients = [real_servers.client(rank) for rank in range(2)]
    workers = [geo([], client, 2, k_steps=100) for client in clients]
    tables = [each.sparse_table("t", 1, IDENTITY) for each in workers]
    for table in tables:
        table.pull(IDS)
    workers[0].step(rows=[(tables[0], [0], [[-1.0]])])
    on_workers(2, lambda rank: workers[rank].flush())
    write(clients[0])
    workers[1].step(rows=[(tables[1], [5], [[-1.0]])])
    on_workers(2, lambda rank: workers[rank].flush())
    expected = np.full(6, 9.0) if write is load else [10, 9, 9, 9, 9, 9]
    expected[5] += 1
    for table in tables:
        np.testing.assert_array_equal(table.pull(IDS)[:, 0], expected)
    on_workers(2, lambda rank: workers[rank].close())


def test_with_nesterov_they_are_after_the_next_exchange(real_servers: RealServers) -> None:
    ps = real_servers.client(0)
    with geo([], ps, 1, outer=gr.Nesterov(lr=1, momentum=0.5)) as optimizer:
        table = optimizer.sparse_table("t", 1, IDENTITY)
        table.pull(IDS)
        rule = gr.optim.SGD(lr=1, momentum=0.5, nesterov=True)
        ps.sparse_table("t", 1, rule).load_state_dict({"ids": IDS, "rows": NINES})
        optimizer.step()
        assert (table.pull(IDS) == 9).all()


def test_two_optimizers_of_a_connection_may_share_a_table(real_servers: RealServers) -> None:
    ps = real_servers.client(0)
    pair = [geo([], ps, 1, name=name) for name in ("one", "other")]
    tables = [each.sparse_table("t", 1, IDENTITY) for each in pair]
    for _ in range(4):
        for optimizer, table in zip(pair, tables, strict=True):
            optimizer.step(rows=[(table, [5], [[-1.0]])])
    for _ in range(2):
        for optimizer in pair:
            optimizer.flush()
    assert [table.pull([5]) for table in tables] == [8, 8]
    for optimizer in pair:
        optimizer.close()


def test_a_flush_after_which_nothing_was_written_past_reads_only_what_was_trained(
    real_servers: RealServers,
) -> None:
    ps = real_servers.client(0)
    with geo([], ps, 1) as optimizer:
        table = optimizer.sparse_table("t", 64, IDENTITY)
        other = ps.sparse_table("u", 64, ADD)
        table.pull(np.arange(1000))  # 256,000 bytes.

        def received(*touched: int) -> int:
            optimizer.step(rows=[(table, touched, -np.ones((len(touched), 64), np.float32))])
            before = ps.bytes_received
            optimizer.flush()
            return ps.bytes_received - before

        assert received(1, 2, 3) < 10_000
        other.push([1], np.ones((1, 64), np.float32))
        assert received(4, 5) < 10_000
        ps.sparse_table("t", 64, ADD).push([1], np.ones((1, 64), np.float32))
        assert received() > 256_000
        assert received(6) < 10_000
