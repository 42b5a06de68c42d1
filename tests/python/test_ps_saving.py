"""How a server writes its part of a checkpoint: both ways to do it, and what may come between."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring import _core
from gradring.errors import DeviceError, InvalidArgument
from gradring.ps import ParameterServer, checkpoint, checkpoint_jobs, files
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
    let_python_write(monkeypatch)  # tests/cpp/snapshot_writer_test.cc has the other way.
    with start_server() as server, join([server.address]) as ps:
        train(ps)
        seal: Callable[..., None] = checkpoint_jobs._seal

        def seal_after_load(sink: Any, sealer: Any, piece: bytes) -> None:
            server.core.end_snapshot(0)  # As commit_load does.
            seal(sink, sealer, piece)

        monkeypatch.setattr(checkpoint_jobs, "_seal", seal_after_load)
        monkeypatch.setattr(checkpoint_jobs, "PIECE_BYTES", 100)
        with pytest.raises(InvalidArgument, match="no snapshot"):
            ps.save(str(tmp_path / "b"))
        assert list((tmp_path / "b").iterdir()) == []


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
