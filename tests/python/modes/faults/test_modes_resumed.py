"""Training that was saved goes on, in every mode and on any number of servers, where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from ps_servers import connected

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
