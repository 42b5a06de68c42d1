"""Settings that change while training goes on: every mode takes the path of one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import Faults
from gradring.modes.bounded import BoundedOptimizer
from gradring.modes.rounds import RoundOptimizer
from mode_servers import Servers, make_servers
from thread_ranks import on_workers

Make = Callable[[Any], torch.optim.Optimizer]
MODES = [
    gr.Sync(), gr.Sync(via="ps"), gr.BoundedStaleness(0), gr.Async(), gr.Geo(k_steps=2),
    gr.Hybrid(gr.Async(), gr.Sync(via="ps")),
]  # fmt: skip
RULES = [
    gr.optim.SGD(lr=0.5, momentum=0.5, weight_decay=0.25),
    gr.optim.Adam(lr=0.25),
    gr.optim.AdamW(lr=0.25),
    gr.optim.Adagrad(lr=0.5, lr_decay=0.1),
    gr.optim.RMSprop(lr=0.25, momentum=0.5, centered=True),
    gr.optim.RowWiseAdagrad(lr=0.5),
    gr.optim.FTRL(lr=0.5, l1=0.01),
]
STEPS, IDS, DIM = 6, 5, 3


def at(rule: Any, step: int) -> Any:
    """The rule of a step: its learning rate falls, and in the middle its clipping begins."""
    clip = 1.0 if step >= STEPS // 2 else None
    return dataclasses.replace(rule, lr=rule.lr / (step + 1), clip_value=clip)


def gradients(step: int, rank: int) -> tuple[Any, Any, Any]:
    """One example's, dyadic: of a parameter, and of two rows."""
    random = np.random.default_rng([step, rank])
    ids = random.choice(IDS, 2, replace=False)
    dense = (random.integers(-8, 8, 4) / 4).astype(np.float32)
    return dense, ids, (random.integers(-8, 8, (2, DIM)) / 4).astype(np.float32)


def dense_rule(rule: Any) -> Any:
    return RULES[0] if isinstance(rule, gr.optim.RowWiseAdagrad) else rule


def train(optimizer: Any, rank: int, rule: Any) -> tuple[Any, Any]:
    with optimizer:
        table = optimizer.sparse_table("rows", DIM, rule)
        for step in range(STEPS):
            if step > 0:
                optimizer.set_rule(at(dense_rule(rule), step))
                table.set_rule(at(rule, step))
            table.pull(np.arange(IDS))
            grad, ids, row_grads = gradients(step, rank)
            optimizer.step([grad], 1, [(table, ids, row_grads)])
        optimizer.flush()
        return optimizer.params[0].copy(), table.pull(np.arange(IDS))


def alone(rule: Any, workers: int) -> tuple[Any, Any]:
    """The same in one process; every row is a parameter of its own."""
    param, state = np.ones(4, np.float32), {}
    rows = np.zeros((IDS, DIM), np.float32)
    states: list[dict[str, Any]] = [{} for _ in range(IDS)]
    for step in range(STEPS):
        given = [gradients(step, rank) for rank in range(workers)]
        mean = sum(grad for grad, _, _ in given) / np.float32(workers)
        at(dense_rule(rule), step).update(param, mean, state)
        pairs = [pair for _, ids, grads in given for pair in zip(ids, grads, strict=True)]
        for key in sorted({int(each) for each, _ in pairs}):
            grad = sum(row for each, row in pairs if each == key) / np.float32(workers)
            at(rule, step).update(rows[key], grad, states[key])
    return param, rows


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rounds_are_under_the_settings_of_their_step(
    servers: Servers, workers: int, rule: Any
) -> None:
    def work(rank: int) -> Any:
        params = [np.ones(4, np.float32)]
        store = servers.client(rank, Faults(rank, 10))
        return train(
            RoundOptimizer(params, at(dense_rule(rule), 0), store, workers=workers), rank, rule
        )

    # The tables are made with the settings of the first step.
    rule = at(rule, 0)
    param, rows = alone(rule, workers)
    for own, own_rows in on_workers(workers, work):
        np.testing.assert_array_equal(own, param)
        np.testing.assert_array_equal(own_rows, rows)
    assert servers.faults_played != 0


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_one_worker_alone_takes_the_same_path_in_every_mode(
    world: GetWorld, servers: Servers, mode: Any
) -> None:
    comm = world(1, "tcp").comms[0]
    for number, rule in enumerate(RULES):
        param, rows = alone(rule, 1)
        params = [np.ones(4, np.float32)]
        optimizer = gr.distributed(
            params, dense_rule(rule), mode, ps=servers.client(0), comm=comm, name=f"m{number}"
        )
        own, own_rows = train_named(optimizer, f"rows{number}", rule)
        np.testing.assert_array_equal(own, param)
        np.testing.assert_array_equal(own_rows, rows)


