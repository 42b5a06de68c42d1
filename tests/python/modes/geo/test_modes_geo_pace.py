"""GEO's pace: only what belongs to steps is the time of a step."""

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
    for place in ("step_clock", "exchange"):
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
