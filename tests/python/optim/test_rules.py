"""Update rules as objects: what they take, what they leave alone, what they refuse.

Their arithmetic is tested in test_update_rules.py and test_update_formulas.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring import _core
from optim_rules import CASES, same_bits

Options = dict[str, Any]


def gradients(shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    return list(np.random.default_rng(3).standard_normal((5, *shape)).astype(np.float32))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_step_leaves_the_gradient_alone(name: str, options: Options) -> None:
    rule, state = getattr(gr.optim, name)(**options), dict[str, Any]()
    param = np.ones(4, np.float32)
    for grad in gradients((4,)):
        before = grad.copy()
        rule.update(param, grad, state)
        assert same_bits(grad, before)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_arrays_that_are_not_contiguous_take_the_same_steps(name: str, options: Options) -> None:
    rule = getattr(gr.optim, name)(**options)
    whole = gradients((6, 8))[0]
    strided = np.zeros((12, 16), np.float32)[::2, ::2]
    strided[...] = whole
    turned = np.asfortranarray(whole)
    states: list[dict[str, Any]] = [{}, {}, {}]
    for grad in gradients(whole.shape):
        rule.update(whole, grad, states[0])
        rule.update(strided, np.asfortranarray(grad), states[1])
        rule.update(turned, grad, states[2])
    assert same_bits(np.ascontiguousarray(strided), whole)
    assert same_bits(np.ascontiguousarray(turned), whole)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_arrays_with_nothing_in_them_keep_a_state(name: str, options: Options) -> None:
    rule = getattr(gr.optim, name)(**options)
    state: dict[str, Any] = {}
    rule.update(np.zeros((3, 0), np.float32), np.zeros((3, 0), np.float32), state)
    reference: dict[str, Any] = {}
    rule.update(np.ones((3, 1), np.float32), np.ones((3, 1), np.float32), reference)
    assert state.keys() == reference.keys()


def test_a_parameter_or_a_state_that_does_not_fit_is_refused() -> None:
    rule = gr.optim.Adam()
    whole = np.zeros(4, np.float32)
    with pytest.raises(gr.InvalidArgument, match="int64"):
        rule.update(np.zeros(4, np.int64), whole, {})
    with pytest.raises(gr.InvalidArgument, match="shape"):
        rule.update(whole, np.zeros(5, np.float32), {})
    with pytest.raises(gr.InvalidArgument, match="exp_avg"):
        rule.update(whole, whole, {"exp_avg": np.zeros(3, np.float32)})


@pytest.mark.parametrize(("name", "options"), CASES)
def test_rules_are_values(name: str, options: Options) -> None:
    rule = getattr(gr.optim, name)(**options)
    assert rule == getattr(gr.optim, name)(**options)
    assert hash(rule) == hash(getattr(gr.optim, name)(**options))
    with pytest.raises(AttributeError):
        rule.clip_value = 1


def test_the_core_gets_plain_numbers_by_the_names_of_its_members() -> None:
    rule = gr.optim.Adam(lr=1, betas=(0.5, 0.75), clip_norm=2)
    assert rule.to_core() == {
        "kind": "adam",
        "lr": 1.0,
        "beta1": 0.5,
        "beta2": 0.75,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "clip_value": 0.0,
        "clip_norm": 2.0,
    }
    assert gr.optim.Sum().to_core() == {"kind": "sum", "clip_value": 0.0}
    assert gr.optim.FTRL(lr=1).to_core()["initial_accumulator"] == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gr.optim.SGD(lr=-1.0), "SGD: lr must be finite and not negative, got -1.0"),
        (lambda: gr.optim.SGD(lr=math.inf), "SGD: lr must be finite and not negative, got inf"),
        (lambda: gr.optim.Adam(betas=(1.0, 0.9)), r"Adam: betas are two numbers in \[0, 1\)"),
        (lambda: gr.optim.Adam(betas=(0.9,)), r"Adam: betas are two numbers in \[0, 1\)"),
        (lambda: gr.optim.Sum(clip_value=0.0), "Sum: clip_value must be positive and finite"),
        (lambda: gr.optim.SGD(lr=1, dampening=math.nan), "SGD: dampening must be finite, got nan"),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_the_range(
    make: Callable[[], object], words: str
) -> None:
    with pytest.raises(gr.InvalidArgument, match=words):
        make()


@pytest.mark.parametrize(
    "core", [{"kind": "unknown"}, {"kind": "sgd", "learning_rate": 1.0}, {"kind": "sgd", "lr": -1}]
)
def test_the_core_refuses_what_it_does_not_know(core: Options) -> None:
    with pytest.raises(gr.InvalidArgument):
        _core.state_fields(core, 1)


def test_the_core_refuses_arrays_that_do_not_fit() -> None:
    ones, adam = np.ones(4, np.float32), gr.optim.Adam().to_core()
    for step, dim, weights, state, grad in [
        (0, 4, ones, [ones, ones], ones),
        (1, 3, ones, [ones, ones], ones),
        (1, 0, ones, [ones, ones], ones),
        (1, 4, ones, [ones], ones),
        (1, 4, ones, [ones, ones[:3]], ones),
        (1, 4, ones, [ones, ones], ones[:3]),
        (1, 4, ones, [ones, ones], ones.astype(np.float64)),
        (1, 4, ones.astype(np.int32), [ones, ones], ones),
    ]:
        with pytest.raises(gr.InvalidArgument):
            _core.update_dense(adam, step, dim, weights, state, grad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gr.optim.SGD(lr=-1),
        lambda: gr.optim.SGD(lr=float("nan")),
        lambda: gr.optim.SGD(lr=1, nesterov=True),
        lambda: gr.optim.SGD(lr=1, nesterov=True, momentum=0.9, dampening=0.1),
        lambda: gr.optim.Adam(betas=(0.9, 1.0)),
        lambda: gr.optim.AdamW(weight_decay=-0.1),
        lambda: gr.optim.Adagrad(lr_decay=-1),
        lambda: gr.optim.Adagrad(initial_accumulator_value=-1),
        lambda: gr.optim.RMSprop(alpha=-0.1),
        lambda: gr.optim.RMSprop(eps=float("nan")),
        lambda: gr.optim.SparseAdam(lr=-1),
        lambda: gr.optim.SparseAdam(eps=0),
        lambda: gr.optim.RowWiseAdam(betas=(1.0, 0.9)),
        lambda: gr.optim.FTRL(lr=0),
        lambda: gr.optim.FTRL(lr=0.1, l1=-1),
        lambda: gr.optim.SGD(lr=float("inf")),
        lambda: gr.optim.SGD(lr=1, clip_norm=0),
        lambda: gr.optim.Sum(clip_value=-1),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(gr.InvalidArgument):
        make()
