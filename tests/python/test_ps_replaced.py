"""Handles of tables that loading a checkpoint has replaced by others of the same name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gradring as gr
from gradring.errors import InvalidArgument, Mismatch
from ps_servers import connected


def test_a_handle_of_a_table_that_was_replaced_says_so(tmp_path: Path) -> None:
    rule = gr.optim.Adagrad(lr=0.5)
    with connected() as ps:
        ps.sparse_table("t", 4, rule).push([1], np.ones((1, 4)))
        ps.dense_table("d", 3, rule)
        ps.save(tmp_path / "small")
    with connected(2) as ps:
        table, array = ps.sparse_table("t", 8, rule), ps.dense_table("d", (4, 5), rule)
        ids = np.arange(4)
        ps.load(tmp_path / "small")
        for call, words in (
            (lambda: table.pull(ids), "dim: 4 there, 8 here"),
            (lambda: table.pull(ids, async_op=True).wait(), "dim: 4 there, 8 here"),
            (lambda: table.push(ids, np.ones((4, 8))), "dim: 4 there, 8 here"),
            (lambda: ps.pull_many([(table, ids)]), "dim: 4 there, 8 here"),
            (table.state_dict, "dim: 4 there, 8 here"),
            (lambda: table.export(tmp_path / "rows.npz"), "dim: 4 there, 8 here"),
            (array.pull, "number of floats: 3 there, 20 here"),
            (lambda: array.push(np.ones((4, 5))), "number of floats: 3 there, 20 here"),
            (array.state_dict, "number of floats: 3 there, 20 here"),
        ):
            with pytest.raises(Mismatch, match=f"was replaced since this handle .*{words}"):
                call()
        assert not (tmp_path / "rows.npz").exists()
        assert ps.sparse_table("t", 4, rule).pull([1]).tolist() == [[-0.5] * 4]


def test_a_handle_of_a_table_that_is_gone_makes_none(tmp_path: Path) -> None:
    with connected() as ps:
        ps.save(tmp_path / "empty")
        table = ps.sparse_table("t", 4, gr.optim.Sum())
        ps.load(tmp_path / "empty")
        with pytest.raises(InvalidArgument, match=r"there is no table .* make it first"):
            table.pull([1])
        assert not any(shard["tables"] for shard in ps.stats())
