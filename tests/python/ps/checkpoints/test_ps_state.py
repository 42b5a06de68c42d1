"""Whole tables as arrays: training goes on elsewhere as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.errors import InvalidArgument
from gradring.ps import ParameterServer
from ps_servers import connected, join, serving

RULES = [
    gr.optim.SGD(lr=0.1, momentum=0.9),
    gr.optim.Adagrad(lr=0.1),
    gr.optim.Adam(lr=0.1),
    gr.optim.FTRL(lr=0.1),
]


def name(rule: object) -> str:
    return type(rule).__name__


def gradients(seed: int, steps: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal((steps, *shape)).astype(np.float32)


@pytest.mark.parametrize("rule", [*RULES, gr.optim.RowWiseAdagrad(lr=0.1)], ids=name)
def test_a_sparse_table_moves_to_other_servers_in_the_middle_of_training(rule: Any) -> None:
    ids = np.array([5, 2**63 + 1, 0, 77, 12345678901], np.uint64)

    def make(ps: ParameterServer) -> Any:
        return ps.sparse_table("t", 6, rule, init=gr.init.Uniform(1), seed=3)

    with connected(2) as here, connected(3) as there:
        old, new = make(here), make(there)
        for step, gradient in enumerate(gradients(0, 4, 5, 6)):
            old.push(ids[step:], gradient[step:])
        saved = old.state_dict()
        assert saved["ids"].tolist() == sorted(ids.tolist())
        assert (saved["rows"] == old.pull(saved["ids"])).all()
        new.load_state_dict(saved)
        assert len(new) == 5
        for gradient in gradients(1, 3, 5, 6):
            old.push(ids, gradient)
            new.push(ids, gradient)
        assert (old.pull(ids) == new.pull(ids)).all()


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_a_dense_table_moves_to_other_servers_in_the_middle_of_training(rule: Any) -> None:
    with connected(3) as here, connected(2) as there:
        old, new = (ps.dense_table("w", (5, 9), rule, init=0.5) for ps in (here, there))
        for gradient in gradients(0, 4, 5, 9):
            old.push(gradient)
        saved = old.state_dict()
        assert (saved["weights"] == old.pull()).all()
        new.load_state_dict(saved)
        assert new.state_dict()["step"] == saved["step"] == 4
        for gradient in gradients(1, 3, 5, 9):
            old.push(gradient)
            new.push(gradient)
        assert (old.pull() == new.pull()).all()


def test_training_moves_from_torch_to_servers_and_back() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.full((4, 8), 0.5))
    optimizer = torch.optim.Adam([parameter], lr=0.1)

    def step(gradient: Any) -> None:
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()

    with connected(2) as ps:
        table = ps.dense_table("w", (4, 8), gr.optim.Adam(lr=0.1))
        for gradient in gradients(0, 3, 4, 8):
            step(gradient)
        state = optimizer.state[parameter]
        table.load_state_dict(
            {
                "weights": parameter.detach(),
                "state": {name: state[name] for name in ("exp_avg", "exp_avg_sq")},
                "step": int(state["step"]),
            }
        )
        for gradient in gradients(1, 3, 4, 8):
            step(gradient)
            table.push(gradient)
        assert np.allclose(table.pull(), parameter.detach().numpy(), rtol=1e-6, atol=0)

        saved = table.state_dict()
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(saved["weights"]))
        state["step"] = torch.tensor(float(saved["step"]))
        for name, values in saved["state"].items():
            state[name].copy_(torch.from_numpy(values))
        for gradient in gradients(2, 3, 4, 8):
            step(gradient)
            table.push(gradient)
        assert np.allclose(table.pull(), parameter.detach().numpy(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "options",
    [{"momentum": 0.9}, {"momentum": 0.8, "dampening": 0.3}, {"momentum": 0.0}],
)
def test_momentum_of_sgd_goes_on_where_torch_left_it_bit_for_bit(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.full((4, 8), 0.5))
    optimizer = torch.optim.SGD([parameter], lr=0.1, foreach=False, **options)
    ids = np.arange(4)

    def step(gradient: Any) -> None:
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()

    with connected(2) as ps:
        rule = gr.optim.SGD(lr=0.1, **options)
        dense, sparse = ps.dense_table("w", (4, 8), rule), ps.sparse_table("e", 8, rule)
        for seed, steps in ((0, 0), (1, 3)):  # Before torch's first step there is no buffer.
            for gradient in gradients(seed, steps, 4, 8):
                step(gradient)
            saved = {"state": dict(optimizer.state[parameter])}
            dense.load_state_dict({"weights": parameter.detach(), **saved})
            sparse.load_state_dict({"ids": ids, "rows": parameter.detach(), **saved})
            for gradient in gradients(seed + 2, 3, 4, 8):
                step(gradient)
                dense.push(gradient)
                sparse.push(ids, gradient)
            np.testing.assert_array_equal(dense.pull(), parameter.detach().numpy())
            np.testing.assert_array_equal(sparse.pull(ids), parameter.detach().numpy())


@pytest.mark.parametrize("kind", ["Adam", "Adagrad", "SparseAdam"])
def test_the_steps_of_a_torch_state_count_where_none_are_given(kind: str) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Embedding(4, 8, sparse=kind == "SparseAdam")
    optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=0.1)
    for gradient in gradients(0, 4, 4, 8):
        optimizer.zero_grad()
        (layer(torch.arange(4)) * torch.from_numpy(gradient)).sum().backward()
        optimizer.step()
    state = dict(optimizer.state[layer.weight])
    with connected(2) as ps:
        rule = getattr(gr.optim, kind)(lr=0.1)
        dense, sparse = ps.dense_table("w", (4, 8), rule), ps.sparse_table("e", 8, rule)
        dense.load_state_dict({"weights": layer.weight.detach(), "state": state})
        sparse.load_state_dict({"ids": np.arange(4), "rows": layer.weight.detach(), "state": state})
        assert dense.state_dict()["step"] == 4
        saved = sparse.state_dict()
        assert saved.get("updates", saved["step"].max()) == 4


def test_the_number_of_updates_is_loaded_without_rows_too() -> None:
    with connected(2) as ps:
        table = ps.sparse_table("e", 2, gr.optim.SparseAdam(lr=0.1))
        empty = {**table.state_dict(), "updates": 1000}
        table.load_state_dict(empty)
        assert table.state_dict()["updates"] == 1000
        table.load_state_dict({**empty, "updates": 0})
        assert table.state_dict()["updates"] == 0
        table.load_state_dict(empty)
        table.load_state_dict({"ids": [1], "rows": np.ones((1, 2), np.float32)})
        assert table.state_dict()["updates"] == 1000, "nothing was said of them"


@pytest.mark.parametrize("servers", [1, 3])
def test_an_embedding_moves_from_sparse_adam_to_servers_and_back(servers: int) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Embedding(12, 4, sparse=True)
    optimizer = torch.optim.SparseAdam([layer.weight], lr=0.1)
    random = np.random.default_rng(3)
    every = np.arange(12)

    def step(push: Any = None) -> None:
        ids = random.choice(12, 3, replace=False)
        gradient = random.standard_normal((3, 4)).astype(np.float32)
        optimizer.zero_grad()
        (layer(torch.from_numpy(ids)) * torch.from_numpy(gradient)).sum().backward()
        optimizer.step()
        if push is not None:
            push(ids, gradient)

    rule = gr.optim.SparseAdam(lr=0.1)
    with connected(servers) as ps, connected(2) as others:
        table = ps.sparse_table("e", 4, rule)
        for _ in range(5):
            step()
        entry = optimizer.state_dict()["state"][0]
        table.load_state_dict(
            {
                "ids": every,
                "rows": layer.weight.detach(),
                "state": {name: entry[name] for name in ("exp_avg", "exp_avg_sq")},
                "updates": entry["step"],
            }
        )
        for _ in range(5):
            step(table.push)
        # The steps that it counts are the table's: had they begun anew, this would be far off.
        np.testing.assert_allclose(table.pull(every), layer.weight.detach(), rtol=1e-5, atol=1e-7)

        saved = table.state_dict()
        assert saved["updates"] == 10
        copy = others.sparse_table("e", 4, rule)
        copy.load_state_dict(saved)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(saved["rows"]))
        state = optimizer.state[layer.weight]
        state["step"] = saved["updates"]
        for name, values in saved["state"].items():
            state[name].copy_(torch.from_numpy(values))
        for _ in range(5):
            step(lambda ids, gradient: [t.push(ids, gradient) for t in (table, copy)])
        np.testing.assert_array_equal(table.pull(every), copy.pull(every))
        np.testing.assert_allclose(table.pull(every), layer.weight.detach(), rtol=1e-5, atol=1e-7)


def test_the_step_of_a_dense_table_is_that_of_the_servers_that_have_some_of_it(
    tmp_path: Path,
) -> None:
    zeros = np.zeros(5, np.float32)
    with connected() as ps:
        table = ps.dense_table("d", 5, gr.optim.Adam(lr=0.1))
        for _ in range(8):
            table.push(zeros + 1)
        ps.save(tmp_path / "1")
    with connected(3) as ps:
        table = ps.dense_table("d", 5, gr.optim.Adam(lr=0.1))
        state = {"exp_avg": zeros, "exp_avg_sq": zeros}
        table.load_state_dict({"weights": zeros, "state": state, "step": 100})
        for begin in (lambda: None, lambda: ps.load(tmp_path / "1")):
            begin()
            table.load_state_dict({"weights": zeros})
            table.push(zeros + 1)
            assert table.state_dict()["step"] == 1


def test_weights_alone_begin_a_table() -> None:
    with connected() as ps:
        words = ps.sparse_table("words", 2, gr.optim.Adagrad(lr=1, initial_accumulator_value=3))
        words.load_state_dict({"ids": [4, 1], "rows": [[1.0, 2], [3, 4]]})
        assert words.pull([1, 4]).tolist() == [[3, 4], [1, 2]]
        words.push([1], [[1.0, 0]])
        assert words.pull([1]).tolist() == [[2.5, 4]]  # 1 / sqrt(3 + 1)
        assert words.state_dict()["step"].tolist() == [1, 0]
        assert ps.sparse_table("none", 2, gr.optim.Sum()).state_dict()["rows"].shape == (0, 2)


def test_a_state_that_does_not_fit_is_refused() -> None:
    with connected() as ps:
        rows = ps.sparse_table("t", 2, gr.optim.Adam(lr=1))
        array = ps.dense_table("d", 3, gr.optim.Adam(lr=1))
        for table, saved, words in (
            (rows, {"ids": [1], "rows": np.ones((1, 3))}, r"rows has shape \(1, 3\)"),
            (rows, {"ids": [1], "rows": np.ones((1, 2)), "state": {"sum": 0}}, "lacks 'exp_avg'"),
            (rows, {"ids": [3, 1, 3], "rows": np.ones((3, 2))}, "id 3 .* more than once"),
            (array, {"weights": np.ones(4)}, r"weights has shape \(4,\)"),
        ):
            with pytest.raises(InvalidArgument, match=words):
                table.load_state_dict(saved)
        assert len(rows) == 0


def test_a_state_of_another_rule_is_refused_where_a_part_of_it_would_be_lost() -> None:
    torch = pytest.importorskip("torch")

    def stepped(kind: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = kind([parameter], lr=0.1, **options)
        parameter.grad = torch.ones(3)
        optimizer.step()
        return parameter.detach(), dict(optimizer.state[parameter])

    with connected() as ps:
        for name, rule, made, words in (
            ("adam", gr.optim.Adam(lr=0.1), stepped(torch.optim.Adam, amsgrad=True), "'max_exp_av"),
            ("sgd", gr.optim.SGD(lr=0.1), stepped(torch.optim.SGD, momentum=0.9), "'momentum_buf"),
            ("sum", gr.optim.SGD(lr=0.1), stepped(torch.optim.Adagrad), "'sum'"),
        ):
            weights, state = made
            array = ps.dense_table(f"{name} array", 3, rule)
            rows = ps.sparse_table(f"{name} rows", 3, rule)
            with pytest.raises(InvalidArgument, match=f"{words}.*, but table .* keeps"):
                array.load_state_dict({"weights": weights, "state": state})
            by_row = {key: value if key == "step" else value[None] for key, value in state.items()}
            with pytest.raises(InvalidArgument, match=words):
                rows.load_state_dict({"ids": [1], "rows": weights[None], "state": by_row})
            assert (array.pull() == 0).all()
            assert len(rows) == 0
        # None is torch's word for a buffer that it does not keep.
        plain = ps.dense_table("sgd array", 3, gr.optim.SGD(lr=0.1))
        plain.load_state_dict({"weights": np.ones(3), "state": {"momentum_buffer": None}})
        assert (plain.pull() == 1).all()


@pytest.mark.parametrize("day", [7, (1 << 24) + 1, (1 << 32) - 1])
def test_rows_that_come_with_no_tick_count_as_of_the_present_one(day: int) -> None:
    with serving(2) as servers, join(servers) as ps, join(servers) as other:
        ps.tick(day - 2)
        ps.tick(day)
        ps.tick(day - 1)  # Late, and without effect.
        table = other.sparse_table("t", 1, gr.optim.Sum(), expire_after=1)
        table.load_state_dict({"ids": [1, 2], "rows": np.ones((2, 1))})
        table.load_state_dict({"ids": [3], "rows": np.ones((1, 1)), "tick": 5})
        assert table.state_dict()["tick"].tolist() == [day, day, 5]


def test_rows_that_are_loaded_late_expire_in_their_time() -> None:
    with connected() as ps:
        ps.tick(1000)
        table = ps.sparse_table("t", 1, gr.optim.Sum(), expire_after=2)
        table.load_state_dict({"ids": [1, 2], "rows": np.ones((2, 1))})
        assert ps.tick(1002) == 0
        assert ps.tick(1003) == 2


def test_what_is_no_saved_table_is_refused_before_anything_is_sent() -> None:
    with connected() as ps:
        rows = ps.sparse_table("t", 2, gr.optim.Adagrad(lr=1))
        array = ps.dense_table("d", 3, gr.optim.Adagrad(lr=1))
        before = ps.calls.core.bytes_sent
        two: dict[str, Any] = {"ids": [1, 2], "rows": np.ones((2, 2))}
        one: dict[str, Any] = {"weights": np.ones(3)}
        for table, saved, words in (
            (rows, {"ids": [1]}, "'rows' is missing; there is ids"),
            (rows, {}, "'ids' is missing; there is nothing"),
            (rows, one, r"there is weights. A sparse table takes 'ids'.* and 'rows'.* \(n, 2\)"),
            (rows, np.ones((2, 2)), "not a ndarray. A sparse table takes 'ids'"),
            (array, two, r"there is ids, rows. A dense table takes 'weights', .*\(3,\)"),
            (rows, [1], "a dictionary is needed, not a list"),
            (rows, {"ids": [[1, 2]], "rows": np.ones((1, 2, 2))}, r"ids has shape \(1, 2\)"),
            (rows, {**two, "step": [1, 2, 3]}, r"step has shape \(3,\); .* shape \(2,\)"),
            (rows, {**two, "step": [1, -2]}, "step is whole numbers from 0"),
            (rows, {**two, "step": 1.5}, "step is whole numbers from 0"),
            (rows, {**two, "step": "a"}, "step is numbers, got 'a'"),
            (rows, {**two, "version": 1 << 32}, "version is whole numbers from 0 to"),
            (rows, {**two, "tick": [[1], [2, 3]]}, "tick is numbers"),
            (rows, {**two, "score": float("nan")}, "score is numbers from 0"),
            (rows, {**two, "updates": [1, 2]}, "updates has shape .* one number"),
            (rows, {**two, "state": [np.ones((2, 2))]}, "the state is a list, no dictionary"),
            (rows, {**two, "state": {"sum": np.ones((2, 2)), "step": -1}}, "step is whole numbers"),
            (rows, {**two, "steps": 1}, "'steps' is nothing that rows have; there is ids"),
            (array, {}, "'weights' is missing"),
            (array, {**one, "steps": 7}, "'steps' is nothing that a dense table has; there is"),
            (array, {**one, "step": -1}, "step is whole numbers"),
            (array, {**one, "step": [1, 2]}, "step has shape"),
        ):
            with pytest.raises(InvalidArgument, match=words):
                table.load_state_dict(saved)
        assert ps.calls.core.bytes_sent == before


def test_a_dense_table_may_be_one_number() -> None:
    with connected(2) as ps:
        table = ps.dense_table("scale", (), gr.optim.SGD(lr=1.0))
        table.push(np.float32(2.0))
        saved = table.state_dict()
        table.push(np.array(3.0, np.float32))
        assert table.pull() == -5
        table.load_state_dict(saved)
        assert table.pull() == -2


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_the_norm_that_is_clipped_is_that_of_all_servers_parts(servers: int) -> None:
    rule = gr.optim.SGD(lr=1.0, momentum=0.5, clip_norm=1.0)
    gradient = np.zeros(96, np.float32)
    gradient[[0, 95]] = 3, 4
    alone, state = np.zeros(96, np.float32), {}
    with connected(servers) as ps:
        table = ps.dense_table("t", (96,), rule)
        for _ in range(3):
            table.push(gradient)
            rule.update(alone, gradient.copy(), state)
        np.testing.assert_array_equal(table.pull(), alone)
        other = ps.dense_table("other", (96,), rule)
        other.load_state_dict(table.state_dict())
        for each in (table, other):
            each.push(gradient)
        np.testing.assert_array_equal(other.pull(), table.pull())
        with pytest.raises(gr.InvalidArgument, match="clip_norm"):
            table.set_optimizer(gr.optim.SGD(lr=1.0, momentum=0.5))
