"""gr.optim.LocalRows: rows of an array step as parameters of their own, wherever they are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring import _core
from optim_rules import CASES, same_bits

ROWS = 40


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("dim", [1, 7, 1030])
def test_rows_step_as_parameters_of_their_own(name: str, options: dict[str, Any], dim: int) -> None:
    rule = getattr(gr.optim, name)(**options)
    random = np.random.default_rng(dim)
    weights = random.standard_normal((ROWS, dim)).astype(np.float32)
    alone = [row.copy() for row in weights]
    states: list[dict[str, Any]] = [{} for _ in range(ROWS)]
    local = gr.optim.LocalRows(rule, dim)
    for _ in range(200 if dim < 1000 else 20):
        rows = random.integers(0, ROWS, 30)
        grads = random.standard_normal((30, dim)).astype(np.float32)
        given = grads.copy()
        if name == "SparseAdam":  # Its steps are the table's.
            for state in states:
                state["step"] = local.state(np.arange(1))["updates"]
        for row in np.unique(rows):
            total = np.zeros(dim, np.float32)
            for place in np.flatnonzero(rows == row):
                total = total + grads[place] if place > np.argmax(rows == row) else grads[place]
            rule.update(alone[row], total.astype(np.float32), states[row])
        local.step(weights, rows, grads)
        assert same_bits(weights, np.stack(alone))
        assert same_bits(grads, given)


def test_an_array_that_has_grown_keeps_its_rows_states() -> None:
    rule = gr.optim.Adam(lr=0.1)
    small, large = np.ones((4, 3), np.float32), np.ones((9, 3), np.float32)
    grown, whole = gr.optim.LocalRows(rule, 3), gr.optim.LocalRows(rule, 3)
    grads = np.arange(12, dtype=np.float32).reshape(4, 3)
    grown.step(small, np.arange(4), grads)
    whole.step(large, np.arange(4), grads)
    longer = np.concatenate([small, np.ones((5, 3), np.float32)])
    for rows in ([0, 8], [8, 2], [1, 1]):
        for local, weights in ((grown, longer), (whole, large)):
            local.step(weights, rows, grads[:2])
    assert same_bits(longer, large)


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    local = gr.optim.LocalRows(gr.optim.Adagrad(lr=0.1), 3)
    weights, grads = np.ones((4, 3), np.float32), np.ones((2, 3), np.float32)
    for rows in ([0, 4], [0, -1]):
        with pytest.raises(gr.InvalidArgument, match="with 4 rows"):
            local.step(weights, rows, grads)
    with pytest.raises(gr.InvalidArgument):
        local.step(weights, [0, 1, 2], grads)
    with pytest.raises(gr.InvalidArgument):
        local.step(weights, [0, 1], grads[:, :2])
    with pytest.raises(gr.InvalidArgument):
        local.step(weights.astype(np.float64), [0, 1], grads)
    with pytest.raises(gr.InvalidArgument):
        local.step(weights, [0, 1], grads.astype(np.float64))
    for rows in ([0.5, 1.0], ["0", "1"]):
        with pytest.raises(gr.InvalidArgument, match="whole numbers"):
            local.step(weights, rows, grads)
    stateless = gr.optim.LocalRows(gr.optim.SGD(lr=0.1), 2)  # No state would show it.
    for wrong in (weights, weights.reshape(-1)):
        with pytest.raises(gr.InvalidArgument, match="rows of 2"):
            stateless.step(wrong, [0, 1], grads[:, :2].copy())
    assert (weights == 1).all()
    local.step(weights, [], np.empty((0, 3), np.float32))
    assert (weights == 1).all()
    local.step(weights, [0, 1], grads)  # And nothing is left of what was refused.
    assert same_bits(weights[0], weights[1])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.float16, np.float64])
def test_what_only_has_as_many_bytes_or_numbers_is_refused(dtype: Any) -> None:
    local = gr.optim.LocalRows(gr.optim.SGD(lr=1.0), 3)
    weights, grads = np.zeros((4, 3), np.float32), np.ones((2, 3), np.float32)
    for shape in ((3, 2), (6,), (2, 3, 1), (1, 6)):
        with pytest.raises(gr.InvalidArgument, match="a row of 3 for each of 2 slots"):
            local.step(weights, [0, 1], grads.reshape(shape))
    with pytest.raises(gr.InvalidArgument, match=f"gradients are {np.dtype(dtype)}, not float32"):
        local.step(weights, [0, 1], grads.astype(dtype))
    with pytest.raises(gr.InvalidArgument, match=f"weights are {np.dtype(dtype)}, not float32"):
        local.step(weights.astype(dtype), [0, 1], grads)
    assert not weights.any()
    local.step(weights, [0, 1], np.asfortranarray(grads))
    assert (weights[:2] == -1).all()


def test_weights_that_cannot_be_written_where_they_lie_are_refused() -> None:
    local = gr.optim.LocalRows(gr.optim.SGD(lr=1.0), 3)
    fixed = np.zeros((4, 3), np.float32)
    fixed.flags.writeable = False
    for weights in (np.zeros((4, 6), np.float32)[:, ::2], np.zeros((3, 4), np.float32).T, fixed):
        with pytest.raises(gr.InvalidArgument, match="weights are not contiguous, or read-only"):
            local.step(weights, [0, 1], np.ones((2, 3), np.float32))
        assert not weights.any()
    with pytest.raises(gr.InvalidArgument, match="weights are a list"):
        local.step([[0.0] * 3], [0], np.ones((1, 3), np.float32))  # type: ignore[arg-type]


def test_rows_of_no_rule_or_no_length_are_refused() -> None:
    for rule in (None, gr.optim.SGD):
        with pytest.raises(gr.InvalidArgument, match=r"use a rule of gradring\.optim"):
            gr.optim.LocalRows(rule, 3)
    for dim in (0, -1, 1.5, "3", None):
        with pytest.raises(gr.InvalidArgument, match="LocalRows: dim"):
            gr.optim.LocalRows(gr.optim.SGD(lr=1.0), dim)  # type: ignore[arg-type]


def test_the_kernel_refuses_what_it_would_write_beyond() -> None:
    rule = gr.optim.Adagrad(lr=0.1).to_core()
    weights, squares = np.ones((4, 3), np.float32), np.zeros((4, 3), np.float32)
    grads, rows, steps = np.ones((2, 3), np.float32), np.array([0, 1]), np.ones(2, np.int64)
    for slots, numbers, state in (
        (np.array([0, 4]), steps, [squares]),
        (np.array([0, -1]), steps, [squares]),
        (rows, steps[:1], [squares]),
        (rows, np.array([1, 0]), [squares]),
        (rows, steps, []),
        (rows, steps, [squares[:3]]),
    ):
        with pytest.raises(gr.InvalidArgument):
            _core.update_rows(rule, weights, state, slots, numbers, grads)
    assert (weights == 1).all()
    assert not squares.any()


def test_a_state_whose_steps_were_not_counted_is_refused_by_a_rule_that_needs_them() -> None:
    plain, decaying = gr.optim.Adagrad(lr=0.1), gr.optim.Adagrad(lr=0.1, lr_decay=0.5)
    weights, every = np.ones((4, 3), np.float32), np.arange(4)
    states = {}
    for rule in (plain, decaying):
        local = gr.optim.LocalRows(rule, 3)
        for _ in range(3):
            local.step(weights, [0, 1], np.ones((2, 3), np.float32))
        states[rule] = local.state(every)
    local = gr.optim.LocalRows(decaying, 3)
    with pytest.raises(gr.InvalidArgument, match=r"not counted, and Adagrad\(.*lr_decay=0.5"):
        local.load_state(every, states[plain])
    with pytest.raises(gr.InvalidArgument, match="counted of the rows is 'no'"):
        local.load_state(every, states[plain] | {"counted": "no"})
    np.testing.assert_array_equal(local.state(every)["step"], 0)
    for rule in (plain, decaying):
        without = {name: value for name, value in states[rule].items() if name != "counted"}
        for saved in (states[rule], without):  # What does not say so is taken as it is.
            local = gr.optim.LocalRows(rule, 3)
            local.load_state(every, saved)
            np.testing.assert_equal(local.state(every), states[rule])
    local = gr.optim.LocalRows(plain, 3)
    local.load_state(every, states[decaying])
    assert local.step(weights, [0], np.ones((1, 3), np.float32)) == 0


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_row_whose_gradient_is_not_finite_is_left_alone_and_counted(
    name: str, options: dict[str, Any], wrong: float
) -> None:
    rule = getattr(gr.optim, name)(**options)
    local, spared = gr.optim.LocalRows(rule, 3), gr.optim.LocalRows(rule, 3)
    weights = np.ones((4, 3), np.float32)
    expected, every = weights.copy(), np.arange(4)
    grads = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert local.step(weights, every, grads) == spared.step(expected, every, grads) == 0
    bad = grads.copy()
    bad[2, 1] = wrong
    assert local.step(weights, [0, 2, 2, 3], bad[[0, 2, 1, 3]]) == 1
    assert spared.step(expected, [0, 3], grads[[0, 3]]) == 0
    assert same_bits(weights, expected)
    for field, value in local.state(every).items():
        np.testing.assert_array_equal(value, spared.state(every)[field])


def test_a_step_whose_rows_are_all_refused_writes_nothing_and_large_numbers_are_no_infinity() -> (
    None
):
    local = gr.optim.LocalRows(gr.optim.SGD(lr=1.0, momentum=0.5), 2)
    weights = np.zeros((3, 2), np.float32)
    assert local.step(weights, [1, 2], np.full((2, 2), np.inf, np.float32)) == 2
    assert not weights.any()
    assert local.step(weights, [1, 1], np.full((2, 2), 3e38, np.float32)) == 1  # Their sum is.
    assert local.step(weights, [2], np.full((1, 2), 3e38, np.float32)) == 0
    np.testing.assert_array_equal(weights, np.float32([[0, 0], [0, 0], [-3e38, -3e38]]))
