"""How a server writes its part of a checkpoint: both ways to do it, and what may come between."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring import _core
from gradring.errors import DeviceError, InvalidArgument
from gradring.ps import ParameterServer, checkpoint
from gradring.ps.saved import checkpoint_jobs, files
from ps_servers import connected, join, start_server

IDS = np.arange(500)


def table_of(ps: ParameterServer) -> Any:
    return ps.sparse_table("t", 3, gr.optim.Adagrad(lr=0.1), init=gr.init.Uniform(1), seed=5)


def train(ps: ParameterServer) -> Any:
    table_of(ps).push(IDS, np.ones((len(IDS), 3), np.float32))
    return table_of(ps).pull(IDS)


def let_python_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """As elsewhere than on a disk: nothing has a descriptor, all goes piece by piece."""
    monkeypatch.setattr(
        files._LocalSink, "descriptor", property(lambda _: None, lambda *_: None), raising=False
    )


@pytest.mark.parametrize("is_remote", [False, True])
def test_both_ways_write_whole_files_that_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    if is_remote:
        let_python_write(monkeypatch)
    with connected(2) as ps:
        saved = train(ps)
        made = ps.save(str(tmp_path))
        assert [table["name"] for table in made.tables] == ["t"]
        for file in made.files:
            data = (tmp_path / file.name).read_bytes()
            assert (file.bytes, file.crc32c) == (len(data), _core.crc32c(data))
        assert (train(ps) != saved).any()
        ps.load(str(tmp_path))
        np.testing.assert_array_equal(table_of(ps).pull(IDS), saved)


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_full_disk_is_named_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    if is_remote:
        let_python_write(monkeypatch)
    with connected(1) as ps:
        saved = train(ps)
        open_file = os.open
        with monkeypatch.context() as full:
            full.setattr(os, "open", lambda *_: open_file("/dev/full", os.O_WRONLY))
            with pytest.raises(DeviceError, match=r"of-00001\.grps cannot be written: No space"):
                ps.save(str(tmp_path / "step"))
        assert list((tmp_path / "step").iterdir()) == []
        assert (train(ps) != saved).any()  # Training goes on, and the next save has a place there.
        saved = table_of(ps).pull(IDS)
        ps.save(str(tmp_path / "step"))
        train(ps)
        ps.load(str(tmp_path / "step"))
        np.testing.assert_array_equal(table_of(ps).pull(IDS), saved)


def test_a_server_that_cannot_open_the_place_can_save_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_package(url: str) -> None:
        raise ImportError(f"{url} needs s3fs")

    with connected(1) as ps:
        saved = train(ps)
        with monkeypatch.context() as there:
            there.setattr(checkpoint_jobs, "files", SimpleNamespace(folder=without_package))
            with pytest.raises(gr.Error, match="needs s3fs"):
                ps.save(str(tmp_path / "step"))
        ps.save(str(tmp_path / "step"))
        train(ps)
        ps.load(str(tmp_path / "step"))
        np.testing.assert_array_equal(table_of(ps).pull(IDS), saved)


def test_a_load_during_a_save_ends_the_save_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_python_write(monkeypatch)  # tests/cpp/ps/server/snapshot_writer_test.cc has the other way.
    with start_server() as server, join([server.address]) as ps:
        train(ps)
        seal: Callable[..., None] = checkpoint_jobs._seal
        begin: Callable[..., bytes] = checkpoint_jobs._begin
        cuts: list[int] = []

        def note_cut(sealer: Any, task: Any) -> bytes:
            cuts.append(task.cut)
            return begin(sealer, task)

        def seal_after_load(sink: Any, sealer: Any, piece: bytes) -> None:
            server.core.end_snapshot(0, cuts[-1])  # As commit_load does.
            seal(sink, sealer, piece)

        monkeypatch.setattr(checkpoint_jobs, "_begin", note_cut)
        monkeypatch.setattr(checkpoint_jobs, "_seal", seal_after_load)
        monkeypatch.setattr(checkpoint_jobs, "PIECE_BYTES", 100)
        with pytest.raises(InvalidArgument, match="no snapshot"):
            ps.save(str(tmp_path / "b"))
        assert list((tmp_path / "b").iterdir()) == []


def test_a_save_ends_while_its_own_connection_goes_on_pushing(tmp_path: Path) -> None:
    ids, count = np.arange(60_000), 2_000_000
    rows, dense = np.ones((len(ids), 64), np.float32), np.ones(count, np.float32)
    pushed, stops, under_way = 0, threading.Event(), threading.Event()

    def push() -> None:
        nonlocal pushed
        while not stops.is_set():
            works = [sparse.push(ids, rows, async_op=True) for _ in range(3)]
            works.append(flat.push(dense, async_op=True))
            under_way.set()
            for work in works:
                work.wait()
            pushed += 1

    with connected(2) as ps:
        sparse = ps.sparse_table("sparse", 64, gr.optim.Sum())
        flat = ps.dense_table("dense", (count,), gr.optim.Sum())
        pusher = threading.Thread(target=push)
        pusher.start()
        try:
            for step in range(3):
                under_way.clear()
                assert under_way.wait(30)
                ps.save(tmp_path / f"{step}")  # Freezes melt after 10 s, and say so.
        finally:
            stops.set()
            pusher.join()
        np.testing.assert_array_equal(sparse.pull(ids), 3 * pushed)
        ps.load(tmp_path / "2")
        [times] = np.unique(sparse.pull(ids))
        assert 0 < times <= 3 * pushed
        assert len(np.unique(flat.pull())) == 1


def test_a_save_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    with connected() as ps:
        train(ps)
        with pytest.raises(gr.Error, match="no checkpoint"):
            ps.save(tmp_path / "new", base=tmp_path / "missing")
    assert not (tmp_path / "new").exists()


def test_places_may_be_paths(tmp_path: Path) -> None:
    with connected() as ps:
        saved = train(ps)
        ps.save(tmp_path / "a")
        train(ps)
        made = ps.save(tmp_path / "b", base=tmp_path / "a")
        assert made.url == str(tmp_path / "b")
        live = table_of(ps).export(tmp_path / "live.npz")
        of_checkpoint = checkpoint.export_checkpoint(tmp_path / "b", "t", tmp_path / "saved.npz")
        assert checkpoint.verify(tmp_path / "b").base == "../a"
        with np.load(live) as one, np.load(of_checkpoint) as other:
            np.testing.assert_array_equal(one["rows"], other["rows"])
        ps.load(tmp_path / "a")
        np.testing.assert_array_equal(table_of(ps).pull(IDS), saved)
        with pytest.raises(InvalidArgument, match="a place is a path or a URL"):
            ps.save("")
