"""Checkpoint files on their own: folders of all kinds, manifests, and what is damaged is named."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradring import _core
from gradring.errors import DeviceError, InvalidArgument, ProtocolError
from gradring.ps import checkpoint
from gradring.ps.saved import files, manifest, snapshot_files
from gradring.ps.saved.manifest import File, Manifest

CUT = 1234


@pytest.fixture(params=["path", "file", "memory", "toyobjects", "toydisk"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "path":
        yield str(tmp_path / "step 1")
    elif request.param == "file":
        yield (tmp_path / "step 2").as_uri()
    else:
        fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
        import toy_stores

        yield f"{request.param}://{tmp_path.name}/step-3"
        for contents in (fsspec.filesystem("memory").store, *toy_stores.ALL_CONTENTS):
            contents.clear()


def written(url: str, name: str, pieces: list[bytes], shard: int = 0, shards: int = 1) -> File:
    sealer = _core.PsFileSealer()
    with files.folder(url).create(name) as sink:
        sink.write([sealer.begin(shard, shards, CUT, 0)])
        for piece in pieces:
            head, fill = sealer.around(piece)
            sink.write([head, piece, fill])
        sink.write([sealer.end()])
    return File(name, shard, sealer.bytes, sealer.crc32c)


def read(url: str, file: File) -> list[bytes]:
    return [bytes(piece) for piece in snapshot_files.pieces(files.folder(url), file, CUT, 0)]


PIECES = [b"", b"x", b"12345678", bytes(range(256)) * 5]


def test_a_file_is_read_back_as_it_was_written_wherever_it_is(url: str) -> None:
    where = files.folder(url)
    assert where.bytes_of("a.grps") is None
    file = written(url, "a.grps", PIECES)
    assert where.bytes_of("a.grps") == file.bytes
    assert _core.crc32c(files.read_all(where, "a.grps")) == file.crc32c
    assert read(url, file) == PIECES


def test_a_block_larger_than_what_is_read_at_once_is_put_together(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(url, "a.grps", PIECES)
    for at_once in (1, 7, 33, 1000):
        monkeypatch.setattr(snapshot_files, "_READ_BYTES", at_once)
        assert read(url, file) == PIECES


def test_a_file_that_fails_half_way_is_not_there_and_leaves_nothing(tmp_path: Path) -> None:
    where = files.folder(str(tmp_path / "new"))
    with pytest.raises(TypeError), where.create("a.grps") as sink:
        sink.write([b"half", 5])  # type: ignore[list-item]
    assert list((tmp_path / "new").iterdir()) == []


def test_two_who_write_one_file_do_not_write_into_each_others(tmp_path: Path) -> None:
    where = files.folder(str(tmp_path))
    with where.create("a") as first:
        first.write([b"first "])
        with where.create("a") as second:
            second.write([b"of another length"])
            first.write([b"and "])
            second.write([b", whole"])
        assert (tmp_path / "a").read_bytes() == b"of another length, whole"
        first.write([b"last"])
    assert (tmp_path / "a").read_bytes() == b"first and last"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_is_a_device_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "writev", full)
    where = files.folder(str(tmp_path))
    with (
        pytest.raises(DeviceError, match=r"a\.grps cannot be written: No space left"),
        where.create("a.grps") as sink,
    ):
        sink.write([b"data"])
    assert list(tmp_path.iterdir()) == []


def test_a_length_that_cannot_be_had_is_a_device_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "x" * 300  # More than file systems take.
    with pytest.raises(DeviceError, match=f"{tmp_path}/{name} cannot be read"):
        files.folder(str(tmp_path)).bytes_of(name)
    with pytest.raises(DeviceError, match="cannot be read"):
        manifest.read(str(tmp_path / name))
    assert files.folder(str(tmp_path)).bytes_of("nothing") is None

    memory = pytest.importorskip("fsspec").filesystem("memory")

    class Refused(Exception):  # noqa: N818 - stores have such that are no OSErrors
        pass

    def refuse(*_: object, **__: object) -> None:
        raise Refused("403: not yours")

    where = files.folder("memory://step")
    for method in ("size", "open", "makedirs"):
        monkeypatch.setattr(type(memory), method, refuse)
    for attempt in (where.bytes_of, lambda name: files.read_all(where, name), _create(where)):
        with pytest.raises(DeviceError, match=r"memory://step/part cannot be .*: 403: not yours"):
            attempt("part")


def _create(where: files.Folder) -> Callable[[str], None]:
    def create(name: str) -> None:
        with where.create(name):
            pass

    return create


def test_a_write_that_the_system_takes_in_parts_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "writev", lambda fd, parts: write(fd, bytes(parts[0])[:3]))
    with files.folder(str(tmp_path)).create("a") as sink:
        sink.write([b"12345", b"", b"6", b"789"])
    assert (tmp_path / "a").read_bytes() == b"123456789"


def test_every_flipped_byte_and_every_length_is_refused_by_name(tmp_path: Path) -> None:
    url = str(tmp_path)
    file = written(url, "a.grps", [b"some piece"])
    path = tmp_path / "a.grps"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ProtocolError, match=r"a\.grps"):
            read(url, file)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ProtocolError, match=rf"a\.grps has {length} bytes"):
            read(url, file)
        # Even a manifest that believes in the shorter file does not help it.
        with pytest.raises(ProtocolError, match=r"a\.grps is damaged"):
            read(url, dataclasses.replace(file, bytes=length))
    path.unlink()
    with pytest.raises(InvalidArgument, match=r"a\.grps is missing"):
        read(url, file)


def test_a_whole_file_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    file = written(str(tmp_path), "a.grps", [b"some piece"])
    where = files.folder(str(tmp_path))
    with pytest.raises(ProtocolError, match="of another checkpoint"):
        list(snapshot_files.pieces(where, file, CUT + 1, 0))
    with pytest.raises(ProtocolError, match="of another checkpoint"):
        list(snapshot_files.pieces(where, dataclasses.replace(file, crc32c=1), CUT, 0))


def a_manifest(url: str, base: str | None = None, base_cut: int = 0) -> Manifest:
    file = File("a.grps", 0, 10, 20)
    table = {"name": "user", "kind": "sparse", "dim": 4}
    return Manifest(url, CUT, 1, (file,), (table,), (5,), ({7: 8},), base, base_cut, "now")


def put(found: Manifest) -> None:
    with files.folder(found.url).create(manifest.NAME) as sink:
        sink.write([found.text()])


def test_a_manifest_is_read_back(url: str) -> None:
    with pytest.raises(InvalidArgument, match="there is no checkpoint at"):
        manifest.read(url)
    put(a_manifest(url))
    assert manifest.read(url) == a_manifest(files.folder(url).url)


@pytest.mark.parametrize("number", [manifest.FORMAT - 1, manifest.FORMAT + 1])
def test_a_manifest_of_another_format_is_refused_by_its_number(tmp_path: Path, number: int) -> None:
    put(a_manifest(str(tmp_path)))
    path = tmp_path / manifest.NAME
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"format": number}))
    with pytest.raises(ProtocolError, match=rf"has format {number}; this gradring reads"):
        manifest.read(str(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"shards": 10**9},
        {"files": []},
        {"shards": 2, "lineages": [1, 2], "stamps": [{}, {}], "files": [["a", 0], ["b", 0]]},
        {"shards": "1"},
        {"cut": -1},
        {"base": 5},
        {"lineages": []},
        {"notes": [1]},
    ],
    ids=str,
)
def test_a_manifest_that_no_save_writes_is_refused_whatever_its_checksum_says(
    tmp_path: Path, change: dict[str, object]
) -> None:
    put(a_manifest(str(tmp_path)))
    path = tmp_path / manifest.NAME
    body = json.loads(path.read_text()) | change
    body["files"] = [
        {"name": each[0], "shard": each[1], "bytes": 1, "crc32c": 2} if len(each) == 2 else each
        for each in body["files"]
    ]
    body.pop("crc32c")
    path.write_text(json.dumps(body | {"crc32c": manifest._crc(body)}))
    with pytest.raises(ProtocolError, match="is damaged"):
        manifest.read(str(tmp_path))


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    put(a_manifest(str(tmp_path)))
    path = tmp_path / manifest.NAME
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ProtocolError, match="manifest"):
            manifest.read(str(tmp_path))
        path.write_bytes(whole[:at])
        if whole[:at].rstrip() != whole.rstrip():
            with pytest.raises(ProtocolError, match="is damaged"):
                manifest.read(str(tmp_path))


def test_a_chain_is_found_wherever_its_folder_was_moved(tmp_path: Path) -> None:
    first, second = str(tmp_path / "runs" / "1"), str(tmp_path / "runs" / "2")
    put(a_manifest(first))
    above = a_manifest(second, manifest.as_seen_from(second, first), CUT)
    put(dataclasses.replace(above, cut=CUT + 1))
    (tmp_path / "runs").rename(tmp_path / "moved")
    chain = manifest.read_chain(str(tmp_path / "moved" / "2"))
    assert [step.url for step in chain] == [str(tmp_path / "moved" / name) for name in "12"]


def test_a_link_to_a_checkpoint_is_followed_to_what_that_builds_on(tmp_path: Path) -> None:
    first, second = str(tmp_path / "runs" / "1"), str(tmp_path / "runs" / "2")
    put(a_manifest(first))
    above = a_manifest(second, manifest.as_seen_from(second, first), CUT)
    put(dataclasses.replace(above, cut=CUT + 1))
    (tmp_path / "latest").symlink_to(tmp_path / "runs" / "2")
    chain = manifest.read_chain(str(tmp_path / "latest"))
    assert [step.url for step in chain] == [first, second]


def test_the_longest_chain_is_as_long_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "LONGEST_CHAIN", 3)
    for number in range(4):
        place = str(tmp_path / str(number))
        base = str(tmp_path / str(number - 1)) if number else None
        put(dataclasses.replace(a_manifest(place, base, CUT + number - 1), cut=CUT + number))
        if number < 3:
            assert len(manifest.read_chain(place)) == number + 1
    with pytest.raises(ProtocolError, match="builds on more than 2 others"):
        manifest.read_chain(place)


def test_a_base_that_was_written_anew_is_refused(tmp_path: Path) -> None:
    first, second = str(tmp_path / "1"), str(tmp_path / "2")
    put(a_manifest(first))
    put(a_manifest(second, first, CUT - 1))
    with pytest.raises(ProtocolError, match="it was written anew"):
        manifest.read_chain(second)
    circle = a_manifest(first, second, CUT)
    put(circle)
    put(a_manifest(second, first, CUT))
    with pytest.raises(ProtocolError, match="in a circle"):
        manifest.read_chain(first)


@pytest.mark.parametrize(
    ("url", "base", "expected"),
    [
        ("/runs/2", "/runs/1", "../1"),
        ("/runs/2", "/other/1", "/other/1"),
        ("s3://bucket/runs/2", "s3://bucket/runs/1", "../1"),
        ("s3://bucket/2", "/runs/1", "/runs/1"),
    ],
)
def test_a_base_beside_a_checkpoint_is_named_relative_to_it(
    url: str, base: str, expected: str
) -> None:
    assert manifest.as_seen_from(url, base) == expected
    assert files.joined(url, expected) == base


def test_a_base_beside_it_is_found_whatever_its_path_was_called(tmp_path: Path) -> None:
    (tmp_path / "runs" / "1").mkdir(parents=True)
    (tmp_path / "same").symlink_to(tmp_path / "runs")
    one = str(tmp_path / "runs" / "1")
    two = str(tmp_path / "runs" / "2")
    assert manifest.as_seen_from(two, str(tmp_path / "same" / "1")) == "../1"
    assert files.absolute(str(tmp_path / "same" / ".." / "runs" / "1")) == one
    assert files.followed(one) == one
    assert files.followed("s3://bucket/1") == "s3://bucket/1"


def test_a_name_that_the_system_finds_too_long_is_named(tmp_path: Path) -> None:
    place = files.followed(str(tmp_path / ("x" * 300)))
    with pytest.raises(DeviceError, match="cannot be read: File name too long"):
        files.folder(place).bytes_of(manifest.NAME)


def test_verify_reads_every_file_of_the_whole_chain(tmp_path: Path) -> None:
    url = str(tmp_path / "1")
    parts = (written(url, "a.grps", PIECES, 0, 2), written(url, "b.grps", PIECES, 1, 2))
    made = dataclasses.replace(
        a_manifest(url), shards=2, files=parts, lineages=(5, 6), stamps=({}, {})
    )
    put(made)
    assert checkpoint.verify(url) == made
    whole = (tmp_path / "1" / "b.grps").read_bytes()
    (tmp_path / "1" / "b.grps").write_bytes(whole[:-1] + b"!")
    with pytest.raises(ProtocolError, match=r"b\.grps"):
        checkpoint.verify(url)
