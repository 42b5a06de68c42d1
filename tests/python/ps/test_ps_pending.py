"""Pulls and pushes under way: what holds once they are done, and for several threads that wait."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.errors import TimedOut
from gradring.modes.stores.served import ServedStore
from gradring.modes.stores.store import Domain, Gate, Pull, Push
from gradring.ps import ParameterServer, Pending
from ps_servers import connected, together
from telling_lock import Telling


@pytest.fixture(params=[1, 3], ids=["one-shard", "three-shards"])
def ps(request: pytest.FixtureRequest) -> Iterator[ParameterServer]:
    with connected(request.param) as client:
        yield client


def test_a_pull_that_is_done_has_filled_its_array(ps: ParameterServer) -> None:
    table = ps.sparse_table("t", 2, gr.optim.Sum())
    dense = ps.dense_table("w", 3, gr.optim.Sum())
    table.push(np.arange(4), np.ones((4, 2), np.float32))
    dense.push(np.full(3, 2, np.float32))
    out, wide = np.zeros((4, 4), np.float32), np.zeros(6, np.float32)
    rows = table.pull(np.arange(4), out[:, ::2], async_op=True)
    array = dense.pull(wide[::2], async_op=True)
    ps.flush()
    assert (rows.done(), array.done()) == (True, True)
    assert out.tolist() == [[1, 0, 1, 0]] * 4
    assert wide.tolist() == [2, 0, 2, 0, 2, 0]
    assert dense.version == 1
    out[:], wide[:] = 7, 7  # They are the caller's again.
    assert rows.done()
    rows.wait()
    array.wait()
    assert (out == 7).all()
    assert (wide == 7).all()


def test_what_makes_a_result_is_called_once_however_many_wait() -> None:
    class Work:
        def __init__(self, failed: bool = False) -> None:
            self._failed = failed

        def done(self) -> bool:
            return True

        def failed(self) -> bool:
            return self._failed

        def wait(self, timeout_ms: int) -> int:
            assert not self._failed
            return 5

    def finish(outcome: int) -> list[int]:
        calls.append(outcome)
        assert is_waited_for.wait(20)
        return [outcome]

    calls: list[int] = []
    is_waited_for = threading.Event()
    pending: Pending[list[int]] = Pending(Work(), finish, contextlib.nullcontext)
    pending._finishing = Telling(is_waited_for)  # type: ignore[assignment]
    first, second, done = together([pending.wait, pending.wait, pending.done])
    assert first is second
    assert (calls, done) == ([5], True)
    failed: Pending[list[int]] = Pending(Work(failed=True), finish, contextlib.nullcontext)
    assert failed.done()
    assert calls == [5]


def test_a_pull_that_failed_is_done_and_its_failure_is_still_for_who_flushes(
    ps: ParameterServer,
) -> None:
    table = ps.sparse_table("t", 4, gr.optim.Sum())
    core = ps.calls.core
    core.clock(1, 0, 2, 0)
    out = np.zeros((1, 4), np.float32)
    work = core.pull(
        [table.number], [np.arange(1)], [out], gate=(1, 5, False), timeout_ms=10,
        in_background=True,
    )  # fmt: skip
    pending: Pending[None] = Pending(work, lambda _: None, contextlib.nullcontext)
    while not pending.done():
        table.push([1], np.ones((1, 4), np.float32), async_op=True).wait()
    assert pending.done()
    with pytest.raises(TimedOut):
        ps.flush()
    with pytest.raises(TimedOut):
        pending.wait()


def test_a_step_that_was_interrupted_at_a_gate_writes_nothing_once_that_opens(
    ps: ParameterServer,
) -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedError

    store, domain = ServedStore(ps, 60), Domain("gates", 1, is_round=False)
    dense, rows = ps.dense_table("w", 3, gr.optim.Sum()), ps.sparse_table("t", 2, gr.optim.Sum())
    store.clock(domain, 0)
    values, found = np.full(3, 7, np.float32), np.full((4, 2), 7, np.float32)
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(InterruptedError):
            store.pull(
                [Pull(dense, None, values), Pull(rows, np.arange(4, dtype=np.uint64), found)],
                Gate(domain, 1),
            )
    finally:
        signal.signal(signal.SIGALRM, previous)
    store.clock(domain, 1)
    ps.flush()
    assert (values == 7).all()
    assert (found == 7).all()
    assert dense.pull().tolist() == [0, 0, 0]


class Crowded:
    """A core that notes who would wait for room, and has none for a pull of rows."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.waits_for_room: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def push(self, *args: Any, **options: Any) -> Any:
        self.waits_for_room.append(not options["goes_along"])
        return self._core.push(*args, **options)

    def push_dense(self, *args: Any, **options: Any) -> Any:
        self.waits_for_room.append(not options["goes_along"])
        return self._core.push_dense(*args, **options)

    def pull(self, *_: Any, **__: Any) -> Any:
        raise TimedOut("no room")


def test_a_push_of_several_tables_waits_for_room_before_its_first_part_only(
    ps: ParameterServer,
) -> None:
    store = ServedStore(ps, 60)
    store._core = crowded = Crowded(ps.calls.core)
    dense = [ps.dense_table(name, 3, gr.optim.Sum()) for name in ("v", "w")]
    rows, ids = ps.sparse_table("t", 2, gr.optim.Sum()), np.arange(4, dtype=np.uint64)
    pushes = [Push(rows, ids, np.ones((4, 2), np.float32))]
    pushes += [Push(table, None, np.ones(3, np.float32)) for table in dense]
    for some, waits in ((pushes, [True, False, False]), (pushes[:1], [True])):
        store.push(some).result()
        assert crowded.waits_for_room == waits, "half of a step would be with the servers"
        crowded.waits_for_room.clear()
    assert (rows.pull(ids) == 2).all()


def test_a_pull_of_which_a_part_finds_no_room_writes_nothing_later(ps: ParameterServer) -> None:
    store, domain = ServedStore(ps, 60), Domain("gates", 1, is_round=False)
    dense, rows = ps.dense_table("w", 3, gr.optim.Sum()), ps.sparse_table("t", 2, gr.optim.Sum())
    store.clock(domain, 0)
    store._core = Crowded(ps.calls.core)
    values, found = np.full(3, 7, np.float32), np.empty((4, 2), np.float32)
    with pytest.raises(TimedOut, match="no room"):
        store.pull(
            [Pull(dense, None, values), Pull(rows, np.arange(4, dtype=np.uint64), found)],
            Gate(domain, 1),
        )
    store.clock(domain, 1)
    ps.flush()
    assert (values == 7).all()
