"""send and recv: what is sent arrives, in order, whoever waits where."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gradring as gr
import reference
from conftest import GetWorld
from thread_ranks import TRANSPORTS

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_dtype_and_count_arrives_as_it_was_sent(
    world: GetWorld, size: int, transport: str
) -> None:
    cases = [(d, count) for d in reference.DTYPES for count in (0, 1, 37, 100_001)]

    def pass_on(comm: Any) -> None:
        for dtype, count in cases:
            work = comm.send(
                reference.sample(dtype, count, comm.rank), (comm.rank + 1) % size, async_op=True
            )
            got = np.empty(count, reference.numpy_dtype(dtype))
            previous = (comm.rank - 1) % size
            assert comm.recv(got, previous) is got
            work.wait()
            assert got.tobytes() == reference.sample(dtype, count, previous).tobytes()

    world(size, transport).run(pass_on)


def test_messages_of_one_tag_keep_their_order_and_tags_do_not_mix(
    world: GetWorld, transport: str
) -> None:
    def exchange(comm: Any) -> list[int]:
        peer = 1 - comm.rank
        works = [
            comm.send(np.array([100 * tag + i]), peer, tag, async_op=True)
            for i in range(20)
            for tag in (7, -3)
        ]
        got = []
        for tag in (-3, 7):
            for _ in range(20):
                x = np.zeros(1, np.int64)
                comm.recv(x, peer, tag)
                got.append(int(x[0]))
        for work in works:
            work.wait()
        return got

    expected = [100 * tag + i for tag in (-3, 7) for i in range(20)]
    assert world(2, transport).run(exchange) == [expected, expected]


def test_two_ranks_that_both_send_first_do_not_wait_for_each_other(
    world: GetWorld, transport: str
) -> None:
    def exchange(comm: Any) -> bool:
        x = np.full(3_000_000, comm.rank, np.int32)
        y = np.empty_like(x)
        comm.send(x, 1 - comm.rank)
        comm.recv(y, 1 - comm.rank)
        return bool((y == 1 - comm.rank).all())

    assert world(2, transport).run(exchange) == [True, True]


def test_a_message_may_be_sent_to_oneself(world: GetWorld, transport: str) -> None:
    def exchange(comm: Any) -> int:
        comm.send(np.array([5 + comm.rank]), comm.rank, 9)
        x = np.zeros(1, np.int64)
        comm.recv(x, comm.rank, 9)
        return int(x[0])

    assert world(2, transport).run(exchange) == [5, 6]


def test_a_message_of_another_size_ends_every_work_that_was_started(
    fresh_world: GetWorld, transport: str
) -> None:
    begun = threading.Barrier(2)

    def exchange(comm: Any) -> list[str]:
        if comm.rank == 0:
            comm.send(np.zeros(3), 1, 5)
            comm.send(np.zeros(3), 1, 6)
            begun.wait(30)
            return []
        comm.recv(np.zeros(3), 0, 6)  # Tag 5 has come before, and is kept.
        works = [comm.recv(np.zeros(4), 0, 5, async_op=True) for _ in range(3)]
        said = []
        for work in works:
            with pytest.raises((gr.Mismatch, gr.Closed)) as caught:
                work.wait(timeout=30)
            said.append(str(caught.value))
        assert all(work.done() for work in works)
        begun.wait(30)
        return said

    said = fresh_world(2, transport).run(exchange)[1]
    assert (
        "recv from rank 0 with tag 5: it sends float64 x 3, rank 1 expects float64 x 4" in said[0]
    )
    assert not any("barrier" in text for text in said)


def test_kept_messages_are_found_by_their_tags(world: GetWorld, transport: str) -> None:
    count = 500

    def exchange(comm: Any) -> bool:
        if comm.rank == 0:
            for tag in range(count):
                comm.send(np.full(tag % 3, tag), 1, tag)
            return True
        got = []
        for tag in reversed(range(count)):
            x = np.zeros(tag % 3, np.int64)
            comm.recv(x, 0, tag)
            got.append((x == tag).all())
        return all(got)

    assert world(2, transport).run(exchange) == [True, True]


def test_a_strided_array_is_sent_and_received(world: GetWorld, transport: str) -> None:
    def exchange(comm: Any) -> Any:
        if comm.rank == 0:
            comm.send(np.arange(24).reshape(4, 6)[::2, ::3], 1)
            return None
        x = np.zeros((2, 5), np.int64)
        comm.recv(x[:, 1::3], 0)
        return x.tolist()

    assert world(2, transport).run(exchange)[1] == [[0, 0, 0, 0, 3], [0, 12, 0, 0, 15]]


def test_one_thread_receives_while_another_runs_collectives(
    world: GetWorld, transport: str
) -> None:
    def work(comm: Any) -> Any:
        got = np.zeros(1)
        receiver = threading.Thread(target=comm.recv, args=(got, 1 - comm.rank))
        receiver.start()
        for _ in range(50):
            comm.all_reduce(np.ones(1000))
        comm.send(np.array([comm.rank + 1.0]), 1 - comm.rank)
        receiver.join()
        return got[0]

    assert world(2, transport).run(work) == [2.0, 1.0]


def test_wrong_peers_and_tags_are_refused_before_anything_is_sent(
    world: GetWorld, transport: str
) -> None:
    def try_all(comm: Any) -> None:
        x = np.zeros(1)
        for call in (comm.send, comm.recv):
            for peer in (-1, 2):
                with pytest.raises(gr.InvalidArgument, match="rank"):
                    call(x, peer)
            with pytest.raises(gr.InvalidArgument, match="tag"):
                call(x, 0, 1 << 31)
        comm.barrier()

    world(2, transport).run(try_all)


def test_a_message_from_any_rank_says_who_sent_it(world: GetWorld, transport: str) -> None:
    def exchange(comm: Any) -> list[Any]:
        if comm.rank != 2:
            comm.send(np.array([comm.rank]), 2, 4)
            return []
        got: list[Any] = []
        for _ in range(2):
            x = np.zeros(1, np.int64)
            work = comm.recv(x, None, 4, async_op=True)
            assert work.wait() is x
            got.append((work.source, int(x[0])))
        return sorted(got)

    assert world(3, transport).run(exchange) == [[], [], [(0, 0), (1, 1)]]


def test_what_was_sent_without_waiting_still_arrives_when_its_sender_closes(
    fresh_world: Any, transport: str
) -> None:
    count = 3_000_000  # More than there is room for on the way.

    def talk(comm: Any) -> None:
        x, got = np.arange(count, dtype=np.int32), np.empty(count, np.int32)
        comm.barrier()
        if comm.rank == 0:
            comm.send(x, 1, async_op=True)
            comm.close()
        else:
            assert comm.recv(got, 0) is got
            assert (got == x).all()

    fresh_world(2, transport).run(talk)


@pytest.mark.timeout(30)
def test_a_receiver_that_does_not_come_does_not_keep_who_closes(
    fresh_world: Any, transport: str
) -> None:
    def talk(comm: Any) -> None:
        x = np.zeros(9_000_000, np.int32)
        comm.barrier()
        if comm.rank == 0:
            work = comm.send(x, 1, async_op=True)
            comm.close()
            with pytest.raises(gr.Closed):
                work.wait()
        else:
            with pytest.raises(gr.PeerLost, match=r"rank 0 .*left"):
                comm.barrier(timeout=20)

    fresh_world(2, transport).run(talk)


def test_a_timeout_of_a_wait_counts_from_the_last_bytes_that_moved(
    fresh_world: Any, transport: str
) -> None:
    messages, count = 6, 5_000_000  # More bytes than a receiver keeps that has not asked for them.

    def talk(comm: Any) -> None:
        x = np.ones(count)
        if comm.rank == 0:
            works = [comm.send(x, 1, tag, async_op=True) for tag in range(messages)]
            comm.barrier()  # The first has arrived: the background has taken up the others.
            works[-1].wait(timeout=0.5)
        else:
            comm.recv(x, 0, 0)
            comm.barrier()
            for tag in range(1, messages):
                time.sleep(0.25)  # A slow receiver.
                comm.recv(x, 0, tag)

    fresh_world(2, transport).run(talk)


def test_several_threads_may_close_at_once(fresh_world: Any, transport: str) -> None:
    def talk(comm: Any) -> None:
        comm.barrier()
        if comm.rank == 0:
            comm.send(np.zeros(9_000_000), 1, async_op=True)
            threads = [
                threading.Thread(target=comm.close, kwargs={"linger": False}, daemon=True)
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert not any(thread.is_alive() for thread in threads)

    for _ in range(5):
        fresh_world(2, transport).run(talk)


def test_who_does_not_linger_leaves_a_receiver_that_still_takes(
    fresh_world: Any, transport: str
) -> None:
    lingering = 10  # Seconds, of close() with such a receiver.

    def take_slowly(comm: Any, x: Any) -> None:
        for _ in range(1000):
            comm.recv(x, 0)
            time.sleep(0.05)

    def talk(comm: Any) -> None:
        x = np.ones(1 << 17)
        comm.barrier()
        if comm.rank == 0:
            for _ in range(1000):
                comm.send(x, 1, async_op=True)
            before = time.monotonic()
            comm.close(linger=False)
            assert time.monotonic() - before < lingering / 2
        else:
            with pytest.raises(gr.PeerLost, match=r"rank 0 .*left"):
                take_slowly(comm, x)

    fresh_world(2, transport).run(talk)


def test_threads_go_on_while_a_communicator_that_nobody_holds_lingers(
    fresh_world: Any, transport: str
) -> None:
    x = np.ones(1 << 17)

    def longest_pause_during(act: Callable[[], object]) -> float:
        pauses, is_over = [0.0], threading.Event()

        def tick() -> None:
            before = time.monotonic()
            while not is_over.wait(0.005):
                now = time.monotonic()
                pauses.append(now - before)
                before = now

        with ThreadPoolExecutor(1) as pool:
            ticking = pool.submit(tick)
            act()
            is_over.set()
            ticking.result()
        return max(pauses)

    def talk(comm: Any) -> None:
        held = [comm.subgroup([0, 1], "held")]
        if comm.rank == 0:
            for _ in range(60):
                held[0].send(x, 1, async_op=True)
            comm.barrier()
            before = time.monotonic()
            pause = longest_pause_during(held.clear)
            assert time.monotonic() - before > 0.4  # Until the slow receiver had the last.
            assert pause < 1
        else:
            comm.barrier()
            for _ in range(60):
                held[0].recv(x, 0)
                time.sleep(0.02)  # A slow receiver.

    fresh_world(2, transport).run(talk)
