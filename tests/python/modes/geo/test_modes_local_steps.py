"""GEO's local steps, of dense parameters and of rows: those without servers, and their mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from exact_server import ExactServer
from mode_servers import Servers, make_servers
from ps_servers import join, serving
from thread_ranks import on_workers

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


def test_a_replica_takes_whatever_ids_a_table_takes(servers: Servers) -> None:
    with gr.GeoOptimizer([], None, servers.client(0), k_steps=1, workers=1) as optimizer:
        table = optimizer.sparse_table("words", 2, gr.optim.SGD(lr=1.0))
        replica = optimizer.replica(table)
        for wrong in ([0.5], np.array([1.0]), "5"):
            with pytest.raises(gr.InvalidArgument, match="ids"):
                replica.slots(wrong)
        np.testing.assert_array_equal(replica.slots(np.arange(3)), np.arange(3))
        np.testing.assert_array_equal(replica.slots([5]), [3])
        np.testing.assert_array_equal(replica.slots(np.array([[2, 5]], np.int32)), [2, 3])
        np.testing.assert_array_equal(replica.find([5, 6]), [3, -1])
        replica.insert([6, 5], np.full((2, 2), 7, np.float32))
        assert len(replica) == 5
        replica.weights[3] += 1.5
        replica.mark([3])
        optimizer.advance()
        optimizer.flush()
        assert len(replica) == 5
        np.testing.assert_array_equal(table.pull([5, 0]), [[1.5, 1.5], [0, 0]])
    assert list(servers.sparse("words", 2, gr.optim.Sum())) == [5]


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


def test_rows_that_a_loaded_state_does_not_have_begin_without_one() -> None:
    momentum = gr.optim.SGD(lr=1.0, momentum=0.5)
    with gr.GeoOptimizer([], momentum, ExactServer().client(0), workers=1) as optimizer:
        table = optimizer.sparse_table("t", 1, momentum)

        def step(*ids: int) -> list[float]:
            before = table.pull(ids)
            optimizer.step(rows=[(table, ids, np.ones((len(ids), 1), np.float32))])
            return (before - table.pull(ids))[:, 0].tolist()

        assert step(1) == [1]
        saved = optimizer.state_dict()
        assert step(1, 2) == [1.5, 1]
        assert step(1, 2) == [1.75, 1.5]
        optimizer.load_state_dict(saved)
        assert step(1, 2) == [1.5, 1]


def test_a_state_of_another_rule_is_refused() -> None:
    servers = make_servers("exact")
    states = []
    for number, rule in enumerate([gr.optim.Adam(), gr.optim.Adagrad()]):
        optimizer = gr.GeoOptimizer([], None, servers.client(0), name=str(number), workers=1)
        table = optimizer.sparse_table("rows", 3, rule)
        optimizer.step(rows=[(table, [1], np.ones((1, 3)))])
        states.append(optimizer.state_dict())
    with pytest.raises(gr.InvalidArgument, match="is of Adam, the rule is Adagrad"):
        optimizer.load_state_dict(states[0])
    with pytest.raises(gr.InvalidArgument, match="tables"):
        optimizer.load_state_dict({"dense": [], "rows": {}})
    optimizer.load_state_dict(states[1])
    optimizer.abandon()


def test_a_state_of_rows_whose_steps_were_not_counted_is_refused_where_they_are_needed() -> None:
    saved, servers = None, make_servers("exact")
    for name, decay in (("without", 0.0), ("with", 0.5)):
        rule = gr.optim.Adagrad(lr=0.1, lr_decay=decay)
        optimizer = gr.GeoOptimizer([], None, servers.client(0), name=name, workers=1)
        table = optimizer.sparse_table("rows", 3, rule)
        if saved is not None:
            with pytest.raises(gr.InvalidArgument, match=r"table 'rows' .* not counted"):
                optimizer.load_state_dict(saved)
        optimizer.step(rows=[(table, [1], np.ones((1, 3)))])
        saved = optimizer.state_dict()
        optimizer.close()


def after_a_step(rule: Any) -> tuple[gr.GeoOptimizer, Any, Any]:
    param = np.zeros((2, 3), np.float32)
    optimizer = gr.GeoOptimizer([param], rule, make_servers("exact").client(0), workers=1)
    first, second = (optimizer.sparse_table(name, 3, rule) for name in ("first", "second"))
    ones = np.ones((2, 3), np.float32)
    optimizer.step([ones], rows=[(first, [1, 2], ones), (second, [1, 2], ones)])
    return optimizer, first, second


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "saved without names"])
@pytest.mark.parametrize(
    "rule",
    [gr.optim.SGD(lr=1, momentum=0.5), gr.optim.Adagrad(), gr.optim.RMSprop()],
    ids=lambda rule: type(rule).__name__,
)
def test_a_dense_state_of_another_rule_is_refused(rule: Any, is_named: bool) -> None:
    other, *_ = after_a_step(gr.optim.Adam())
    optimizer, *_ = after_a_step(rule)
    saved = {**optimizer.state_dict(), "dense": other.state_dict()["dense"]}
    if is_named:
        saved["rules"] = other.state_dict()["rules"]
    else:
        del saved["rules"]
    with pytest.raises(gr.InvalidArgument, match="Adam" if is_named else "parameter 0 has no"):
        optimizer.load_state_dict(saved)
    for each in (optimizer, other):
        each.abandon()


WRONG_ROWS: dict[str, Any] = {
    "no step": {"step": ...},
    "no updates": {"updates": ...},
    "no field": {"exp_avg": ...},
    "half of the rows": {"exp_avg": np.zeros((1, 3), np.float32)},
    "ragged": {"exp_avg": [[1.0], [1.0, 2.0]]},
    "text": {"exp_avg": np.full((2, 3), "a")},
    "one step for all": {"step": 3},
    "less than no step": {"step": np.array([1, -1])},
    "half an update": {"updates": 1.5},
    "a row twice": {"ids": [1, 1]},
    "ids of floats": {"ids": np.array([1.0, 2.0])},
    "another rule": {"rule": "AdamW"},
}


@pytest.mark.parametrize("change", WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_rows_of_a_state_that_do_not_fit_are_refused_before_anything_is_loaded(change: Any) -> None:
    optimizer, first, second = after_a_step(gr.optim.Adam())
    saved, rows = optimizer.state_dict(), np.ones((2, 3), np.float32)
    changed = {**saved["rows"]["second"], **change}
    saved["rows"]["second"] = {name: each for name, each in changed.items() if each is not ...}
    optimizer.step([rows], rows=[(first, [1, 2], rows), (second, [1, 2], rows)])
    with pytest.raises(gr.InvalidArgument, match="table 'second'"):
        optimizer.load_state_dict(saved)
    kept = optimizer.state_dict()
    assert kept["dense"][0]["step"] == 2
    for name in ("first", "second"):
        np.testing.assert_array_equal(kept["rows"][name]["step"], [2, 2])
    optimizer.abandon()


@pytest.mark.parametrize(
    "change", [{"exp_avg": "x"}, {"exp_avg": np.zeros(3, np.float32)}, {"step": None}], ids=str
)
def test_a_dense_state_that_does_not_fit_is_refused_and_the_old_one_stays(change: Any) -> None:
    optimizer, *_ = after_a_step(gr.optim.Adam())
    saved = optimizer.state_dict()
    saved["dense"][0].update(change)
    with pytest.raises(gr.InvalidArgument, match="parameter 0"):
        optimizer.load_state_dict(saved)
    optimizer.step([np.ones((2, 3), np.float32)])
    assert optimizer.state_dict()["dense"][0]["step"] == 2
    optimizer.abandon()


@pytest.mark.parametrize(
    "saved",
    [
        None,
        {},
        {"rows": {}},
        {"rule": "Adam", "state": [{}]},
        {"dense": {}, "rows": {}},
        {"dense": [3], "rows": {}},
        {"dense": [{}], "rows": None},
        {"dense": [{}], "rows": {"first": {}, "second": {}}},
    ],
    ids=str,
)
def test_what_is_no_saved_state_is_refused(saved: Any) -> None:
    optimizer, *_ = after_a_step(gr.optim.Adam())
    with pytest.raises(gr.InvalidArgument, match="saved state"):
        optimizer.load_state_dict(saved)
    optimizer.abandon()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_leaves_no_trace_in_the_local_state(
    servers: Servers, wrong: float
) -> None:
    rule, states, values = gr.optim.Adam(lr=0.1), [], []
    for name, bad in (("spared", None), ("hit", wrong)):
        params = [np.ones(3, np.float32), np.ones(2, np.float32)]
        with gr.GeoOptimizer(
            params, rule, servers.client(0), workers=1, k_steps=2, name=name
        ) as optimizer:
            table = optimizer.sparse_table(name, 2, rule)
            for step in range(6):
                dense: list[Any] = [np.full(3, step - 2.0), np.full(2, 3.0 - step)]
                ids, rows = [5, 7], [[1.0, step], [-1.0, step]]
                if step == 3 and bad is None:
                    dense[0], ids, rows = None, [7], rows[1:]
                elif step == 3:
                    dense[0][1] = rows[0][1] = bad
                optimizer.step(dense, rows=[(table, ids, rows)])
            states.append(optimizer.state_dict())
            values.append([*params, table.pull([5, 7])])
            assert optimizer.report.refused == (0 if bad is None else 2)
    np.testing.assert_equal(states[1] | {"rows": states[1]["rows"]["hit"]},
                            states[0] | {"rows": states[0]["rows"]["spared"]})  # fmt: skip
    for one, other in zip(*values, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_momentum_an_exchange_is_the_mean_of_the_replicas_in_every_run() -> None:
    workers, k_steps, rule = 2, 3, gr.optim.Adam(lr=0.1)
    start = np.random.default_rng(1).standard_normal(40).astype(np.float32)
    grads = np.random.default_rng(2).standard_normal((6, workers, 40)).astype(np.float32)
    ids = np.arange(5)

    def train(rank: int, addresses: list[str], begun: list[Array]) -> tuple[Array, Array]:
        param = start.copy()
        with (
            join(addresses, client=rank) as ps,
            gr.GeoOptimizer(
                [param], rule, ps, workers=workers, k_steps=k_steps, outer=gr.Nesterov(1.0, 0.0)
            ) as optimizer,
        ):
            table = optimizer.sparse_table("rows", 8, gr.optim.Adagrad(lr=0.1))
            for step, grad in enumerate(grads[:, rank]):
                table.pull(ids)
                optimizer.step([grad], rows=[(table, ids, grad.reshape(5, 8))])
                if step + 1 == k_steps:
                    begun[rank] = param.copy()
            return param, table.pull(ids)

    def run(servers: int) -> tuple[list[tuple[Array, Array]], Array]:
        begun = [start] * workers
        with serving(servers) as addresses:
            return on_workers(workers, lambda rank: train(rank, addresses, begun)), begun[0]

    ends = []
    for rank in range(workers):
        end, state = start.copy(), {}
        for grad in grads[:k_steps, rank]:
            rule.update(end, grad, state)
        ends.append(end)
    first, after_one = run(1)
    np.testing.assert_allclose(after_one, np.mean(ends, axis=0), rtol=1e-5, atol=1e-6)
    for found in (first, run(1)[0], run(2)[0]):
        for param, rows in found:
            np.testing.assert_array_equal(param, first[0][0])
            np.testing.assert_array_equal(rows, first[0][1])
