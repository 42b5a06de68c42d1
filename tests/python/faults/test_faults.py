"""Losing a rank ends every other rank's call with PeerLost, in time, with a text that helps."""

from __future__ import annotations

import os
import signal

import pytest

from rank_job import Job, Outcome, StartJob
from thread_ranks import TRANSPORTS

SIZE = 4
AFTER_A_KILL = 8.0  # Seconds, on a busy machine; the promise is about one.
HEARTBEAT_TIMEOUT = 2.0
AFTER_A_FREEZE = HEARTBEAT_TIMEOUT + 8.0

REDUCE_FOREVER = """
x = np.ones(4_000_000, np.float32)
for turn in range(10**9):
    comm.all_reduce(x, "avg")
    if turn == 2:
        say("moving")
"""
WAIT_FOR_ALL = "say('moving'); comm.all_reduce(np.ones(3))"

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.parametrize("transport", TRANSPORTS),
]


def expect_loss(outcomes: list[Outcome], victim: int, since: float, limit: float) -> None:
    for outcome in outcomes:
        assert (outcome.error, outcome.lost) == ("PeerLost", victim), outcome
        # Between two calls it is the next one that raises.
        assert outcome.text.startswith(("all_reduce #", "before all_reduce(")), outcome
        assert f"rank {victim} (" in outcome.text, outcome
        assert outcome.at - since < limit, outcome


def expect_closed(job: Job, *victims: int) -> None:
    """Every later call, of any kind, tells the first cause."""
    for call in ("comm.barrier()", "comm.send(np.ones(1), 0)", "comm.all_reduce(np.ones(1))"):
        for rank in job.others(*victims):
            rank.begin(call)
        for outcome in job.outcomes(job.others(*victims)):
            assert outcome.error == "Closed", outcome
            assert f"rank {victims[0]} (" in outcome.text, outcome


@pytest.mark.parametrize("victim", [0, 1, SIZE - 1])
def test_a_rank_killed_in_a_large_all_reduce_is_lost_to_every_other_rank(
    job: StartJob, transport: str, victim: int
) -> None:
    ranks = job(SIZE, transport=transport)
    ranks.begin(REDUCE_FOREVER)
    ranks.expect("moving")
    killed = ranks.ranks[victim].kill()
    expect_loss(ranks.outcomes(ranks.others(victim)), victim, killed, AFTER_A_KILL)
    expect_closed(ranks, victim)


# Whichever is waited for first; or none of them: then it is the next call that raises.
@pytest.mark.parametrize("call", ["works[4].wait()", "works.clear(); comm.all_reduce(np.ones(3))"])
def test_a_rank_killed_while_works_are_queued_is_lost_to_every_other_rank(
    job: StartJob, transport: str, call: str
) -> None:
    ranks = job(SIZE, transport=transport)
    ranks.call("comm.barrier()")
    code = (
        "works = [comm.all_reduce(np.ones(3), async_op=True) for _ in range(5)]\n"
        f"say('moving'); {call}"
    )
    for rank in ranks.others(1):
        rank.begin(code)
    for rank in ranks.others(1):
        rank.expect("moving")
    killed = ranks.ranks[1].kill()
    expect_loss(ranks.outcomes(ranks.others(1)), 1, killed, AFTER_A_KILL)
    expect_closed(ranks, 1)


def test_every_work_that_a_lost_rank_has_ended_says_so(job: StartJob, transport: str) -> None:
    ranks = job(2, transport=transport)
    ranks.call("comm.barrier()")
    first, second = ranks.ranks
    first.begin("works = [comm.all_reduce(np.ones(3), async_op=True) for _ in range(4)]")
    assert first.outcome().error is None
    second.kill()
    for index in (3, 0, 2, 1):
        first.begin(f"works[{index}].wait()")
        outcome = first.outcome()
        assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome
    first.begin("comm.barrier()")
    closed = first.outcome()
    assert closed.error == "Closed"
    assert closed.cause is not None
    assert (closed.cause["error"], closed.cause["lost"]) == ("PeerLost", 1)


@pytest.mark.parametrize("victim", [0, 1, SIZE - 1])
def test_a_rank_killed_while_the_others_wait_for_it_is_lost_to_every_other_rank(
    job: StartJob, transport: str, victim: int
) -> None:
    ranks = job(SIZE, transport=transport)
    ranks.call("comm.barrier()")
    for rank in ranks.others(victim):
        rank.begin(WAIT_FOR_ALL)
    for rank in ranks.others(victim):
        rank.expect("moving")
    killed = ranks.ranks[victim].kill()
    expect_loss(ranks.outcomes(ranks.others(victim)), victim, killed, AFTER_A_KILL)


