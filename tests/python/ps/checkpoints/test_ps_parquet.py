"""Rows for serving as .parquet, read back by pyarrow."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.ps import checkpoint
from gradring.ps.saved import export
from gradring.ps.saved.store_calls import Deadline, read_within
from ps_servers import connected

arrow = pytest.importorskip("pyarrow", reason="pyarrow (gradring[parquet]) is not installed")


def read(path: Path) -> dict[int, list[float]]:
    from pyarrow import parquet

    table = parquet.read_table(path)
    assert table.schema.field("id").type == arrow.uint64()
    assert table.schema.field("row").type == arrow.list_(arrow.float32(), 3)
    return dict(zip(table["id"].to_pylist(), table["row"].to_pylist(), strict=True))


@pytest.mark.parametrize("servers", [1, 3])
def test_live_and_saved_rows_are_written_whole(
    tmp_path: Path, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradring.ps.saved.export._ROWS_AT_ONCE", 100)  # Several groups of rows.
    ids: Any = np.arange(700, dtype=np.uint64) * np.uint64(2**55 + 1)
    with connected(servers) as ps:
        table = ps.sparse_table("t", 3, gr.optim.Adagrad(lr=1.0), init=gr.init.Uniform(1))
        table.push(ids, np.ones((700, 3), np.float32))
        expected = dict(zip(ids.tolist(), table.pull(ids).tolist(), strict=True))
        table.export(str(tmp_path / "live.parquet"))
        ps.save(str(tmp_path / "step"))
        empty = ps.sparse_table("none", 3, gr.optim.Sum())
        empty.export((tmp_path / "none.parquet").as_uri())
    checkpoint.export_checkpoint(str(tmp_path / "step"), "t", str(tmp_path / "saved.parquet"))
    assert read(tmp_path / "live.parquet") == expected
    assert read(tmp_path / "saved.parquet") == expected
    assert read(tmp_path / "none.parquet") == {}


def breaks_after_one_block() -> Iterator[Any]:
    yield np.arange(4, dtype=np.uint64), np.ones((4, 3), np.float32)
    raise KeyError("the servers went")


def test_an_export_that_fails_half_way_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError) as raised:
        export._write(tmp_path / "a.parquet", 3, breaks_after_one_block(), Deadline(60))
    assert list(tmp_path.iterdir()) == []
    # Where nothing says otherwise this file gets the number that the draft had.
    with (tmp_path / "other").open("wb", buffering=0) as other:
        del raised  # With it goes pyarrow's writer, which would like to write its footer.
        gc.collect()
        assert other.tell() == 0


@pytest.fixture
def handler() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise InterruptedError

    previous = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.usefixtures("handler")
def test_an_export_that_is_interrupted_leaves_nothing_behind_for_who_ends_the_process(
    tmp_path: Path,
) -> None:
    block = np.arange(1 << 16, dtype=np.uint64), np.ones((1 << 16, 3), np.float32)

    def blocks() -> Iterator[Any]:
        yield block
        os.kill(os.getpid(), signal.SIGALRM)
        while True:
            yield block

    with pytest.raises(InterruptedError):
        export._write(tmp_path / "a.parquet", 3, blocks(), Deadline(60))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("handler")
def test_an_export_that_is_interrupted_reads_no_more_than_the_next_piece(tmp_path: Path) -> None:
    others, ends, deadline = set(threading.enumerate()), threading.Event(), Deadline(60)

    def pieces() -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGALRM)
        while not ends.is_set():
            yield 0

    def blocks() -> Iterator[Any]:
        read_within(deadline, str(tmp_path), pieces, lambda _: None)
        yield from ()

    with pytest.raises(InterruptedError):
        export._write(tmp_path / "a.npz", 3, blocks(), deadline)
    threads = set(threading.enumerate()) - others
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    ends.set()


@pytest.mark.parametrize("store", ["memory", "toyobjects", "toydisk"])
def test_an_export_to_a_store_that_fails_leaves_the_one_before(store: str) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    import toy_stores

    url = f"{store}://exports/a.parquet"
    with pytest.raises(KeyError):
        export._write(url, 3, breaks_after_one_block(), Deadline(60))
    gc.collect()
    where, path = fsspec.core.url_to_fs(url)
    assert not where.exists(path)
    good = [next(breaks_after_one_block())]
    export._write(url, 3, iter(good), Deadline(60))
    before = where.cat_file(path)
    with pytest.raises(KeyError):
        export._write(url, 3, breaks_after_one_block(), Deadline(60))
    gc.collect()
    assert where.cat_file(path) == before
    for contents in (fsspec.filesystem("memory").store, *toy_stores.ALL_CONTENTS):
        contents.clear()