def train_named(optimizer: Any, name: str, rule: Any) -> tuple[Any, Any]:
    table_of = optimizer.sparse_table
    optimizer.sparse_table = lambda _, dim, rule: table_of(name, dim, rule)
    return train(optimizer, 0, rule)


TORCH: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.5, weight_decay=0.25),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    # With momentums or betas that move too, where there are any.
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, 0.5, total_steps=STEPS + 1, cycle_momentum=not isinstance(o, torch.optim.Adagrad)
    ),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
}


def train_torch(optimizer: Any, schedule: Any, param: Any, shares: range, all_shares: int) -> Any:
    for step in range(STEPS):
        optimizer.zero_grad()
        # Linear and dyadic: whatever is added up is exact.
        factors = np.mean([gradients(step, share)[0] for share in shares], axis=0)
        (param * torch.from_numpy(factors)).sum().backward()
        optimizer.step()
        schedule.step()
        if hasattr(optimizer, "flush") and all_shares == 1:
            optimizer.flush()
    return param.detach().numpy().copy()


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("kind", "schedule"),
    [("SGD", "StepLR"), ("Adagrad", "LambdaLR")] + [(kind, "OneCycleLR") for kind in TORCH],
)
def test_schedulers_of_torch_work_in_every_mode(
    world: GetWorld, kind: str, schedule: str, mode: Any
) -> None:
    servers = make_servers("shm")
    plain = torch.nn.Parameter(torch.ones(4))
    optimizer = TORCH[kind]([plain])
    expected = train_torch(optimizer, SCHEDULES[schedule](optimizer), plain, range(1), 1)

    def work(comm: Any) -> Any:
        param = torch.nn.Parameter(torch.ones(4))
        optimizer = gt.distributed(TORCH[kind]([param]), mode, comm=comm, ps=servers.client(0))
        result = train_torch(optimizer, SCHEDULES[schedule](optimizer), param, range(1), 1)
        optimizer.close()
        return result

    (result,) = world(1, "tcp").run(work)
    if kind == "SGD" or isinstance(mode, gr.Geo) or mode == gr.Sync():
        np.testing.assert_array_equal(result, expected)
    else:  # Roots: docs/update_rules.md.
        np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-7)
    servers.close()


@pytest.mark.parametrize("mode", [gr.Sync(via="ps"), gr.BoundedStaleness(0), gr.Async()], ids=str)
def test_a_schedule_of_sparse_adam_may_end_at_zero(
    world: GetWorld, servers: Servers, mode: Any
) -> None:
    def work(comm: Any) -> list[Any]:
        param, seen = torch.nn.Parameter(torch.ones(4)), []
        inner = torch.optim.SparseAdam([param], lr=0.5)
        optimizer = gt.distributed(inner, mode, comm=comm, ps=servers.client(0))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2, eta_min=0)
        for _ in range(3):  # With learning rates 0.5, 0.25 and 0.
            param.grad = torch.ones(4)
            optimizer.step()
            schedule.step()
            optimizer.flush()
            seen.append(param.detach().numpy().copy())
        optimizer.close()
        return seen

    ((first, second, third),) = world(1, "tcp").run(work)
    assert (first < 1).all()
    assert (second < first).all()
    np.testing.assert_array_equal(third, second)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_workers_with_a_scheduler_are_one_process_bit_for_bit(
    world: GetWorld, servers: Servers, schedule: str
) -> None:
    plain = torch.nn.Parameter(torch.ones(4))
    optimizer = TORCH["SGD"]([plain])
    expected = train_torch(optimizer, SCHEDULES[schedule](optimizer), plain, range(2), 2)

    def work(comm: Any) -> Any:
        param = torch.nn.Parameter(torch.ones(4))
        optimizer = gt.distributed(
            TORCH["SGD"]([param]), gr.Sync(via="ps"), comm=comm, ps=servers.client(comm.rank)
        )
        shares = range(comm.rank, comm.rank + 1)
        result = train_torch(optimizer, SCHEDULES[schedule](optimizer), param, shares, 2)
        optimizer.close()
        return result

    for result in world(2, "tcp").run(work):
        np.testing.assert_array_equal(result, expected)