@pytest.mark.parametrize("victim", [0, 1, SIZE - 1])
def test_a_rank_frozen_in_a_large_all_reduce_is_lost_within_the_heartbeat_timeout(
    job: StartJob, transport: str, victim: int
) -> None:
    ranks = job(SIZE, transport=transport, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    ranks.begin(REDUCE_FOREVER)
    ranks.expect("moving")
    frozen = ranks.ranks[victim].freeze()
    expect_loss(ranks.outcomes(ranks.others(victim)), victim, frozen, AFTER_A_FREEZE)
    expect_closed(ranks, victim)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_thaws_learns_that_the_others_have_given_it_up(
    job: StartJob, transport: str, victim: int
) -> None:
    ranks = job(SIZE, transport=transport, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    ranks.begin(REDUCE_FOREVER)
    ranks.expect("moving")
    ranks.ranks[victim].freeze()
    ranks.outcomes(ranks.others(victim))
    os.kill(ranks.ranks[victim].pid, signal.SIGCONT)
    outcome = ranks.ranks[victim].outcome()
    assert outcome.error == "PeerLost", outcome


def test_a_slow_rank_whose_heart_beats_is_waited_for(job: StartJob, transport: str) -> None:
    ranks = job(2, transport=transport, heartbeat_timeout=1.0)
    ranks.ranks[0].begin("comm.barrier()")
    # Python code that keeps the GIL for long.
    ranks.ranks[1].begin(
        "sorted(np.random.default_rng(1).random(3_000_000).tolist()); comm.barrier()"
    )
    assert [outcome.error for outcome in ranks.outcomes()] == [None, None]


def test_a_job_that_is_stopped_as_a_whole_goes_on_afterwards(job: StartJob, transport: str) -> None:
    ranks = job(3, transport=transport, heartbeat_timeout=1.0)
    ranks.begin(REDUCE_FOREVER)
    ranks.expect("moving")
    for rank in ranks.ranks:
        os.kill(rank.pid, signal.SIGSTOP)
    assert not ranks.says_anything_within(2.0)
    for rank in ranks.ranks:
        os.kill(rank.pid, signal.SIGCONT)
    assert not ranks.says_anything_within(1.0)


def test_two_ranks_killed_at_once_are_one_failure_for_the_others(
    job: StartJob, transport: str
) -> None:
    ranks = job(SIZE, transport=transport)
    ranks.begin(REDUCE_FOREVER)
    ranks.expect("moving")
    killed = ranks.ranks[0].kill()
    ranks.ranks[2].kill()
    for outcome in ranks.outcomes(ranks.others(0, 2)):
        assert outcome.error == "PeerLost", outcome
        assert outcome.lost in (0, 2), outcome
        assert outcome.at - killed < AFTER_A_KILL
    # The next coordinator has no connection to rank 2 that could end.
    for rank in ranks.others(0, 2):
        rank.begin("comm = comm.shrink(); result = int(comm.all_reduce(np.array([1]))[0])")
    for outcome in ranks.outcomes(ranks.others(0, 2)):
        assert (outcome.error, outcome.result) == (None, SIZE - 2), outcome
        assert outcome.at - killed < AFTER_A_KILL


def test_a_rank_killed_while_it_has_not_been_talked_to_is_lost_at_the_next_call(
    job: StartJob, transport: str
) -> None:
    ranks = job(3, transport=transport)
    killed = ranks.ranks[1].kill()
    for rank in ranks.others(1):
        rank.begin("comm.all_reduce(np.ones(5))")
    for outcome in ranks.outcomes(ranks.others(1)):
        assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome
        assert "rank 1 (" in outcome.text, outcome
        assert outcome.at - killed < AFTER_A_KILL


def test_a_sender_or_receiver_whose_partner_is_killed_is_told(
    job: StartJob, transport: str
) -> None:
    ranks = job(3, transport=transport)
    ranks.ranks[0].begin("say('waiting'); comm.recv(np.zeros(3), 2)")
    ranks.ranks[1].begin("x = np.zeros(100_000_000, np.int8); say('waiting'); comm.send(x, 2)")
    for rank in ranks.others(2):
        rank.expect("waiting")
    killed = ranks.ranks[2].kill()
    receiver, sender = ranks.outcomes(ranks.others(2))
    for outcome, operation in ((receiver, "recv"), (sender, "send")):
        assert (outcome.error, outcome.lost) == ("PeerLost", 2), outcome
        assert outcome.text.startswith((operation, f"before {operation}")), outcome
        assert outcome.at - killed < AFTER_A_KILL
