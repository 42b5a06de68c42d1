"""State goes from torch to tables of two servers and back, and training goes on with its bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
from gradring.optim import state as portable
from gradring.ps import ParameterServer
from optim_rules import CASES, TORCH_CASES, give_exact_roots, same_bits
from ps_servers import connected

torch.set_num_threads(1)  # Its sparse operations wait for each other on a busy machine.

Array = np.ndarray[Any, Any]
Options = dict[str, Any]

STEPS = 200
WHEN = 70  # To the table; and back after as many again.
SHAPE = (5, 7)


@pytest.fixture(scope="module")
def ps() -> Iterator[ParameterServer]:
    with connected(2) as client:
        yield client


def gradients() -> list[Array]:
    random = np.random.default_rng(2)
    return list(random.standard_normal((STEPS, *SHAPE)).astype(np.float32))


def torch_optimizer(name: str, param: torch.Tensor, options: Options) -> Any:
    return getattr(torch.optim, name)([param], **options, foreach=False)


def torch_steps(optimizer: Any, param: torch.nn.Parameter, grads: list[Array]) -> None:
    for grad in grads:
        param.grad = torch.tensor(grad)
        optimizer.step()


def tensors(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.as_tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in entry.items()
    }


@pytest.fixture(autouse=True)
def exact_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    give_exact_roots(monkeypatch)


@pytest.mark.parametrize(("name", "options"), TORCH_CASES)
def test_training_goes_from_torch_to_a_table_and_back(
    ps: ParameterServer, name: str, options: Options
) -> None:
    rule = getattr(gr.optim, name)(**options)
    grads = gradients()
    alone = torch.nn.Parameter(torch.ones(SHAPE))
    torch_steps(torch_optimizer(name, alone, options), alone, grads)

    first = torch.nn.Parameter(torch.ones(SHAPE))
    optimizer = torch_optimizer(name, first, options)
    torch_steps(optimizer, first, grads[:WHEN])
    entry = optimizer.state_dict()["state"].get(0, {})
    table = ps.dense_table(f"dense/{name}/{options}", SHAPE, rule)
    table.load_state_dict({"weights": first, "state": entry})
    held = table.state_dict()
    state, steps = portable.from_entry(rule, entry, first.numel())
    assert same_bits(portable.join(rule, held["state"], 1, first.numel())[0], state)
    assert held["step"] == steps
    for grad in grads[WHEN : 2 * WHEN]:
        table.push(grad)

    held = table.state_dict()
    assert held["step"] == steps + WHEN
    last = torch.nn.Parameter(torch.tensor(held["weights"]))
    optimizer = torch_optimizer(name, last, options)
    saved = optimizer.state_dict()
    state = portable.join(rule, held["state"], 1, last.numel())[0]
    saved["state"] = {0: tensors(portable.to_entry(rule, state, held["step"], SHAPE))}
    optimizer.load_state_dict(saved)
    torch_steps(optimizer, last, grads[2 * WHEN :])
    assert same_bits(last.detach().numpy(), alone.detach().numpy())


@pytest.mark.parametrize(("name", "options"), TORCH_CASES)
def test_training_goes_from_torch_to_rows_and_back(
    ps: ParameterServer, name: str, options: Options
) -> None:
    """Every row is a parameter of torch's; some have not had a step when they change sides."""
    rule = getattr(gr.optim, name)(**options)
    random = np.random.default_rng(3)
    pushes = [
        (random.choice(6 if step < WHEN else 8, 3, replace=False), grads)
        for step, grads in enumerate(random.standard_normal((STEPS, 3, 4)).astype(np.float32))
    ]

    def train(params: list[torch.nn.Parameter], optimizer: Any, pushed: list[Any]) -> None:
        for ids, grads in pushed:
            given = dict(zip(ids.tolist(), grads, strict=True))
            for row, param in enumerate(params):
                param.grad = torch.tensor(given[row]) if row in given else None
            optimizer.step()

    def parameters(rows: Array) -> tuple[list[torch.nn.Parameter], Any]:
        params = [torch.nn.Parameter(torch.tensor(row)) for row in rows]
        return params, getattr(torch.optim, name)(params, **options, foreach=False)

    alone, optimizer = parameters(np.ones((8, 4), np.float32))
    train(alone, optimizer, pushes)

    first, optimizer = parameters(np.ones((8, 4), np.float32))
    train(first, optimizer, pushes[:WHEN])
    state, steps = portable.from_row_entries(rule, [optimizer.state[p] for p in first], 4)
    table = ps.sparse_table(f"rows/{name}/{options}", 4, rule)
    rows = torch.stack(first).detach().numpy()
    fields = portable.split(rule, state, 4)
    table.load_state_dict({"ids": np.arange(8), "rows": rows, "state": fields, "step": steps})
    for ids, grads in pushes[WHEN : 2 * WHEN]:
        table.push(ids, grads)

    held = table.state_dict()
    last, optimizer = parameters(held["rows"])
    state = portable.join(rule, held["state"], 8, 4)
    entries = portable.to_row_entries(rule, state, held["step"], 4)
    saved = {row: tensors(entry) for row, entry in enumerate(entries) if entry}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": saved})
    train(last, optimizer, pushes[2 * WHEN :])
    for ours, theirs in zip(last, alone, strict=True):
        assert same_bits(ours.detach().numpy(), theirs.detach().numpy())