def test_steps_that_wait_to_be_sent_are_under_the_settings_they_were_made_with(
    servers: Servers,
) -> None:
    optimizer = gr.AsyncOptimizer(
        [np.zeros(1, np.float32)], gr.optim.SGD(lr=1.0), servers.client(0), queue=8, workers=1
    )
    for step in range(8):
        optimizer.set_rule(gr.optim.SGD(lr=2.0**step))
        optimizer.step([np.ones(1, np.float32)])
    optimizer.flush()
    assert optimizer.params[0].tolist() == [-255.0]
    optimizer.close()


def test_one_who_joins_finds_the_settings_in_force_and_changes_nothing(servers: Servers) -> None:
    rule = gr.optim.SGD(lr=1.0)
    one = np.ones(1, np.float32)

    def join(rank: int) -> Any:
        return BoundedOptimizer([np.zeros(1, np.float32)], rule, servers.client(rank),
                                workers=2, staleness=100)  # fmt: skip

    with join(0) as first:
        first.set_rule(gr.optim.SGD(lr=0.25))
        with join(1) as second:
            second.step([one])
            assert second.params[0].tolist() == [-0.25]


def test_another_rule_or_state_is_refused_and_nothing_changes(
    world: GetWorld, servers: Servers
) -> None:
    rule, comm = gr.optim.SGD(lr=1.0), world(1, "tcp").comms[0]
    for mode in (gr.Async(), gr.Geo(1), gr.Sync(via="ps"), gr.Sync()):
        optimizer = gr.distributed(
            [np.zeros(1, np.float32)], rule, mode, ps=servers.client(0), comm=comm, name=str(mode)
        )
        table = optimizer.sparse_table(f"rows of {mode}", 1, rule)
        for settable in (optimizer, table):
            with pytest.raises(gr.InvalidArgument, match="SGD and stays so: Adam"):
                settable.set_rule(gr.optim.Adam())
            with pytest.raises(gr.InvalidArgument, match="keeps no state"):
                settable.set_rule(gr.optim.SGD(lr=1.0, momentum=0.5))
        if mode in (gr.Async(), gr.Sync(via="ps")):  # Servers clip, where their table lies.
            with pytest.raises(gr.InvalidArgument, match="clip_norm may change, but not come"):
                optimizer.set_rule(gr.optim.SGD(lr=1.0, clip_norm=1.0))
        with pytest.raises(gr.InvalidArgument, match=r"2 rules for 1 parameters|list cannot"):
            optimizer.set_rule([rule, rule])
        optimizer.step([np.ones(1, np.float32)], rows=[(table, [1], [[1.0]])])
        optimizer.flush()
        assert (optimizer.params[0].tolist(), table.pull([1]).tolist()) == ([-1.0], [[-1.0]])
        optimizer.close()


@pytest.mark.parametrize("mode", [gr.Sync(), gr.Async(), gr.Geo(1)], ids=str)
def test_embeddings_take_other_settings(world: GetWorld, servers: Servers, mode: Any) -> None:
    def work(comm: Any) -> Any:
        layer = gt.Embedding("e", 1, optimizer=gr.optim.SGD(lr=1.0))
        layer.set_optimizer(gr.optim.SGD(lr=0.5))  # Before there is a table.
        param = torch.nn.Parameter(torch.ones(1))
        model = torch.nn.ModuleList([layer, torch.nn.ParameterList([param])])
        optimizer = gt.distributed(
            torch.optim.SGD([param], lr=1.0), mode, model=model, comm=comm, ps=servers.client(0)
        )
        for lr in (0.5, 0.25):
            layer.set_optimizer(gr.optim.SGD(lr=lr))
            layer(torch.tensor([3])).sum().backward()
            optimizer.step()
        with pytest.raises(gr.InvalidArgument, match="stays so"):
            layer.set_optimizer(gr.optim.Adam())
        optimizer.flush()
        row = layer.table.pull([3])
        optimizer.close()
        return row

    (row,) = world(1, "tcp").run(work)
    assert row.tolist() == [[-0.75]]
