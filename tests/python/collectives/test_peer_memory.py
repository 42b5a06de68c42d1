"""all_gathers and broadcasts that read the other ranks' memory: right bits, or an error."""

from __future__ import annotations

import pytest

from rank_job import StartJob

AFTER_A_KILL = 8.0  # Seconds, on a busy machine.
HEARTBEAT_TIMEOUT = 2.0

# A vector is the caller's again as soon as a call returns: it is another one in every turn, and
# what every rank had in a turn is known. 64 KiB to 4 MiB in all.
ROUNDS = """
def rounds(turns, says=False):
    me, others = comm.rank, comm.world_size
    for turn in range(turns):
        part = np.empty([16 << 10, 50_001, 200_003, 1 << 20][turn % 4] // 2, np.float32)
        part[:] = 10 * turn + me
        whole = comm.all_gather(part)
        part[:] = -1
        for rank in range(others):
            assert (whole.reshape(others, -1)[rank] == 10 * turn + rank).all(), (turn, rank)
        root = turn % others
        sent = np.full(100_003, 10 * turn + me, np.float32)
        comm.broadcast(sent, root=root)
        got = sent.copy()
        sent[:] = -1
        assert (got == 10 * turn + root).all(), turn
        if says and turn == 8:
            say("moving")
"""

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_vector_may_change_as_soon_as_the_call_returns(job: StartJob, world_size: int) -> None:
    ranks = job(world_size, transport="shm")
    ranks.call(ROUNDS)
    ranks.call("rounds(120)")


@pytest.mark.parametrize("way", ["kill", "freeze"])
def test_a_rank_that_stops_is_lost_and_nothing_wrong_was_taken_for_its_part(
    job: StartJob, way: str
) -> None:
    ranks = job(2, transport="shm", heartbeat_timeout=HEARTBEAT_TIMEOUT)
    ranks.call(ROUNDS)
    ranks.begin("rounds(10**9, says=True)")
    ranks.expect("moving")
    stopped = ranks.ranks[1].kill() if way == "kill" else ranks.ranks[1].freeze()
    outcome = ranks.ranks[0].outcome()
    assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome
    assert outcome.at - stopped < HEARTBEAT_TIMEOUT + AFTER_A_KILL


def test_a_vector_of_a_call_that_failed_is_not_read_afterwards(job: StartJob) -> None:
    ranks = job(2, transport="shm")
    ranks.call(ROUNDS)
    ranks.call("rounds(4)")
    early, late = ranks.ranks
    early.begin("x = np.ones(100_003, np.float32); comm.all_gather(x, timeout=0.2)")
    outcome = early.outcome()
    assert (outcome.error, "rank 1" in outcome.text) == ("TimedOut", True), outcome
    early.call("x[:] = -1")
    late.begin("comm.all_gather(np.ones(100_003, np.float32), timeout=5.0)")
    assert late.outcome().error in ("PeerLost", "TimedOut", "Closed")
