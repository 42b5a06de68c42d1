"""No wait is for ever: who does not come is named, and Ctrl-C ends a wait at once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from rank_job import StartJob
from thread_ranks import TRANSPORTS, ThreadWorld

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.parametrize("transport", TRANSPORTS),
]

FreshWorld = Callable[..., ThreadWorld]
SLACK = 8.0  # Seconds, on a busy machine.


@pytest.mark.parametrize("count", [10, 1_000_000])
def test_a_rank_that_never_calls_is_named_when_the_others_time_out(
    job: StartJob, transport: str, count: int
) -> None:
    ranks = job(3, transport=transport, timeout=1.5)
    for rank in ranks.others(1):
        rank.begin(f"t = time.monotonic(); comm.all_reduce(np.ones({count}))")
    began = time.monotonic()
    for outcome in ranks.outcomes(ranks.others(1)):
        assert outcome.error == "TimedOut", outcome
        assert "all_reduce #1" in outcome.text, outcome
        assert "rank 1" in outcome.text, outcome
        assert "1.5 s" in outcome.text, outcome
        assert outcome.at - began < 1.5 + SLACK
    ranks.ranks[1].begin("comm.all_reduce(np.ones(3))")
    late = ranks.ranks[1].outcome()
    assert late.error == "TimedOut", late
    assert "all_reduce #1" in late.text, late


def test_a_calls_own_timeout_wins(fresh_world: FreshWorld, transport: str) -> None:
    def call(comm: Any) -> float:
        began = time.monotonic()
        if comm.rank == 0:
            with pytest.raises(gr.TimedOut):
                comm.barrier(timeout=0.3)
        return time.monotonic() - began

    assert fresh_world(2, transport, timeout=30.0).run(call)[0] < 0.3 + SLACK


def test_a_wait_for_a_work_tells_what_the_blocking_call_would(
    job: StartJob, transport: str
) -> None:
    ranks = job(2, transport=transport, timeout=1.5)
    began = time.monotonic()
    ranks.ranks[0].begin("comm.all_reduce(np.ones(1000, np.float32), async_op=True).wait()")
    outcome = ranks.ranks[0].outcome()
    assert outcome.error == "TimedOut", outcome
    assert outcome.text.startswith("all_reduce #1 (float32 x 1000, sum): not finished"), outcome
    assert "1.5 s; waiting for rank 1 (" in outcome.text, outcome
    assert outcome.at - began < 1.5 + SLACK


def test_a_work_is_waited_for_as_long_as_its_own_timeout_lets_it_take(
    fresh_world: FreshWorld, transport: str
) -> None:
    def call(comm: Any) -> float:
        if comm.rank == 1:
            threading.Event().wait(2)  # Longer than the communicator's.
        x = np.ones(10)
        comm.all_reduce(x, async_op=True, timeout=30).wait()
        return float(x[0])

    assert fresh_world(2, transport, timeout=1.5).run(call) == [2.0, 2.0]


def test_a_wait_with_a_timeout_says_what_the_work_waits_for(
    fresh_world: FreshWorld, transport: str
) -> None:
    gate = threading.Event()

    def call(comm: Any) -> None:
        if comm.rank == 1:
            assert gate.wait(30)
        works = [comm.all_reduce(np.ones(10), async_op=True), comm.barrier(async_op=True)]
        first = r"all_reduce #1 \(float64 x 10, sum\), waiting for rank 1 \(.*\), is not done"
        if comm.rank == 0:
            try:
                with pytest.raises(gr.TimedOut, match=f"^wait: {first} after 0.5 s; it goes on"):
                    works[0].wait(timeout=0.5)
                with pytest.raises(gr.TimedOut, match=f"^wait: barrier.*, behind {first}"):
                    works[1].wait(timeout=0.1)
            finally:
                gate.set()
        for work in works:
            work.wait()

    fresh_world(2, transport).run(call)


AHEAD: dict[str, Callable[[Any], Any]] = {
    "a work": lambda comm: comm.all_reduce(np.ones(3), async_op=True),
    "several works": lambda comm: [comm.all_reduce(np.ones(3), async_op=True) for _ in range(3)],
}


@pytest.mark.parametrize("begin", AHEAD.values(), ids=AHEAD)
def test_a_call_that_does_not_get_its_turn_in_time_leaves_everything_as_it_was(
    fresh_world: FreshWorld, transport: str, begin: Callable[[Any], Any]
) -> None:
    gave_up = threading.Event()

    def call(comm: Any) -> None:
        if comm.rank == 0:
            begin(comm)
            began = time.monotonic()
            with pytest.raises(gr.TimedOut) as error:
                comm.barrier(timeout=0.3)
            assert str(error.value) == (
                "barrier(): did not get its turn within 0.3 s behind all_reduce #1 "
                "(float64 x 3, sum); nothing was sent, and this communicator is still open"
            )
            assert 0.3 <= time.monotonic() - began < 0.3 + SLACK
            assert not comm.is_closed
            gave_up.set()
        else:
            assert gave_up.wait(20)
            begin(comm)
        comm.barrier()

    fresh_world(2, transport).run(call)


def test_a_timeout_counts_also_while_the_first_connections_are_made(
    job: StartJob, transport: str
) -> None:
    ranks = job(2, transport=transport, timeout=1.0, heartbeat_timeout=60.0)
    frozen = ranks.ranks[1].freeze()
    ranks.ranks[0].begin("comm.all_reduce(np.ones(10_000))")
    outcome = ranks.ranks[0].outcome()
    assert outcome.error == "TimedOut", outcome
    assert outcome.text.startswith("all_reduce #1 ("), outcome
    assert "not finished within its timeout of 1 s" in outcome.text, outcome
    assert "rank 1 (" in outcome.text, outcome
    assert outcome.at - frozen < 1.0 + SLACK


@pytest.mark.parametrize("operation", ["send", "recv"])
def test_a_message_that_has_no_partner_times_out_and_says_who_how_far_and_which_tag(
    fresh_world: FreshWorld, transport: str, operation: str
) -> None:
    def call(comm: Any) -> str:
        if comm.rank == 1:
            return ""
        x = np.zeros(200_000_000, np.int8)
        with pytest.raises(gr.TimedOut) as error:
            getattr(comm, operation)(x, 1, tag=42, timeout=0.5)
        with pytest.raises(gr.Closed):
            comm.barrier()
        return str(error.value)

    text = fresh_world(2, transport).run(call)[0]
    assert text.startswith(f"{operation}(int8 x 200000000): "), text
    moved = {"send": "sent to", "recv": "received from"}[operation]
    assert re.search(rf"; \d+ of 200000000 bytes {moved} rank 1 \(.*\), tag 42", text), text
    assert (re.search(r"; 0 of", text) is None) == (operation == "send"), text


def test_a_part_that_its_sender_does_not_know_of_times_out_and_says_that_counts_may_differ(
    fresh_world: FreshWorld, transport: str
) -> None:
    def call(comm: Any) -> None:
        sent = [1, 0] if comm.rank == 0 else [1, 1]
        comm.all_to_all(np.ones(sum(sent)), send_counts=sent, recv_counts=[1, 1], timeout=0.3)

    errors = fresh_world(2, transport).errors(call)
    assert type(errors[1]) is gr.TimedOut
    assert "0 of 8 bytes received" in str(errors[1])
    assert "may have a count of 0 for rank 1 in its send_counts" in str(errors[1])


def test_progress_however_slow_is_not_a_timeout(fresh_world: FreshWorld, transport: str) -> None:
    # Many operations in a row take longer than the timeout; none of them waits that long.
    def call(comm: Any) -> bool:
        began = time.monotonic()
        x = np.ones(3_000_000)
        while comm.all_reduce(np.array([time.monotonic() - began]), "min")[0] < 2.2:
            comm.all_reduce(x, "avg", timeout=2.0)
        return bool((x == 1).all())

    assert fresh_world(2, transport).run(call) == [True, True]


@pytest.mark.parametrize(
    "call",
    [
        "comm.all_reduce(np.ones(10))",
        "comm.all_reduce(np.ones(3_000_000))",
        "comm.barrier()",
        "comm.recv(np.ones(10), 1)",
        "comm.send(np.zeros(200_000_000, np.int8), 1)",
        "comm.all_reduce(np.ones(10), async_op=True).wait()",
        "comm.recv(np.ones(10), 1, async_op=True).wait()",
        "comm.split(0)",
    ],
)
def test_ctrl_c_in_a_wait_raises_at_once_and_the_others_learn_of_it(
    job: StartJob, transport: str, call: str
) -> None:
    ranks = job(3, transport=transport)
    ranks.call("comm.all_reduce(np.ones(3))")
    same_call = "comm.barrier()" if "recv" in call or "send" in call else call
    for rank in ranks.others(1):
        rank.begin(f"say('calling'); {call if rank.rank == 0 else same_call}")
        rank.expect("calling")
    ranks.ranks[0].wait_until_it_sleeps()
    interrupted = ranks.ranks[0].interrupt()
    outcome = ranks.ranks[0].outcome()
    assert outcome.error == "KeyboardInterrupt", outcome
    assert outcome.at - interrupted < SLACK
    # What was started in the background goes on: only its wait has ended.
    if "all_reduce" not in call or "async" not in call:
        other = ranks.ranks[2].outcome()
        assert (other.error, other.lost) == ("PeerLost", 0), other
        assert "interrupted" in other.text, other
    assert ranks.ranks[0].leave() == 0, ranks.ranks[0].log


def test_ctrl_c_on_every_rank_ends_every_process(job: StartJob, transport: str) -> None:
    ranks = job(3, transport=transport)
    for rank in ranks.ranks:
        rank.begin(
            "say('calling')\nx = np.ones(1000)\nwhile True: comm.all_reduce(x, 'avg')",
            is_fatal=True,
        )
    ranks.expect("calling")
    interrupted = [rank.interrupt() for rank in ranks.ranks]
    for rank in ranks.ranks:
        assert rank.process.wait(10) != 0
        assert "KeyboardInterrupt" in rank.log or "PeerLost" in rank.log, rank.log
    assert time.monotonic() - interrupted[0] < 10
    assert any("KeyboardInterrupt" in rank.log for rank in ranks.ranks)
