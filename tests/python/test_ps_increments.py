"""Incremental checkpoints of tables whose state somebody has written meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.ps import ParameterServer
from ps_servers import connected


def tables(ps: ParameterServer) -> tuple[Any, Any]:
    rows = ps.sparse_table("rows", 3, gr.optim.SparseAdam(lr=0.1))
    return rows, ps.dense_table("dense", 50, gr.optim.Adam(lr=0.1))


def step(ps: ParameterServer, times: int = 1) -> None:
    rows, dense = tables(ps)
    for _ in range(times):
        rows.push(np.arange(20), np.ones((20, 3), np.float32))
        dense.push(np.ones(50, np.float32))


def states(ps: ParameterServer) -> list[dict[str, Any]]:
    return [table.state_dict() for table in tables(ps)]


@pytest.mark.parametrize("after", [3, 2, 1])
def test_an_increment_has_the_step_counts_of_tables_that_were_set_back(
    tmp_path: Path, after: int
) -> None:
    with connected(3) as ps:
        step(ps, 3)
        early = states(ps)
        step(ps, 20)
        ps.save(tmp_path / "base")
        for table, state in zip(tables(ps), early, strict=True):
            table.load_state_dict(state)
        step(ps)
        ps.save(tmp_path / "next", base=tmp_path / "base")
        saved = states(ps)
        assert (saved[0]["updates"], saved[1]["step"]) == (4, 4)
        step(ps)
        gone_on = states(ps)
    with connected(after) as ps:
        ps.load(tmp_path / "next")
        np.testing.assert_equal(states(ps), saved)
        step(ps)
        np.testing.assert_equal(states(ps), gone_on)
