"""Checkpoints of real servers: one cut, all or nothing, the same bits on any number of servers."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.errors import DeviceError, InvalidArgument, ProtocolError
from gradring.ps import ParameterServer, checkpoint
from gradring.ps.saved import files
from ps_servers import connected, join, serving

RNG = np.random.default_rng(7)


def make_tables(ps: ParameterServer) -> tuple[Any, Any, Any]:
    adam = gr.optim.Adam(lr=0.1)
    users = ps.sparse_table("user", 3, adam, init=gr.init.Uniform(0.5), seed=3)
    items = ps.sparse_table("item", 2, gr.optim.Adagrad(lr=0.1))
    weights = ps.dense_table("weights", (50, 7), gr.optim.AdamW(lr=0.01), init=gr.init.Normal(0, 1))
    return users, items, weights


def train(ps: ParameterServer, steps: int = 5) -> None:
    users, items, weights = make_tables(ps)
    for _ in range(steps):
        ids = RNG.integers(0, 300, 100)
        users.push(ids, RNG.standard_normal((100, 3), np.float32))
        items.push(ids + (1 << 40), RNG.standard_normal((100, 2), np.float32))
        weights.push(RNG.standard_normal((50, 7), np.float32))


def flat(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def everything(ps: ParameterServer) -> dict[str, Any]:
    """All rows with their state, as bytes: equal only if every bit is."""
    return {
        f"{table.name}.{name}": np.asarray(value).tobytes()
        for table in make_tables(ps)
        for name, value in flat(table.state_dict())
    }


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 2), (2, 2)])
def test_a_checkpoint_has_the_same_bits_on_any_number_of_servers(
    tmp_path: Path, before: int, after: int
) -> None:
    url = str(tmp_path / "step-5")
    with connected(before) as ps:
        train(ps)
        saved = everything(ps)
        made = ps.save(url)
        assert (made.shards, len(made.files)) == (before, before)
        assert checkpoint.verify(url) == made
        # And training goes on as it would have.
        state = RNG.bit_generator.state
        train(ps, 3)
        later = everything(ps)
    assert later != saved
    with connected(after) as ps:
        ps.load(url)
        assert everything(ps) == saved
        RNG.bit_generator.state = state
        train(ps, 3)
        assert everything(ps) == later


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3)])
def test_the_rule_in_force_is_part_of_a_checkpoint(tmp_path: Path, before: int, after: int) -> None:
    made_with = gr.optim.Adagrad(lr=1.0)
    first, second = str(tmp_path / "1"), str(tmp_path / "2")
    ids = np.arange(20)

    def table_of(ps: ParameterServer) -> Any:
        return ps.sparse_table("t", 2, made_with)

    with connected(before) as ps:
        table = table_of(ps)
        ps.save(first)
        table.push(ids, np.ones((20, 2), np.float32))
        table.set_optimizer(gr.optim.Adagrad(lr=0.25))
        saved = ps.save(second, base=first)
        assert {one["lr"] for one in saved.tables} == {0.25}
        table.push(ids, np.ones((20, 2), np.float32))
        later = table.pull(ids)
    with connected(after) as ps:
        ps.load(second)
        table = table_of(ps)
        table.push(ids, np.ones((20, 2), np.float32))
        np.testing.assert_array_equal(table.pull(ids), later)


def test_several_shards_of_one_process_are_saved_and_loaded(tmp_path: Path) -> None:
    with connected(2, threads=2) as ps:
        train(ps)
        saved = everything(ps)
        assert ps.save(str(tmp_path / "a")).shards == 4
    with connected(1, threads=3) as ps:
        ps.load(str(tmp_path / "a"))
        assert everything(ps) == saved


def test_what_was_there_before_a_load_is_gone_after_it(tmp_path: Path) -> None:
    with connected(2) as ps:
        train(ps)
        saved = everything(ps)
        ps.save(str(tmp_path / "a"))
        train(ps, 4)
        other = ps.sparse_table("other", 1, gr.optim.Sum())
        other.push([1], [[1.0]])
        ps.load(str(tmp_path / "a"))
        assert everything(ps) == saved


def test_increments_hold_what_changed_and_what_went_and_need_their_base(tmp_path: Path) -> None:
    first, second, third = (str(tmp_path / name) for name in ("1", "2", "3"))
    with connected(3) as ps:
        train(ps, 20)
        full = ps.save(first)
        users, _, _ = make_tables(ps)
        users.push([10**6], np.ones((1, 3), np.float32))
        step = ps.save(second, base=first)
        assert step.total_bytes < full.total_bytes / 2
        ps.tick(1)
        ps.tick(10)
        users.push([5], np.ones((1, 3), np.float32))
        ps.shrink(unseen_ticks=5)
        assert len(users) == 1
        ps.save(third, base=second)
        saved = everything(ps)
    for count in (3, 2):
        with connected(count) as ps:
            ps.load(third)
            assert everything(ps) == saved
    (tmp_path / "2").rename(tmp_path / "moved")
    with connected(2) as ps, pytest.raises(InvalidArgument, match="there is no checkpoint at"):
        ps.load(third)


def test_nothing_builds_on_what_these_servers_did_not_write(tmp_path: Path) -> None:
    first = str(tmp_path / "1")
    with connected(2) as ps:
        train(ps)
        ps.save(first)
        ps.load(first)
        train(ps)
        with pytest.raises(InvalidArgument, match="save in full"):
            ps.save(str(tmp_path / "2"), base=first)
        assert not (tmp_path / "2" / "manifest.json").exists()
    with connected(1) as ps:
        train(ps)
        with pytest.raises(InvalidArgument, match="is of 2 shards, there are 1: save in full"):
            ps.save(str(tmp_path / "3"), base=first)


def test_a_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    with connected() as ps:
        train(ps)
        ps.save(str(tmp_path))
        with pytest.raises(InvalidArgument, match="there is a checkpoint at"):
            ps.save(str(tmp_path))


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_file_is_named_and_nothing_is_loaded(tmp_path: Path, damage: str) -> None:
    with connected(3) as ps:
        train(ps)
        ps.save(str(tmp_path))
        path = tmp_path / "shard-00001-of-00003.grps"
        whole = path.read_bytes()
        if damage == "flipped":
            middle = len(whole) // 2
            path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        elif damage == "cut":
            path.write_bytes(whole[:-40])
        else:
            path.unlink()
        train(ps)
        before = everything(ps)
        kind = InvalidArgument if damage == "missing" else ProtocolError
        with pytest.raises(kind, match=r"shard-00001-of-00003\.grps"):
            ps.load(str(tmp_path))
        assert everything(ps) == before
        train(ps)
    with connected(1) as ps:
        with pytest.raises(kind, match=r"shard-00001-of-00003\.grps"):
            ps.load(str(tmp_path))
        with pytest.raises(kind, match=r"shard-00001-of-00003\.grps"):
            checkpoint.verify(str(tmp_path))


def test_a_save_that_fails_leaves_no_checkpoint_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(2) as ps:
        train(ps)
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(DeviceError, match="cannot be"):
            ps.save(str(tmp_path / "file" / "step"))
        monkeypatch.setattr(files._LocalFolder, "bytes_of", lambda *_: None)
        with pytest.raises(DeviceError, match="must reach the same folder"):
            ps.save(str(tmp_path / "step"))
        monkeypatch.undo()
        with pytest.raises(InvalidArgument, match="there is no checkpoint"):
            ps.load(str(tmp_path / "step"))
        saved = everything(ps)
        ps.save(str(tmp_path / "step"))
        train(ps)
        ps.load(str(tmp_path / "step"))
        assert everything(ps) == saved


def test_a_checkpoint_in_fsspec_s_memory() -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    with connected(2) as ps:
        train(ps)
        saved = everything(ps)
        ps.save("memory://checkpoints/1")
        train(ps)
        ps.load("memory://checkpoints/1")
        assert everything(ps) == saved
    fsspec.filesystem("memory").rm("/checkpoints", recursive=True)


class Storm:
    """Pushes ones to blocks of ids, a block a thread, until it is stopped."""

    BLOCK = 64

    def __init__(self, addresses: list[str], workers: int) -> None:
        self._stops = threading.Event()
        self._going = [threading.Event() for _ in range(workers)]
        self._threads = [
            threading.Thread(target=self._push, args=(addresses, worker))
            for worker in range(workers)
        ]

    def _push(self, addresses: list[str], worker: int) -> None:
        with join(addresses, client=worker) as ps:
            table = ps.sparse_table("counts", 1, gr.optim.Sum())
            ids = np.arange(self.BLOCK) + worker * self.BLOCK
            ones = np.ones((self.BLOCK, 1), np.float32)
            while not self._stops.is_set():
                table.push(ids, ones)
                self._going[worker].set()

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()
        for going in self._going:
            assert going.wait(60)

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join(60)


def pushes_until_cut(folder: Path, cut: int) -> dict[int, float]:
    """Read a shard's log as docs/checkpoints.md says, and add up its pushes before the cut."""
    sums: dict[int, float] = {}
    for path in sorted(folder.glob("segment-*.log")):
        data = path.read_bytes()
        at = 64
        while at < len(data):
            _, records, _, _, _, body, _, _ = struct.unpack_from("<IIQQQQII", data, at)
            at += 48
            end = at + body
            for _ in range(records):
                kind = data[at + 5]
                count, mark, size = (
                    struct.unpack_from("<I", data, at + 8)[0],
                    struct.unpack_from("<Q", data, at + 40)[0],
                    struct.unpack_from("<Q", data, at + 56)[0],
                )
                payload = data[at + 80 : at + 80 + size]
                at += 80 + (size + 7) // 8 * 8
                if kind == 16 and mark == cut:
                    return sums
                if kind == 5:
                    rows = np.frombuffer(payload[len(payload) - 4 * count :], np.float32)
                    tail = len(payload) - 4 * count - 8 * count
                    ids = np.frombuffer(payload[tail : tail + 8 * count], np.uint64)
                    for number, row in zip(ids.tolist(), rows.tolist(), strict=True):
                        sums[number] = sums.get(number, 0) + row
            assert at == end
    raise AssertionError(f"{folder} has no cut {cut}")


