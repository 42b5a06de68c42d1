"""GEO: workers come, leave, die and are late, and those of a flush end it equal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from exact_server import ExactServer
from geo_steps import IDENTITY, Array, exchange, geo, held
from mode_servers import RealServers, Servers
from thread_ranks import on_workers
from turns import Turns


def test_workers_may_come_and_go(servers: Servers) -> None:
    first, second = (geo([np.zeros((), np.float32)], servers.client(r), 2) for r in range(2))
    exchange(first, 1.0)
    exchange(second, 2.0)
    second.close()  # What it has is in; nobody waits for it.
    late_param = np.full((), 99, np.float32)
    late = geo([late_param], servers.client(2), 2)
    assert late_param == 3  # The servers' value, not its own.
    exchange(late, 4.0)
    exchange(first, 0.0)
    assert first.report.workers == 2
    on_workers(2, lambda rank: (first, late)[rank].flush())
    assert first.params[0] == late_param == held(servers) == 7
    first.close()
    late.close()


@pytest.mark.parametrize("seed", range(150))
def test_whoever_joins_when_the_workers_of_a_flush_end_it_equal(seed: int) -> None:
    turns = Turns(ExactServer(), 4, seed)
    flushed: dict[int, list[Array]] = {}  # By the flush's number, each worker's values after it.

    def start(rank: int) -> Any:
        optimizer = geo([np.zeros((), np.float32)], turns.store(rank), 2)
        optimizer.replicas._background.submit = lambda task, _timeout: task()
        return optimizer, optimizer.sparse_table("t", 1, IDENTITY)

    def train(rank: int, optimizer: Any, table: Any) -> None:
        row = np.full((1, 1), -(2.0**rank))
        optimizer.step([row.reshape(())], rows=[(table, [7], row)])
        optimizer.flush()
        values = np.array([optimizer.params[0], *table.pull([7])[0]])
        flushed.setdefault(optimizer.replicas._clock._now, []).append(values)

    early = [start(rank) for rank in range(2)]

    def work(rank: int) -> None:
        try:
            optimizer, table = early[rank] if rank < 2 else start(rank)
            for turn in range(3 if rank < 2 else 1):
                if rank == turn == 1:  # It leaves and comes back.
                    optimizer.close()
                    optimizer, table = start(rank)
                train(rank, optimizer, table)
            optimizer.close()
        finally:
            turns.end(rank)

    turns.is_on = True
    on_workers(4, work)
    assert sum(map(len, flushed.values())) == 8
    for values in flushed.values():
        for other in values[1:]:
            np.testing.assert_array_equal(other, values[0])
    assert turns.server.values("model/0") == turns.server.values("t")[7] == 3 * (1 + 2) + 4 + 8


def test_a_worker_that_joins_late_has_everybodys_rows_after_a_flush(servers: Servers) -> None:
    ids = np.arange(12)
    random = np.random.default_rng(3)
    optimizers = [geo([], servers.client(rank), 2) for rank in range(2)]
    tables = [each.sparse_table("t", 2, IDENTITY) for each in optimizers]
    added = np.zeros((12, 2))

    def train(rank: int, asked: Array) -> None:
        for _ in range(3):
            tables[rank].pull(asked)
            chosen, rows = random.choice(asked, 4), random.integers(-8, 8, (4, 2)) / 4
            optimizers[rank].step(rows=[(tables[rank], chosen, -rows)])
            np.add.at(added, chosen, rows)

    train(0, ids[:8])
    train(1, ids[4:])
    on_workers(2, lambda rank: optimizers[rank].flush())
    train(0, ids[:8])
    optimizers.append(geo([], servers.client(2), 2))
    tables.append(optimizers[2].sparse_table("t", 2, IDENTITY))
    for rank, asked in ((2, ids[2:10]), (1, ids[4:]), (0, ids[:8]), (2, ids)):
        train(rank, asked)
    on_workers(3, lambda rank: optimizers[rank].flush())
    on_servers = servers.sparse("t", 2, gr.optim.Sum())
    for table in tables:
        np.testing.assert_array_equal(table.pull(ids), added.astype(np.float32))
        np.testing.assert_array_equal(
            table.pull(list(on_servers)), np.array(list(on_servers.values()))
        )
    on_workers(3, lambda rank: optimizers[rank].close())


def test_a_worker_that_cannot_join_in_time_is_not_waited_for() -> None:
    server = ExactServer()
    first = geo([np.zeros((), np.float32)], server.client(0), 1)
    server.client(1).clock(first.replicas.domain, 0)  # Trains on while the first is in a flush.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exact_server.SECONDS", 0.05)
        with pytest.raises(gr.TimedOut, match="flush: worker 1 has not called it"):
            first.flush()
        with pytest.raises(gr.TimedOut, match=r"workers 0, 1 have not ended a flush\(\) after"):
            geo([np.zeros((), np.float32)], server.client(2), 1)
    assert 2 not in server.client(0).clocks(first.replicas.domain).living
    server.client(1).leave(first.replicas.domain)
    first.flush()
    first.close()


def test_a_worker_that_comes_back_takes_part_again() -> None:
    server = ExactServer()
    stores = [server.client(rank) for rank in range(3)]
    optimizers = [geo([np.zeros((), np.float32)], store, 3) for store in stores]
    exchange(optimizers[2], 4.0)
    stores[2].die()
    optimizers[2].abandon()
    on_workers(2, lambda rank: optimizers[rank].flush())
    optimizers[2] = geo([np.zeros((), np.float32)], server.client(2), 3)
    for progress in (8.0, 16.0):
        exchange(optimizers[2], progress)
        on_workers(3, lambda rank: optimizers[rank].flush())
    for optimizer in optimizers:
        assert optimizer.params[0] == 28
        optimizer.close()


def test_the_death_of_a_worker_leaves_the_others_equal() -> None:
    server = ExactServer()
    stores = [server.client(rank) for rank in range(3)]
    optimizers = [geo([np.zeros(2, np.float32)], store, 3) for store in stores]
    for rank, optimizer in enumerate(optimizers):
        exchange(optimizer, 2.0**rank)
    optimizers[2].step([np.full(2, -100, np.float32)])
    optimizers[2].replicas.settle()
    stores[2].die()  # After its push, before it has flushed.
    optimizers[2].abandon()
    on_workers(2, lambda rank: optimizers[rank].flush())
    for optimizer in optimizers[:2]:
        np.testing.assert_array_equal(optimizer.params[0], np.float32(107))
        optimizer.close()


CALL_AGAIN = r"^flush: worker 1 has not called it after \S+ s\..* call flush\(\) again"


@pytest.mark.parametrize(
    ("outer", "words"),
    [
        (gr.Sum(), CALL_AGAIN),
        (gr.Nesterov(), r"^worker 1 has not come to the exchange .* Call flush\(\) to wait again$"),
    ],
)
def test_a_flush_of_geo_speaks_of_no_table_that_the_user_does_not_know(
    real_servers: RealServers, outer: Any, words: str
) -> None:
    param = np.zeros(2, np.float32)
    late = geo([param], real_servers.client(0), 2, k_steps=9, outer=outer, timeout=0.05)
    late.step([np.ones(2, np.float32)])
    for _ in range(2):
        with pytest.raises(gr.TimedOut, match=words):
            late.flush()
    late.abandon()


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.24, "0.2"), (9.0, "9"), (300.4, "300"), (4000.0, "4000")]
)
def test_how_long_a_flush_waited_is_told_as_people_write_it(seconds: float, words: str) -> None:
    optimizer = geo([np.zeros(2, np.float32)], ExactServer().client(0), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exact_server.SECONDS", 0.01)
        times = iter([0.0, seconds])
        patch.setattr("gradring.modes.geo.gates.time", SimpleNamespace(monotonic=times.__next__))
        with pytest.raises(gr.TimedOut, match=f"has not called it after {words} s"):
            optimizer.flush()
    optimizer.abandon()


def test_a_flush_names_who_did_not_come_and_may_be_tried_again() -> None:
    server = ExactServer()
    optimizers = [geo([np.zeros(2, np.float32)], server.client(rank), 2) for rank in range(2)]
    exchange(optimizers[1], 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exact_server.SECONDS", 0.05)
        with pytest.raises(gr.TimedOut, match=CALL_AGAIN):
            optimizers[0].flush()
    on_workers(2, lambda rank: optimizers[rank].flush())
    for optimizer in optimizers:
        np.testing.assert_array_equal(optimizer.params[0], np.float32(1))
        optimizer.close()


def test_a_flush_that_is_tried_again_reads_what_the_first_try_has_pushed() -> None:
    server = ExactServer()
    optimizers = [geo([], server.client(rank), 2, k_steps=100) for rank in range(2)]
    tables = [each.sparse_table("t", 1, IDENTITY) for each in optimizers]
    for rank, table in enumerate(tables):
        optimizers[rank].step(rows=[(table, [5], [[-(2.0**rank)]])])
    optimizers[1].replicas.begin()
    optimizers[1].replicas.settle()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exact_server.SECONDS", 0.05)
        with pytest.raises(gr.TimedOut):
            optimizers[0].flush()  # It was the last to push row 5, and has not read it.
    on_workers(2, lambda rank: optimizers[rank].flush())
    for optimizer, table in zip(optimizers, tables, strict=True):
        assert table.pull([5]) == server.values("t")[5] == 3
        optimizer.close()


def test_a_pull_that_was_given_up_writes_into_nobodys_rows() -> None:
    store = ExactServer().client(0)
    optimizer = geo([], store, 1, k_steps=2)
    table, late = optimizer.sparse_table("t", 2, IDENTITY), []
    pull, push = store.pull, store.push

    def interrupted(pulls: Any, *_: Any) -> Any:
        late.extend(each.out for each in pulls if each.ids is not None)
        raise KeyboardInterrupt

    def with_late_answers(*arguments: Any, **options: Any) -> Any:
        done = push(*arguments, **options)
        for out in late:
            out.fill(77)
        return done

    optimizer.step(rows=[(table, [1, 2], -np.ones((2, 2)))])
    store.pull = lambda pulls, *more: (interrupted if pulls[0].ids is not None else pull)(  # type: ignore[method-assign]
        pulls, *more
    )
    with pytest.raises(KeyboardInterrupt):
        optimizer.flush()
    store.pull, store.push = pull, with_late_answers  # type: ignore[method-assign]
    optimizer.step(rows=[(table, [3], -np.ones((1, 2)))])  # And an exchange.
    optimizer.flush()
    assert len(late) == 1
    np.testing.assert_array_equal(table.pull([1, 2, 3]), np.ones((3, 2)))
    optimizer.close()
