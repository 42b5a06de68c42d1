"""Training that was saved goes on, in every mode and on any number of servers, where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.modes.bounded import BoundedOptimizer
from ps_servers import connected, join, serving

MODES = {
    "sync": gr.Sync(via="ps"),
    "bounded": gr.BoundedStaleness(2),
    "async": gr.Async(),
    "geo": gr.Geo(k_steps=2),
    "mean": gr.Geo(k_steps=2, outer=gr.Mean()),
    "nesterov": gr.Geo(k_steps=2, outer=gr.Nesterov(lr=0.5, momentum=0.5)),
}
RULE = gr.optim.SGD(lr=0.5)
HALVES = (range(4), range(4, 8))
IDS = np.arange(5, dtype=np.uint64)


def train(mode: Any, steps: range, param: Any, ps: Any) -> Any:
    """Train as the only worker; returns the rows. Dyadic, so that every order gives these bits."""
    with gr.distributed([param], RULE, mode, ps=ps, comm=gr.init()) as optimizer:
        table = optimizer.sparse_table("rows", 2, RULE)
        for step in steps:
            rows = table.pull(IDS)
            gradients = np.full_like(rows, 2.0 ** -(step % 3))
            dense = np.full_like(param, 2.0 ** -(step % 4))
            optimizer.step([dense], rows=[(table, IDS, gradients)])
        optimizer.flush()
        return table.pull(IDS)


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("name", MODES)
def test_a_saved_training_goes_on_on_another_number_of_servers(
    name: str, after: int, tmp_path: Path
) -> None:
    mode, whole = MODES[name], np.zeros((3, 7), np.float32)
    with connected(2) as ps:
        train(mode, HALVES[0], whole, ps)
        rows = train(mode, HALVES[1], whole, ps)
    param = np.zeros((3, 7), np.float32)
    with connected(2) as ps:
        train(mode, HALVES[0], param, ps)
        ps.save(str(tmp_path / "half"))
    with connected(after) as ps:
        ps.load(str(tmp_path / "half"))
        again = train(mode, HALVES[1], param, ps)
    assert np.array_equal(param, whole)
    assert np.array_equal(again, rows)
    assert np.abs(whole).max() > 0


@pytest.mark.parametrize("name", ["sync", "bounded", "async"])
def test_an_optimizer_goes_on_from_an_older_checkpoint_that_is_loaded_under_it(
    name: str, tmp_path: Path
) -> None:
    param = np.zeros(3, np.float32)
    with (
        connected(2) as ps,
        gr.distributed([param], RULE, MODES[name], ps=ps, comm=gr.init()) as optimizer,
    ):
        table = optimizer.sparse_table("rows", 2, RULE)

        def step() -> None:
            optimizer.step([np.ones(3)], rows=[(table, IDS, np.ones((5, 2)))])

        for _ in range(4):
            step()
        if name == "async":  # Its steps are on their way.
            optimizer.flush()
        ps.save(str(tmp_path / "best"))
        step()
        optimizer.flush()
        assert list(optimizer.hand_out("first", 3)) == [0, 1, 2]
        ps.load(str(tmp_path / "best"))
        optimizer.flush()
        np.testing.assert_array_equal(param, -2)
        np.testing.assert_array_equal(table.pull(IDS), -2)
        assert list(optimizer.hand_out("second", 3)) == [0, 1, 2]
        for _ in range(20):
            step()
        optimizer.set_rule(RULE)
        optimizer.flush()
        np.testing.assert_array_equal(param, -12)
        if isinstance(optimizer, BoundedOptimizer):
            assert optimizer.staleness.max == 0


def test_a_step_of_rows_alone_looks_up_its_rounds_after_a_load_too(tmp_path: Path) -> None:
    with (
        connected(2) as ps,
        gr.distributed([], RULE, MODES["sync"], ps=ps, comm=gr.init()) as optimizer,
    ):
        table = optimizer.sparse_table("rows", 2, RULE)
        ps.save(str(tmp_path / "first"))
        for turn in range(40):  # More than it does without looking, on either side.
            optimizer.step(rows=[(table, IDS, np.ones((5, 2)))])
            if turn == 19:
                ps.load(str(tmp_path / "first"))
        np.testing.assert_array_equal(table.pull(IDS), -10)


def test_staleness_is_that_of_the_workers_after_an_older_checkpoint_was_loaded(
    tmp_path: Path,
) -> None:
    with (
        serving(2) as addresses,
        join(addresses, client=0) as one,
        join(addresses, client=1) as two,
    ):
        workers = [
            BoundedOptimizer([np.zeros(1, np.float32)], RULE, ps, workers=2, staleness=1)
            for ps in (one, two)
        ]

        def train(steps: int) -> None:
            for _ in range(steps):
                for worker in workers:
                    worker.step([np.ones(1, np.float32)])

        train(3)
        one.save(str(tmp_path / "older"))
        train(5)
        two.load(str(tmp_path / "older"))
        for worker in workers:
            worker.flush()
        train(3)
        assert dict(workers[0].staleness.counts) == {1: 11}
        assert dict(workers[1].staleness.counts) == {0: 11}
        for worker in workers:
            worker.close()
