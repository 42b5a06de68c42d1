"""A saved state is taken where the rule can go on with it, and refused by name before that."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from gradring.optim import state

SHAPE = (3, 4)


def after_a_step(comm: Any, rule: Any, shape: tuple[int, ...] = SHAPE) -> gr.SyncOptimizer:
    optimizer = gr.SyncOptimizer([np.zeros(shape, np.float32)], rule, comm)
    optimizer.step([np.ones(shape)])
    return optimizer


@pytest.mark.parametrize("shape", [(), (3,), SHAPE], ids=str)
@pytest.mark.parametrize(
    "rule",
    [gr.optim.Adam(), gr.optim.RowWiseAdagrad(), gr.optim.SGD(lr=1, momentum=0.5)],
    ids=lambda rule: type(rule).__name__,
)
def test_what_numpy_has_saved_and_loaded_is_the_same_state(
    world: GetWorld, rule: Any, shape: tuple[int, ...]
) -> None:
    (comm,) = world(1, "shm").comms
    first = after_a_step(comm, rule, shape)
    saved, file = first.state_dict(), io.BytesIO()
    np.savez(file, **saved["state"][0])
    file.seek(0)
    second = gr.SyncOptimizer([first.params[0].copy()], rule, comm)
    second.load_state_dict({"rule": saved["rule"], "state": [dict(np.load(file))]})
    for optimizer in (first, second):
        optimizer.step([np.full(shape, 0.5)])
    assert np.array_equal(first.params[0], second.params[0])


def test_an_entry_of_torchs_is_taken(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    optimizer = after_a_step(comm, gr.optim.Adam())
    entry = state.to_entry(gr.optim.Adam(), np.ones(24, np.float32), 7, SHAPE)
    optimizer.load_state_dict({"rule": "Adam", "state": [entry]})
    optimizer.step([np.ones(SHAPE)])
    assert optimizer.state_dict()["state"][0]["step"] == 8


WRONG: dict[str, dict[str, Any]] = {
    "a row of it": {"exp_avg": np.zeros(3, np.float32)},
    "one number": {"exp_avg": np.zeros(())},
    "text": {"exp_avg": np.full(SHAPE, "a")},
    "complex": {"exp_avg": np.zeros(SHAPE, complex)},
    "ragged": {"exp_avg": [[1.0], [1.0, 2.0]]},
    "no field": {"exp_avg": ...},
    "no step": {"step": ...},
    "step None": {"step": None},
    "half a step": {"step": 1.5},
    "less than no step": {"step": -1},
    "infinitely many steps": {"step": np.array(np.inf)},
    "a list of steps": {"step": np.zeros(3)},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_state_that_does_not_fit_is_refused_and_the_old_one_stays(
    world: GetWorld, change: dict[str, Any]
) -> None:
    (comm,) = world(1, "shm").comms
    optimizer = after_a_step(comm, gr.optim.Adam())
    entry = optimizer.state_dict()["state"][0] | change
    entry = {name: value for name, value in entry.items() if value is not ...}
    with pytest.raises(gr.InvalidArgument, match="parameter 0"):
        optimizer.load_state_dict({"rule": "Adam", "state": [entry]})
    optimizer.step([np.ones(SHAPE)])
    assert optimizer.state_dict()["state"][0]["step"] == 2


@pytest.mark.parametrize(
    "saved",
    [
        {},
        None,
        {"rule": "Adam"},
        {"rule": "Adam", "state": {0: {}}},
        {"rule": "Adam", "state": [3]},
    ],
    ids=str,
)
def test_what_is_no_saved_state_is_refused(world: GetWorld, saved: Any) -> None:
    (comm,) = world(1, "shm").comms
    with pytest.raises(gr.InvalidArgument, match="saved state"):
        after_a_step(comm, gr.optim.Adam()).load_state_dict(saved)


def test_what_earlier_settings_of_the_rule_have_left_stays(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    optimizer = after_a_step(comm, gr.optim.SGD(lr=1, momentum=0.5))
    optimizer.rule = gr.optim.SGD(lr=1)
    optimizer.load_state_dict(optimizer.state_dict())
    assert "momentum_buffer" in optimizer.state_dict()["state"][0]
