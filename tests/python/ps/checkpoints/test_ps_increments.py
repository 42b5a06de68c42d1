"""Incremental checkpoints of tables whose state somebody has written meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.errors import InvalidArgument
from gradring.ps import ParameterServer
from gradring.ps.saved import manifest
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


def test_nothing_is_built_on_a_base_that_cannot_be_loaded(tmp_path: Path) -> None:
    with connected() as ps:
        step(ps)
        ps.save(tmp_path / "1")
        ps.save(tmp_path / "2", base=tmp_path / "1")
        (tmp_path / "1").rename(tmp_path / "away")
        with pytest.raises(InvalidArgument, match=r"there is no checkpoint at .*1"):
            ps.save(tmp_path / "3", base=tmp_path / "2")
        assert not (tmp_path / "3").exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_is_built_on_a_base_with_a_file_that_is_gone_or_cut_short(
    tmp_path: Path, is_there: bool
) -> None:
    with connected() as ps:
        step(ps)
        ps.save(tmp_path / "1")
        ps.save(tmp_path / "2", base=tmp_path / "1")
        (file,) = (tmp_path / "1").glob("*.grps")
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size // 2)
        if not is_there:
            file.unlink()
        with pytest.raises(InvalidArgument, match=rf"1/{file.name} has \d+ bytes as it was"):
            ps.save(tmp_path / "3", base=tmp_path / "2")
        assert not (tmp_path / "3").exists()


def test_a_chain_ends_while_all_of_it_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "LONGEST_CHAIN", 3)
    with connected() as ps:
        step(ps)
        ps.save(tmp_path / "0")
        for number in (1, 2):
            step(ps)
            ps.save(tmp_path / str(number), base=tmp_path / str(number - 1))
        saved = states(ps)
        with pytest.raises(InvalidArgument, match=r"are 3 checkpoints, .* save in full"):
            ps.save(tmp_path / "3", base=tmp_path / "2")
        step(ps)
        ps.load(tmp_path / "2")
        np.testing.assert_equal(states(ps), saved)


def test_a_link_may_lead_elsewhere_after_something_was_built_on_it(tmp_path: Path) -> None:
    latest = tmp_path / "latest"
    with connected() as ps:
        for number in range(3):
            step(ps)
            ps.save(tmp_path / "runs" / str(number), base=latest if number else None)
            latest.unlink(missing_ok=True)
            latest.symlink_to(tmp_path / "runs" / str(number))
        saved = states(ps)
        step(ps)
        ps.load(latest)
        np.testing.assert_equal(states(ps), saved)


def test_after_an_increment_that_one_shard_refused_a_full_one_is_made_at_once(
    tmp_path: Path,
) -> None:
    with connected(2) as ps:
        # Many rows: a snapshot that was begun in vain is not read out in a moment.
        rows = ps.sparse_table("rows", 64, gr.optim.Sum())
        ids = np.arange(40_000)
        rows.push(ids[:1], np.ones((1, 64), np.float32))
        ps.save(tmp_path / "base")
        rows.push(ids, np.ones((len(ids), 64), np.float32))
        ps.save(tmp_path / "full")
        ps.load(tmp_path / "full")  # The shard that has changed since knows only what is new.
        for number in range(3):
            with pytest.raises(InvalidArgument, match="save in full"):
                ps.save(tmp_path / f"step-{number}", base=tmp_path / "base")
            ps.save(tmp_path / f"again-{number}")
