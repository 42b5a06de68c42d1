"""BoundedStaleness and Async: what is measured is true, and what is bounded stays so."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from exact_server import ExactServer, Faults
from gradring.modes.bounded import BoundedOptimizer
from gradring.modes.stores.served import store_of
from gradring.modes.stores.store import Domain
from mode_servers import RealServers, Servers
from thread_ranks import on_workers

Array = np.ndarray[Any, Any]

STEP = gr.optim.SGD(lr=1.0)


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("workers", [2, 3])
def test_nobody_is_further_behind_than_the_bound(
    servers: Servers, workers: int, bound: int
) -> None:
    steps = 25
    lock, done = threading.Lock(), [0] * workers

    def work(rank: int) -> Any:
        random = np.random.default_rng(rank)
        param = np.zeros(4, np.float32)
        store = servers.client(rank, Faults(rank, 20))
        with BoundedOptimizer([param], STEP, store, workers=workers, staleness=bound) as own:
            for step in range(steps):
                with lock:
                    # Everybody's updates before this are in the parameters.
                    least = min(done)
                    done[rank] = step
                assert step - least <= bound + 1
                assert -param[rank] == step  # Its own.
                assert all(-param[other] >= step - bound for other in range(workers))
                grad = np.zeros(4, np.float32)
                grad[rank] = 1
                if random.integers(3) == 0:
                    threading.Event().wait(0.002)
                own.step([grad])
            with lock:
                done[rank] = steps
            return own.staleness

    for staleness in on_workers(workers, work):
        assert staleness.max <= bound
        assert staleness.total == steps
    np.testing.assert_array_equal(
        -servers.dense("model/0", (4,), STEP)[:workers], np.float32(steps)
    )
    assert servers.faults_played != 0


def test_with_a_bound_of_zero_all_begin_a_step_from_the_same_values(servers: Servers) -> None:

    def work(rank: int) -> Any:
        param = np.zeros(1, np.float32)
        seen = []
        with BoundedOptimizer([param], STEP, servers.client(rank), workers=2, staleness=0) as own:
            for _ in range(10):
                own.step([np.full(1, -1, np.float32)])
                seen.append(float(param[0]))
        return seen

    for seen in on_workers(2, work):
        # At least both workers' updates; at most the other one's next.
        assert all(2 * step <= value <= 2 * step + 1 for step, value in enumerate(seen, start=1))


def test_those_that_left_hold_nobody_back_and_do_not_count_as_stale(servers: Servers) -> None:
    first, second = (
        BoundedOptimizer([np.zeros(1, np.float32)], STEP, servers.client(r), workers=2, staleness=1)
        for r in range(2)
    )
    second.step([np.ones(1, np.float32)])
    second.close()
    for _ in range(6):
        first.step([np.ones(1, np.float32)])
    assert first.staleness.max <= 1
    first.close()


def test_one_who_comes_back_begins_where_the_slowest_is(servers: Servers) -> None:

    def join(rank: int, staleness: int) -> BoundedOptimizer:
        param = np.zeros(1, np.float32)
        return BoundedOptimizer([param], STEP, servers.client(rank), workers=2, staleness=staleness)

    first, second = join(0, 100), join(1, 1)
    second.close()
    for _ in range(5):
        first.step([np.ones(1, np.float32)])
    again = join(1, 1)
    assert again.clock == 5
    again.step([np.ones(1, np.float32)])
    assert (again.staleness.max, again.params[0]) == (1, -6)
    for optimizer in (first, again):
        optimizer.close()


def test_one_who_comes_back_counts_again_in_what_the_others_measure(servers: Servers) -> None:

    def join(rank: int) -> BoundedOptimizer:
        param = np.zeros(1, np.float32)
        return BoundedOptimizer([param], STEP, servers.client(rank), workers=2, staleness=1)

    def measured(optimizer: BoundedOptimizer) -> int:
        before = optimizer.staleness.counts.copy()
        optimizer.step([np.ones(1, np.float32)])
        [lag] = (optimizer.staleness.counts - before).elements()
        return lag

    first, second = join(0), join(1)
    for _ in range(2):
        second.close()
        for _ in range(5):
            measured(first)
        assert measured(first) == 0
        second = join(1)
        assert measured(first) == 1
        assert measured(second) == 0
        assert measured(first) == 1
        assert measured(second) == 0
    assert first.staleness.max == 1
    for optimizer in (first, second):
        optimizer.close()


def test_staleness_is_measured_beyond_the_numbers_that_a_float_can_count(servers: Servers) -> None:
    far, domain = (1 << 24) - 2, Domain("model/clocks", 2, is_round=False)
    clients = [servers.client(rank) for rank in range(2)]
    for client in clients:
        store_of(client, 20).clock(domain, far)
    first, second = (
        BoundedOptimizer([np.zeros(1, np.float32)], STEP, client, workers=2, staleness=1)
        for client in clients
    )
    for _ in range(5):
        first.step([np.ones(1, np.float32)])
        second.step([np.ones(1, np.float32)])
    assert first.clock == far + 5
    assert dict(first.staleness.counts) == {1: 5}
    assert dict(second.staleness.counts) == {0: 5}
    for optimizer in (first, second):
        optimizer.close()


def test_a_push_is_one_update_however_many_wait_in_the_queue() -> None:
    server, gate = ExactServer(), threading.Event()
    momentum = gr.optim.SGD(lr=1.0, momentum=0.5)
    param, expected, state = np.zeros(2, np.float32), np.zeros(2, np.float32), {}
    with gr.AsyncOptimizer([param], momentum, server.client(0), workers=1, queue=8) as own:
        table = own.sparse_table("rows", 1, momentum)
        server.on_applied = lambda _: gate.wait(10)  # Updates pile up behind the first.
        for step in range(6):
            own.step([np.full(2, step, np.float32)], rows=[(table, [7], [[step]])])
        gate.set()
        own.flush()
        for step in range(6):
            momentum.update(expected, np.full(2, step, np.float32), state)
        np.testing.assert_array_equal(param, expected)
        np.testing.assert_array_equal(table.pull([7])[0], expected[:1])
    assert server.tables["model/0"].pushes == 6


def test_staleness_is_the_number_of_updates_since_the_pull(servers: Servers) -> None:
    workers = [
        gr.AsyncOptimizer([np.zeros(1, np.float32)], STEP, servers.client(rank), workers=2)
        for rank in range(2)
    ]
    tables = [each.sparse_table("rows", 1, STEP) for each in workers]
    tables[0].pull([1])
    for _ in range(3):
        tables[1].pull([1])
        workers[1].step(rows=[(tables[1], [1], [[1.0]])])
        workers[1].flush()
    workers[0].step(rows=[(tables[0], [1], [[1.0]])])
    workers[0].flush()
    assert dict(workers[1].staleness.counts) == {0: 3}
    assert dict(workers[0].staleness.counts) == {3: 1}
    assert (workers[0].staleness.mean, workers[0].staleness.max) == (3, 3)
    for worker in workers:
        worker.close()


def parts_of(param: Array, count: int) -> list[Array]:
    """The runs of a dense table that lie on one shard each."""
    lines = -(-param.size // 16)
    ends = [lines * part // count * 16 for part in range(count + 1)]
    return [param[begin:end] for begin, end in itertools.pairwise(ends)]


def test_parameters_change_between_steps_only_and_never_by_half(servers: Servers) -> None:
    steps, size = 60, 50_000

    def work(rank: int) -> None:
        param = np.zeros(size, np.float32)
        with gr.AsyncOptimizer([param], STEP, servers.client(rank), workers=2) as own:
            for _ in range(steps):
                # Every update adds one everywhere: a part is as many as its version says.
                versions = np.atleast_1d(own.versions["model/0"])
                for part, version in zip(parts_of(param, len(versions)), versions, strict=True):
                    assert (part == version).all()
                own.step([np.full_like(param, -1)])
            own.flush()
            assert param.min() >= steps

    on_workers(2, work)
    np.testing.assert_array_equal(servers.dense("model/0", (size,), STEP), np.float32(2 * steps))


def test_gradients_may_be_reused_at_once(servers: Servers) -> None:
    param, grad = np.zeros(3, np.float32), np.empty(3, np.float32)
    with gr.AsyncOptimizer([param], gr.optim.Sum(), servers.client(0), workers=1) as own:
        for step in range(20):
            grad[:] = step
            own.step([grad])
            grad[:] = np.nan
        own.flush()
    np.testing.assert_array_equal(param, np.float32(sum(range(20))))


def test_a_full_queue_holds_the_step_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server, gate, is_busy = ExactServer(), threading.Event(), threading.Event()
    readings = itertools.count()  # Of a clock on which every wait takes a second.
    watch = SimpleNamespace(perf_counter=lambda: float(next(readings)))
    monkeypatch.setattr("gradring.modes.stepping.background.time", watch)
    own = gr.AsyncOptimizer([np.zeros(1, np.float32)], STEP, server.client(0), workers=1,
                            queue=1, timeout=0.1)  # fmt: skip

    def applied(_: str) -> None:
        is_busy.set()
        gate.wait(10)

    server.on_applied = applied
    grads = [np.ones(1, np.float32)]
    own.step(grads)
    is_busy.wait(10)  # The sender has it;
    own.step(grads)  # this one waits.
    with pytest.raises(gr.TimedOut, match="queue was full"):
        own.step(grads)
    assert own.waited_seconds == 3  # In each of the steps, also in that which gave up.
    with pytest.raises(gr.TimedOut, match="queue was full"):
        own.flush()
    assert own.waited_seconds == 3
    gate.set()
    own.abandon()


def test_an_error_in_the_background_comes_out_of_a_step() -> None:
    store = ExactServer().client(0)
    own = gr.AsyncOptimizer([np.zeros(1, np.float32)], STEP, store, workers=1)

    def fail(*_: Any) -> Any:
        raise gr.PeerLost("server 0 is gone")

    store.push = fail  # type: ignore[method-assign]
    own.step([np.ones(1, np.float32)])
    with pytest.raises(gr.PeerLost, match="server 0"):
        own.flush()
    with pytest.raises(gr.PeerLost, match="server 0"):
        own.step([np.ones(1, np.float32)])
    own.abandon()


def test_shrinking_all_tables_leaves_what_staleness_is_measured_with() -> None:
    servers = RealServers("tcp")
    ps = servers.client(0)
    param = np.zeros(4, np.float32)
    with BoundedOptimizer([param], STEP, ps, workers=1, staleness=1) as optimizer:
        for _ in range(5):
            optimizer.step([np.ones(4, np.float32)])
        assert ps.shrink(least_score=100) == 0
        optimizer.step([np.ones(4, np.float32)])
        assert optimizer.staleness.max == 0
    servers.close()
