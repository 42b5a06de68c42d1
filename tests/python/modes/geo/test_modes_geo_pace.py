"""GEO's clocks: only what belongs to steps is their time, and only what others cost is theirs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from exact_server import ExactServer
from geo_steps import geo

STEP = 0.25


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    watch = SimpleNamespace(perf_counter=made.perf_counter)
    for place in ("step_clock", "exchange", "report"):
        monkeypatch.setattr(f"gradring.modes.geo.{place}.time", watch)
    return made


def stepped(clock: Clock, optimizer: gr.GeoOptimizer, steps: int) -> float:
    """Do steps of `STEP` seconds; returns what one is believed to take."""
    for _ in range(steps):
        clock.now += STEP
        optimizer.step([np.ones(1, np.float32)])
    return optimizer.replicas.pace.step_seconds


def test_time_between_two_epochs_is_no_step(clock: Clock) -> None:
    optimizer = geo([np.zeros(1, np.float32)], ExactServer().client(0), 1, k_steps="auto")
    clock.now += 60  # Data are opened.
    assert stepped(clock, optimizer, 4) == STEP
    for _ in range(3):
        optimizer.flush()
        clock.now += 600  # An evaluation.
        assert stepped(clock, optimizer, 2) == STEP
    optimizer.close()


def test_an_epoch_of_one_step_leaves_the_pace_as_it_was(clock: Clock) -> None:
    optimizer = geo([np.zeros(1, np.float32)], ExactServer().client(0), 1, k_steps="auto")
    for _ in range(3):
        clock.now += 600
        optimizer.step([np.ones(1, np.float32)])
        optimizer.flush()
    assert optimizer.replicas.pace.step_seconds == 0  # Nothing is known of it.
    optimizer.replicas.pace.note_exchange(1.0, divergence=0.01)
    assert optimizer.k_steps == 10
    optimizer.close()


@pytest.mark.parametrize("divergence", [0.5, 0.001], ids=["halved", "doubled"])
def test_what_servers_lack_is_counted_from_the_last_exchange_whatever_the_pace_is_by_then(
    clock: Clock, divergence: float
) -> None:
    optimizer = geo([np.zeros(1, np.float32)], ExactServer().client(0), 1, k_steps="auto")
    stepped(clock, optimizer, 8)
    optimizer.replicas.pace.note_exchange(STEP, divergence)
    assert optimizer.k_steps != 10
    assert optimizer.left_behind() == "what its last 8 steps have learned"
    optimizer.close()


@pytest.mark.parametrize("look", [gr.GeoOptimizer.residual_norm, gr.GeoOptimizer.make_room])
def test_waiting_for_an_exchange_is_no_part_of_a_step(
    clock: Clock, look: Callable[[gr.GeoOptimizer], Any]
) -> None:
    optimizer = geo([np.zeros(1, np.float32)], ExactServer().client(0), 1, k_steps=1)
    settle = optimizer.replicas.settle

    def wait() -> None:
        clock.now += 600
        settle()

    stepped(clock, optimizer, 2)
    optimizer.replicas.settle = wait  # type: ignore[method-assign]
    look(optimizer)
    optimizer.replicas.settle = settle  # type: ignore[method-assign]
    assert stepped(clock, optimizer, 1) == STEP
    optimizer.close()


def test_time_that_an_exchange_has_held_steps_back_is_reported(clock: Clock) -> None:
    optimizer = geo([np.zeros(1, np.float32)], ExactServer().client(0), 1, k_steps=1)
    background = optimizer.replicas._background
    drain = background.drain

    def late(timeout: float) -> None:
        drain(timeout)
        clock.now += 7

    stepped(clock, optimizer, 1)
    optimizer.replicas.settle()
    background.drain = late
    for step in range(3):
        assert optimizer.report.stalled_seconds == 7 * step
        optimizer.step([np.ones(1, np.float32)])
        optimizer.make_room()  # As the next step does.
    background.drain = drain
    optimizer.close()


def test_time_for_others_is_exchanges_new_rows_and_flushes_and_none_of_a_workers_own(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = geo([np.zeros(1, np.float32)], ExactServer().client(0), 1, k_steps=2)
    table = optimizer.sparse_table("rows", 2, gr.optim.SGD(lr=0.5))
    store, exchanged = optimizer.store, optimizer.replicas.begin
    update = gr.optim.SGD.update

    def passing(seconds: float, what: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            clock.now += seconds
            return what(*args)

        return call

    monkeypatch.setattr(store, "pull", passing(1, store.pull))
    monkeypatch.setattr(optimizer.replicas, "begin", passing(10, exchanged))
    monkeypatch.setattr(gr.optim.SGD, "update", passing(100, update))
    expected = 0
    for _ in range(3):
        for new in (1, 0):  # The first step brings rows, the second exchanges.
            rows = table.pull([7 + expected, 8 + expected] if new else [7])
            expected += new
            assert optimizer.report.exposed_seconds == expected
            optimizer.step([np.ones(1, np.float32)], rows=[(table, [7], rows[:1])])
            expected += 10 * (1 - new)
            assert optimizer.report.exposed_seconds == expected
    before, now = optimizer.report.exposed_seconds, clock.now
    optimizer.flush()
    # The servers' values, each counted once however deep inside it is asked.
    assert optimizer.report.exposed_seconds - before == clock.now - now > 0
    optimizer.close()
