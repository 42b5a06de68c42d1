"""Update rules: 200 steps like torch.optim's bit for bit, on arrays and on tables of servers.

torch's own square root may be off in the last place (it is a vendor library's, and differs with the
processor); ours is exact. So where bits are compared over many steps torch is given an exact root;
with its own one every single step is compared, to two units in the last place.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
from gradring.ps import ParameterServer
from optim_rules import OWN_CASES, TORCH_CASES, give_exact_roots, same_bits
from ps_servers import connected

torch.set_num_threads(1)  # Its sparse operations wait for each other on a busy machine.

Array = np.ndarray[Any, Any]
Options = dict[str, Any]

STEPS = 200
DTYPES = ["float32", "float64"]
SPARSE_ADAM: Options = {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6}
EVERY_CASE = [*TORCH_CASES, ("SparseAdam", SPARSE_ADAM)]
WITHOUT_ROOTS = [case for case in EVERY_CASE if case[0] == "SGD"]
WITH_ROOTS = [case for case in EVERY_CASE if case[0] != "SGD"]


@pytest.fixture
def exact_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    give_exact_roots(monkeypatch)


def gradients(shape: tuple[int, ...], dtype: str) -> list[Array]:
    """Of magnitudes from tiny to large, some of them zero."""
    random = np.random.default_rng(len(shape))
    scales = 10.0 ** random.integers(-6, 2, (STEPS, *shape))
    values = random.standard_normal((STEPS, *shape)) * scales
    values[random.random(values.shape) < 0.05] = 0
    return list(values.astype(dtype))


def start(shape: tuple[int, ...], dtype: str) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def torch_optimizer(name: str, params: Sequence[torch.Tensor], options: Options) -> Any:
    path = {} if name == "SparseAdam" else {"foreach": False}
    return getattr(torch.optim, name)(params, **options, **path)


def give(name: str, param: torch.Tensor, grad: Array | None) -> None:
    """Set a gradient; torch's SparseAdam takes none that is not sparse."""
    param.grad = None if grad is None else torch.tensor(grad)
    if grad is not None and name == "SparseAdam":
        every = torch.arange(len(grad))[None]
        param.grad = torch.sparse_coo_tensor(every, torch.tensor(grad), check_invariants=True)


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
        give(name, theirs, grad)
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
            key: int(value) if key == "step" else value.numpy().copy()
            for key, value in copy.deepcopy(optimizer.state[theirs]).items()
        }
        rule.update(ours, grad, state)
        give(name, theirs, grad)
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
@pytest.mark.parametrize(("name", "options"), EVERY_CASE)
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
            give(name, param, sums.get(row))
            if row in sums:
                rule.update(table[row], sums[row], states[row])
        optimizer.step()
    assert same_bits(table, torch.stack(theirs).detach().numpy())
    for state, param in zip(states, theirs, strict=True):
        assert same_state(state, optimizer.state[param])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("exact_roots")
def test_sparse_adam_equals_torch_with_sparse_gradients_of_the_whole_table(dtype: str) -> None:
    rule = gr.optim.SparseAdam(**SPARSE_ADAM)
    table = start((12, 6), dtype)
    theirs = torch.nn.Parameter(torch.tensor(table))
    optimizer = torch_optimizer("SparseAdam", [theirs], SPARSE_ADAM)
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


@pytest.fixture(scope="module")
def ps() -> Iterator[ParameterServer]:
    with connected(2) as client:
        yield client


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize(("name", "options"), EVERY_CASE)
@pytest.mark.usefixtures("exact_roots")
def test_dense_tables_equal_torch(
    ps: ParameterServer, name: str, options: Options, is_half: bool
) -> None:
    weights = start((7, 13), "float32")
    table = ps.dense_table(
        f"dense/{name}/{options}/{is_half}",
        weights.shape,
        getattr(gr.optim, name)(**options),
    )
    table.load_state_dict({"weights": weights})
    theirs = torch.nn.Parameter(torch.tensor(weights))
    optimizer = torch_optimizer(name, [theirs], options)
    for step, grad in enumerate(gradients(weights.shape, "float32")):
        pushed = torch.tensor(grad).bfloat16() if is_half else torch.tensor(grad)
        table.push(pushed)
        give(name, theirs, pushed.float().numpy())
        optimizer.step()
        assert same_bits(table.pull(), theirs.detach().numpy()), f"step {step + 1}"
    saved = table.state_dict()
    counted = {} if name == "SGD" else {"step": saved["step"]}
    assert saved["step"] == STEPS
    assert same_state(saved["state"] | counted, optimizer.state[theirs])


def torch_rows(name: str, options: Options, weights: Array) -> tuple[list[Any], Any]:
    """A parameter for each row; all rows of SparseAdam's, whose steps are the table's, are one."""
    parts = [weights] if name == "SparseAdam" else list(weights)
    params = [torch.nn.Parameter(torch.tensor(part)) for part in parts]
    return params, torch_optimizer(name, params, options)