def exported(url: str, table: str, to: Path) -> dict[int, list[float]]:
    checkpoint.export_checkpoint(url, table, str(to))
    with np.load(to) as found:
        rows = zip(found["ids"].tolist(), found["rows"].tolist(), strict=True)
        return dict(rows)


def test_a_checkpoint_under_a_storm_of_pushes_is_the_log_up_to_its_cut(tmp_path: Path) -> None:
    workers = 3
    log = tmp_path / "log"
    with serving(2, log_directory=str(log)) as addresses, join(addresses, client=99) as ps:
        saved = []
        with Storm(addresses, workers):
            for step in range(4):
                url = str(tmp_path / f"{step}")
                saved.append(ps.save(url, base=saved[-1].url if step % 2 else None))
        for step, made in enumerate(saved):
            rows = exported(made.url, "counts", tmp_path / f"{step}.npz")
            replayed: dict[int, float] = {}
            for shard in range(2):
                folder = log / f"shard-{shard:05d}-of-00002"
                replayed.update(pushes_until_cut(folder, made.cut))
            assert {number: row[0] for number, row in rows.items()} == replayed
            # No push is half in it: a worker's rows are on both shards, and all as often pushed.
            for worker in range(workers):
                first = worker * Storm.BLOCK
                assert len({rows[first + at][0] for at in range(Storm.BLOCK)}) == 1
        # It was a storm: later checkpoints have more.
        totals = [sum(sum(r) for r in exported(m.url, "counts", tmp_path / "t.npz").values())
                  for m in saved]  # fmt: skip
        assert totals == sorted(totals)
        assert totals[-1] > totals[0]


