"""Loading a checkpoint into servers that others use: one load at a time, whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from bare_servers import NEVER, connect, service, spec, start
from gradring.errors import Closed, InvalidArgument, PeerLost, ProtocolError, TimedOut
from gradring.ps import ParameterServer, checkpoint
from gradring.ps.saved import checkpoint_jobs
from ps_servers import connected, join, serving, start_server, together


@pytest.mark.parametrize("is_damaged", [False, True])
def test_of_two_loads_at_once_none_mixes_with_the_other(tmp_path: Path, is_damaged: bool) -> None:
    def rows_of(ps: ParameterServer) -> Any:
        return ps.sparse_table("t", 64, gr.optim.Sum()).pull(ids)

    ids, urls = np.arange(20_000), [str(tmp_path / name) for name in ("one", "two")]
    with serving(2) as addresses, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(join(addresses, client=rank)) for rank in range(2)]
        for url in urls:
            clients[0].sparse_table("t", 64, gr.optim.Sum()).push(ids, np.ones((20_000, 64)))
            clients[0].save(url)
        if is_damaged:
            file = Path(urls[1], "shard-00001-of-00002.grps")
            file.write_bytes(file.read_bytes()[:-100] + bytes(100))

        def load(rank: int) -> bool:
            try:
                clients[rank].load(urls[rank])
            except InvalidArgument:  # Another load is under way.
                return False
            except ProtocolError:
                assert is_damaged
                assert rank == 1
                return False
            return True

        before = rows_of(clients[0])
        for _ in range(4):
            did = together([functools.partial(load, rank) for rank in range(2)])
            rows = rows_of(clients[0])
            assert (rows == rows[0, 0]).all()
            assert rows[0, 0] in [1 + rank for rank in range(2) if did[rank]] or not any(did)
            if not any(did):
                assert (rows == before).all()
            before = rows
        if not is_damaged:
            clients[1].load(urls[1])
            assert (rows_of(clients[1]) == 2).all()


def test_what_rounding_had_kept_is_not_pushed_into_what_was_loaded(tmp_path: Path) -> None:
    with connected(2) as ps:
        table = ps.sparse_table("t", 4, gr.optim.Sum(), codec="int8")
        exact = ps.sparse_table("t", 4, gr.optim.Sum())
        ids = np.arange(40)
        ps.save(str(tmp_path))
        pushed = []
        for _ in range(2):
            table.push(ids, np.tile(np.float32([1, 0.3, 0.7, 0.1]), (40, 1)))
            pushed.append(exact.pull(ids))
            ps.load(str(tmp_path))
        assert not exact.pull(ids).any()
    assert (pushed[0] == pushed[1]).all()


@pytest.mark.parametrize(
    ("action", "says", "rows"),
    [
        # As where the connection was away for longer than the server waits.
        ("stage", "shard 1: nothing is there to be loaded.*try again$", (2, 2)),
        ("prepare", "shard 1: nothing is there.*others what they had: load again$", (1, 2)),
    ],
)
def test_a_load_that_one_server_has_lost_is_refused_by_all_or_said_to_be_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, says: str, rows: tuple[int, int]
) -> None:
    act = checkpoint_jobs._ACTIONS[action]

    def lose_after_it(task: Any) -> dict[str, Any]:
        result = act(task)
        if task.shard == 1:
            task.core.abandon_load(1, task.wanted.get("staging", task.cut))
        return result

    ids = np.arange(100)
    with connected(2) as ps:
        table = ps.sparse_table("t", 1, gr.optim.Sum())
        for folder in ("one", "two"):
            table.push(ids, np.ones((100, 1)))
            ps.save(tmp_path / folder)
        with monkeypatch.context() as losing:
            losing.setitem(checkpoint_jobs._ACTIONS, action, lose_after_it)
            with pytest.raises(TimedOut, match=says):
                ps.load(tmp_path / "one")
        found = table.pull(ids)
        assert set(found.ravel().tolist()) == set(rows)
        ps.load(tmp_path / "one")
        assert (table.pull(ids) == 1).all()


def test_a_load_returns_when_the_server_s_own_disk_has_it(tmp_path: Path) -> None:
    ids, log = np.arange(60_000), tmp_path / "log"  # More than is written in one turn.
    with connected(log_directory=str(log)) as ps:
        table = ps.sparse_table("t", 64, gr.optim.Sum())
        table.push(ids, np.ones((len(ids), 64), np.float32))
        ps.save(tmp_path / "step")
        table.push(ids, np.ones((len(ids), 64), np.float32))
        ps.load(tmp_path / "step")
        names = [path.name for path in (log / "shard-00000-of-00001").glob("snapshot-*")]
        assert len(names) == 1
        assert names[0].endswith(".grps")
        table.push(ids[:10], np.ones((10, 64), np.float32))
        assert (table.pull(ids[:20])[:, 0] == [2] * 10 + [1] * 10).all()
    with connected(log_directory=str(log)) as ps:
        found = ps.sparse_table("t", 64, gr.optim.Sum()).pull(ids)
        assert (found[:10] == 2).all()
        assert (found[10:] == 1).all()


def test_a_load_is_its_own_clients_alone_and_ends_with_it() -> None:
    with service(client_grace_ms=50) as [server]:
        shard, first, second = server.first_shard, connect(server, client=1), connect(server)
        numbers = [client.begin_load([""]) for client in (first, second)]
        for _ in numbers:
            server.next_job(NEVER)
        server.begin_load(shard, numbers[0])
        with pytest.raises(InvalidArgument, match="another load"):
            server.begin_load(shard, numbers[1])
        for act in (server.commit_load, lambda *of: server.load_piece(*of, b"")):
            with pytest.raises(Closed, match="nothing is there to be loaded"):
                act(shard, numbers[1])
        server.abandon_load(shard, numbers[1])
        server.load_piece(shard, numbers[0], b"")
        first.close()

        def until_it_is_gone() -> None:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                server.load_piece(shard, numbers[0], b"")

        with pytest.raises(Closed, match="nothing is there to be loaded"):
            until_it_is_gone()
        with pytest.raises(Closed, match="was lost"):
            server.begin_load(shard, numbers[0])
        server.begin_load(shard, numbers[1])
        server.commit_load(shard, numbers[1])


def test_a_load_that_one_server_refuses_does_not_begin_on_the_others() -> None:
    with service(2) as [first, second]:
        loader, other = connect(first, second), connect(first, second, client=1)
        for _ in range(256):  # As many as a shard takes; the first one is done with them.
            first.finish_job(0, other.begin_load(["", ""]), "", "")
            first.next_job(NEVER)
        with pytest.raises(InvalidArgument, match=r"shard 1.*256 saves and loads"):
            loader.begin_load(["", ""])
        job = first.next_job(NEVER)
        assert job is not None
        with pytest.raises(Closed, match="has given it up"):
            first.begin_load(0, job[1])


def test_what_a_loader_gives_up_is_dropped_at_once_also_while_it_is_read() -> None:
    with service(2) as [first, second]:
        loader, other = connect(first, second), connect(first, second, client=1)
        number = loader.begin_load(["", ""])
        first.begin_load(0, number)
        other.give_up_load(number)  # It is not this one's.
        first.load_piece(0, number, b"")
        loader.give_up_load(number)
        with pytest.raises(Closed, match="has given it up"):
            first.load_piece(0, number, b"")
        with pytest.raises(Closed, match="has given it up"):  # Its job comes late.
            second.begin_load(1, number)


def test_a_loader_that_has_lost_a_server_still_gives_up_on_the_others() -> None:
    with service(2) as [first, second], contextlib.ExitStack() as stack:
        loader = connect(first, second)
        loader.make_table(spec())
        number = loader.begin_load(["", ""])
        first.begin_load(0, number)
        second.stop()
        stack.callback(start(1, 2, port=int(second.address.rpartition(":")[2])).stop)
        for act in (loader.stats, lambda: loader.give_up_load(number)):
            with pytest.raises(PeerLost, match="started again"):
                act()
        with pytest.raises(Closed, match="has given it up"):
            first.load_piece(0, number, b"")


@contextlib.contextmanager
def lost_client(number: int, before: Callable[[ParameterServer], Any]) -> Iterator[list[str]]:
    """Servers of which one was started again empty; a client that was there stays connected."""
    one = np.ones((100, 2), np.float32)
    with start_server(0, 2) as first, contextlib.ExitStack() as stack:
        second = start_server(1, 2)
        addresses = [first.address, second.address]
        lost = join(addresses, client=number, timeout=5)
        table = lost.sparse_table("t", 2, gr.optim.Sum())
        table.push(np.arange(100), one)
        before(lost)
        table.push(np.arange(100), one)
        second.stop()
        stack.enter_context(start_server(1, 2, port=int(second.address.rpartition(":")[2])))
        with pytest.raises(PeerLost, match="started again"):
            table.push(np.arange(100), one)
        yield addresses
        with contextlib.suppress(PeerLost):
            lost.close()


def test_after_a_server_was_lost_and_a_load_checkpoints_are_made_again(tmp_path: Path) -> None:
    # Who was connected before is still there: others need not know of it.
    with lost_client(7, lambda ps: ps.save(tmp_path / "step")) as addresses, join(addresses) as ps:
        ps.load(tmp_path / "step")
        table = ps.sparse_table("t", 2, gr.optim.Sum())
        table.push(np.arange(100), np.ones((100, 2), np.float32))
        ps.save(tmp_path / "next")
        assert (table.pull(np.arange(100)) == 2).all()


def test_a_save_in_a_short_timeout_still_says_whom_it_has_waited_for(tmp_path: Path) -> None:
    with (
        lost_client(7, lambda _: None) as addresses,
        join(addresses, client=8, timeout=2) as ps,
        pytest.raises(TimedOut, match=r"shard 1 waited 1600 ms .* client 7 "),
    ):
        ps.save(tmp_path / "next")


def test_who_makes_a_table_in_the_middle_of_a_load_brings_no_rule_of_before_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_loaded, commit = threading.Event(), checkpoint_jobs._ACTIONS["commit"]

    def one_after_the_other(task: Any) -> dict[str, Any]:
        if task.shard == 1:
            assert is_loaded.wait(60)
            newcomer.sparse_table("t", 2, rules[0])
        done = commit(task)
        is_loaded.set()
        return done

    rules = [gr.optim.SGD(lr=lr) for lr in (1.0, 0.5, 0.25)]
    with serving(2) as addresses, join(addresses) as ps, join(addresses, client=2) as newcomer:
        table = ps.sparse_table("t", 2, rules[0])
        table.set_optimizer(rules[1])
        ps.save(tmp_path / "step")
        table.set_optimizer(rules[2])
        monkeypatch.setitem(checkpoint_jobs._ACTIONS, "commit", one_after_the_other)
        ps.load(tmp_path / "step")
        for expected in (0.5, 0.25):
            newcomer.sparse_table("t", 2, rules[0])
            assert [shard["tables"][0]["lr"] for shard in ps.stats()] == [expected] * 2
            table.set_optimizer(rules[2])


def test_a_table_begins_with_the_rows_of_one_of_a_checkpoint_on_other_servers(
    tmp_path: Path,
) -> None:
    ids, rows = np.arange(1000) * 2**50, np.arange(2000, dtype=np.float32).reshape(1000, 2)
    with connected(3) as ps:
        for name in ("user", "item"):
            ps.sparse_table(name, 2, gr.optim.SGD(lr=1)).load_state_dict({"ids": ids, "rows": rows})
        ps.save(tmp_path / "ckpt")
    exported = checkpoint.export_checkpoint(tmp_path / "ckpt", "user", tmp_path / "user.npz")
    with connected(2, threads=2) as ps:
        table = ps.sparse_table("other", 2, gr.optim.Adam(lr=1), entry=gr.ps.Count(5), init=0.5)
        table.load_state_dict(dict(np.load(exported)))
        np.testing.assert_array_equal(table.pull(ids), rows)
        assert table.pull([3]).tolist() == [[0.5, 0.5]]
        assert table.push(ids, np.ones_like(rows)).not_admitted == 0
        narrow = ps.sparse_table("narrow", 1, gr.optim.Adam(lr=1))
        with pytest.raises(InvalidArgument, match=r"rows has shape \(1000, 2\)"):
            narrow.load_state_dict(dict(np.load(exported)))
