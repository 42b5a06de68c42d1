"""Sync(via="ps"): n workers are one process on all their batches, for every rule, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
from conftest import GetWorld
from exact_server import ExactServer, Faults
from gradring.modes.parameters.rows import merge
from gradring.modes.rounds import RoundOptimizer
from mode_servers import Servers
from ps_servers import join, serving
from thread_ranks import on_workers

Array = np.ndarray[Any, Any]

RULES = [
    gr.optim.SGD(lr=0.5, momentum=0.5, weight_decay=0.25),
    gr.optim.SGD(lr=0.5, momentum=0.5, nesterov=True),
    gr.optim.Adam(lr=0.01),
    gr.optim.AdamW(lr=0.01),
    gr.optim.Adagrad(lr=0.1, lr_decay=0.1),
    gr.optim.RMSprop(lr=0.01, momentum=0.5, centered=True),
    gr.optim.RowWiseAdagrad(lr=0.1),
    gr.optim.RowWiseAdam(lr=0.1),
    gr.optim.FTRL(lr=0.1, l1=0.01),
    gr.optim.SparseAdam(lr=0.01),
    gr.optim.Sum(),
    gr.optim.SGD(lr=0.5, clip_value=0.5),
    gr.optim.SGD(lr=0.5, momentum=0.5, clip_norm=1.0),
]
SHAPES = [(3, 4), (50,), ()]
IDS, DIM, STEPS = 7, 3, 6


def example(step: int, number: int) -> tuple[list[Array], Array, Array]:
    """One example's gradients, dyadic: dense ones, ids and rows (an id may be there twice)."""
    random = np.random.default_rng([step, number])
    dense = [np.asarray(random.integers(-8, 8, shape) / 4, np.float32) for shape in SHAPES]
    ids = random.integers(0, IDS, 2)
    return dense, ids, (random.integers(-8, 8, (2, DIM)) / 4).astype(np.float32)


# Examples of each worker, by number of workers: in all steps but the last, and in the last. Powers
# of two, so that nothing is rounded before servers divide by the sum, as one process does.
SPLITS = {1: ([8], [3]), 2: ([4, 4], [2, 1]), 3: ([4, 2, 2], [2, 1, 0])}


def examples_of(workers: int, rank: int, step: int) -> list[Any]:
    counts = SPLITS[workers][step == STEPS - 1]
    begin = sum(counts[:rank])
    return [example(step, number) for number in range(begin, begin + counts[rank])]


def contribution(workers: int, rank: int, step: int) -> tuple[Any, float, Any]:
    """A worker's mean gradients, their weight, and ids with mean gradients of rows."""
    examples = examples_of(workers, rank, step)
    if not examples:
        return None, 0, None
    count = np.float32(len(examples))
    grads = [sum(parts) / count for parts in zip(*(e[0] for e in examples), strict=True)]
    ids, row_grads = merge([e[1] for e in examples], [e[2] for e in examples], DIM)
    return grads, float(count), (ids, row_grads / count)


def dense_rule(rule: Any) -> Any:
    """The rule for dense tables, which have no rows."""
    is_row_wise = isinstance(rule, (gr.optim.RowWiseAdagrad, gr.optim.RowWiseAdam))
    return RULES[0] if is_row_wise else rule


def train(store: Any, rank: int, workers: int, rule: Any) -> tuple[list[Array], Array]:
    random = np.random.default_rng(rank)
    params = [np.asarray(random.integers(-4, 4, shape), np.float32) for shape in SHAPES]
    with RoundOptimizer(params, dense_rule(rule), store, workers=workers) as optimizer:
        table = optimizer.sparse_table("rows", DIM, rule)
        for step in range(STEPS):
            grads, weight, rows = contribution(workers, rank, step)
            table.pull(np.arange(IDS))
            table.prefetch(np.arange(IDS))
            optimizer.step(grads, weight, [] if rows is None else [(table, *rows)])
        return params, table.pull(np.arange(IDS))


def alone(rule: Any) -> tuple[list[Array], Array]:
    """The same in one process, without servers: every row is a parameter of its own."""
    random = np.random.default_rng(0)
    params = [np.asarray(random.integers(-4, 4, shape), np.float32) for shape in SHAPES]
    rows = [np.zeros(DIM, np.float32) for _ in range(IDS)]
    states: list[dict[str, Any]] = [{} for _ in range(len(params) + IDS)]
    for step in range(STEPS):
        examples = examples_of(1, 0, step)
        count = np.float32(len(examples))
        for index, param in enumerate(params):
            grad = sum(e[0][index] for e in examples) / count
            dense_rule(rule).update(param, np.asarray(grad, np.float32), states[index])
        pairs = [pair for _, ids, grads in examples for pair in zip(ids, grads, strict=True)]
        for key in {int(each) for each, _ in pairs}:
            grad = sum(row for each, row in pairs if each == key) / count
            state = states[len(params) + key]
            if isinstance(rule, gr.optim.SparseAdam):
                state["step"] = step  # It counts the table's.
            rule.update(rows[key], np.asarray(grad, np.float32), state)
    return params, np.stack(rows)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_workers_take_the_path_of_one_process(servers: Servers, workers: int, rule: Any) -> None:
    params, rows = alone(rule)
    for own, own_rows in on_workers(
        workers, lambda rank: train(servers.client(rank, Faults(rank, 10)), rank, workers, rule)
    ):
        for param, expected in zip(own, params, strict=True):
            np.testing.assert_array_equal(param, expected)
        np.testing.assert_array_equal(own_rows, rows)
    assert servers.faults_played != 0