def test_export_of_a_live_table_and_of_its_checkpoint_are_the_same_rows(tmp_path: Path) -> None:
    with connected(2) as ps:
        train(ps)
        users, items, _ = make_tables(ps)
        assert users.export(str(tmp_path / "live.npz")) == str(tmp_path / "live.npz")
        ps.save(str(tmp_path / "a"))
        users.push([3, 10**9], np.ones((2, 3), np.float32))
        ps.save(str(tmp_path / "b"), base=str(tmp_path / "a"))
        users.export(str(tmp_path / "later.npz"))
        after = items.pull(np.arange(300) + (1 << 40))
    for url, live in (("a", "live"), ("b", "later")):
        checkpoint.export_checkpoint(str(tmp_path / url), "user", str(tmp_path / "saved.npz"))
        with np.load(tmp_path / f"{live}.npz") as one, np.load(tmp_path / "saved.npz") as other:
            assert one["ids"].tolist() == sorted(one["ids"].tolist())
            assert one["rows"].dtype == np.float32
            assert one["rows"].shape == (len(one["ids"]), 3)
            for name in ("ids", "rows"):
                assert one[name].tobytes() == other[name].tobytes()
    checkpoint.export_checkpoint(str(tmp_path / "b"), "item", str(tmp_path / "items.npz"))
    with np.load(tmp_path / "items.npz") as found:
        assert (found["rows"] == after[found["ids"].astype(np.int64) - (1 << 40)]).all()
    with pytest.raises(InvalidArgument, match=r"no sparse table 'weights'; it has \['item', 'u"):
        checkpoint.export_checkpoint(str(tmp_path / "b"), "weights", str(tmp_path / "w.npz"))


def test_export_says_what_it_cannot_write_or_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with connected() as ps:
        users, _, _ = make_tables(ps)
        with pytest.raises(InvalidArgument, match="export writes"):
            users.export(str(tmp_path / "rows.csv"))
        with pytest.raises(InvalidArgument, match=r"pip install gradring\[parquet\]"):
            users.export(str(tmp_path / "rows.parquet"))
        assert list(tmp_path.iterdir()) == []
