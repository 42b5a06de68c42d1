"""Update rules: 200 steps like torch.optim's bit for bit, and like the papers' formulas.

torch's own square root may be off in the last place (it is a vendor library's, and differs with the
processor); ours is exact. So where bits are compared over many steps torch is given an exact root;
with its own one every single step is compared, to two units in the last place.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
from optim_rules import TORCH_CASES, same_bits

torch.set_num_threads(1)  # Its sparse operations wait for each other on a busy machine.

Array = np.ndarray[Any, Any]
Options = dict[str, Any]

STEPS = 200
DTYPES = ["float32", "float64"]
WITHOUT_ROOTS = [case for case in TORCH_CASES if case[0] == "SGD"]
WITH_ROOTS = [case for case in TORCH_CASES if case[0] != "SGD"]


@pytest.fixture
def exact_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give torch.optim the correctly rounded square root."""

    def root_in_place(self: torch.Tensor) -> torch.Tensor:
        np.sqrt(self.detach().numpy(), out=self.detach().numpy())
        return self

    def root(self: torch.Tensor) -> torch.Tensor:
        return root_in_place(self.detach().clone())

    monkeypatch.setattr(torch.Tensor, "sqrt", root)
    monkeypatch.setattr(torch.Tensor, "sqrt_", root_in_place)


def gradients(shape: tuple[int, ...], dtype: str, steps: int = STEPS) -> list[Array]:
    """Of magnitudes from tiny to large, some of them zero."""
    random = np.random.default_rng(len(shape))
    scales = 10.0 ** random.integers(-6, 2, (steps, *shape))
    values = random.standard_normal((steps, *shape)) * scales
    values[random.random(values.shape) < 0.05] = 0
    return list(values.astype(dtype))


def start(shape: tuple[int, ...], dtype: str) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def torch_optimizer(name: str, params: Sequence[torch.Tensor], options: Options) -> Any:
    path = {} if name == "SparseAdam" else {"foreach": False}
    return getattr(torch.optim, name)(params, **options, **path)


def same_state(state: dict[str, Any], torch_state: dict[str, Any]) -> bool:
    """Compare what torch keeps; an SGD without momentum keeps None."""
    kept = {name: value for name, value in torch_state.items() if value is not None}
    return state.keys() == kept.keys() and all(
        same_bits(np.asarray(state[name], np.asarray(value).dtype), np.asarray(value))
        for name, value in kept.items()
    )


def train_beside_torch(name: str, options: Options, grads: list[Array]) -> None:
    rule = getattr(gr.optim, name)(**options)
    ours = start(grads[0].shape, str(grads[0].dtype))
    theirs = torch.nn.Parameter(torch.tensor(ours))
    optimizer = torch_optimizer(name, [theirs], options)
    state: dict[str, Any] = {}
    for step, grad in enumerate(grads):
        rule.update(ours, grad, state)
        theirs.grad = torch.tensor(grad)
        optimizer.step()
        assert same_bits(ours, theirs.detach().numpy()), f"step {step + 1}"
    assert same_state(state, optimizer.state[theirs])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "options"), WITHOUT_ROOTS)
def test_rules_without_roots_equal_torch_as_it_is(name: str, options: Options, dtype: str) -> None:
    train_beside_torch(name, options, gradients((7, 13), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "options"), WITH_ROOTS)
@pytest.mark.usefixtures("exact_roots")
def test_rules_with_roots_equal_torch_with_exact_roots(
    name: str, options: Options, dtype: str
) -> None:
    train_beside_torch(name, options, gradients((7, 13), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "options"), WITH_ROOTS)
def test_single_steps_are_within_two_places_of_torch_as_it_is(
    name: str, options: Options, dtype: str
) -> None:
    """Where the root is off by a place, the quotient is by two at most, and the sum hardly ever."""
    rule = getattr(gr.optim, name)(**options)
    theirs = torch.nn.Parameter(torch.tensor(start((7, 13), dtype)))
    optimizer = torch_optimizer(name, [theirs], options)
    for grad in gradients((7, 13), dtype):
        before = theirs.detach().numpy().copy()
        ours = before.copy()
        state = {
            key: value.item() if key == "step" else value.numpy().copy()
            for key, value in copy.deepcopy(optimizer.state[theirs]).items()
        }
        rule.update(ours, grad, state)
        theirs.grad = torch.tensor(grad)
        optimizer.step()
        after = theirs.detach().numpy()
        place = np.spacing(np.maximum(np.maximum(abs(before), abs(after)), abs(after - before)))
        assert np.max(abs(ours - after) / place) <= 2
        theirs_state = optimizer.state[theirs]
        for key in state.keys() - {"step", "momentum_buffer"}:  # RMSprop's is of quotients.
            assert same_bits(state[key], theirs_state[key].numpy())


def pushes(rows: int, dim: int, dtype: str) -> list[tuple[Array, Array]]:
    """Ids with duplicates and their gradients."""
    random = np.random.default_rng(5)
    counts = random.integers(1, 9, STEPS)
    return [
        (random.integers(0, rows, n), random.standard_normal((n, dim)).astype(dtype))
        for n in counts
    ]


