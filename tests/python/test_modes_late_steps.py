"""A step whose wait for the others has timed out is done: what comes after it waits first."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from exact_server import ExactServer
from gradring.modes.bounded import BoundedOptimizer
from gradring.modes.rounds import RoundOptimizer

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
    comm: Any = SimpleNamespace(world_size=2)
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
