"""The mode is one argument: contracts as values, the NumPy factory, hybrids, GEO's pace."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from exact_server import ExactServer
from gradring.modes.geo.pace import SLOWEST, Pace
from gradring.modes.parameters.rows import IdIndex, merge
from mode_servers import Servers

SGD = gr.optim.SGD(lr=0.5)

MODES = [
    gr.Sync(), gr.Sync(via="ps"), gr.BoundedStaleness(0), gr.BoundedStaleness(2), gr.Async(),
    gr.Geo(k_steps=1), gr.Geo(k_steps="auto"), gr.Geo(k_steps=2, outer=gr.Mean()),
    gr.Hybrid(), gr.Hybrid(dense=gr.Geo(2), sparse=gr.Sync(via="ps")),
]  # fmt: skip

# The same script in every mode; what all workers together did does not depend on it.
SCRIPT = """
import sys
import numpy as np
import gradring as gr

comm = gr.init()
param = np.zeros(100, np.float32)
with gr.distributed([param], gr.optim.SGD(lr=0.5), eval("gr." + sys.argv[1])) as optimizer:
    table = optimizer.sparse_table("rows", 4, gr.optim.SGD(lr=0.5), init=gr.init.Constant(1))
    for step in range(4):
        ids = np.array([step, 100 + comm.rank])
        table.pull(ids)
        table.prefetch(ids + 1)
        optimizer.step([np.full(100, -2, np.float32)], rows=[(table, ids, np.full((2, 4), -2.0))])
    comm.barrier()
    optimizer.flush()
    comm.barrier()
    optimizer.flush()
    ids = [0, 3, 100, 101, 102]
    print("result", comm.rank, param.min(), param.max(), table.pull(ids)[:, 0].tolist())
    comm.barrier()
