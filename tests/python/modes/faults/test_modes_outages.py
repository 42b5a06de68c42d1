"""Servers that cannot be reached for longer than a step may take, and come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from flaky_proxy import FlakyProxy
from gradring.modes.bounded import BoundedOptimizer
from gradring.modes.rounds import RoundOptimizer
from mode_servers import RealServers

SGD = gr.optim.SGD(lr=1.0)
SHORT = 1.5
OUT = "made no progress"


def full(value: float) -> list[np.ndarray]:
    return [np.full(64, value, np.float32)]


@pytest.fixture
def proxies(real_servers: RealServers) -> Iterator[list[FlakyProxy]]:
    made = [FlakyProxy(address, 0, 1 << 40) for address in real_servers.addresses]
    yield made
    for proxy in made:
        proxy.close()


def test_a_batch_that_servers_did_not_get_does_not_count_as_examples(
    real_servers: RealServers, proxies: list[FlakyProxy]
) -> None:
    far = real_servers.client(0, addresses=[proxy.address for proxy in proxies], timeout=SHORT)
    params = [full(0), full(0)]
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(RoundOptimizer, params[1], SGD, real_servers.client(1), workers=2)
        first = RoundOptimizer(params[0], SGD, far, workers=2, timeout=SHORT)
        second = made.result()
        for proxy in proxies:
            proxy.go_out()
        with pytest.raises(gr.TimedOut, match="Step 1 is done"):
            first.step(full(100), weight=3)
        for proxy in proxies:
            proxy.come_back()
        round_ = pool.submit(second.step, full(8), weight=1)
        with pytest.raises(gr.TimedOut, match="without acknowledgement"):
            first.flush()
        first.flush()
        round_.result()
        for param in params:
            np.testing.assert_array_equal(param[0], -8)
        both = pool.submit(second.step, full(8), weight=1)
        first.step(full(4), weight=3)
        both.result()
    for param in params:
        np.testing.assert_array_equal(param[0], -13)
    for optimizer in (first, second):
        optimizer.abandon()


def test_steps_are_counted_right_after_a_push_that_was_given_up(
    real_servers: RealServers, proxies: list[FlakyProxy]
) -> None:
    far = real_servers.client(0, addresses=[proxy.address for proxy in proxies], timeout=SHORT)
    [param] = full(0)
    optimizer = BoundedOptimizer([param], SGD, far, staleness=0, workers=1, timeout=SHORT)
    for proxy in proxies:
        proxy.go_out()
    with pytest.raises(gr.TimedOut, match=OUT):
        optimizer.step(full(100))
    for proxy in proxies:
        proxy.come_back()
    with pytest.raises(gr.TimedOut, match="without acknowledgement"):
        optimizer.flush()
    for _ in range(3):
        optimizer.step(full(2))
    optimizer.close()
    np.testing.assert_array_equal(param, -6)
    assert optimizer.clock == 4
    assert optimizer.staleness.max == 0


def test_a_hybrid_step_for_which_there_is_no_room_is_done_in_neither_part(
    real_servers: RealServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm: Any = SimpleNamespace(rank=0, world_size=1)
    mode = gr.Hybrid(dense=gr.Async(queue=1), sparse=gr.BoundedStaleness(0))
    optimizer = gr.distributed(
        full(0), SGD, mode, ps=real_servers.client(0), comm=comm, timeout=SHORT
    )
    table = optimizer.sparse_table("t", 1, SGD)
    goes_on, is_sending = threading.Event(), threading.Event()
    push = optimizer.dense_side.store.push

    def slow_push(pushes: Any, *rest: Any) -> Any:
        is_sending.set()
        goes_on.wait()
        return push(pushes, *rest)

    def step() -> None:
        optimizer.step(full(1), rows=[(table, [1], np.ones((1, 1), np.float32))])

    monkeypatch.setattr(optimizer.dense_side.store, "push", slow_push)
    step()
    is_sending.wait()
    step()
    with pytest.raises(gr.TimedOut, match="the queue was full"):
        step()
    goes_on.set()
    step()
    optimizer.close()
    assert real_servers.sparse("t", 1, SGD)[1] == -3
    np.testing.assert_array_equal(real_servers.dense("model/0", (64,), SGD), -3)


@pytest.mark.parametrize("end", ["flush", "close"])
def test_progress_of_geo_that_could_not_be_pushed_is_not_forgotten(
    real_servers: RealServers, proxies: list[FlakyProxy], end: str
) -> None:
    far = real_servers.client(0, addresses=[proxy.address for proxy in proxies], timeout=SHORT)
    [param] = full(0)
    optimizer = gr.GeoOptimizer([param], SGD, far, k_steps=100, workers=1, timeout=SHORT)
    table = optimizer.sparse_table("rows", 2, SGD)
    table.pull([1])
    optimizer.step(full(-1), rows=[(table, [1], np.full((1, 2), -1, np.float32))])
    for proxy in proxies:
        proxy.go_out()
    with pytest.raises(gr.TimedOut, match="without acknowledgement"):
        getattr(optimizer, end)()
    for proxy in proxies:
        proxy.come_back()
    for _ in range(2):  # Nothing is left to offer; to succeed now would be to lose it.
        with pytest.raises(gr.Closed, match="could not be pushed"):
            getattr(optimizer, end)()
    np.testing.assert_array_equal(param, 1)
    optimizer.abandon()


@pytest.mark.parametrize("mode", [gr.Geo(k_steps=1), gr.Async()], ids=str)
def test_after_a_failure_in_the_background_a_step_trains_nothing_and_says_what_to_do(
    real_servers: RealServers, proxies: list[FlakyProxy], mode: Any
) -> None:
    far = real_servers.client(0, addresses=[proxy.address for proxy in proxies], timeout=SHORT)
    [param] = full(0)
    comm: Any = SimpleNamespace(rank=0, world_size=1)
    optimizer = gr.distributed([param], SGD, mode, ps=far, comm=comm, timeout=10)
    for proxy in proxies:
        proxy.go_out()
    optimizer.step(full(1))
    with pytest.raises(gr.Closed, match=r"has failed, .* abandon\(\) this optimizer"):
        optimizer.flush()
    for proxy in proxies:
        proxy.come_back()
    before = param.copy()
    for _ in range(2):
        with pytest.raises(gr.Closed, match=r"has failed, .* abandon\(\) this optimizer"):
            optimizer.step(full(1))
    np.testing.assert_array_equal(param, before)
    optimizer.abandon()


def test_a_hybrid_step_whose_exchange_is_late_is_done_in_both_parts(
    world: GetWorld, real_servers: RealServers, proxies: list[FlakyProxy]
) -> None:
    far = real_servers.client(0, addresses=[proxy.address for proxy in proxies], timeout=20)
    [param] = full(0)
    mode = gr.Hybrid(dense=gr.Sync(), sparse=gr.Geo(k_steps=2))
    comm = world(1, "tcp").comms[0]
    optimizer = gr.distributed([param], SGD, mode, ps=far, comm=comm, timeout=SHORT)
    table = optimizer.sparse_table("rows", 2, SGD)
    ids, ones = [1, 2], np.ones((2, 2), np.float32)
    table.pull(ids)
    steps = 0
    for proxy in proxies:
        proxy.go_out()
    late = 0
    while late < 2:
        try:
            optimizer.step(full(1), rows=[(table, ids, ones)])
        except gr.TimedOut as error:
            late += 1
            if "do not repeat it" not in str(error):
                continue
        steps += 1
    np.testing.assert_array_equal(param, -steps)
    np.testing.assert_array_equal(table.pull(ids), -steps)
    for proxy in proxies:
        proxy.come_back()
    optimizer.abandon()


def test_rows_that_are_fetched_too_late_hold_up_no_step(
    real_servers: RealServers, proxies: list[FlakyProxy]
) -> None:
    far = real_servers.client(0, addresses=[proxy.address for proxy in proxies], timeout=20)
    with gr.GeoOptimizer([], SGD, far, k_steps=100, workers=1, timeout=0.5) as optimizer:
        table = optimizer.sparse_table("rows", 2, SGD)
        ones = np.ones((2, 2), np.float32)
        table.pull([1, 2])
        for proxy in proxies:
            proxy.go_out()
        table.prefetch([3, 4])
        begin = time.monotonic()
        optimizer.step([], rows=[(table, [1, 2], ones)])
        assert time.monotonic() - begin < 10  # The optimizer's timeout, not the connection's.
        for proxy in proxies:
            proxy.come_back()
        np.testing.assert_array_equal(table.pull([1, 2, 3, 4])[:, 0], [-1, -1, 0, 0])
        optimizer.timeout = 20  # The servers are back, and so slow as they may be.