@pytest.mark.parametrize(("name", "options"), TORCH_CASES)
def test_rows_of_a_sparse_table_are_torchs_parameters(name: str, options: Options) -> None:
    """Rows that had no step have no entry, like a parameter that never had a gradient."""
    rule = getattr(gr.optim, name)(**options)
    params = [torch.nn.Parameter(torch.ones(4)) for _ in range(3)]
    optimizer = getattr(torch.optim, name)(params, **options, foreach=False)
    for step in range(6):
        params[0].grad = torch.full((4,), float(step - 2))
        params[1].grad = torch.ones(4) if step % 2 else None
        optimizer.step()
    theirs = [dict(optimizer.state[param]) for param in params]
    state, steps = portable.from_row_entries(rule, theirs, 4)
    assert state.shape == (3, sum(portable.fields_of(rule, 4).values()))
    if name != "SGD":
        assert steps.tolist() == [6, 3, 0]

    for entry, ours in zip(theirs, portable.to_row_entries(rule, state, steps, 4), strict=True):
        kept = {key: value for key, value in entry.items() if value is not None}
        back = {key: value for key, value in ours.items() if value is not None}
        assert back.keys() == kept.keys()
        for key, value in kept.items():
            assert same_bits(np.asarray(back[key]), value.numpy())


def test_an_embedding_of_sparse_adam_is_one_entry(ps: ParameterServer) -> None:
    options: Options = {"lr": 0.05, "betas": (0.8, 0.9)}
    rule = gr.optim.SparseAdam(**options)
    random = np.random.default_rng(4)
    pushes = [
        (random.choice(6, 2, replace=False), random.standard_normal((2, 3)).astype(np.float32))
        for _ in range(STEPS)
    ]

    def run(param: torch.nn.Parameter, entry: dict[str, Any], pushed: list[Any]) -> dict[str, Any]:
        optimizer = torch.optim.SparseAdam([param], **options)
        if entry:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: tensors(entry)}})
        for ids, grads in pushed:
            param.grad = torch.sparse_coo_tensor(
                torch.tensor(ids)[None], torch.tensor(grads), param.shape, check_invariants=True
            )
            optimizer.step()
        return dict(optimizer.state_dict()["state"][0])

    alone = torch.nn.Parameter(torch.ones(6, 3))
    run(alone, {}, pushes)

    first = torch.nn.Parameter(torch.ones(6, 3))
    entry = run(first, {}, pushes[:WHEN])
    state, steps = portable.from_matrix_entry(rule, entry, 6, 3)
    assert steps == WHEN
    table = ps.sparse_table("sparse adam", 3, rule)
    table.load_state_dict({"ids": np.arange(6), "rows": first, "state": entry})
    held = table.state_dict()
    assert same_bits(portable.join(rule, held["state"], 6, 3), state)
    for ids, grads in pushes[WHEN : 2 * WHEN]:
        table.push(ids, grads)

    held = table.state_dict()
    assert held["updates"] == 2 * WHEN
    last = torch.nn.Parameter(torch.tensor(held["rows"]))
    state = portable.join(rule, held["state"], 6, 3)
    run(last, portable.to_matrix_entry(rule, state, held["updates"], 3), pushes[2 * WHEN :])
    assert same_bits(last.detach().numpy(), alone.detach().numpy())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_split_and_join_are_inverses(name: str, options: Options) -> None:
    rule = getattr(gr.optim, name)(**options)
    width = sum(portable.fields_of(rule, 3).values())
    state = np.random.default_rng(1).standard_normal((4, width)).astype(np.float32)
    fields = portable.split(rule, state, 3)
    assert same_bits(portable.join(rule, fields, 4, 3), state)
    assert same_bits(
        np.concatenate([f.reshape(4, -1) for f in [state[:, :0], *fields.values()]], 1), state
    )


def test_a_new_rows_state_is_what_missing_fields_have() -> None:
    rule = gr.optim.Adagrad(initial_accumulator_value=0.5)
    state, steps = portable.from_entry(rule, {}, 3)
    assert state.tolist() == [0.5, 0.5, 0.5]
    assert steps == 0
    assert portable.to_entry(gr.optim.Adam(), np.zeros(6, np.float32), 0, (3,)) == {}
    entry = portable.to_entry(rule, state, 0, (3,))  # torch makes its sums before the first step.
    assert entry["step"] == 0
    assert entry["sum"].tolist() == [0.5, 0.5, 0.5]


def test_state_of_another_size_is_refused() -> None:
    rule = gr.optim.Adam()
    with pytest.raises(gr.InvalidArgument, match="6 floats of state"):
        portable.split(rule, np.zeros((2, 5), np.float32), 3)
    with pytest.raises(gr.InvalidArgument, match="exp_avg_sq has 4 values"):
        portable.from_entry(rule, {"exp_avg": np.zeros(3), "exp_avg_sq": np.zeros(4)}, 3)
