"""Handles of tables that loading a checkpoint has replaced by others of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.core_arguments import OwnName
from gradring.errors import InvalidArgument, Mismatch, PeerLost
from gradring.ps import ParameterServer
from gradring.ps.saved import export, state
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


@pytest.mark.parametrize("pages_before", [0, 1, 2])
def test_rows_of_two_states_are_in_no_file_and_no_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages_before: int
) -> None:
    real = state.pages
    with connected(3) as ps:
        table = ps.sparse_table("t", 1, gr.optim.Sum())
        table.push(np.arange(90), np.ones((90, 1)))
        ps.save(tmp_path / "one")

        def interrupted(*arguments: Any) -> Iterator[Any]:
            for number, page in enumerate(real(*arguments)):
                yield page
                if number == pages_before:
                    ps.load(tmp_path / "one")

        for module in (state, export):
            monkeypatch.setattr(module, "pages", interrupted)
        for read in (table.state_dict, lambda: table.export(tmp_path / "rows.npz")):
            with pytest.raises(PeerLost, match=r"shard \d was started again, or loaded a check"):
                read()
        assert not (tmp_path / "rows.npz").exists()


def test_a_handle_of_a_table_that_is_gone_makes_none(tmp_path: Path) -> None:
    with connected() as ps:
        ps.save(tmp_path / "empty")
        table = ps.sparse_table("t", 4, gr.optim.Sum())
        ps.load(tmp_path / "empty")
        own = ps.dense_table(OwnName("gradring/own"), 1, gr.optim.Sum())
        ps.load(tmp_path / "empty")
        for call in (
            lambda: table.pull([1]),
            lambda: table.push([1], np.ones((1, 4))),
            lambda: len(table),
            lambda: ps.shrink(table),
            table.state_dict,
            lambda: table.load_state_dict({"ids": [1], "rows": np.ones((1, 4))}),
            lambda: table.set_optimizer(gr.optim.Sum()),
        ):
            with pytest.raises(InvalidArgument, match=r"the servers have no table 't' any more"):
                call()
        names = {one["name"] for shard in ps.stats() for one in shard["tables"]}
        assert names <= {own.name, "gradring/removals"}


@pytest.mark.parametrize(
    ("kind", "now", "then"),
    [
        ("sparse", gr.optim.Adam(lr=0.1), gr.optim.SparseAdam(lr=0.1)),
        ("sparse", gr.optim.RMSprop(lr=0.1, momentum=0.9), gr.optim.Adam(lr=0.1)),
        ("dense", gr.optim.RMSprop(lr=0.1, momentum=0.9), gr.optim.Adam(lr=0.1)),
    ],
)
def test_a_handle_of_a_table_whose_rows_are_as_long_but_mean_something_else_says_so(
    tmp_path: Path, kind: str, now: Any, then: Any
) -> None:
    def make(ps: ParameterServer, rule: Any) -> Any:
        if kind == "dense":
            return ps.dense_table("t", 4, rule)
        return ps.sparse_table("t", 4, rule)

    with connected(2) as ps:
        make(ps, now)
        ps.save(tmp_path / "now")
    with connected(2) as ps:
        table = make(ps, then)
        gradient = np.ones(4) if kind == "dense" else ([1], np.ones((1, 4)))
        push = (lambda: table.push(gradient)) if kind == "dense" else lambda: table.push(*gradient)
        push()
        saved = table.state_dict()
        ps.load(tmp_path / "now")
        for call in (
            push,
            table.pull if kind == "dense" else lambda: table.pull([1]),
            table.state_dict,
            lambda: table.load_state_dict(saved),
        ):
            with pytest.raises(Mismatch, match=r"was replaced since this handle .* optimizer: "):
                call()
