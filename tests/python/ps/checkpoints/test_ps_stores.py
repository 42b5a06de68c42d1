"""Checkpoints and exports on stores behind fsspec: whole or not there, errors name them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fsspec", reason="fsspec is not installed")

import fsspec

import gradring as gr
import toy_stores
from gradring.errors import DeviceError, InvalidArgument
from gradring.ps import ParameterServer, checkpoint
from gradring.ps.saved import checkpoint_jobs, files, manifest
from ps_servers import connected

STORES = ["memory", "toyobjects", "toydisk"]


class Broken(Exception):  # noqa: N818 - stores have such that are no OSErrors
    pass


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the beginning of a URL; what is written below it goes."""
    yield f"{request.param}://{tmp_path.parent.name}/place"
    for contents in (fsspec.filesystem("memory").store, *toy_stores.ALL_CONTENTS):
        contents.clear()


def names_in(url: str) -> list[str]:
    where = fsspec.filesystem(url.partition("://")[0])
    contents = where.store if hasattr(where, "store") else where.contents
    return sorted(name.rpartition("/")[2] for name in contents)


def put(url: str, name: str, data: bytes) -> None:
    with files.folder(url).create(name) as sink:
        sink.write([data])


def get(url: str, name: str) -> bytes:
    return files.read_all(files.folder(url), name)


def break_off(url: str, data: bytes) -> None:
    with pytest.raises(KeyError), files.folder(url).create("a") as sink:
        _put_and_fail(sink, data)
    gc.collect()


def _put_and_fail(sink: files.Sink, data: bytes) -> None:
    sink.write([data])
    raise KeyError


def test_a_file_that_fails_half_way_is_not_there_then_or_later(store: str) -> None:
    for data in (b"short", bytes(10_000)):  # Less than one part of an upload, and more.
        break_off(store, data)
        assert names_in(store) == []


def test_a_file_that_fails_half_way_leaves_the_older_one_of_its_name(store: str) -> None:
    put(store, "a", b"old")
    break_off(store, bytes(10_000))
    assert names_in(store) == ["a"]
    assert get(store, "a") == b"old"


@pytest.mark.parametrize("says_so", [True, False])
def test_a_whole_file_takes_the_place_of_the_older_one(
    store: str, says_so: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_stores.Disk, "says_so", says_so)
    put(store, "a", b"old")
    put(store, "a", bytes(10_000))
    assert names_in(store) == ["a"]
    assert get(store, "a") == bytes(10_000)


# Python 3.13 tells of a file that cannot be closed as it is collected; earlier ones say nothing.
@pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning")
def test_what_fails_while_a_file_is_let_go_hides_nothing(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Broken("not now")

    monkeypatch.setattr(toy_stores.Upload, "discard", refuse)
    monkeypatch.setattr(toy_stores.InPlace, "close", refuse)
    kind = type(fsspec.filesystem(store.partition("://")[0]))
    monkeypatch.setattr(kind, "rm_file", refuse)
    for error in (KeyboardInterrupt, KeyError):
        with pytest.raises(error), files.folder(store).create("a"):
            raise error
    gc.collect()
    assert "a" not in names_in(store)


def test_a_file_whose_end_fails_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Broken("503: later")

    with monkeypatch.context() as refused:
        refused.setattr(toy_stores.Upload, "_upload_chunk", refuse)
        with pytest.raises(DeviceError, match="toyobjects://end/a cannot be written: 503: later"):
            put("toyobjects://end", "a", b"data")
    with monkeypatch.context() as refused:
        refused.setattr(toy_stores.Disk, "mv", refuse)
        with pytest.raises(DeviceError, match="toydisk://end/a cannot be written: 503: later"):
            put("toydisk://end", "a", b"data")
    gc.collect()
    assert names_in("toyobjects://end") == names_in("toydisk://end") == []


def test_a_failure_while_bytes_move_is_a_device_error_that_names_the_file(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class File:
        def refuse(self, *_: object) -> None:
            raise Broken("403: not yours")

        read = write = refuse

        def close(self) -> None:
            pass

    kind = type(fsspec.filesystem(store.partition("://")[0]))
    monkeypatch.setattr(kind, "open", lambda *_, **__: File())
    for attempt in (put, lambda url, name, _: get(url, name)):
        with pytest.raises(DeviceError, match=rf"{store}/a cannot be \w+: 403: not yours"):
            attempt(store, "a", b"data")


def test_a_name_that_fsspec_would_take_for_two_stores_is_refused() -> None:
    for url in ("memory://ckpt/a::b", "memory://ckpt/a::b/c", "memory://ckpt::"):
        with pytest.raises(InvalidArgument, match="'::' joins two stores of fsspec"):
            files.folder(url)
    assert files.folder("simplecache::memory://ckpt/a").bytes_of("none") is None


def test_a_store_that_cannot_be_reached_is_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Far(toy_stores.Disk):
        protocol = "toyfar"

        def __init__(self, **options: Any) -> None:
            raise error

    fsspec.register_implementation("toyfar", Far, clobber=True)
    for error in (OSError("no route"), Broken("no key"), TimeoutError()):
        said = str(error) or "TimeoutError"
        with pytest.raises(DeviceError, match=f"toyfar://ckpt/1 cannot be reached: {said}"):
            files.folder("toyfar://ckpt/1")
        with pytest.raises(DeviceError, match="cannot be reached"):
            checkpoint.verify("toyfar://ckpt/1")


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("memory://a//2", "memory://a//1"),
        ("memory://2", "memory://1"),
        ("memory:///2", "memory:///1"),
        ("s3://bucket/./ckpt/2", "s3://bucket/./ckpt/1"),
        ("s3://bucket/../ckpt/2", "s3://bucket/../ckpt/1"),
    ],
)
def test_a_base_beside_a_place_is_found_by_the_text_of_its_url(url: str, base: str) -> None:
    assert manifest.as_seen_from(url, base) == "../1"
    assert files.joined(url, "../1") == base
    assert files.joined(f"{url}/3", "../../1") == base


