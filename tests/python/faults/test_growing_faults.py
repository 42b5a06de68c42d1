"""Growing beside newcomers that die, freeze or are strangers, and ranks that are lost meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from bare_newcomer import BareNewcomer, Invitation, invite_at_the_door
from rank_job import Job, StartJob
from thread_ranks import TRANSPORTS, free_ports

pytestmark = [pytest.mark.timeout(90), pytest.mark.parametrize("transport", TRANSPORTS)]

SECRET = "the job's secret"
GROW = "while comm.world_size < {size}: comm = comm.grow()\n"
SUM = "result = [comm.rank, int(comm.all_reduce(np.ones(300_000))[-1])]"


@pytest.fixture
def members(job: StartJob, transport: str) -> Job:
    """Return two ranks that take a newcomer for frozen after a second."""
    return job(2, transport=transport, secret=SECRET, heartbeat_timeout=1.0, timeout=20.0)


def results(ranks: Job) -> list[Any]:
    """Return what came of the code on every rank, which must not have failed."""
    outcomes = ranks.outcomes()
    assert not any(outcome.error for outcome in outcomes), outcomes
    return [outcome.result for outcome in outcomes]


def send_for(ranks: Job, point: str) -> None:
    """Start a newcomer that does what is right."""
    newcomer = ranks.spawn(2)
    newcomer.begin(f"comm = gr.join({point!r}, secret={SECRET!r}, timeout=30)\n" + SUM)


def goes_away(newcomer: BareNewcomer) -> None:
    newcomer.invitation()


def freezes(newcomer: BareNewcomer) -> None:
    newcomer.invitation()
    assert not newcomer.is_invited_again()
    assert newcomer.socket.recv(1) == b""


def comes_and_goes(newcomer: BareNewcomer) -> None:
    newcomer.come_and_go(newcomer.invitation())


@pytest.mark.parametrize("end", [goes_away, freezes, comes_and_goes])
def test_a_newcomer_that_fails_when_it_is_invited_is_left_out_and_named(
    members: Job, end: Callable[[BareNewcomer], None]
) -> None:
    point = members.meeting_point()
    newcomer = BareNewcomer(point, SECRET)
    address = "{}:{}".format(*newcomer.socket.getsockname())
    for rank in members.ranks:
        rank.begin(GROW.format(size=3) + SUM)
    end(newcomer)
    newcomer.close()
    send_for(members, point)
    assert results(members) == [[0, 3], [1, 3], [2, 3]]
    assert f"goes on without the newcomer from {address}" in members.ranks[0].log


def test_a_newcomer_that_can_wait_is_invited_again_when_another_one_fails(members: Job) -> None:
    point = members.meeting_point()
    bad, good = BareNewcomer(point, SECRET), BareNewcomer(point, SECRET)
    for rank in members.ranks:
        rank.begin(GROW.format(size=3) + SUM)
    first = bad.invitation()
    if first.world_size == 4:  # Else it was at the door before the other one.
        assert good.invitation().world_size == 4
    bad.close()
    if first.world_size == 4:
        assert good.is_invited_again()
    again = good.invitation()
    assert (again.rank, again.world_size) == (2, 3)
    good.close()
    send_for(members, point)
    assert results(members) == [[0, 3], [1, 3], [2, 3]]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_while_newcomers_are_met_is_lost_and_the_others_go_on(
    members: Job, victim: int
) -> None:
    newcomer = BareNewcomer(members.meeting_point(), SECRET)
    for rank in members.ranks:
        rank.begin("while True: comm = comm.grow()")
    newcomer.invitation()
    members.ranks[victim].kill()
    survivor = members.ranks[1 - victim]
    outcome = survivor.outcome()
    assert (outcome.error, outcome.lost) == ("PeerLost", victim), outcome
    newcomer.close()
    send_for(members, survivor.call("comm = comm.shrink(); result = comm.meeting_point"))
    survivor.begin(GROW.format(size=2) + SUM)
    assert [end.result for end in members.outcomes([survivor, members.ranks[2]])] == [
        [0, 2], [1, 2],
    ]  # fmt: skip


def test_ctrl_c_ends_a_join_and_the_job_does_not_notice(members: Job) -> None:
    newcomer = members.spawn(2)
    point = members.meeting_point()
    newcomer.begin(f"say('waits'); gr.join({point!r}, secret={SECRET!r}, timeout=60)")
    newcomer.expect("waits")
    newcomer.wait_until_it_sleeps()
    newcomer.interrupt()
    assert newcomer.outcome().error == "KeyboardInterrupt"
    for rank in members.ranks[:2]:
        rank.begin("result = comm.grow() is comm")
    assert [outcome.result for outcome in members.outcomes(members.ranks[:2])] == [True, True]


def test_ctrl_c_ends_a_grow_that_waits_and_the_others_hear_of_it(
    job: StartJob, transport: str
) -> None:
    ranks = job(2, transport=transport, secret=SECRET)
    newcomer = BareNewcomer(ranks.meeting_point(), SECRET)
    ranks.begin("say('runs')\nwhile True: comm = comm.grow()")
    ranks.expect("runs")
    newcomer.invitation()  # And does not come.
    ranks.ranks[1].wait_until_it_sleeps()
    ranks.ranks[1].interrupt()
    outcomes = ranks.outcomes()
    assert (outcomes[0].error, outcomes[0].lost) == ("PeerLost", 1), outcomes
    assert outcomes[1].error == "KeyboardInterrupt", outcomes
    newcomer.close()


def test_strangers_and_a_crowd_that_never_comes_disturb_no_newcomer(members: Job) -> None:
    point = members.meeting_point()
    host, _, port = point.rpartition(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(20)]
    crowd = [BareNewcomer(point, SECRET) for _ in range(20)]
    send_for(members, point)
    for rank in members.ranks[:2]:
        rank.begin(GROW.format(size=3) + SUM)
    assert crowd[0].invitation().world_size > 2
    assert results(members) == [[0, 3], [1, 3], [2, 3]]
    for one in strangers:
        one.close()
    for another in crowd:
        another.close()


def test_nobody_is_invited_before_the_last_rank_has_called_grow(members: Job) -> None:
    newcomer = BareNewcomer(members.meeting_point(), SECRET)
    early, late = members.ranks
    early.begin("say('runs')\nwhile True: comm = comm.grow()")
    early.expect("runs")
    early.wait_until_it_sleeps()
    # Else the heartbeat timeout would be all that a long step of the other one may take.
    assert not newcomer.is_told_anything(0.3)
    late.begin("while True: comm = comm.grow()")
    newcomer.invitation()
    late.kill()
    assert early.outcome().lost == 1
    newcomer.close()


def test_newcomers_that_fail_for_longer_than_the_timeout_are_no_error(members: Job) -> None:
    newcomer = BareNewcomer(members.meeting_point(), SECRET)
    for rank in members.ranks:
        rank.begin("result = all([comm.grow(timeout=0.5) is comm for _ in range(200)])")
    newcomer.invitation()
    assert not newcomer.is_invited_again()
    newcomer.close()
    assert results(members) == [True, True]


def test_ctrl_c_ends_a_join_that_is_sent_away_again_and_again(members: Job) -> None:
    point = members.meeting_point()
    crowd = [BareNewcomer(point, SECRET) for _ in range(256)]
    newcomer = members.spawn(2)
    newcomer.begin(f"say('waits'); gr.join({point!r}, secret={SECRET!r}, timeout=15)")
    newcomer.expect("waits")
    newcomer.wait_until_it_sleeps()
    interrupted = newcomer.interrupt()
    outcome = newcomer.outcome()
    assert outcome.error == "KeyboardInterrupt"
    assert outcome.at < interrupted + 10
    for one in crowd:
        one.close()


def test_a_newcomer_that_a_crowd_keeps_out_of_the_meeting_knocks_again(
    job: StartJob, transport: str
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        socket.create_server(("127.0.0.1", 0)) as meeting,
    ):
        address = "{}:{}".format(*door.getsockname())
        newcomer = job(0).spawn(1)
        newcomer.begin(f"gr.join({address!r}, secret={SECRET!r}, timeout=60)")
        invite_at_the_door(door, SECRET, Invitation(1, 2, meeting.getsockname()[1]))
        for _ in range(2):
            meeting.settimeout(10)
            meeting.accept()[0].close()


def test_a_rank_without_a_free_port_is_named_on_all_and_the_ranks_go_on(
    job: StartJob, transport: str
) -> None:
    with free_ports(2) as (first, last):
        options: dict[str, Any] = {"ports": f"{first}-{last}", "heartbeat_timeout": 1.0}
        ranks = job(2, transport=transport, secret=SECRET, **options)
        # One port is for the meeting, and rank 1 finds none beside its own.
        newcomer = BareNewcomer(ranks.meeting_point(), SECRET)
        ranks.begin(
            "try:\n    while True: comm.grow()\nexcept gr.InvalidArgument as error:\n"
            "    result = [str(error), int(comm.all_reduce(np.ones(1))[0])]"
        )
        newcomer.invitation()
        (told, here), total = zip(*results(ranks), strict=True)
        newcomer.close()
    assert "rank 1 (" in told
    assert "could not meet the newcomers" in told
    assert f"all 2 ports of GRADRING_PORTS={first}-{last} are taken" in here
    assert total == (2, 2)
