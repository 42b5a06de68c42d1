"""Where a checkpoint may be: paths and URLs, what each needs, and those that are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.errors import InvalidArgument
from gradring.ps import checkpoint
from gradring.ps.saved import export, files
from gradring.ps.saved.store_calls import Deadline
from ps_servers import connected


@pytest.mark.parametrize("place", ["/tmp/\udcff", "/tmp/a\0b", "s3://bucket/\udcff"])
def test_a_place_that_is_no_text_is_refused(place: str) -> None:
    with pytest.raises(InvalidArgument, match="is no place"):
        files.absolute(place)


def test_urls_that_need_an_extra_say_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InvalidArgument, match=r"pip install gradring\[fs\] s3fs"):
        files.folder("s3://bucket/step-1")
    with pytest.raises(InvalidArgument, match=r"pip install gradring\[fs\]"):
        files.folder("memory://step-1")
    assert files.folder("step-1").url == str(Path("step-1").absolute())


def test_a_protocol_whose_package_is_missing_says_which_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

    def missing(_: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(InvalidArgument, match=r"gradring\[fs\] s3fs \(Install s3fs"):
        files.folder("s3://bucket/step-1")


def test_a_protocol_that_nobody_knows_is_refused() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with pytest.raises(InvalidArgument, match="nosuch"):
        files.folder("nosuch://bucket/step-1")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///ckpt/run%231/step%3F", "/ckpt/run#1/step?"),
        ("file:/ckpt/step-1", "/ckpt/step-1"),
        ("FILE://localhost/ckpt/a:b", "/ckpt/a:b"),
        ("/ckpt/run#1/step?", "/ckpt/run#1/step?"),
    ],
)
def test_a_file_url_is_a_path(url: str, path: str) -> None:
    assert files.local_path(url) == Path(path)
    assert files.absolute(url) == path


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file://host/step-1", "three slashes"),
        ("file://[x/y", "three slashes"),
        ("file:///ckpt/run#1/step-5", "write %3F and %23"),
        ("file:///ckpt/run?1/step-5", "write %3F and %23"),
        ("file:///ckpt/%00", "is no place"),
        ("file:///ckpt/%ff", "is no place"),
        ("~nobody-of-that-name/step-1", "is no place"),
    ],
)
def test_a_path_or_file_url_that_would_be_another_place_is_refused(url: str, said: str) -> None:
    for use in (files.absolute, files.folder, checkpoint.verify):
        with pytest.raises(InvalidArgument, match=said):
            use(url)


@pytest.mark.parametrize("place", ["", 5, None, b"/ckpt"])
def test_what_is_no_place_is_refused(place: Any) -> None:
    with pytest.raises(InvalidArgument, match="a place is a path or a URL, such as"):
        files.absolute(place)
    with pytest.raises(InvalidArgument, match="a place is a path or a URL"):
        checkpoint.verify(place)


def test_a_url_without_a_path_is_no_place() -> None:
    for url in ("memory://", "memory:///", "s3:///"):
        with pytest.raises(InvalidArgument, match="names no place"):
            files.absolute(url)
    assert files.split("memory://a.npz") == ("memory://", "a.npz")
    assert files.split("memory://folder/a.npz") == ("memory://folder", "a.npz")
    assert files.split("/a.npz") == ("/", "a.npz")


@pytest.mark.parametrize("letters", ["x" * 228, "x" * 251, "\u00e9" * 125 + "x"])
def test_an_export_may_have_any_name_that_a_disk_takes(tmp_path: Path, letters: str) -> None:
    place = tmp_path / f"{letters}.npz"  # The draft's name would be longer still.
    with connected() as ps:
        table = ps.sparse_table("t", 2, gr.optim.Sum())
        table.push([7], [[1.0, 2.0]])
        assert table.export(place) == str(place)
    assert list(tmp_path.iterdir()) == [place]
    with np.load(place) as found:
        assert found["ids"].tolist() == [7]


def test_an_export_whose_name_is_too_long_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    def nobody_reads() -> Any:
        yield pytest.fail("a row was read")

    for name in ("x" * 252 + ".npz", "\u00e9" * 126 + ".npz", "x" * 248 + ".parquet"):
        place = tmp_path / "new" / name
        with pytest.raises(InvalidArgument, match="at most 255 bytes, this one 256"):
            export._write(place, 2, nobody_reads(), Deadline(60))
    assert list(tmp_path.iterdir()) == []
