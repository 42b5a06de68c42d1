"""Parts of the data: each goes to one worker, and where nobody waits the fast ones get more."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from flaky_proxy import FlakyProxy
from gradring.modes.bounded import BoundedOptimizer
from gradring.modes.rounds import RoundOptimizer
from mode_servers import RealServers, Servers
from thread_ranks import on_workers

SGD = gr.optim.SGD(lr=1.0)


def optimizer_of(kind: Any, store: Any, workers: int, **options: Any) -> Any:
    return kind([np.zeros(2, np.float32)], SGD, store, workers=workers, **options)


@pytest.mark.parametrize("kind", [gr.AsyncOptimizer, gr.GeoOptimizer])
def test_every_part_goes_to_one_worker(servers: Servers, kind: Any) -> None:
    def work(rank: int) -> list[list[int]]:
        with optimizer_of(kind, servers.client(rank), 3) as optimizer:
            passes = ((f"epoch {epoch}", bool(epoch % 2)) for epoch in range(4))
            return [list(optimizer.hand_out(name, 50, ahead=ahead)) for name, ahead in passes]

    for taken in zip(*on_workers(3, work), strict=True):
        assert sorted(itertools.chain(*taken)) == list(range(50))


def test_who_comes_for_more_gets_more(servers: Servers) -> None:
    slow, fast = (optimizer_of(gr.AsyncOptimizer, servers.client(rank), 2) for rank in range(2))
    slow_parts = slow.hand_out("epoch", 10)
    assert next(slow_parts) == 0
    assert list(fast.hand_out("epoch", 10)) == list(range(1, 10))
    assert list(slow_parts) == []
    assert list(slow.hand_out("epoch", 10)) == [], "a name's parts are handed out once"
    # One that comes late takes part as well.
    late = optimizer_of(gr.AsyncOptimizer, servers.client(2), 2)
    assert list(late.hand_out("next", 3)) == [0, 1, 2]
    for optimizer in (slow, fast, late):
        optimizer.close()


def test_the_next_part_is_asked_for_ahead_but_for_the_last_ones(servers: Servers) -> None:
    slow, fast = (optimizer_of(gr.AsyncOptimizer, servers.client(rank), 2) for rank in range(2))
    slow_parts = slow.hand_out("epoch", 10, ahead=True)
    assert next(slow_parts) == 0
    slow.flush()  # What it has asked for ahead is with the servers.
    fast_parts = fast.hand_out("epoch", 10, ahead=True)
    assert [next(fast_parts) for _ in range(7)] == list(range(2, 9)), "part 1 is on its way"
    assert next(slow_parts) == 1
    assert next(slow_parts) == 9, "of the last two none is asked for ahead"
    assert list(fast_parts) == list(slow_parts) == []
    for optimizer in (slow, fast):
        optimizer.close()


def test_who_leaves_a_pass_early_loses_what_was_asked_for_ahead_and_nothing_else(
    servers: Servers,
) -> None:
    with optimizer_of(gr.AsyncOptimizer, servers.client(0), 1) as optimizer:
        for part in optimizer.hand_out("epoch", 9, ahead=True):
            if part == 3:
                break
        assert list(optimizer.hand_out("epoch", 9)) == [5, 6, 7, 8]


def test_who_leaves_a_pass_early_does_not_wait_for_a_server_that_has_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = RealServers("tcp")
    optimizer = optimizer_of(gr.AsyncOptimizer, servers.client(0, timeout=60), 1)
    store, push = optimizer.store, optimizer.store.push

    def push_to_the_dead(*args: Any) -> Any:
        for server in servers._servers:
            server.stop()
        return push(*args)

    parts = optimizer.hand_out("epoch", 9, ahead=True)
    assert next(parts) == 0
    monkeypatch.setattr(store, "push", push_to_the_dead)
    assert next(parts) == 1  # It was asked for before; part 2 is asked for now.
    left = time.monotonic()
    parts.close()
    assert time.monotonic() - left < 20
    optimizer.abandon()
    servers.close()


def test_a_part_is_given_also_where_the_next_one_cannot_be_asked_for_yet(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with optimizer_of(gr.AsyncOptimizer, servers.client(0), 1) as optimizer:
        store, push, rooms = optimizer.store, optimizer.store.push, iter([True, False])

        def push_if_there_is_room(*args: Any) -> Any:
            if not next(rooms, True):
                raise gr.TimedOut("no room")
            return push(*args)

        monkeypatch.setattr(store, "push", push_if_there_is_room)
        assert list(optimizer.hand_out("epoch", 7, ahead=True)) == list(range(7))
        monkeypatch.undo()


@pytest.mark.parametrize("kind", [gr.AsyncOptimizer, RoundOptimizer])
def test_what_names_no_pass_or_number_of_parts_is_refused(servers: Servers, kind: Any) -> None:
    with optimizer_of(kind, servers.client(0), 1) as optimizer:
        for name, count in ((3, 5), ("epoch", 2.5), ("epoch", None)):
            with pytest.raises(gr.InvalidArgument, match=r"hand_out.*, got"):
                list(optimizer.hand_out(name, count))
        assert list(optimizer.hand_out("epoch", np.int64(2))) == [0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_broken_connections_lose_no_part_and_repeat_none(seed: int) -> None:
    servers = RealServers("tcp")
    proxies = [FlakyProxy(address, seed, 6000) for address in servers.addresses]

    def work(rank: int) -> list[int]:
        ps = servers.client(rank, addresses=[proxy.address for proxy in proxies])
        with optimizer_of(gr.AsyncOptimizer, ps, 2) as optimizer:
            return list(optimizer.hand_out("epoch", 200))

    taken = on_workers(2, work)
    assert sum(proxy.broken for proxy in proxies) > 5
    assert sorted(itertools.chain(*taken)) == list(range(200))
    for proxy in proxies:
        proxy.close()
    servers.close()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (RoundOptimizer, {}),
        (BoundedOptimizer, {"staleness": 2}),
        (gr.GeoOptimizer, {"outer": gr.Nesterov()}),
    ],
)
def test_workers_that_step_together_are_dealt_their_parts(
    servers: Servers, kind: Any, options: Any
) -> None:
    def work(rank: int) -> list[int]:
        with optimizer_of(kind, servers.client(rank), 2, **options) as optimizer:
            return list(optimizer.hand_out("epoch", 5))

    assert on_workers(2, work) == [[0, 2, 4], [1, 3]]


def test_ranks_of_sync_are_dealt_their_parts(world: GetWorld) -> None:
    def work(comm: gr.Communicator) -> list[int]:
        optimizer = gr.SyncOptimizer([np.zeros(2, np.float32)], SGD, comm)
        return list(optimizer.hand_out("epoch", 5))

    assert world(2, "shm").run(work) == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize(
    ("mode", "is_dealt"),
    [
        (gr.Hybrid(), True),
        (gr.Hybrid(dense=gr.Async(), sparse=gr.Async()), False),
        (gr.Hybrid(dense=gr.Geo(2), sparse=gr.Sync(via="ps")), True),
    ],
)
def test_a_hybrid_does_what_the_stricter_side_wants(
    world: GetWorld, servers: Servers, mode: gr.Hybrid, is_dealt: bool
) -> None:
    def work(comm: gr.Communicator) -> list[int]:
        optimizer = gr.distributed(
            [np.zeros(2, np.float32)], SGD, mode, ps=servers.client(comm.rank), comm=comm
        )
        optimizer.sparse_table("rows", 2, SGD)
        comm.barrier()
        taken = list(optimizer.hand_out("epoch", 6)) if comm.rank == 0 or is_dealt else []
        comm.barrier()
        optimizer.close()
        return taken

    dealt, all_of_them = [[0, 2, 4], [1, 3, 5]], [list(range(6)), []]
    assert world(2, "shm").run(work) == (dealt if is_dealt else all_of_them)


@pytest.mark.parametrize("count", [0, -1, 1 << 24])
def test_a_count_that_cannot_be_is_refused_at_once(servers: Servers, count: int) -> None:
    with optimizer_of(gr.AsyncOptimizer, servers.client(0), 1) as optimizer:
        with pytest.raises(gr.InvalidArgument, match=f"'epoch': {count} parts; 1 to"):
            optimizer.hand_out("epoch", count)
        assert list(optimizer.hand_out("epoch", 2)) == [0, 1]


def test_shrinking_all_tables_gives_no_part_out_again() -> None:
    servers = RealServers("tcp")
    ps = servers.client(0)
    with optimizer_of(gr.AsyncOptimizer, ps, 1) as optimizer:
        rows = optimizer.sparse_table("rows", 2, SGD)
        rows.table.push([1, 2], np.ones((2, 2), np.float32))
        parts = optimizer.hand_out("epoch", 5)
        assert [next(parts), next(parts)] == [0, 1]
        assert ps.shrink(least_score=100) == 2, "the others' rows go"
        assert list(parts) == [2, 3, 4]
    servers.close()


@pytest.mark.parametrize(("count", "others"), [(50, 100), (355, 100), (32768, 128), (1, 32768)])
def test_two_counts_under_one_name_are_a_mismatch(
    servers: Servers, count: int, others: int
) -> None:
    one, other = (optimizer_of(gr.AsyncOptimizer, servers.client(rank), 2) for rank in range(2))
    parts = one.hand_out("epoch", count)
    next(parts)
    words = f"hand_out 'epoch': {others} parts here, and another number"
    with pytest.raises(gr.Mismatch, match=words):
        next(other.hand_out("epoch", others))
    with pytest.raises(gr.Mismatch, match=f"{count} parts here"):
        next(parts)
    for optimizer in (one, other):
        optimizer.close()


def test_nothing_is_handed_out_after_close(servers: Servers) -> None:
    optimizer = optimizer_of(gr.AsyncOptimizer, servers.client(0), 1)
    optimizer.close()
    with pytest.raises(gr.Closed):
        optimizer.hand_out("epoch", 2)


def test_torchs_optimizers_hand_out_as_their_mode_does(world: GetWorld, servers: Servers) -> None:
    torch = pytest.importorskip("torch")
    gt = pytest.importorskip("gradring.torch")

    def work(comm: gr.Communicator) -> list[list[int]]:
        taken, ps = [], servers.client(comm.rank)
        for mode in (gr.Sync(), gr.Sync(via="ps"), gr.Async()):
            model = torch.nn.Linear(2, 1)
            made = torch.optim.SGD(model.parameters(), lr=1.0)
            optimizer = gt.distributed(made, mode, model=model, ps=ps, comm=comm, name=str(mode))
            assert optimizer.is_in_step == (mode != gr.Async())
            comm.barrier()
            is_here = optimizer.is_in_step or comm.rank == 1
            taken.append(list(optimizer.hand_out("epoch", 3)) if is_here else [])
            comm.barrier()
            if mode != gr.Sync():
                optimizer.close()
        return taken

    assert world(2, "shm").run(work) == [[[0, 2], [0, 2], []], [[1], [1], [0, 1, 2]]]
