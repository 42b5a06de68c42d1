"""GEO: nothing is lost, done twice or left behind, whatever happens to messages and workers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gradring as gr
from exact_server import ExactServer, Faults
from geo_steps import IDENTITY, exchange, geo, held
from mode_servers import RealServers, Servers
from thread_ranks import on_workers


def script(workers: int, rounds: int) -> list[list[int]]:
    """Progress by round and worker; of 3^4, so that thirds stay whole for four rounds."""
    random = np.random.default_rng(workers)
    return (random.integers(-8, 8, (rounds, workers)) * 81).tolist()


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("outer", [gr.Sum(), gr.Mean()])
def test_server_and_replicas_follow_the_algebra(servers: Servers, workers: int, outer: Any) -> None:
    params = [np.zeros((), np.float32) for _ in range(workers)]
    optimizers = [
        geo([param], servers.client(rank), workers, outer=outer)
        for rank, param in enumerate(params)
    ]
    share = workers if outer == gr.Mean() else 1
    sums, latest, old = Fraction(0), [Fraction(0)] * workers, [Fraction(0)] * workers
    for progress in script(workers, rounds=4):
        for rank, optimizer in enumerate(optimizers):
            exchange(optimizer, progress[rank])
            latest[rank] += progress[rank]
            delta = (latest[rank] - old[rank]) / share
            old[rank] += delta
            sums += delta
            latest[rank] += sums - old[rank]
            old[rank] = sums
            assert held(servers) == sums
            assert params[rank] == latest[rank]
            assert optimizer.replicas.dense[0].base == old[rank]
    residual = sum((a - b for a, b in zip(latest, old, strict=True)), Fraction(0))
    assert sums + residual == sum(map(sum, script(workers, rounds=4)))


def test_one_worker_and_its_server_agree_after_one_round(servers: Servers) -> None:
    param = np.zeros(3, np.float32)
    optimizer = geo([param], servers.client(0), 1, outer=gr.Mean())
    exchange(optimizer, 1.25)
    np.testing.assert_array_equal(held(servers, 3), param)
    np.testing.assert_array_equal(param, np.float32(1.25))


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_mean_gives_the_geometric_series_and_flush_the_rest(servers: Servers, workers: int) -> None:

    optimizers = [
        geo([np.zeros((), np.float32)], servers.client(rank), workers, outer=gr.Mean())
        for rank in range(workers)
    ]
    own = optimizers[0]
    exchange(own, 1.0)
    for touches in range(2, 6):
        exchange(own, 0.0)
        assert held(servers) == 1 - (1 - 1 / workers) ** touches
        assert own.residual_norm() == pytest.approx((1 - 1 / workers) ** touches, rel=1e-6)
    on_workers(workers, lambda rank: optimizers[rank].flush())
    assert own.residual_norm() == 0
    assert held(servers) == 1
    for optimizer in optimizers:
        assert optimizer.params[0] == 1
        optimizer.close()


def test_an_exchange_brings_exactly_the_rows_that_others_pushed(servers: Servers) -> None:
    optimizers = [geo([], servers.client(rank), 2) for rank in range(2)]
    tables = [each.sparse_table("t", 2, IDENTITY) for each in optimizers]
    ids = np.arange(10)
    for table in tables:
        table.pull(ids)

    def step(rank: int, touched: list[int]) -> int:
        before = optimizers[rank].report.taken_rows
        ones = np.full((len(touched), 2), -1, np.float32)
        optimizers[rank].step(None, rows=[(tables[rank], np.array(touched), ones)])
        optimizers[rank].replicas.settle()
        return optimizers[rank].report.taken_rows - before

    assert step(0, [1, 2, 3]) == 0
    assert step(1, [3, 4]) == 2  # 1 and 2; 3 came with the answer to its own push.
    assert step(0, [5]) == 2  # 3 and 4.
    assert step(0, [5]) == 0
    assert step(1, [9]) == 1  # 5, once.
    np.testing.assert_array_equal(tables[1].pull(ids)[:, 0], [0, 1, 1, 2, 1, 2, 0, 0, 0, 1])


@pytest.mark.parametrize("look", ["residual_norm", "sparse_table"])
def test_a_prefetched_row_is_not_older_than_the_changes_taken_before(
    servers: Servers, look: str
) -> None:
    optimizers = [geo([], servers.client(rank), 2) for rank in range(2)]
    own, other = optimizers
    tables = [each.sparse_table("t", 1, IDENTITY) for each in optimizers]
    background, carried = own.replicas._background, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background, "submit", lambda task, _timeout: carried.append(task))
        own.step()
    tables[0].prefetch([5])
    own._coming[0].wait(20)
    other.step(rows=[(tables[1], [5], [[-4.0]])])
    other.replicas.settle()
    carried.pop()()  # The exchange that began before hears of the change after the prefetch.
    own.residual_norm() if look == "residual_norm" else own.sparse_table("more", 1, IDENTITY)
    own.step()
    assert tables[0].pull([5]) == 4
    on_workers(2, lambda rank: optimizers[rank].flush())
    assert tables[0].pull([5]) == servers.sparse("t", 1, gr.optim.Sum())[5] == 4
    on_workers(2, lambda rank: optimizers[rank].close())


@pytest.mark.parametrize("k_steps", [1, 100])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_progress_that_is_not_finite_is_refused_once_and_given_up(
    real_servers: RealServers, k_steps: int, wrong: float
) -> None:
    params = [np.zeros(64, np.float32)]
    with geo(params, real_servers.client(0), 1, k_steps=k_steps) as optimizer:
        table = optimizer.sparse_table("t", 2, IDENTITY)
        # As a caller's own loop may leave it: a gradient never gets that far.
        replica, ids = optimizer.replica(table), np.array([1, 2], np.uint64)
        slots = replica.slots(ids)
        replica.weights[slots] = [[1, 0], [1, wrong]]
        replica.mark(slots)
        params[0][0] = wrong
        optimizer.advance()
        optimizer.flush()
        assert optimizer.report.refused == 2  # A row, and a shard's part of the parameter.
        optimizer.step([-np.ones(64)], rows=[(table, [2], [[-1, -2]])])
        optimizer.flush()
        assert optimizer.report.refused == 2
        assert np.isfinite(optimizer.report.divergence)
        np.testing.assert_array_equal(params[0], np.float32(1))
        np.testing.assert_array_equal(table.pull([1, 2]), [[1, 0], [1, 2]])


def test_a_rare_row_waits_for_its_turn_and_a_frequent_one_does_not(servers: Servers) -> None:
    optimizer = geo([], servers.client(0), 2, k_steps=3, rare_every=3)
    watcher = geo([], servers.client(1), 2)
    table, watched = (each.sparse_table("t", 1, IDENTITY) for each in (optimizer, watcher))
    ids = np.arange(6)
    table.pull(ids)
    watched.pull(ids)

    def step(*touched: int) -> None:
        ones = np.full((len(touched), 1), -1, np.float32)
        optimizer.step(None, rows=[(table, np.array(touched, np.int64), ones)])

    def offered(*steps: tuple[int, ...]) -> list[int]:
        for touched in steps:
            step(*touched)
        optimizer.replicas.settle()
        before = watched.pull(ids)[:, 0]
        watcher.step()
        watcher.replicas.settle()
        return np.flatnonzero(watched.pull(ids)[:, 0] != before).tolist()

    assert offered((0, 1, 2, 3, 4, 5), (), ()) == [0, 3]
    assert offered((0,), (5, 5), (0,)) == [1, 4]
    assert offered((), (3,), (0,)) == [0, 2, 5]  # The third touch of 0.
    assert optimizer.left_behind() == "what it has learned of rarely touched rows"
    assert offered((1,), (1,), (1,)) == [1, 3]
    assert optimizer.left_behind() == ""
    assert offered((4,), (2, 2, 2), ()) == [4]  # One step of 2.
    step(2)
    assert optimizer.left_behind() == "what its last 1 steps have learned"
    on_workers(2, lambda rank: (optimizer, watcher)[rank].flush())
    assert optimizer.left_behind() == ""
    np.testing.assert_array_equal(watched.pull(ids)[:, 0], [4, 4, 5, 2, 2, 3])
    on_workers(2, lambda rank: (optimizer, watcher)[rank].close())


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True])
def test_rare_every_is_a_number_of_exchanges(wrong: Any) -> None:
    with pytest.raises(gr.InvalidArgument, match="rare_every is a whole number"):
        gr.Geo(rare_every=wrong)
    with pytest.raises(gr.InvalidArgument, match="rare_every is 1, got 2"):
        gr.Geo(outer=gr.Nesterov(), rare_every=2)


def test_a_change_between_a_push_and_its_answer_is_not_missed() -> None:
    server = ExactServer()
    params = [np.zeros((), np.float32) for _ in range(2)]
    first, second = (geo([param], server.client(rank), 2) for rank, param in enumerate(params))
    is_open = [True]

    def meanwhile(_table: str) -> None:
        if is_open:
            is_open.clear()
            exchange(second, 2.0)

    # The second worker's whole exchange comes after the first one's update, before its answer.
    server.on_applied = meanwhile
    for optimizer in (first, second):  # On one thread, which the server's lock lets in again.
        optimizer.replicas._background.submit = lambda task, _timeout: task()
    exchange(first, 1.0)
    assert server.values("model/0") == 3
    assert params[0] == params[1] == 3


def train(server: Servers, rank: int, workers: int, faults: int, outer: Any, **options: Any) -> Any:
    """Two epochs of random dyadic progress with a flush after each; what this worker added."""
    random = np.random.default_rng([rank, 7])
    added = np.zeros(6), np.zeros((8, 2))
    replicas = []
    param = np.zeros(6, np.float32)
    store = server.client(rank, Faults(rank, faults))
    with geo([param], store, workers, outer=outer, k_steps=2, **options) as optimizer:
        table = optimizer.sparse_table("rows", 2, IDENTITY)
        table.pull(np.arange(8))  # Rows that are fetched after a flush may be newer than that.
        for _ in range(2):
            for _ in range(9):
                u = random.integers(-8, 8, 6) / 4
                ids = random.choice(8, 3)
                v = random.integers(-8, 8, (3, 2)) / 4
                table.pull(ids)
                optimizer.step([-u], rows=[(table, ids, -v)])
                added[0][...] += u
                np.add.at(added[1], ids, v)
            optimizer.flush()
            replicas.append((param.copy(), table.pull(np.arange(8))))
    return added, replicas


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_repeated_messages_and_broken_connections_leave_no_trace_after_a_flush(
    servers: Servers, workers: int, seed: int
) -> None:
    def work(rank: int) -> Any:
        return train(servers, rank, workers, 30 + seed, gr.Sum(), rare_every=1 + seed % 3)

    results = on_workers(workers, work)
    for epoch in range(2):
        for _, replicas in results[1:]:
            for own, theirs in zip(replicas[epoch], results[0][1][epoch], strict=True):
                np.testing.assert_array_equal(own, theirs)
    dense, rows = (sum(added[part] for added, _ in results) for part in range(2))
    np.testing.assert_array_equal(results[0][1][-1][0], dense.astype(np.float32))
    np.testing.assert_array_equal(results[0][1][-1][1], rows.astype(np.float32))
    np.testing.assert_array_equal(held(servers, 6), dense.astype(np.float32))
    assert servers.faults_played != 0


def test_with_mean_a_flush_brings_everything_too(servers: Servers) -> None:
    results = on_workers(2, lambda rank: train(servers, rank, 2, 10, gr.Mean()))
    dense = sum(added[0] for added, _ in results)
    rows = sum(added[1] for added, _ in results)
    # Halves of quarters, halved at most nine times: nothing is rounded.
    for _, replicas in results:
        np.testing.assert_array_equal(replicas[-1][0], dense.astype(np.float32))
        np.testing.assert_array_equal(replicas[-1][1], rows.astype(np.float32))
    np.testing.assert_array_equal(held(servers, 6), dense.astype(np.float32))


def test_replicas_are_equal_after_a_flush_also_where_additions_are_rounded(
    servers: Servers,
) -> None:

    def work(rank: int) -> Any:
        random = np.random.default_rng(rank)
        param = np.zeros(50, np.float32)
        with geo([param], servers.client(rank), 3, k_steps=2, rare_every=3) as optimizer:
            table = optimizer.sparse_table("t", 5, IDENTITY)
            for scale in (1e-6, 1, 1e6, 1e-3):
                ids = random.permutation(30)[:20]
                rows = random.standard_normal((20, 5)) * scale
                optimizer.step([random.standard_normal(50) * scale], rows=[(table, ids, rows)])
            optimizer.flush()
            replica = optimizer.replica(table)
            assert replica.weights.tobytes() == replica.base.tobytes()
            assert not optimizer.residual_norm()
            return param.copy(), dict(zip(replica.ids.tolist(), replica.weights, strict=True))

    (first, rows), *others = on_workers(3, work)
    for other, other_rows in others:
        np.testing.assert_array_equal(other, first)
        for row in rows.keys() & other_rows.keys():
            np.testing.assert_array_equal(other_rows[row], rows[row])
    np.testing.assert_array_equal(held(servers, 50), first)
    at_servers = servers.sparse("t", 5, gr.optim.Sum())
    for row, values in rows.items():
        np.testing.assert_array_equal(values, at_servers[row])


@pytest.mark.parametrize("outer", [gr.Sum(), gr.Nesterov(lr=1)], ids=str)
def test_rows_that_were_shrunk_away_are_what_servers_say_after_a_flush(
    real_servers: RealServers, outer: Any
) -> None:
    clients = [real_servers.client(rank) for rank in range(2)]
    optimizers = [geo([], client, 2, outer=outer) for client in clients]
    init, ids = gr.init.Constant(7.0), np.array([4, 5, 6])
    tables = [each.sparse_table("t", 2, IDENTITY, init=init) for each in optimizers]
    on_servers = optimizers[0].server_rule(IDENTITY)
    stranger = real_servers.client(1 << 31).sparse_table("t", 2, on_servers, init=init)

    def train(rank: int, often: int) -> None:
        tables[rank].pull(ids)
        for turn in range(4):
            touched = ids if turn < often else ids[1:]
            optimizers[rank].step(rows=[(tables[rank], touched, np.full((len(touched), 2), -1.0))])
        optimizers[rank].flush()

    on_workers(2, lambda rank: train(rank, 1))
    assert clients[1].shrink(least_score=3) == 1
    on_workers(2, lambda rank: (optimizers[rank].step(), optimizers[rank].flush()))
    for _ in range(2):
        for table in tables:
            np.testing.assert_array_equal(table.pull(ids), stranger.pull(ids))
        assert (stranger.pull(ids[1:]) > 7).all()
        on_workers(2, lambda rank: train(rank, 0))
    np.testing.assert_array_equal(stranger.pull([4]), [[7, 7]])
    on_workers(2, lambda rank: optimizers[rank].close())


def test_an_error_in_the_background_comes_out_of_the_next_step() -> None:
    server = ExactServer()
    store = server.client(0)
    optimizer = geo([np.zeros(2, np.float32)], store, 1)

    def fail(*_: Any, **__: Any) -> Any:
        raise gr.PeerLost("server 0 is gone")

    store.push = fail  # type: ignore[method-assign]
    optimizer.step([np.ones(2, np.float32)])
    with pytest.raises(gr.PeerLost, match="server 0"):
        optimizer.flush()
    with pytest.raises(gr.PeerLost, match="server 0"):
        optimizer.step([np.ones(2, np.float32)])
    optimizer.abandon()


def test_nesterov_is_diloco(servers: Servers) -> None:
    workers, k_steps, outer = 2, 2, gr.Nesterov(lr=0.5, momentum=0.5)
    grads = np.random.default_rng(0).integers(-8, 8, (6, workers, 3)).astype(np.float32)

    def work(rank: int) -> Any:
        param = np.ones(3, np.float32)
        with gr.GeoOptimizer([param], gr.optim.SGD(lr=0.25), servers.client(rank), workers=workers,
                             k_steps=k_steps, outer=outer) as optimizer:  # fmt: skip
            return [(optimizer.step([grad[rank]]), param.copy())[1] for grad in grads]

    results = on_workers(workers, work)
    reference, state = np.ones(3, np.float32), {}
    rule = gr.optim.SGD(lr=0.5, momentum=0.5, nesterov=True)
    for begin in range(0, 6, k_steps):
        ends = [reference - 0.25 * grads[begin : begin + k_steps, w].sum(0) for w in range(workers)]
        rule.update(reference, reference - sum(ends) / np.float32(workers), state)
        for result in results:
            np.testing.assert_array_equal(result[begin + k_steps - 1], reference)


def test_nesterov_trains_rows_too(servers: Servers) -> None:

    def work(rank: int) -> Any:
        outer = gr.Nesterov(lr=1, momentum=0.5)
        with geo([], servers.client(rank), 2, outer=outer) as optimizer:
            table = optimizer.sparse_table("rows", 1, IDENTITY)
            table.pull([0, 1, 2])
            for _ in range(2):
                ids = np.array([rank, 2])
                optimizer.step(None, rows=[(table, ids, np.full((2, 1), -1, np.float32))])
            return table.pull([0, 1, 2])[:, 0]

    first, second = on_workers(2, work)
    np.testing.assert_array_equal(first, second)
    # The mean counts the worker that did not touch a row as zero: 1/2 for rows 0 and 1.
    # Nesterov: step 1 moves by 1.5 g, step 2 by 1.75 g.
    np.testing.assert_array_equal(first, [1.625, 1.625, 3.25])
