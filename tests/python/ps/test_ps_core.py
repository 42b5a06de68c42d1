"""The compiled client and server of the parameter server, bare: what goes in comes out."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import numpy as np
import pytest

from bare_servers import NEVER, SECRET, connect, dense_spec, pull, push, service, spec, start
from gradring import _core
from gradring.errors import AuthError, Closed, InvalidArgument, Mismatch, PeerLost, TimedOut


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_rows_are_pushed_and_pulled(transport: str) -> None:
    with service(2, threads=2) as servers:
        client = connect(*servers, transport=transport)
        table = client.make_table(spec())
        ids = np.random.default_rng(1).integers(-50, 50, 1000)
        report = push(client, table, ids)
        assert report.rows == len(np.unique(ids))
        assert (report.refused, report.not_admitted) == (0, 0)
        expected = {int(i): n for i, n in zip(*np.unique(ids, return_counts=True), strict=True)}
        rows = pull(client, table, ids)
        assert all((row == expected[int(i)]).all() for i, row in zip(ids, rows, strict=True))
        assert sum(t["rows"] for s in client.stats() for t in json.loads(s)["tables"]) == len(
            expected
        )
        assert client.bytes_sent > len(expected) * 16
        assert client.bytes_received > len(expected) * 16
        client.close()


def test_pulls_create_no_rows_and_a_gradient_that_is_not_finite_is_refused() -> None:
    with service() as servers:
        client = connect(*servers)
        table = client.make_table(spec(init=(0, 0.5, 0.0)))
        assert (pull(client, table, [1, 2, 2]) == 0.5).all()
        gradients = np.array([[1, 1, 1, 1], [1, np.nan, 1, 1]], np.float32)
        report = client.push([table], [np.array([1, 2], np.uint64)], [gradients])
        assert (report.rows, report.refused) == (2, 1)
        assert pull(client, table, [1, 2]).tolist() == [[1.5] * 4, [0.5] * 4]


def test_several_tables_in_one_round_trip_and_rows_after_a_push() -> None:
    with service(2) as servers:
        client = connect(*servers)
        tables = [client.make_table(spec("a")), client.make_table(spec("b", dim=2))]
        assert tables == [client.make_table(spec("a")), client.make_table(spec("b", dim=2))]
        ids = [np.array([1, 2, 1], np.int64), np.array([7], np.int64)]
        gradients = [np.ones((3, 4), np.float32), np.full((1, 2), 5, np.float32)]
        after = [np.zeros((3, 4), np.float32), np.zeros((1, 2), np.float32)]
        client.push(tables, ids, gradients, returns_rows=after)
        assert after[0][:, 0].tolist() == [2, 1, 2]
        outs = [np.zeros((3, 4), np.float32), np.zeros((1, 2), np.float32)]
        client.pull(tables, ids, outs)
        assert all((out == rows).all() for out, rows in zip(outs, after, strict=True))


def test_codecs_round_rows_on_the_wire_only() -> None:
    with service() as servers:
        client = connect(*servers)
        table = client.make_table(spec(dim=64))
        values = np.random.default_rng(2).standard_normal((10, 64)).astype(np.float32)
        ids = np.arange(10)
        client.push([table], [ids], [values])
        for codec, error in ((0, 0.0), (1, 0.02), (2, 0.002), (3, 0.03)):
            rows = pull(client, table, ids, 64, codec=codec)
            assert np.abs(rows - values).max() <= error


def test_a_dense_table_is_cut_over_shards() -> None:
    with service(3) as servers:
        client = connect(*servers)
        table = client.make_table(dense_spec("w", 1000, kind="sgd", lr=0.5))
        gradient = np.arange(1000, dtype=np.float32)
        after = np.zeros(1000, np.float32)
        client.push_dense(table, gradient, returns_rows=after)
        out = np.zeros(1000, np.float32)
        assert client.pull_dense(table, out) == 1
        assert (out == -0.5 * gradient).all()
        assert (after == out).all()
        parts = client.read_dense(table)
        assert [steps for steps, _ in parts] == [1, 1, 1]
        whole = np.concatenate([np.frombuffer(floats, np.float32) for _, floats in parts])
        assert (whole == out).all()
        client.write_dense(
            table, [(5, np.frombuffer(floats, np.float32) * 2) for _, floats in parts]
        )
        client.pull_dense(table, out)
        assert (out == -gradient).all()


def test_whole_rows_are_read_and_written() -> None:
    with service(2) as servers:
        client = connect(*servers)
        table = client.make_table(spec(rule="adagrad"))
        ids = np.arange(100)
        push(client, table, ids)
        found = {}
        meta = np.dtype(
            [("id", "u8"), ("stamp", "u8"), ("version", "u4"), ("steps", "u4"), ("writer", "u4"),
             ("tick", "u4"), ("score", "f4"), ("reserved", "u4")]
        )  # fmt: skip
        for shard in range(client.shards):
            cursor, more = 0, True
            while more:
                metas, floats, cursor, more, _ = client.read_rows(table, shard, cursor, 7)
                heads = np.frombuffer(metas, meta)
                rows = np.frombuffer(floats, np.float32).reshape(len(heads), 8)
                found.update(zip(heads["id"].tolist(), rows, strict=True))
        assert sorted(found) == ids.tolist()
        copy = client.make_table(spec("copy", rule="adagrad"))
        heads = np.zeros(100, meta)
        heads["id"] = ids
        floats = np.stack([found[int(i)] for i in ids])
        client.write_rows(copy, heads.view(np.uint8), floats)
        assert (pull(client, copy, ids) == pull(client, table, ids)).all()


def test_asynchronous_calls_keep_their_arrays_and_report_in_the_end() -> None:
    with service() as servers:
        client = connect(*servers)
        table = client.make_table(spec())
        pushes = [push(client, table, np.arange(1000), in_background=True) for _ in range(5)]
        out = np.zeros((1000, 4), np.float32)
        pulled = client.pull([table], [np.arange(1000)], [out], in_background=True)
        assert [work.wait().rows for work in pushes] == [1000] * 5
        pulled.wait()
        assert pulled.done()
        assert (out == 5).all()  # It sees the pushes that were made before it.
        for _ in range(3):
            push(client, table, np.arange(1000), in_background=True)  # Dropped, and yet done.
        client.flush()
        assert (pull(client, table, np.arange(1000)) == 8).all()


def test_the_first_failure_nobody_waited_for_comes_out_of_flush() -> None:
    with service() as servers:
        client = connect(*servers)
        table = client.make_table(spec())
        work = client.pull_dense(
            client.make_table(dense_spec("w", 8, kind="sum")), np.zeros(8, "f")
        )
        assert work == 0
        client.push(
            [table], [np.arange(2)], [np.ones((2, 4), np.float32)], round=(9, 0), in_background=True
        )
        with pytest.raises(Closed, match="round"):
            client.flush()
        client.flush()


@pytest.mark.parametrize("is_hint", [False, True])
def test_of_a_hint_that_fails_hears_only_who_waits_for_it(is_hint: bool) -> None:
    with service() as servers:
        client = connect(*servers)
        table = client.make_table(spec())
        dense = client.make_table(dense_spec("w", 8, kind="sum"))
        client.clock(1, 0, 2, 0)

        def behind_a_gate(timeout_ms: int) -> list[Any]:
            how: dict[str, Any] = {
                "gate": (1, 5, False), "timeout_ms": timeout_ms, "in_background": True,
                "is_hint": is_hint,
            }  # fmt: skip
            out = np.zeros((1, 4), np.float32)
            return [
                client.pull([table], [np.arange(1)], [out], **how),
                client.pull_dense(dense, np.zeros(8, np.float32), **how),
            ]

        failed = behind_a_gate(10)
        if is_hint:
            under_way = behind_a_gate(60_000)
            client.flush()  # Does not wait for them.
            assert not any(work.done() for work in under_way)
            while not all(work.done() for work in failed):
                # The thread that notes failures has been round.
                push(client, table, np.arange(2), in_background=True).wait()
            push(client, table, np.arange(2), in_background=True).wait()
            client.flush()
        else:
            with pytest.raises(TimedOut, match="1"):
                client.flush()
        for work in failed:
            with pytest.raises(TimedOut, match="1"):
                work.wait()
        client.flush()


def test_gates_hold_pulls_until_the_others_have_come() -> None:
    with service() as servers:
        first, second = connect(*servers, client=0), connect(*servers, client=1)
        table = first.make_table(spec())
        for client in (first, second):
            client.clock(1, 0, 2, 0)
        waiting = first.pull(
            [table], [np.arange(3)], [np.zeros((3, 4), np.float32)], gate=(1, 1, False),
            in_background=True,
        )  # fmt: skip
        first.clock(1, 1, 2, 0)
        assert not waiting.done()
        second.clock(1, 1, 2, 0)
        waiting.wait()
        with pytest.raises(TimedOut, match="1"):
            pull(first, table, [1], gate=(1, 5, False), timeout_ms=100)


def test_rounds_average_what_all_workers_gave() -> None:
    with service(2) as servers:
        clients = [connect(*servers, client=number) for number in range(2)]
        tables = [client.make_table(spec(rule="sgd")) for client in clients]
        for client in clients:
            client.clock(1, 0, 2, 1)
        for number, (client, table) in enumerate(zip(clients, tables, strict=True)):
            rows = np.full((2, 4), number + 1, np.float32)
            client.push([table], [np.array([5, 6 + number])], [rows], round=(1, 0))
            client.clock(1, 1, 2, 1)
        rows = pull(clients[0], tables[0], [5, 6, 7], gate=(1, 1, True))
        # SGD's lr is 1 here: (1 + 2) / 2, 1 / 2 and 2 / 2.
        assert rows[:, 0].tolist() == [-1.5, -0.5, -1.0]


def test_ticks_expire_rows_and_shrink_drops_them() -> None:
    with service(2) as servers:
        client = connect(*servers)
        table = client.make_table(spec(unseen_ticks=2))
        push(client, table, range(10))
        assert client.tick(1) == 0
        push(client, table, range(3))
        assert client.tick(3) + client.tick(4) == 10
        push(client, table, range(10))
        assert client.shrink(0, 1e9) == 10


def test_a_table_made_later_begins_at_the_tick_of_the_others() -> None:
    with service(2) as servers:
        client = connect(*servers)
        client.make_table(spec())
        client.tick(20_000)
        table = client.make_table(spec(name="later", unseen_ticks=1))
        push(client, table, range(10))
        assert client.tick(20_001) == 0, "they were pushed one tick ago"
        assert client.tick(20_002) == 10


def test_mistakes_are_said_before_anything_is_sent() -> None:
    with service() as servers:
        client = connect(*servers)
        table = client.make_table(spec())
        with pytest.raises(InvalidArgument, match="no table 7"):
            pull(client, 7, [1])
        with pytest.raises(InvalidArgument, match="dim 4"):
            pull(client, table, [1], dim=3)
        with pytest.raises(InvalidArgument, match="1 tables but 2"):
            client.pull([table], [np.arange(1), np.arange(1)], [np.zeros((1, 4), np.float32)])
        with pytest.raises(InvalidArgument, match="sparse"):
            client.pull_dense(table, np.zeros(0, np.float32))
        with pytest.raises(Mismatch, match="dim"):
            client.make_table(spec(dim=5))


def test_who_does_not_belong_stays_outside() -> None:
    with service() as servers:
        with pytest.raises(AuthError):
            connect(*servers, secret=b"another", timeout_ms=2000)
        address = servers[0].address
    with pytest.raises(PeerLost, match=address):
        _core.PsClient(servers=[address], secret=SECRET, client=0, transport="auto", timeout_ms=100)


def test_a_closed_client_and_a_stopped_server_say_so() -> None:
    with service() as servers:
        client = connect(*servers)
        table = client.make_table(spec())
        client.close()
        assert client.is_closed
        with pytest.raises(Closed):
            pull(client, table, [1])
        assert servers[0].next_job(1) is None
        servers[0].check()
    with pytest.raises(Closed):
        servers[0].next_job(1)


def test_a_cut_and_a_load_go_through_the_servers_owner() -> None:
    with service(2) as servers:
        client = connect(*servers)
        table = client.make_table(spec())
        push(client, table, range(100))
        number, lineages, stamps = client.freeze_and_cut(["a", "b"])
        assert len(lineages) == len(stamps) == 2
        pieces: list[list[bytes]] = []
        for server, text in zip(servers, "ab", strict=True):
            shard, cut, is_load, found = server.next_job(NEVER)
            assert (shard, cut, is_load, found) == (
                server.first_shard,
                number,
                False,
                text.encode(),
            )
            pieces.append([])
            while (piece := server.read_piece(shard, number, 4096)) is not None:
                pieces[-1].append(piece)
            server.end_snapshot(shard, number)
            server.finish_job(shard, number, f"done {text}", "")
        assert client.await_job(number) == ["done a", "done b"]
        push(client, table, range(100))

        number = client.begin_load(["again", "again"])
        for server, parts in zip(servers, pieces, strict=True):
            shard, cut, is_load, _ = server.next_job(NEVER)
            assert (cut, is_load) == (number, True)
            server.begin_load(shard, number)
            for piece in parts:
                server.load_piece(shard, number, piece)
            server.commit_load(shard, number)
            server.finish_job(shard, number, "loaded", "")
        assert client.await_job(number) == ["loaded", "loaded"]
        fresh = connect(*servers, client=5)
        assert (pull(fresh, fresh.make_table(spec()), range(100)) == 1).all()


def test_a_log_brings_everything_back(tmp_path: Any) -> None:
    with service(log_directory=str(tmp_path)) as servers:
        client = connect(*servers)
        table = client.make_table(spec())
        push(client, table, range(100))
        port = int(servers[0].address.rsplit(":", maxsplit=1)[1])
        servers[0].stop()
        again = start(port=port, log_directory=str(tmp_path))
        push(client, table, range(100))  # The same client goes on.
        assert (pull(client, table, range(100)) == 2).all()
        again.stop()


def test_a_forked_child_cannot_use_the_connection() -> None:
    with service() as servers:
        client = connect(*servers)
        table = client.make_table(spec())
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                pull(client, table, [1])
            except Closed as error:
                os.write(write_end, str(error).encode())
            os._exit(0)
        os.close(write_end)
        os.waitpid(child, 0)
        assert b"forked child" in os.read(read_end, 4096)
        os.close(read_end)
        assert (pull(client, table, [1]) == 0).all()


def test_threads_share_one_client() -> None:
    with service(2) as servers:
        client = connect(*servers)
        table = client.make_table(spec())

        def work() -> None:
            for _ in range(20):
                push(client, table, range(50))
                pull(client, table, range(50))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (pull(client, table, range(50)) == 60).all()


def test_a_pull_asks_for_each_row_once() -> None:
    ids = np.arange(20_000, dtype=np.uint64)  # Several answers; all go to where they belong.
    with service() as servers:
        client = connect(*servers)
        table = client.make_table(spec())
        rows = np.empty((len(ids), 4), np.float32)
        before = client.bytes_sent
        client.pull([table], [ids], [rows])
        assert client.bytes_sent - before < ids.nbytes + 4096
