"""Ranks may leave at any time: in good order, by an exception, or while others still work."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from rank_job import StartJob
from thread_ranks import TRANSPORTS, ThreadWorld, listening_socket

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.parametrize("transport", TRANSPORTS),
]

FreshWorld = Callable[..., ThreadWorld]


@pytest.mark.parametrize("leaver", [0, 2])
@pytest.mark.parametrize("how", ["close", "end of script"])
@pytest.mark.parametrize(
    "before", ["pass", "comm.all_reduce(np.ones(3))", "comm.gather(np.ones(1))"]
)
def test_a_rank_that_leaves_while_others_wait_has_left_rather_than_died(
    job: StartJob, transport: str, leaver: int, how: str, before: str
) -> None:
    ranks = job(3, transport=transport)
    ranks.call(before)
    for rank in ranks.others(leaver):
        rank.begin("say('waiting'); comm.all_reduce(np.ones(5))")
    for rank in ranks.others(leaver):
        rank.expect("waiting")
    if how == "close":
        ranks.ranks[leaver].call("comm.close()")
    else:
        assert ranks.ranks[leaver].leave() == 0
    for outcome in ranks.outcomes(ranks.others(leaver)):
        assert (outcome.error, outcome.lost) == ("PeerLost", leaver), outcome
        assert "has left" in outcome.text, outcome
        assert "all_reduce #" in outcome.text or "before all_reduce" in outcome.text, outcome


def test_a_rank_that_ends_by_an_exception_is_lost_and_shows_its_traceback(
    job: StartJob, transport: str
) -> None:
    ranks = job(3, transport=transport)
    for rank in ranks.others(1):
        rank.begin("say('waiting'); comm.all_reduce(np.ones(5))")
    for rank in ranks.others(1):
        rank.expect("waiting")
    ranks.ranks[1].begin("raise ValueError('a bug of the user')", is_fatal=True)
    assert ranks.ranks[1].process.wait(10) == 1
    assert "ValueError: a bug of the user" in ranks.ranks[1].log
    for outcome in ranks.outcomes(ranks.others(1)):
        assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome


@pytest.mark.parametrize("count", [3, 1_000_000])
@pytest.mark.parametrize(
    "call", ["all_reduce(x)", "broadcast(x, 1)", "reduce(x, 2)", "all_gather(x)"]
)
def test_ranks_that_end_after_an_operation_do_not_disturb_those_still_in_it(
    job: StartJob, transport: str, call: str, count: int
) -> None:
    ranks = job(4, transport=transport)
    for rank in ranks.ranks:
        rank.begin(
            f"x = np.full({count}, {rank.rank}.); comm.{call}; say('done'); sys.exit(0)",
            is_fatal=True,
        )
    for rank in ranks.ranks:
        rank.expect("done")
        assert rank.process.wait(20) == 0, rank.log
        assert not rank.log


def test_many_short_jobs_end_in_good_order(transport: str) -> None:
    # Closing right behind the last operation, again and again: nobody may be cut off in it.
    for _ in range(40):
        world = ThreadWorld(3, transport)
        assert [int(x[0]) for x in world.run(lambda comm: comm.all_reduce(np.ones(4)))] == [3] * 3
        world.run(lambda comm: comm.close())
        world.close()


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_group_that_one_rank_closes_is_over_for_those_who_wait_in_it(
    fresh_world: FreshWorld, transport: str, leaver: int
) -> None:
    def use(comm: Any) -> float:
        first, second = comm.split(0), comm.split(0)
        first.barrier()
        comm.barrier()  # Nobody is in `first` any more, which would be over for that rank too.
        if comm.rank == leaver:
            first.close()
            second.close()
        else:
            for group in (first, second):  # One with connections, one that never had any.
                with pytest.raises(gr.PeerLost) as error:
                    group.all_reduce(np.ones(3))
                assert error.value.rank == leaver
                assert f"rank {leaver}" in str(error.value)
                # It is not waited for, though it is alive.
                assert group.shrink(timeout=20).world_size == 2
        return float(comm.all_reduce(np.ones(1), timeout=20)[0])

    assert fresh_world(3, transport).run(use) == [3.0] * 3


SENDS: dict[str, Callable[[Any, Any], None]] = {
    "send": lambda comm, x: comm.send(x, 1),
    "broadcast": lambda comm, x: comm.broadcast(x, 0),
    "all_to_all": lambda comm, x: comm.all_to_all(x.reshape(2, -1)),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_who_sends_to_a_rank_that_has_closed_hears_of_it_before_the_time_is_up(
    fresh_world: FreshWorld, transport: str, send: Callable[[Any, Any], None]
) -> None:
    def use(comm: Any) -> None:
        group = comm.split(0)
        x = np.ones(3)
        for call in (group.all_reduce, group.broadcast):  # There are connections.
            call(x)
        group.send(x, 1) if comm.rank == 0 else group.recv(x, 0)
        if comm.rank == 1:
            group.close()
        else:
            with pytest.raises(gr.PeerLost, match="rank 1 has left") as error:
                send(group, np.ones(10_000_000))  # More than connections hold.
            assert error.value.rank == 1
        comm.barrier()

    fresh_world(2, transport, timeout=50).run(use)


def test_a_recv_from_anyone_goes_on_past_a_rank_of_whose_close_nobody_has_heard(
    job: StartJob, transport: str
) -> None:
    ranks = job(4, transport=transport, heartbeat_timeout=50.0)
    ranks.call("group = comm.subgroup([1, 2, 3], 'three') if comm.rank else None")
    coordinator, receiver, sender, leaver = ranks.ranks
    coordinator.freeze()  # It would pass the news on.
    leaver.call("group.close()")
    receiver.begin("x = np.zeros(1); group.recv(x, None); result = float(x[0])")
    sender.call("group.send(np.full(1, 5.0), 0)")
    outcome = receiver.outcome()
    assert outcome.result == 5.0, outcome


def test_what_was_closed_is_not_shrunk(fresh_world: FreshWorld, transport: str) -> None:
    def use(comm: Any) -> None:
        group = comm.split(0)
        group.close()
        with pytest.raises(gr.Closed, match="shrink"):
            group.shrink(timeout=50)
        comm.close()
        with pytest.raises(gr.Closed, match="shrink"):
            comm.shrink(timeout=50)

    began = time.monotonic()
    fresh_world(2, transport).run(use)
    assert time.monotonic() - began < 20


def test_a_rank_that_closes_the_smaller_world_has_left_though_it_holds_the_larger_one(
    job: StartJob, transport: str
) -> None:
    ranks = job(3, transport=transport)
    ranks.call("smaller = comm.shrink(); smaller.barrier()")
    closed = "smaller.close(); result = len(os.listdir('/proc/self/task'))"
    assert ranks.call(closed) == [1, 1, 1]  # No monitor any more, which is in the job.


def test_a_closed_communicator_that_nobody_holds_has_no_descriptors(
    job: StartJob, transport: str
) -> None:
    ranks = job(3, transport=transport)
    ranks.call("comm.all_reduce(np.ones(5)); comm.split(0).barrier()")
    left = "sum('eventfd' in os.readlink(f'/proc/self/fd/{fd}') for fd in known)"
    assert ranks.call(
        "comm.close(); del comm; known = os.listdir('/proc/self/fd')\n"
        "known = [fd for fd in known if os.path.exists(f'/proc/self/fd/{fd}')]\n"
        f"result = {left}"
    ) == [0, 0, 0]


def test_close_can_be_repeated_and_ends_the_with_block(
    fresh_world: FreshWorld, transport: str
) -> None:
    def use(comm: Any) -> None:
        with comm as inside:
            assert inside is comm
            comm.barrier()
        assert comm.is_closed
        comm.close()
        with pytest.raises(gr.Closed, match="close"):
            comm.barrier()
        assert "closed" in repr(comm)

    fresh_world(2, transport).run(use)


def test_close_from_another_thread_ends_a_wait(fresh_world: FreshWorld, transport: str) -> None:
    def use(comm: Any) -> None:
        if comm.rank == 1:
            return
        calling = threading.Event()

        def close() -> None:
            calling.wait()
            comm.close()

        closer = threading.Thread(target=close)
        closer.start()
        calling.set()
        with pytest.raises(gr.Closed):
            comm.all_reduce(np.ones(3))
        closer.join()

    fresh_world(2, transport).run(use)


def _train(rank: int, address: str, secret: str, transport: str) -> None:
    comm = gr.init(
        rank=rank, world_size=3, rendezvous=address, secret=secret, transport=transport, timeout=20
    )
    for _ in range(20):
        assert comm.all_reduce(np.ones(200_000))[0] == 3
    # No close: the function just ends.


def test_workers_of_multiprocessing_leave_in_good_order_without_close(transport: str) -> None:
    context = multiprocessing.get_context("spawn")
    listen_fd, address = listening_socket()
    secret = secrets.token_hex(16)
    os.close(listen_fd)  # Its port is free again; spawned processes inherit no descriptors.
    workers = [
        context.Process(target=_train, args=(rank, address, secret, transport)) for rank in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