@pytest.mark.parametrize("weight", [0.3, 1.0, 7.3])
def test_the_gradient_of_one_worker_is_taken_as_it_is_whatever_its_weight(
    servers: Servers, weight: float
) -> None:
    grad = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    param = np.zeros_like(grad)
    with RoundOptimizer([param], gr.optim.Sum(), servers.client(0), workers=1) as own:
        table = own.sparse_table("rows", len(grad), gr.optim.Sum())
        own.step([grad], weight, [(table, [3], grad[np.newaxis])])
        np.testing.assert_array_equal(param, grad)
        np.testing.assert_array_equal(table.pull([3])[0], grad)


def test_a_lost_worker_fails_the_others_by_name_within_the_timeout() -> None:
    server = ExactServer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exact_server.SECONDS", 0.05)
        optimizers = [
            RoundOptimizer([np.zeros(2, np.float32)], RULES[0], server.client(rank), workers=2)
            for rank in range(2)
        ]
        with pytest.raises(gr.TimedOut, match=r"workers \[1\]"):
            optimizers[0].step([np.ones(2, np.float32)])
    for optimizer in optimizers:
        optimizer.abandon()


def test_a_round_to_which_nobody_brings_a_gradient_changes_nothing() -> None:
    server = ExactServer()
    param = np.ones(3, np.float32)
    with RoundOptimizer(
        [param], gr.optim.SGD(lr=1, momentum=0.5), server.client(0), workers=1
    ) as own:
        own.step([np.ones(3, np.float32)])
        own.step([None])
        own.step(None, 0)
        np.testing.assert_array_equal(param, np.zeros(3, np.float32))
        assert server.tables["model/0"].pushes == 1


def test_wrong_gradients_are_refused_before_anything_is_sent() -> None:
    server = ExactServer()
    with RoundOptimizer([np.ones(3, np.float32)], RULES[0], server.client(0), workers=1) as own:
        with pytest.raises(gr.InvalidArgument, match="2 gradients for 1 parameters"):
            own.step([np.ones(3), np.ones(3)])
        with pytest.raises(gr.InvalidArgument, match=r"gradient 0 has shape \(2,\)"):
            own.step([np.ones(2)])
        with pytest.raises(gr.InvalidArgument, match="weight"):
            own.step([np.ones(3)], -1)
        assert own.clock == 0


@pytest.mark.parametrize(
    ("param", "complaint"),
    [
        (np.ones(3), "float64"),
        (np.ones((4, 4), np.float32)[:, ::2], "contiguous"),
        ([1.0], "list; give NumPy arrays$"),
        (torch.ones(3), r"Tensor; give NumPy arrays: .*gradring\.torch\.distributed\(optimizer"),
    ],
)
def test_servers_hold_contiguous_float32_arrays(param: Any, complaint: str) -> None:
    with pytest.raises(gr.InvalidArgument, match=complaint):
        RoundOptimizer([param], RULES[0], ExactServer().client(0), workers=1)


def trained_bits(world: GetWorld, mode: Any, workers: int, servers: int, threads: int) -> list[Any]:
    """Train a little with sums that round; every worker's parameter and rows in the end."""
    with serving(servers, threads=threads) as addresses:

        def train(comm: Any) -> bytes:
            random = np.random.default_rng(comm.rank)
            param = np.random.default_rng(9).normal(size=(37, 5)).astype(np.float32)
            ps = join(addresses, client=comm.rank)
            rule = gr.optim.Adam(lr=0.01)
            with ps, gr.distributed([param], rule, mode, ps=ps, comm=comm) as optimizer:
                table = optimizer.sparse_table("rows", 3, rule, init=gr.init.Uniform(0.1))
                for _ in range(12):
                    ids, weight = random.integers(0, 9, 8), int(random.integers(1, 9))
                    rows = table.pull(ids) * random.normal(size=(8, 3)) + 0.01
                    grad = param * random.normal(size=param.shape)
                    optimizer.step(
                        [grad.astype(np.float32)], weight=weight,
                        rows=[(table, ids, rows.astype(np.float32))],
                    )  # fmt: skip
                optimizer.flush()
                comm.barrier()
                return param.tobytes() + table.pull(np.arange(9)).tobytes()

        return world(workers, "tcp").run(train)


@pytest.mark.one_transport
@pytest.mark.parametrize("mode", [
    gr.Sync(via="ps"), gr.Geo(2, outer=gr.Nesterov()),
    gr.Hybrid(dense=gr.Sync(), sparse=gr.Sync(via="ps")),
], ids=str)  # fmt: skip
def test_modes_with_rounds_have_the_same_bits_in_every_run_on_any_number_of_servers(
    world: GetWorld, mode: Any
) -> None:
    first, *others = trained_bits(world, mode, 3, servers=1, threads=1)
    assert others == [first] * 2
    assert trained_bits(world, mode, 3, servers=3, threads=2) == [first] * 3


@pytest.mark.one_transport
@pytest.mark.parametrize("mode", [
    gr.Sync(), gr.BoundedStaleness(1), gr.Geo(2), gr.Geo(3, outer=gr.Mean()),
], ids=str)  # fmt: skip
def test_one_worker_alone_has_the_same_bits_in_every_run(world: GetWorld, mode: Any) -> None:
    mode = gr.Hybrid(dense=mode, sparse=gr.Sync(via="ps")) if mode == gr.Sync() else mode
    first = trained_bits(world, mode, 1, servers=1, threads=1)
    assert trained_bits(world, mode, 1, servers=3, threads=2) == first
