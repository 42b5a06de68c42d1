"""Asynchronous operations: they run in order, keep their arrays alive, and can be waited for."""

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from thread_ranks import TRANSPORTS, ThreadWorld

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


def test_works_run_in_the_order_they_were_started(world: GetWorld, transport: str) -> None:
    def run(comm: Any) -> list[float]:
        x = np.ones(1000)
        works = [comm.all_reduce(x, async_op=True) for _ in range(6)]
        assert works[-1].wait() is x
        assert all(work.done() for work in works)
        return x[:2].tolist()

    assert world(3, transport).run(run) == [[3.0**6] * 2] * 3


STRIDED: dict[str, Callable[[], Any]] = {
    "a column": lambda: np.ones((300, 2))[:, 0],
    "backwards": lambda: np.ones((300, 2))[::-1, 1],
    "transposed": lambda: np.ones((10, 30)).T,
    "of float16": lambda: np.ones((300, 2), np.float16)[:, 0],
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_an_array_that_is_not_contiguous_takes_its_place_in_the_order_too(
    world: GetWorld, transport: str, make: Callable[[], Any]
) -> None:
    def run(comm: Any) -> list[Any]:
        both, mixed, dropped = make(), make(), make()
        works = [comm.all_reduce(both, async_op=True) for _ in range(2)]
        [work.wait() for work in works]
        work = comm.all_reduce(mixed, async_op=True)
        comm.all_reduce(mixed)
        many = comm.all_reduce(dropped, async_op=True)
        del many
        comm.all_reduce_many([dropped, np.ones(3, dropped.dtype)])
        return [np.unique(x).tolist() for x in (both, mixed, dropped)] + [work.wait() is mixed]

    assert world(2, transport).run(run) == [[[4.0], [4.0], [4.0], True]] * 2


def test_an_array_that_is_not_contiguous_holds_the_result_when_its_work_is_done(
    world: GetWorld, transport: str
) -> None:
    def run(comm: Any) -> list[Any]:
        x, y, z = (np.zeros((50, 2)) for _ in range(3))
        x[:, 0] = 1
        other = 1 - comm.rank
        works = [
            comm.all_reduce(x[:, 0], async_op=True),
            comm.all_gather(np.full(25, comm.rank + 1.0), y[:, 1], async_op=True),
            comm.recv(z[::-1, 1], other, async_op=True),
        ]
        comm.send(np.arange(100.0)[::2], other)
        comm.barrier()
        while not all(work.done() for work in works):
            pass
        return [x.sum(0).tolist(), y.sum(0).tolist(), z[:3].tolist(), works[2].source == other]

    expected = [[100.0, 0.0], [0.0, 75.0], [[0.0, 98.0], [0.0, 96.0], [0.0, 94.0]], True]
    assert world(2, transport).run(run) == [expected] * 2


def test_an_array_packed_for_many_comes_after_the_works_started_before_it(
    world: GetWorld, transport: str
) -> None:
    def run(comm: Any) -> list[float]:
        x, y = np.ones(100_000), np.ones(3)
        comm.all_reduce(x, async_op=True)
        comm.all_reduce_many([x, y])
        return [float(x.min()), float(x.max()), float(y[0])]

    assert world(2, transport).run(run) == [[4.0, 4.0, 2.0]] * 2


def test_a_blocking_call_comes_after_the_works_started_before_it(
    world: GetWorld, transport: str
) -> None:
    def run(comm: Any) -> float:
        x = np.ones(50_000)
        comm.all_reduce(x, async_op=True)
        comm.all_reduce(x)
        return float(x[0])

    assert world(3, transport).run(run) == [9.0] * 3


def test_the_arrays_of_a_work_that_nobody_keeps_live_until_it_is_done(
    world: GetWorld, transport: str
) -> None:
    dropped = threading.Event()

    def run(comm: Any) -> tuple[bool, bool]:
        if comm.rank == 1:
            assert dropped.wait(20)
            comm.all_reduce(np.ones(100_000))
            comm.recv(np.empty(4_000_000), 0)
            comm.barrier()
            return True, True
        # The message is more than sockets keep: it cannot be under way in whole.
        arrays = [np.ones(100_000), np.ones(4_000_000)]
        alive = [weakref.ref(array) for array in arrays]
        comm.all_reduce(arrays[0], async_op=True)
        comm.send(arrays[1], 1, async_op=True)
        arrays.clear()
        gc.collect()
        were_alive = all(ref() is not None for ref in alive)
        dropped.set()
        comm.barrier()
        # The other rank may have the last byte before the thread that wrote it ends the work.
        until = time.monotonic() + 20
        while any(ref() is not None for ref in alive) and time.monotonic() < until:
            comm.send(np.empty(0), 0, async_op=True)  # A new work lets go of those that have ended.
            comm.recv(np.empty(0), 0)
            gc.collect()
        return were_alive, all(ref() is None for ref in alive)

    assert world(2, transport).run(run) == [(True, True)] * 2


def test_the_array_of_a_message_lives_while_its_communicator_that_nobody_holds_lingers(
    fresh_world: Callable[..., ThreadWorld], transport: str
) -> None:
    can_receive = threading.Event()

    def run(comm: Any) -> None:
        held = [comm.subgroup([0, 1], "held")]
        array = np.empty(4_000_000)  # More than is under way at once.
        if comm.rank == 1:
            assert can_receive.wait(20)
            held[0].recv(array, 0)
            assert (array == 1).all()
            return
        array[:] = 1
        group, message = weakref.ref(held[0]), weakref.ref(array)
        held[0].send(array, 1, async_op=True)
        del array
        dropping = threading.Thread(target=held.clear)
        dropping.start()
        other = comm.subgroup([0], "other")
        while group() is not None:  # From then on only what it has to send keeps it.
            other.barrier(async_op=True).wait()
        for _ in range(3):  # A work that ends lets go of those that have ended.
            other.barrier(async_op=True).wait()
        was_alive = message() is not None
        can_receive.set()
        dropping.join()
        assert was_alive
        other.barrier(async_op=True).wait()
        assert message() is None

    fresh_world(2, transport).run(run)


def test_a_call_in_the_background_meets_a_blocking_one(world: GetWorld, transport: str) -> None:
    def run(comm: Any) -> list[float]:
        x, y = np.ones(8), np.full(8, 1.0 + comm.rank)
        is_async = comm.rank == 1
        parts = np.empty((2, 8))
        for call in (
            lambda: comm.barrier(async_op=is_async),
            lambda: comm.all_reduce(x, async_op=is_async),
            lambda: comm.broadcast(y, 1, async_op=is_async),
            lambda: comm.all_gather(x, parts, async_op=is_async),
        ):
            result = call()
            if is_async:
                result.wait()
        return [x[0], y[0], parts[1, 0]]

    assert world(2, transport).run(run) == [[2.0, 2.0, 2.0]] * 2


def test_every_collective_can_run_in_the_background(world: GetWorld, transport: str) -> None:
    def run(comm: Any) -> list[Any]:
        x = np.arange(4.0) + comm.rank
        works = [
            comm.all_reduce(x.copy(), async_op=True),
            comm.reduce_scatter(x, async_op=True),
            comm.all_gather(x, async_op=True),
            comm.broadcast(x.copy(), 1, async_op=True),
            comm.reduce(x.copy(), 0, async_op=True),
            comm.gather(x, 1, async_op=True),
            comm.scatter(np.arange(4.0).reshape(2, 2), 0, async_op=True),
            comm.all_to_all(x, async_op=True),
            comm.barrier(async_op=True),
        ]
        results = [work.wait() for work in works]
        return [None if result is None else result.tolist() for result in results]

    first, second = world(2, transport).run(run)
    total = [1.0, 3.0, 5.0, 7.0]
    both = [[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]
    assert first == [total, total[:2], both, both[1], total, None, [0.0, 1.0], [0, 1, 1, 2], None]
    assert second == [total, total[2:], both, both[1], both[1], both, [2, 3], [2, 3, 3, 4], None]


def test_an_array_lives_until_its_work_is_done(world: GetWorld, transport: str) -> None:
    def run(comm: Any) -> Any:
        works = [comm.all_reduce(np.full(40_000, i), async_op=True) for i in range(20)]
        gc.collect()
        return [int(work.wait()[-1]) for work in works]

    assert world(2, transport).run(run) == [[2 * i for i in range(20)]] * 2


def test_a_work_whose_handle_was_dropped_is_carried_out(world: GetWorld, transport: str) -> None:
    def run(comm: Any) -> float:
        x = np.ones(40_000)
        comm.all_reduce(x, async_op=True)
        gc.collect()
        comm.barrier()
        return float(x.sum())

    assert world(2, transport).run(run) == [80_000.0] * 2


def test_a_strided_array_is_written_back_by_wait(world: GetWorld, transport: str) -> None:
    def run(comm: Any) -> Any:
        x = np.ones(10)
        work = comm.all_reduce(x[::2], async_op=True)
        work.wait()
        x[::2] += 1
        work.wait()  # The second time writes nothing.
        return x.tolist()

    assert world(2, transport).run(run) == [[3.0, 1.0] * 5] * 2


def test_a_wait_that_would_never_end_is_refused(world: GetWorld, transport: str) -> None:
    def wait(comm: Any) -> None:
        work = comm.barrier(async_op=True)
        for wrong in (math.inf, math.nan, 0):
            with pytest.raises(gr.InvalidArgument, match="positive seconds"):
                work.wait(timeout=wrong)
        work.wait()

    world(2, transport).run(wait)


def test_wait_with_a_timeout_can_be_repeated(world: GetWorld, transport: str) -> None:
    gate = threading.Event()

    def run(comm: Any) -> float:
        if comm.rank == 1:
            gate.wait()
        x = np.ones(10)
        work = comm.all_reduce(x, async_op=True)
        if comm.rank == 0:
            try:
                with pytest.raises(gr.TimedOut, match="wait"):
                    work.wait(timeout=0.05)
                assert not work.done()
            finally:
                gate.set()
        work.wait()
        return float(x[0])

    assert world(2, transport).run(run) == [2.0, 2.0]


def test_sends_and_receives_in_the_background_are_waited_for_in_any_order(
    world: GetWorld, transport: str
) -> None:
    def run(comm: Any) -> list[int]:
        peer = 1 - comm.rank
        got = [np.zeros(30_000, np.int64) for _ in range(8)]
        receives = [comm.recv(x, peer, tag, async_op=True) for tag, x in enumerate(got)]
        sends = [
            comm.send(np.full(30_000, tag), peer, tag, async_op=True) for tag in reversed(range(8))
        ]
        for work in (*reversed(receives), *sends):
            work.wait()
        return [int(x[-1]) for x in got]

    assert world(2, transport).run(run) == [list(range(8))] * 2


def test_threads_of_one_process_may_use_different_communicators_at_once(
    fresh_world: Callable[..., ThreadWorld], transport: str
) -> None:
    worlds = [fresh_world(2, transport) for _ in range(4)]

    def run(index: int) -> list[Any]:
        return worlds[index].run(
            lambda comm: [comm.all_reduce(np.full(5000, index + i))[0] for i in range(20)]
        )

    results: list[Any] = [None] * 4
    threads = [
        threading.Thread(target=lambda i=i: results.__setitem__(i, run(i))) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, result in enumerate(results):
        assert result == [[2 * (index + i) for i in range(20)]] * 2


def test_threads_that_share_a_communicator_do_not_mix_their_operations(
    world: GetWorld, transport: str
) -> None:
    def run(comm: Any) -> list[int]:
        # Equal calls, so that any order the threads come in is the same on both ranks.
        arrays = [np.ones(20_000, np.int64) for _ in range(4)]
        threads = [
            threading.Thread(target=lambda x=x: [comm.all_reduce(x) for _ in range(10)])
            for x in arrays
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [int(x.min()) for x in arrays] + [int(x.max()) for x in arrays]

    # Which thread met which is open; every value doubles or adds, and all elements stay equal.
    for result in world(2, transport).run(run):
        assert result[:4] == result[4:]


def test_close_ends_works_that_still_wait_with_closed(
    fresh_world: Callable[..., ThreadWorld], transport: str
) -> None:
    world = fresh_world(2, transport)

    def run(comm: Any) -> list[str]:
        if comm.rank == 1:
            return []
        works = [comm.all_reduce(np.ones(10), async_op=True) for _ in range(5)]
        comm.close()
        texts = []
        for work in works:
            assert work.done()
            with pytest.raises(gr.Closed) as error:
                work.wait()
            texts.append(str(error.value))
        return texts

    texts = world.run(run)[0]
    assert len(texts) == 5
    assert all("close" in text for text in texts)