def give_rows(params: list[Any], sums: dict[int, Array]) -> None:
    if len(params) == 1:
        rows = torch.tensor(list(sums))[None], torch.tensor(np.stack(list(sums.values())))
        params[0].grad = torch.sparse_coo_tensor(*rows, params[0].shape, check_invariants=True)
        return
    for row, param in enumerate(params):
        give("", param, sums.get(row))


@pytest.mark.parametrize(("name", "options"), EVERY_CASE)
@pytest.mark.usefixtures("exact_roots")
def test_sparse_tables_with_equal_ids_equal_torch(
    ps: ParameterServer, name: str, options: Options
) -> None:
    """With weight decay too: rows that are not touched do not decay. Every other push is bf16."""
    weights = start((12, 6), "float32")
    ids = np.arange(len(weights))
    table = ps.sparse_table(f"rows/{name}/{options}", 6, getattr(gr.optim, name)(**options))
    table.load_state_dict({"ids": ids, "rows": weights})
    params, optimizer = torch_rows(name, options, weights)
    for step, (some, grads) in enumerate(pushes(*weights.shape, "float32")):
        pushed = torch.tensor(grads).bfloat16() if step % 2 else torch.tensor(grads)
        table.push(some, pushed)
        give_rows(params, merged(some, pushed.float().numpy()))
        optimizer.step()
        theirs = torch.cat([param.detach().view(-1, 6) for param in params]).numpy()
        assert same_bits(table.pull(ids), theirs), f"step {step + 1}"
    saved = table.state_dict()
    for field, values in saved["state"].items():
        kept = torch.cat([optimizer.state[param][field].view(-1, 6) for param in params])
        assert same_bits(values, kept.numpy())


@pytest.mark.parametrize(("name", "options"), OWN_CASES)
def test_tables_do_what_rules_do_that_torch_does_not_have(
    ps: ParameterServer, name: str, options: Options
) -> None:
    """Every other push is bf16, as for torch's."""
    rule = getattr(gr.optim, name)(**options)
    ours, ids = start((12, 6), "float32"), np.arange(12)
    table = ps.sparse_table(f"own/{name}/{options}", 6, rule)
    table.load_state_dict({"ids": ids, "rows": ours})
    states: list[dict[str, Any]] = [{} for _ in ours]
    for step, (some, grads) in enumerate(pushes(*ours.shape, "float32")):
        pushed = torch.tensor(grads).bfloat16() if step % 2 else torch.tensor(grads)
        table.push(some, pushed)
        for row, grad in merged(some, pushed.float().numpy()).items():
            rule.update(ours[row], grad, states[row])
        assert same_bits(table.pull(ids), ours), f"step {step + 1}"
    saved = table.state_dict()
    if rule.counts_steps:
        assert saved["step"].tolist() == [state["step"] for state in states]
    assert saved["state"].keys() == states[0].keys() - {"step"}
    for field, values in saved["state"].items():
        kept = np.stack([np.asarray(state[field], np.float32).reshape(-1) for state in states])
        assert same_bits(values, kept)


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize(
    ("name", "options"), [case for case in OWN_CASES if not case[0].startswith("RowWise")]
)
def test_dense_tables_do_what_rules_do_that_torch_does_not_have(
    ps: ParameterServer, name: str, options: Options, is_half: bool
) -> None:
    rule = getattr(gr.optim, name)(**options)
    ours = start((7, 13), "float32")
    table = ps.dense_table(f"own dense/{name}/{options}/{is_half}", ours.shape, rule)
    table.load_state_dict({"weights": ours})
    state: dict[str, Any] = {}
    for step, grad in enumerate(gradients(ours.shape, "float32")):
        pushed = torch.tensor(grad).bfloat16() if is_half else torch.tensor(grad)
        table.push(pushed)
        rule.update(ours, pushed.float().numpy(), state)
        assert same_bits(table.pull(), ours), f"step {step + 1}"
    saved = table.state_dict()
    assert saved["step"] == STEPS
    assert saved["state"].keys() == state.keys() - {"step"}
    for field, values in saved["state"].items():
        assert same_bits(values, state[field])


@pytest.mark.parametrize(("name", "options"), EVERY_CASE)
@pytest.mark.usefixtures("exact_roots")
def test_values_are_clipped_as_torch_clips_them(name: str, options: Options) -> None:
    rule = getattr(gr.optim, name)(**options, clip_value=0.25)
    ours = start((3, 5), "float32")
    theirs = torch.nn.Parameter(torch.tensor(ours))
    optimizer = torch_optimizer(name, [theirs], options)
    state: dict[str, Any] = {}
    for grad in gradients(ours.shape, "float32"):
        before = grad.copy()
        rule.update(ours, grad, state)
        assert same_bits(grad, before), "the caller's gradient was written"
        theirs.grad = torch.tensor(grad)
        torch.nn.utils.clip_grad_value_([theirs], 0.25)
        give(name, theirs, theirs.grad.numpy())
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