def merged(ids: Array, grads: Array) -> dict[int, Array]:
    """The sum for each id, added in the order of the push."""
    sums: dict[int, Array] = {}
    for key, grad in zip(ids.tolist(), grads, strict=True):
        sums[key] = sums[key] + grad if key in sums else grad
    return sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "options"), TORCH_CASES)
@pytest.mark.usefixtures("exact_roots")
def test_rows_equal_parameters_that_have_no_gradient_where_they_are_not_touched(
    name: str, options: Options, dtype: str
) -> None:
    rule = getattr(gr.optim, name)(**options)
    table = start((12, 6), dtype)
    theirs = [torch.nn.Parameter(torch.tensor(row)) for row in table]
    optimizer = torch_optimizer(name, theirs, options)
    states: list[dict[str, Any]] = [{} for _ in table]
    for ids, grads in pushes(len(table), table.shape[1], dtype):
        sums = merged(ids, grads)
        for row, param in enumerate(theirs):
            param.grad = torch.tensor(sums[row]) if row in sums else None
            if row in sums:
                rule.update(table[row], sums[row], states[row])
        optimizer.step()
    assert same_bits(table, torch.stack(theirs).detach().numpy())
    for state, param in zip(states, theirs, strict=True):
        assert same_state(state, optimizer.state[param])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("exact_roots")
def test_sparse_adam_equals_torch_with_sparse_gradients_of_the_whole_table(dtype: str) -> None:
    options: Options = {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6}
    rule = gr.optim.SparseAdam(**options)
    table = start((12, 6), dtype)
    theirs = torch.nn.Parameter(torch.tensor(table))
    optimizer = torch_optimizer("SparseAdam", [theirs], options)
    states: list[dict[str, Any]] = [{} for _ in table]
    for step, (ids, grads) in enumerate(pushes(len(table), table.shape[1], dtype)):
        for row, grad in merged(ids, grads).items():
            states[row]["step"] = step  # The table's, not the row's.
            rule.update(table[row], grad, states[row])
        theirs.grad = torch.sparse_coo_tensor(
            torch.tensor(ids)[None], torch.tensor(grads), theirs.shape, check_invariants=True
        )
        optimizer.step()
        assert same_bits(table, theirs.detach().numpy()), f"step {step + 1}"
    for name in ("exp_avg", "exp_avg_sq"):
        assert same_bits(
            np.stack([state[name] for state in states]), optimizer.state[theirs][name].numpy()
        )


@pytest.mark.parametrize(("name", "options"), TORCH_CASES)
@pytest.mark.usefixtures("exact_roots")
def test_gradients_that_came_as_bfloat16_are_widened_before_the_step(
    name: str, options: Options
) -> None:
    halves = [torch.tensor(grad).bfloat16() for grad in gradients((3, 5), "float32", 20)]
    train_beside_torch(name, options, [half.float().numpy() for half in halves])


@pytest.mark.parametrize(("name", "options"), TORCH_CASES)
@pytest.mark.usefixtures("exact_roots")
def test_values_are_clipped_as_torch_clips_them(name: str, options: Options) -> None:
    rule = getattr(gr.optim, name)(**options, clip_value=0.25)
    ours = start((3, 5), "float32")
    theirs = torch.nn.Parameter(torch.tensor(ours))
    optimizer = torch_optimizer(name, [theirs], options)
    state: dict[str, Any] = {}
    for grad in gradients(ours.shape, "float32", 20):
        before = grad.copy()
        rule.update(ours, grad, state)
        assert same_bits(grad, before), "the caller's gradient was written"
        theirs.grad = torch.tensor(grad)
        torch.nn.utils.clip_grad_value_([theirs], 0.25)
        optimizer.step()
    assert same_bits(ours, theirs.detach().numpy())


@pytest.mark.parametrize("size", [1, 7, 64, 5000])
def test_norms_are_clipped_by_torchs_formula_with_a_norm_added_in_double(size: int) -> None:
    rule = gr.optim.SGD(lr=1, clip_norm=0.5)
    random = np.random.default_rng(size)
    small = (0.4 / size * random.uniform(-1, 1, size)).astype(np.float32)
    param = np.zeros(size, np.float32)
    rule.update(param, small, {})
    assert same_bits(param, -small), "a small gradient was scaled"

    large = random.standard_normal(size).astype(np.float32) * 10
    norm = np.sqrt(np.sum(large.astype(np.float64) ** 2))
    param = np.zeros(size, np.float32)
    rule.update(param, large, {})
    np.testing.assert_allclose(param, -large * np.float32(0.5 / (norm + 1e-6)), rtol=2e-7)
    theirs = torch.zeros(size)
    theirs.grad = torch.tensor(large)
    torch.nn.utils.clip_grad_norm_([theirs], 0.5)
    np.testing.assert_allclose(-param, theirs.grad.numpy(), rtol=1e-5)
