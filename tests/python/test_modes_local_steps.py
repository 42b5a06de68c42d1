"""GEO on one worker: local steps, of dense parameters and of rows, are those without servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from mode_servers import Servers, make_servers

Array = np.ndarray[Any, Any]

RULES = [
    gr.optim.SGD(lr=0.1),
    gr.optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    gr.optim.AdamW(lr=0.01),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("outer", [gr.Sum(), gr.Mean()])
@pytest.mark.parametrize("k_steps", [1, 3, "auto"])
def test_one_worker_trains_as_if_there_were_no_servers(
    servers: Servers, rule: Any, outer: Any, k_steps: Any
) -> None:
    random = np.random.default_rng(0)
    start = random.standard_normal((4, 3)).astype(np.float32)
    alone, alone_state = start.copy(), {}
    rows_alone: list[Any] = [np.zeros(5, np.float32) for _ in range(12)]
    rows_states: list[dict[str, Any]] = [{} for _ in range(12)]
    shared = start.copy()
    with gr.GeoOptimizer([shared], rule, servers.client(0), workers=1, k_steps=k_steps,
                         outer=outer) as optimizer:  # fmt: skip
        table = optimizer.sparse_table("rows", 5, rule)
        for _ in range(20):
            grad = random.standard_normal((4, 3)).astype(np.float32)
            ids = random.choice(12, 4, replace=False)
            row_grads = random.standard_normal((4, 5)).astype(np.float32)
            rule.update(alone, grad, alone_state)
            for key, row_grad in zip(ids, row_grads, strict=True):
                rule.update(rows_alone[key], row_grad, rows_states[key])
            table.pull(ids)
            table.prefetch(random.choice(12, 4))
            optimizer.step([grad], rows=[(table, ids, row_grads)])
            np.testing.assert_array_equal(shared, alone)
            np.testing.assert_array_equal(table.pull(np.arange(12)), np.stack(rows_alone))
        optimizer.flush()
        np.testing.assert_array_equal(shared, alone)
        np.testing.assert_array_equal(servers.dense("model/0", (4, 3), gr.optim.Sum()), alone)
        np.testing.assert_array_equal(table.pull(np.arange(12)), np.stack(rows_alone))


ROW_RULES = [
    *RULES,
    gr.optim.SGD(lr=0.1, momentum=0.9, dampening=0.5, clip_norm=1.0),
    gr.optim.Adagrad(lr=0.1),
    gr.optim.Adagrad(lr=0.1, lr_decay=0.5, initial_accumulator_value=0.25),
    gr.optim.RMSprop(lr=0.01, momentum=0.5, centered=True),
    gr.optim.SparseAdam(lr=0.01),
    gr.optim.RowWiseAdagrad(lr=0.1),
    gr.optim.RowWiseAdam(lr=0.1),
    gr.optim.FTRL(lr=0.1, l1=0.01),
]


def test_a_worker_trains_rows_as_servers_do_with_every_rule() -> None:
    servers = make_servers("shm")
    random = np.random.default_rng(0)
    ps = servers.client(0)
    with (
        gr.GeoOptimizer([], None, ps, name="local", k_steps=3, workers=1) as local,
        gr.AsyncOptimizer([], None, ps, name="served", workers=1) as served,
    ):
        for number, rule in enumerate(ROW_RULES):
            pairs = [
                (own, own.sparse_table(f"{own.name}/{number}", 7, rule, init=gr.init.Constant(0.5)))
                for own in (local, served)
            ]
            for _ in range(12):
                ids = random.integers(0, 30, 20)  # Some twice.
                grads = random.standard_normal((20, 7)).astype(np.float32)
                for optimizer, table in pairs:
                    optimizer.step(rows=[(table, ids, grads)])
            served.flush()
            mine, theirs = (table.pull(np.arange(30)) for _, table in pairs)
            np.testing.assert_array_equal(mine, theirs, err_msg=str(rule))
    servers.close()


def test_a_loop_may_train_the_rows_itself(servers: Servers) -> None:
    with gr.GeoOptimizer([], None, servers.client(0), k_steps=1, workers=1) as optimizer:
        table = optimizer.sparse_table("words", 3, gr.optim.SGD(lr=1.0))
        replica = optimizer.replica(table)
        np.testing.assert_array_equal(replica.slots(np.arange(5, dtype=np.uint64)), np.arange(5))
        replica.weights[2:4] += 1.5
        replica.mark(np.array([2, 3]))
        optimizer.advance()
        optimizer.flush()
    assert sorted(servers.sparse("words", 3, gr.optim.Sum())) == [2, 3]
    np.testing.assert_array_equal(servers.sparse("words", 3, gr.optim.Sum())[3], np.float32(1.5))


@pytest.mark.parametrize("rule", [gr.optim.Adam(lr=0.1), gr.optim.SparseAdam(lr=0.1)], ids=str)
def test_a_saved_state_goes_on_as_if_nothing_had_happened(servers: Servers, rule: Any) -> None:
    def batch(step: int) -> tuple[Array, Array, Array]:
        random = np.random.default_rng(step)
        dense, rows = random.standard_normal((2, 3)), random.standard_normal((4, 3))
        return dense.astype(np.float32), random.integers(0, 9, 4), rows.astype(np.float32)

    def run(name: str, spans: list[range]) -> list[Array]:
        param, saved = np.zeros((2, 3), np.float32), None
        for span in spans:
            optimizer = gr.GeoOptimizer(
                [param], rule, servers.client(0), name=name, k_steps=3, workers=1
            )
            table = optimizer.sparse_table(f"{name}/rows", 3, rule)
            if saved is not None:
                optimizer.load_state_dict(saved)
            for step in span:
                dense, ids, grads = batch(step)
                optimizer.step([dense], rows=[(table, ids, grads)])
            optimizer.flush()
            saved, rows = optimizer.state_dict(), table.pull(np.arange(9))
            optimizer.close()
        return [param, rows]

    whole, halves = run("whole", [range(14)]), run("halves", [range(7), range(7, 14)])
    for one, other in zip(whole, halves, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_state_of_another_rule_is_refused() -> None:
    servers = make_servers("exact")
    states = []
    for number, rule in enumerate([gr.optim.Adam(), gr.optim.Adagrad()]):
        optimizer = gr.GeoOptimizer([], None, servers.client(0), name=str(number), workers=1)
        table = optimizer.sparse_table("rows", 3, rule)
        optimizer.step(rows=[(table, [1], np.ones((1, 3)))])
        states.append(optimizer.state_dict())
    with pytest.raises(gr.InvalidArgument, match="exp_avg"):
        optimizer.load_state_dict(states[0])
    with pytest.raises(gr.InvalidArgument, match="tables"):
        optimizer.load_state_dict({"dense": [], "rows": {}})
    optimizer.load_state_dict(states[1])
    optimizer.abandon()
