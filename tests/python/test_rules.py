"""Update rules: step by step what torch.optim does, and nonsense is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr

STEPS = 25

SGD_OPTIONS: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    {"lr": 0.05, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.01},
    {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
]
ADAM_OPTIONS: list[dict[str, Any]] = [
    {},
    {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6},
    {"lr": 0.01, "weight_decay": 0.1},
]
CASES = [("SGD", options) for options in SGD_OPTIONS]
CASES += [(name, options) for name in ("Adam", "AdamW") for options in ADAM_OPTIONS]


def gradients(shape: tuple[int, ...], dtype: str) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(3)
    return [random.standard_normal(shape).astype(dtype) for _ in range(STEPS)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_step_is_that_of_torch_optim(name: str, options: dict[str, Any], dtype: str) -> None:
    rule = getattr(gr.optim, name)(**options)
    ours = np.random.default_rng(1).standard_normal((3, 5)).astype(dtype)
    theirs = torch.nn.Parameter(torch.tensor(ours))
    optimizer = getattr(torch.optim, name)([theirs], **options, foreach=False)
    state: dict[str, Any] = {}
    tolerance = 1e-13 if dtype == "float64" else 1e-6
    for grad in gradients(ours.shape, dtype):
        rule.update(ours, grad, state)
        theirs.grad = torch.tensor(grad)
        optimizer.step()
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=tolerance, atol=tolerance)
    for key, value in optimizer.state[theirs].items():
        if value is not None:
            np.testing.assert_allclose(state[key], value.numpy(), rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_step_leaves_the_gradient_alone(name: str, options: dict[str, Any]) -> None:
    rule, state = getattr(gr.optim, name)(**options), dict[str, Any]()
    param = np.ones(4, np.float32)
    for grad in gradients((4,), "float32")[:3]:
        before = grad.copy()
        rule.update(param, grad, state)
        assert np.array_equal(grad, before)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gr.optim.SGD(lr=-1),
        lambda: gr.optim.SGD(lr=float("nan")),
        lambda: gr.optim.SGD(lr=1, nesterov=True),
        lambda: gr.optim.SGD(lr=1, nesterov=True, momentum=0.9, dampening=0.1),
        lambda: gr.optim.Adam(betas=(0.9, 1.0)),
        lambda: gr.optim.AdamW(weight_decay=-0.1),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(gr.InvalidArgument):
        make()
