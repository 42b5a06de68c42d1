"""Of several ranks that fail, the one is named that the others have lost."""

from __future__ import annotations

import pytest

from gradring.launch.lost import blame
from gradring.launch.outcome import Failure, Outcome

LEFT = b"gradring.errors.PeerLost: barrier #3: rank 2 (10.0.0.3:41822) has left: it closed its ..."
DIED = b"PeerLost: send #1: rank 0 (127.0.0.1:4) closed its control connection: its process ended"


@pytest.fixture
def outcome() -> Outcome:
    return Outcome(4)


def failure_of(rank: int) -> Failure:
    return Failure(f"rank {rank}", 1, rank)


def test_the_lost_rank_is_read_out_of_the_last_words() -> None:
    assert blame.lost_rank([b"Traceback", LEFT, b"what this rank did last: ..."]) == 2
    assert blame.lost_rank([LEFT, DIED]) == 0
    assert (
        blame.lost_rank([b"rank 1 has left: it closed this communicator (reported by rank 0)"]) == 1
    )
    chain = b"rank 1 has left, having lost rank 0 (10.0.0.3:4): it closed its communicator"
    assert blame.lost_rank([chain]) == 1
    assert blame.lost_rank([b"worker 3 left after 4 steps; round 5 waits for it"]) == 3
    assert blame.lost_rank([b"rank 1 (10.0.0.3:41822) sent no heartbeat for 10 s"]) is None
    assert blame.lost_rank([b"rank " + b"9" * 5000 + b" has left: no number of a rank"]) is None
    assert blame.lost_rank([]) is None


def test_a_rank_that_names_nobody_is_named_at_once(outcome: Outcome) -> None:
    holder = blame.Blame()
    assert holder.settled(outcome) is None
    assert holder.waits == []
    holder.hold(failure_of(1), None)
    assert holder.settled(outcome) == failure_of(1)
    assert holder.settled(outcome) is None


def test_who_was_lost_is_waited_for_and_named(outcome: Outcome) -> None:
    holder = blame.Blame()
    holder.hold(failure_of(1), 2)
    holder.hold(failure_of(3), 2)
    assert holder.settled(outcome) is None
    assert 0 < holder.waits[0] <= blame.PATIENCE_SECONDS
    holder.hold(failure_of(2), 0)  # It has lost one itself.
    assert holder.settled(outcome) is None
    holder.hold(failure_of(0), None)
    assert holder.settled(outcome) == failure_of(0)
    assert holder.waits == []


def test_the_first_is_named_where_the_lost_one_does_not_fail(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = blame.Blame()
    holder.hold(failure_of(1), 2)
    holder.hold(failure_of(3), 1)
    outcome.end(2, 0)
    assert holder.settled(outcome) == failure_of(1)
    monkeypatch.setattr(blame, "PATIENCE_SECONDS", 0.0)
    holder.hold(failure_of(3), 0)
    assert holder.settled(outcome) == failure_of(3)


def test_the_first_is_named_where_two_name_each_other(outcome: Outcome) -> None:
    holder = blame.Blame()
    holder.hold(failure_of(1), 2)
    holder.hold(failure_of(2), 1)
    assert holder.settled(outcome) == failure_of(1)


def test_who_is_no_rank_of_the_job_is_not_waited_for(outcome: Outcome) -> None:
    """All have ended while it is: nobody would be named, and the job have succeeded."""
    holder = blame.Blame()
    holder.hold(failure_of(1), 4)
    assert holder.settled(outcome) == failure_of(1)