"""


def results(output: str) -> list[str]:
    lines = [line.partition("result ")[2] for line in output.splitlines() if "result " in line]
    return [line.partition(" ")[2] for line in sorted(lines)]


@pytest.mark.parametrize(
    ("mode", "dense", "rows"),
    [
        # Sums over two workers of 4 steps of 1, or means of them.
        ("Sync()", 4, [2, 2, 3, 3, 1]),
        ("Sync(via='ps')", 4, [2, 2, 3, 3, 1]),
        ("BoundedStaleness(1)", 8, [3, 3, 5, 5, 1]),
        ("Async()", 8, [3, 3, 5, 5, 1]),
        ("Geo(k_steps=2)", 8, [3, 3, 5, 5, 1]),
        ("Hybrid()", 4, [3, 3, 5, 5, 1]),
    ],
)
def test_one_script_under_the_launcher_in_every_mode(
    tmp_path: Path, mode: str, dense: float, rows: list[float]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launched = subprocess.run(
        [
            sys.executable, "-m", "gradring", "run", "-n", "2", "--servers", "2",
            str(script), mode,
        ],
        check=False, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr
    expected = f"{float(dense)} {float(dense)} {[float(row) for row in rows]}"
    assert results(launched.stdout) == [expected] * 2


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_one_worker_alone_does_the_same_steps_in_every_mode(
    world: GetWorld, servers: Servers, mode: Any
) -> None:
    random = np.random.default_rng(0)
    param = np.zeros((2, 3), np.float32)
    expected, rows = param.copy(), np.zeros((10, 2), np.float32)
    comm = world(1, "tcp").comms[0]
    with gr.distributed([param], SGD, mode, ps=servers.client(0), comm=comm) as optimizer:
        table = optimizer.sparse_table("rows", 2, SGD)
        for batch in optimizer.uneven(range(6)):
            grad = (random.integers(-8, 8, (2, 3)) / 4).astype(np.float32)
            ids = random.choice(10, 4, replace=False)
            row_grads = (random.integers(-8, 8, (4, 2)) / 4).astype(np.float32)
            table.pull(ids)
            # One table in two entries, one id in both.
            halves = [(table, ids, row_grads / 2), (table, ids[::-1], row_grads[::-1] / 2)]
            optimizer.step([grad], weight=batch + 1, rows=halves)
            expected -= np.float32(0.5) * grad
            rows[ids] -= np.float32(0.5) * row_grads
        optimizer.flush()
        np.testing.assert_array_equal(param, expected)
        np.testing.assert_array_equal(table.pull(np.arange(10)), rows)
    optimizer.close()  # Again.


def test_without_tables_the_default_mode_needs_no_servers(world: GetWorld) -> None:
    comm = world(1, "tcp").comms[0]
    param = np.zeros(2, np.float32)
    with gr.distributed([param], SGD, comm=comm, ps="nobody") as optimizer:
        optimizer.step([np.ones(2, np.float32)])
    np.testing.assert_array_equal(param, np.float32(-0.5))


def test_modes_are_values() -> None:
    assert gr.Geo(k_steps=5) == gr.Geo(5, gr.Sum())
    assert gr.Geo(k_steps=np.int64(5)) == gr.Geo(5)  # type: ignore[arg-type]
    assert hash(gr.Hybrid()) == hash(gr.Hybrid(gr.Sync(), gr.Async()))
    for wrong, complaint in [
        (lambda: gr.Sync(via="mpi"), "via"),  # type: ignore[arg-type]
        (lambda: gr.BoundedStaleness(-1), "staleness"),
        (lambda: gr.BoundedStaleness(1.5), "staleness is a whole number"),  # type: ignore[arg-type]
        (lambda: gr.BoundedStaleness("a"), "staleness is a whole number"),  # type: ignore[arg-type]
        (lambda: gr.Async(queue=0), "queue"),
        (lambda: gr.Async(2.5), "queue"),  # type: ignore[arg-type]
        (lambda: gr.Nesterov("a"), "lr"),  # type: ignore[arg-type]
        (lambda: gr.Nesterov(lr=float("inf")), "lr"),
        (lambda: gr.Hybrid(dense="x"), "dense is Sync"),  # type: ignore[arg-type]
        (lambda: gr.Hybrid(sparse=gr.Hybrid()), "sparse is Sync"),  # type: ignore[arg-type]
        (lambda: gr.Geo(0), "k_steps"),
        (lambda: gr.Geo(True), "k_steps"),
        (lambda: gr.Geo(outer="sum"), "outer"),  # type: ignore[arg-type]
        (lambda: gr.Geo("auto", gr.Nesterov()), "Nesterov"),
        (lambda: gr.Nesterov(lr=0), "lr"),
        (lambda: gr.Nesterov(momentum=1), "momentum from 0 to less than 1, got 0.7 and 1"),
        (lambda: gr.Nesterov(momentum=-0.1), "momentum"),
        (lambda: gr.Hybrid(sparse=gr.Sync()), "via='ps'"),
    ]:
        with pytest.raises(gr.InvalidArgument, match=complaint):
            wrong()


def test_auto_pace_follows_the_network_and_the_divergence() -> None:
    pace = Pace("auto")
    pace.note_step(0.01)
    pace.note_exchange(0.5, divergence=0.01)
    assert pace.k_steps == 50  # An exchange takes as long as fifty steps.
    for _ in range(20):
        pace.note_exchange(0.5, divergence=0.001)
    assert pace.k_steps == SLOWEST  # Replicas stay close: seldom.
    for _ in range(20):
        pace.note_exchange(0.5, divergence=0.5)
    assert pace.k_steps == 50  # They drift apart: as often as can be.
    pace.note_exchange(300, divergence=0.5)
    assert pace.k_steps == 3045  # Of 0.01 s: no step waits for an exchange of 30.45 s, smoothed.
    for _ in range(200):
        pace.note_exchange(0.5, divergence=0.01)
    assert 50 <= pace.k_steps <= SLOWEST  # The network is fast again.
    fixed = Pace(7)
    fixed.note_step(0.01)
    fixed.note_exchange(5, divergence=1)
    assert fixed.k_steps == 7


def test_an_index_of_ids_finds_what_was_added_and_nothing_else() -> None:
    random = np.random.default_rng(0)
    index, known = IdIndex(), dict[int, int]()
    for round_ in range(30):
        ids = np.unique(random.integers(0, 1 << (4 + 2 * round_), 500).astype(np.uint64))
        slots = index.find(ids)
        assert slots.tolist() == [known.get(each, -1) for each in ids.tolist()]
        fresh = ids[slots < 0]
        known.update(zip(fresh.tolist(), index.add(fresh).tolist(), strict=True))
    assert index.ids.tolist() == list(known)
    assert list(known.values()) == list(range(len(index)))


def test_ids_that_are_asked_for_again_are_found_where_they_have_come_since() -> None:
    random = np.random.default_rng(1)
    index = IdIndex()
    batches = [random.integers(0, 2000, 300).astype(np.uint64) for _ in range(12)]
    for now, coming in itertools.pairwise(batches):
        for ids in (now, coming, now, coming, coming):
            slots = index.find_again(ids)
            np.testing.assert_array_equal(slots, index.find(ids))
            slots[:] = 7  # The caller's.
            missing = np.unique(ids[index.find(ids) < 0])
            index.add(missing[: len(missing) // 2])
        now[:] = 0  # As it reuses the memory.
    assert len(index) > 1000


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_mode_waits_as_long_as_it_or_the_variable_says(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    def timeout(**options: Any) -> float:
        server, comm = ExactServer(), world(1, "tcp").comms[0]
        made = gr.distributed([], SGD, mode, ps=server.client(0), comm=comm, **options)
        with made as optimizer:
            return optimizer.timeout

    monkeypatch.delenv("GRADRING_TIMEOUT", raising=False)
    assert timeout() == 30
    monkeypatch.setenv("GRADRING_TIMEOUT", "7")
    assert (timeout(), timeout(timeout=3)) == (7, 3)
    for wrong in (0, -1.0, math.inf, math.nan):
        with pytest.raises(gr.InvalidArgument, match=r"timeout=.* is not a positive number"):
            timeout(timeout=wrong)
    monkeypatch.setenv("GRADRING_TIMEOUT", "abc")
    with pytest.raises(gr.InvalidArgument, match="GRADRING_TIMEOUT='abc'"):
        timeout()


def test_gradients_of_equal_ids_are_added_in_the_order_given() -> None:
    ids, sums = merge([[7, -1], [7, 7]], np.float32([[1e8], [5], [1], [-1e8]]), 1)
    assert ids.tolist() == [7, (1 << 64) - 1]
    assert sums[:, 0].tolist() == [np.float32(np.float32(1e8) + np.float32(1)) - np.float32(1e8), 5]
    assert merge([], np.empty((0, 3)), 3)[1].shape == (0, 3)
    with pytest.raises(gr.InvalidArgument, match=r"ids of shape \(3,\)"):
        merge([1, 2, 3], np.zeros((2, 1)), 1)
    with pytest.raises(gr.InvalidArgument, match="float64"):
        merge([1.5], np.zeros((1, 1)), 1)
    with pytest.raises(gr.InvalidArgument, match=r"shape \(4, 8\), ids of shape \(8,\) need"):
        merge(np.arange(8), np.zeros((4, 8)), 4)  # As many numbers, but of other rows.


@pytest.mark.parametrize("shape", [(4, 8), (8, 3), (7, 4), (32,)], ids=str)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_gradients_that_are_no_rows_of_their_ids_are_refused(
    world: GetWorld, mode: Any, shape: tuple[int, ...]
) -> None:
    server = ExactServer()
    comm = world(1, "tcp").comms[0]
    with gr.distributed([], SGD, mode, ps=server.client(0), comm=comm) as optimizer:
        table = optimizer.sparse_table("t", 4, SGD)
        with pytest.raises(gr.InvalidArgument, match="table 't': gradients have shape"):
            optimizer.step(rows=[(table, np.arange(8), np.ones(shape, np.float32))])
        assert not table.pull(np.arange(8)).any()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_ids_of_a_modes_table_are_those_of_any_table(world: GetWorld, mode: Any) -> None:
    torch = pytest.importorskip("torch")
    server = ExactServer()
    comm = world(1, "tcp").comms[0]
    with gr.distributed([], SGD, mode, ps=server.client(0), comm=comm) as optimizer:
        table = optimizer.sparse_table("t", 2, SGD)
        every: list[Any] = [
            torch.tensor([[1, 3]]), np.array([[1, 3]], np.int32), [[1, 2**64 - 1]], range(3), 5,
        ]  # fmt: skip
        for ids in every:
            table.prefetch(ids)
            rows = table.pull(ids)
            assert rows.shape == (*np.shape(ids), 2)
            optimizer.step(rows=[(table, ids, np.ones_like(rows))])


NO_RULES: dict[str, Any] = {
    "a class": gr.optim.SGD, "None": None, "a dict": {"lr": 0.1}, "a number": 0.1,
    "a list of classes": [gr.optim.SGD],
}  # fmt: skip


@pytest.mark.parametrize("rule", NO_RULES.values(), ids=NO_RULES)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_is_no_rule_is_refused_before_anybody_is_asked(mode: Any, rule: Any) -> None:
    def nobody(*_: Any) -> Any:
        raise AssertionError

    with pytest.raises(gr.InvalidArgument, match="use a rule of"):
        gr.distributed([np.zeros(3, np.float32)], rule, mode, ps=nobody)


@pytest.mark.parametrize("mode", [gr.Sync(), gr.Geo(), gr.Async()], ids=str)
def test_an_optimizer_of_torch_is_no_rule(mode: Any) -> None:
    torch = pytest.importorskip("torch")
    rule = torch.optim.SGD([torch.zeros(3)], lr=0.1)
    with pytest.raises(gr.InvalidArgument, match="a SGD of torch"):
        gr.distributed([np.zeros(3, np.float32)], rule, mode)


@pytest.mark.parametrize("mode", ["async", gr.Async])
def test_what_is_no_mode_is_told_which_there_are(mode: Any) -> None:
    with pytest.raises(gr.InvalidArgument, match=r"gr\.Sync\(\), .* gr\.Geo\(k\) and gr\.Hybrid"):
        gr.distributed([np.zeros(1, np.float32)], gr.optim.SGD(lr=0.1), mode)


def test_a_geo_optimizer_without_a_rule_leaves_the_dense_steps_to_the_caller() -> None:
    param = np.zeros(3, np.float32)
    with gr.GeoOptimizer([param], None, ExactServer().client(0), workers=1) as optimizer:
        with pytest.raises(gr.InvalidArgument, match="without a rule"):
            optimizer.step([np.ones(3, np.float32)])
        param += 1
        optimizer.advance()
        optimizer.flush()
    assert (param == 1).all()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_table_whose_rule_was_none_can_be_made_with_another(world: GetWorld, mode: Any) -> None:
    comm, ps = world(1, "tcp").comms[0], ExactServer().client(0)
    with gr.distributed([], SGD, mode, ps=ps, comm=comm) as optimizer:
        for rule in (gr.optim.SGD, None):
            with pytest.raises(gr.InvalidArgument, match="use a rule of"):
                optimizer.sparse_table("t", 2, rule)
        assert not optimizer.sparse_table("t", 2, SGD).pull([1]).any()
