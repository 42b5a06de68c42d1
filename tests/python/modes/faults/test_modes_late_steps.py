"""A step whose wait for the others has timed out is done: what comes after it waits first."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from exact_server import ExactServer
from geo_steps import geo
from gradring.modes.bounded import BoundedOptimizer
from gradring.modes.rounds import RoundOptimizer
from ps_servers import join, serving
from thread_ranks import on_workers

SGD = gr.optim.SGD(lr=1.0)
ONE = np.ones(1, np.float32)
IS_DONE = r"workers \[1\].* Step 1 is done all the same: .* do not repeat it\. Call flush\(\)"
STILL_WAITS = r"workers \[1\].* step 1, which has timed out before, .* nothing new was sent"

Make = Callable[..., Any]


def bounded(*args: Any, **options: Any) -> BoundedOptimizer:
    return BoundedOptimizer(*args, staleness=0, **options)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ExactServer:
    monkeypatch.setattr("exact_server.SECONDS", 0.05)
    return ExactServer()


@pytest.mark.parametrize(("make", "each"), [(RoundOptimizer, -1), (bounded, -2)])
def test_a_step_that_timed_out_is_not_done_twice(
    server: ExactServer, make: Make, each: float
) -> None:
    params = [np.zeros(1, np.float32) for _ in range(2)]
    first, second = (make([params[r]], SGD, server.client(r), workers=2) for r in range(2))
    with pytest.raises(gr.TimedOut, match=IS_DONE):
        first.step([ONE])
    for again in (lambda: first.step([ONE]), first.flush):
        with pytest.raises(gr.TimedOut, match=STILL_WAITS):
            again()
    assert first.clock == 1
    second.step([ONE])
    first.flush()
    assert params[0] == params[1] == each
    for optimizer in (first, second):
        optimizer.abandon()


@pytest.mark.parametrize(("make", "each"), [(RoundOptimizer, -1), (bounded, -2)])
def test_the_next_step_waits_for_the_late_one_and_is_then_done_itself(
    server: ExactServer, make: Make, each: float
) -> None:
    params = [np.zeros(1, np.float32) for _ in range(2)]
    first, second = (make([params[r]], SGD, server.client(r), workers=2) for r in range(2))
    with pytest.raises(gr.TimedOut, match="Step 1 is done"):
        first.step([ONE])
    second.step([ONE])
    with pytest.raises(gr.TimedOut, match="Step 2 is done"):
        first.step([ONE])
    assert params[0] == each  # With everybody's first step, and nothing of the second.
    second.step([ONE])
    first.flush()
    assert params[0] == params[1] == 2 * each
    for optimizer in (first, second):
        optimizer.abandon()


def test_a_step_of_many_parameters_ends_at_its_deadline_and_leaves_nothing_under_way() -> None:
    # Each is a request of its own, and all have one deadline: none waits for the one before it.
    params = [np.zeros(16, np.float32) for _ in range(300)]
    with serving() as addresses, join(addresses, client=0) as ps:
        own = bounded(params, SGD, ps, workers=2, timeout=4)
        begun = time.monotonic()
        with pytest.raises(gr.TimedOut, match="Step 1 is done"):
            own.step([np.ones_like(param) for param in params])
        assert time.monotonic() - begun < 6
        ps.flush()
        before = [param.copy() for param in params]
        own.abandon()
        with join(addresses, client=1) as late:
            theirs = bounded([np.zeros_like(p) for p in params], SGD, late, workers=2)
            theirs.step([np.ones_like(param) for param in params])
            theirs.abandon()
        assert all((now == was).all() for now, was in zip(params, before, strict=True))
        ps.flush()


def test_who_leaves_after_a_late_step_waits_for_nobody(server: ExactServer) -> None:
    first, second = (
        bounded([np.zeros(1, np.float32)], SGD, server.client(r), workers=2) for r in range(2)
    )
    with pytest.raises(gr.TimedOut, match=IS_DONE):
        first.step([ONE])
    first.close()
    second.step([ONE])
    assert second.params[0] == -2
    second.close()


@pytest.mark.parametrize(
    "mode",
    [
        gr.Hybrid(dense=gr.Async(), sparse=gr.BoundedStaleness(0)),
        gr.Hybrid(dense=gr.BoundedStaleness(0), sparse=gr.Async()),
    ],
    ids=str,
)
def test_a_late_step_of_a_hybrid_is_done_in_both_its_parts_and_once(
    server: ExactServer, mode: Any
) -> None:
    comm: Any = SimpleNamespace(rank=0, world_size=2)
    param = np.zeros(1, np.float32)
    optimizer = gr.distributed([param], SGD, mode, ps=server.client(0), comm=comm)
    rows = [(optimizer.sparse_table("t", 1, SGD), [1], ONE[None])]
    with pytest.raises(gr.TimedOut, match=IS_DONE):
        optimizer.step([ONE], rows=rows)
    with pytest.raises(gr.TimedOut, match=STILL_WAITS):
        optimizer.step([ONE], rows=rows)
    optimizer.close()
    assert server.values("model/0") == -1
    assert server.values("t")[1] == -1


OUTER = gr.Nesterov(lr=1.0, momentum=0.5)
IS_LATE = r"worker 1 has not come .* The local step is done all the same: do not repeat it"
STILL_LATE = r"worker 1 has not come .* the exchange of a step, .* nothing new was trained or sent"


def after(steps: int) -> float:
    """What both have after so many steps of 1 by each, exchanged one by one, if nobody is late."""
    server = ExactServer()
    optimizer = geo([np.zeros(1, np.float32)], server.client(0), 1, outer=OUTER)
    for _ in range(steps):
        optimizer.step([-ONE])
    optimizer.close()
    return float(optimizer.params[0][0])


def outer_workers(server: ExactServer, k_steps: int = 1) -> list[gr.GeoOptimizer]:
    return [
        geo([np.zeros(1, np.float32)], server.client(rank), 2, outer=OUTER, k_steps=k_steps)
        for rank in range(2)
    ]


def test_an_exchange_that_timed_out_is_ended_by_a_flush_and_not_begun_again(
    server: ExactServer,
) -> None:
    first, second = outer_workers(server)
    with pytest.raises(gr.TimedOut, match=IS_LATE):
        first.step([-ONE])
    for _ in range(2):
        with pytest.raises(gr.TimedOut, match="worker 1 has not come"):
            first.flush()
    second.step([-ONE])
    first.flush()
    second.flush()
    assert first.params[0] == second.params[0] == after(1)
    for optimizer in (first, second):
        optimizer.abandon()


def test_who_goes_on_after_a_flush_that_timed_out_exchanges_in_the_same_steps_as_the_others(
    server: ExactServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = first, second = outer_workers(server, k_steps=4)
    for _ in range(2):
        first.step([-ONE])
    with pytest.raises(gr.TimedOut, match="worker 1 has not come"):
        first.flush()
    for _ in range(2):
        second.step([-ONE])
    second.flush()
    monkeypatch.setattr("exact_server.SECONDS", 20)

    def go_on(rank: int) -> None:
        for _ in range(4):
            workers[rank].step([-ONE])
        workers[rank].flush()

    on_workers(2, go_on)
    expected, state = np.zeros(1, np.float32), {}
    for progress in (2, 4):
        gr.optim.SGD(lr=1.0, momentum=0.5, nesterov=True).update(expected, -progress * ONE, state)
    assert first.params[0] == second.params[0] == expected
    on_workers(2, lambda rank: workers[rank].close())


def test_the_step_after_a_late_exchange_ends_it_before_it_trains(server: ExactServer) -> None:
    first, second = outer_workers(server)
    rows = [(first.sparse_table("t", 1, SGD), [1], -ONE[None])]
    second.sparse_table("t", 1, SGD)
    with pytest.raises(gr.TimedOut, match=IS_LATE):
        first.step([-ONE], rows=rows)
    for again in (lambda: first.step([-ONE], rows=rows), first.close):
        with pytest.raises(gr.TimedOut, match="worker 1 has not come"):
            again()
    with pytest.raises(gr.TimedOut, match=STILL_LATE):
        first.step([-ONE], rows=rows)
    assert first.params[0] == 1
    second.step([-ONE])
    with pytest.raises(gr.TimedOut, match=IS_LATE):
        first.step([-ONE], rows=rows)
    assert first.params[0] == after(1) + 1
    second.step([-ONE])
    first.flush()
    second.flush()
    assert first.params[0] == second.params[0] == after(2)
    for optimizer in (first, second):
        optimizer.abandon()


def test_steps_of_a_callers_own_loop_are_kept_when_a_late_exchange_ends_under_them(
    server: ExactServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = outer_workers(server)
    for steps in (1, 2):
        first.params[0] += 1
        with pytest.raises(gr.TimedOut, match=IS_LATE):
            first.advance()
        assert first.params[0] == steps
    monkeypatch.setattr("exact_server.SECONDS", 20)

    def three_steps(rank: int) -> None:
        if rank == 0:
            first.params[0] += 1
            first.advance()  # Ends the late exchange, and does the two that are due by now.
        else:
            for _ in range(3):
                second.step([-ONE])

    on_workers(2, three_steps)
    expected, state = np.zeros(1, np.float32), {}
    for progress in ((1 + 1) / 2, (2 + 1) / 2, (0 + 1) / 2):
        gr.optim.SGD(lr=1.0, momentum=0.5, nesterov=True).update(expected, -progress * ONE, state)
    assert first.params[0] == second.params[0] == expected
    on_workers(2, lambda rank: (first, second)[rank].close())
