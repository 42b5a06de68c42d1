"""`ReadIds`: of a table that changes while it is read, every id counts once."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import numpy as np
import pytest

import gradring as gr
from gradring.ps.saved import state
from gradring.ps.saved.read_ids import ReadIds
from ps_servers import join, serving, start_server


@pytest.mark.parametrize("seed", range(20))
def test_an_id_is_new_the_first_time_only(seed: int) -> None:
    dice = np.random.default_rng(seed)
    read, known = ReadIds(), set[int]()
    stamp = 100
    for page in range(60):
        ids = dice.choice(500, int(dice.integers(0, 40)), replace=False).astype(np.uint64)
        # A row that comes again was made after everything that was read before.
        stamps = np.where([int(i) in known for i in ids], stamp + page + 1, dice.integers(1, stamp))
        is_new = read.take(ids, stamps.astype(np.uint64))
        assert is_new.tolist() == [int(i) not in known for i in ids]
        known |= set(ids.tolist())
        stamp += page


def test_rows_that_go_and_come_back_are_read_once() -> None:
    ids = np.arange(200)
    with serving() as servers, join(servers, client=0) as ps, join(servers) as other:
        table = ps.sparse_table("t", 2, gr.optim.Sum())
        table.push(ids, np.ones((len(ids), 2)))
        rest = np.setdiff1d(ids, ids[::5])
        table.push(rest, np.ones((len(rest), 2)))
        theirs = other.sparse_table("t", 2, gr.optim.Sum())
        pages, reading = [], state.pages(table, 7)
        pages.append(next(reading)[0]["id"])
        # Those of low score lie everywhere; each comes again where another was.
        assert other.shrink(theirs, least_score=1.5) == len(ids[::5])
        theirs.push(ids[::5], np.ones((len(ids[::5]), 2)))
        pages += [meta["id"] for meta, _ in reading]
        found = np.concatenate(pages)
        assert len(np.unique(found)) == len(found)
        assert set(rest.tolist()) <= set(found.tolist())


@pytest.mark.parametrize("what", ["restart", "load"])
def test_rows_that_lie_elsewhere_by_the_next_page_are_an_error(what: str, tmp_path: Path) -> None:
    ids = np.arange(100)
    log = str(tmp_path / "log")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_server(log_directory=log))
        ps = stack.enter_context(join([server.address], client=0))
        table = ps.sparse_table("t", 2, gr.optim.Sum())
        table.push(ids, np.ones((len(ids), 2)))
        reading = state.pages(table, 20)
        next(reading)
        if what == "restart":
            port = int(server.address.rpartition(":")[2])
            server.stop()
            stack.enter_context(start_server(port=port, log_directory=log))
        else:
            ps.save(tmp_path / "saved")
            ps.load(tmp_path / "saved")
        with pytest.raises(gr.PeerLost, match=r"'t' was read.* read it again"):
            list(reading)
        assert table.state_dict()["ids"].tolist() == ids.tolist()
        table.export(tmp_path / "rows.npz")
        assert np.load(tmp_path / "rows.npz")["ids"].tolist() == ids.tolist()


def test_a_table_that_changes_all_the_time_gives_a_state_that_loads() -> None:
    ids = np.arange(30_000)
    some = ids[::75]
    with serving() as servers, join(servers, client=0) as ps, join(servers) as other:
        table = ps.sparse_table("t", 4, gr.optim.Sum())
        table.push(ids, np.ones((len(ids), 4)))
        rest = np.setdiff1d(ids, some)
        table.push(rest, np.ones((len(rest), 4)))
        theirs = other.sparse_table("t", 4, gr.optim.Sum())
        is_over = threading.Event()

        def churn() -> None:
            turn = 0
            while not is_over.is_set():
                other.shrink(theirs, least_score=1.5)
                theirs.push(some[:: 1 if turn % 2 else -1].copy(), np.ones((len(some), 4)))
                turn += 1

        thread = threading.Thread(target=churn)
        thread.start()
        try:
            for _ in range(10):
                saved = table.state_dict()
                assert len(np.unique(saved["ids"])) == len(saved["ids"])
        finally:
            is_over.set()
            thread.join()
        table.load_state_dict(saved)