def test_a_base_that_is_not_found_beside_its_checkpoint_is_named_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "joined", lambda *_: "memory://elsewhere/1")
    assert manifest.as_seen_from("memory://a/2", "memory://a/1") == "memory://a/1"


def trained(ps: ParameterServer, steps: int) -> tuple[Any, Any]:
    rows = ps.sparse_table("rows", 3, gr.optim.Adagrad(lr=0.1))
    dense = ps.dense_table("dense", 5000, gr.optim.Sum())
    for _ in range(steps):
        rows.push(np.arange(100) + steps, np.ones((100, 3), np.float32))
        dense.push(np.ones(5000, np.float32))
    return rows, dense


@pytest.mark.parametrize("slash", ["/", "//"])
def test_checkpoints_build_on_each_other_and_are_loaded(store: str, slash: str) -> None:
    places = [f"{store}{slash}step-{number}" for number in range(3)]
    with connected(2) as ps:
        for number, place in enumerate(places):
            trained(ps, number + 1)
            ps.save(place, base=places[number - 1] if number else None)
        saved = [table.state_dict() for table in trained(ps, 0)]
        with pytest.raises(InvalidArgument, match="there is a checkpoint at"):
            ps.save(places[1])
    assert [one.url for one in manifest.read_chain(places[-1])] == places
    assert checkpoint.verify(places[-1]).url == places[-1]
    with connected(3) as ps:
        ps.load(places[-1])
        np.testing.assert_equal([table.state_dict() for table in trained(ps, 0)], saved)
    exported = checkpoint.export_checkpoint(places[-1], "rows", f"{store}{slash}rows.npz")
    assert exported == f"{store}{slash}rows.npz"
    with fsspec.open(exported) as file:
        found = np.load(file)
        np.testing.assert_array_equal(found["ids"], saved[0]["ids"])
        np.testing.assert_array_equal(found["rows"], saved[0]["rows"])
    assert all(not name.endswith(".draft") for name in names_in(store))


def test_a_store_that_refuses_a_servers_file_fails_the_save_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to upload block: 403")

    with connected() as ps:
        rows, _ = trained(ps, 1)
        with monkeypatch.context() as refused:
            refused.setattr(toy_stores.Upload, "_upload_chunk", refuse)
            with pytest.raises(DeviceError, match=r"toyobjects://full/shard-00000.* upload block"):
                ps.save("toyobjects://full")
        gc.collect()
        assert names_in("toyobjects://full") == []
        rows.push([1], [[1.0, 1, 1]])
        ps.save("toyobjects://full")
        checkpoint.verify("toyobjects://full")
    toy_stores.ObjectStore.contents.clear()


def test_the_file_of_a_failed_write_is_held_by_nobody() -> None:
    class Sink:
        descriptor = None
        writes = 0

        def write(self, parts: Any) -> None:
            self.writes += 1
            if self.writes > 1:
                raise OSError("full")

    class Core:
        def read_piece(self, *_: int) -> bytes:
            return bytes(8)

    sink = Sink()
    held = weakref.ref(sink)
    task = checkpoint_jobs._Task(Core(), 0, 1, {"shards": 1, "base_cut": 0})
    gc.collect()
    gc.disable()
    try:
        try:
            checkpoint_jobs._write_parts(task, sink)
        except OSError as error:
            assert str(error) == "full"  # noqa: PT017 - pytest.raises would hold its frames
        del sink
        assert held() is None
    finally:
        gc.enable()


def test_a_file_of_many_pieces_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sink:
        descriptor = None
        written = b""

        def write(self, parts: Any) -> None:
            self.written += b"".join(parts)

    class Core:
        left = 100

        def read_piece(self, *_: int) -> bytes | None:
            self.left -= 1
            return bytes([self.left]) * 8 if self.left >= 0 else None

    begun: list[Any] = []
    begin = checkpoint_jobs.Behind
    monkeypatch.setattr(
        checkpoint_jobs, "Behind", lambda *call: begun.append(begin(*call)) or begun[-1]
    )
    sink, core = Sink(), Core()
    task = checkpoint_jobs._Task(core, 0, 1, {"shards": 1, "base_cut": 0})
    written, _, first = checkpoint_jobs._write_parts(task, sink)
    assert (len(begun), written, first) == (1, len(sink.written), bytes([99]) * 8)
    places = [sink.written.index(bytes([number]) * 8) for number in range(99, 0, -1)]
    assert places == sorted(places)
