"""grow takes in who waits in join(): newcomers, and processes that are started again."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from gradring.collectives import joining, newcomers
from rank_job import Job, StartJob
from thread_ranks import TRANSPORTS, on_workers

pytestmark = pytest.mark.timeout(90)

SECRET = "the job's secret"
GROW = "while comm.world_size < {size}: comm = comm.grow()\n"
TRAIN = "state = np.full(300_000, {value}, np.float64)\n"
SHARE = "comm.broadcast(state); result = [comm.rank, comm.world_size, float(state.sum())]\n"


def join(point: str, **options: Any) -> str:
    """Return what a process runs that comes to the job there."""
    return f"comm = gr.join({point!r}, **{ {'secret': SECRET, 'timeout': 30} | options!r})\n"


def alone(**options: Any) -> gr.Communicator:
    """Return a world of one that is open to newcomers."""
    where = {"rank": 0, "world_size": 1, "rendezvous": "127.0.0.1:0", "secret": SECRET}
    return gr.init(**{**where, "timeout": 30.0, **options})


def grown(comm: gr.Communicator, size: int) -> gr.Communicator:
    """Take in newcomers until there are so many ranks."""
    while comm.world_size < size:
        comm = comm.grow()
    return comm


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_newcomers_become_the_last_ranks_and_get_the_state(job: StartJob, transport: str) -> None:
    ranks = job(2, transport=transport, secret=SECRET)
    point = ranks.meeting_point()
    for rank in ranks.ranks:
        rank.begin(TRAIN.format(value=7) + GROW.format(size=4) + SHARE)
    for rank in (2, 3):
        ranks.spawn(rank).begin(join(point) + TRAIN.format(value=0) + GROW.format(size=4) + SHARE)
    outcomes = ranks.outcomes()
    assert not any(outcome.error for outcome in outcomes), outcomes
    results = [outcome.result for outcome in outcomes]
    assert sorted(results[2:]) == [[2, 4, 2_100_000.0], [3, 4, 2_100_000.0]]
    assert results[:2] == [[0, 4, 2_100_000.0], [1, 4, 2_100_000.0]]
    assert ranks.call("result = comm.meeting_point") == [point] * 4


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_was_killed_is_started_again_and_comes_back(
    job: StartJob, transport: str, victim: int
) -> None:
    ranks = job(3, transport=transport, secret=SECRET)
    ranks.begin("state = np.ones(9)\nwhile True: state += comm.all_reduce(np.ones(9), 'avg')")
    ranks.ranks[victim].kill()
    survivors = ranks.others(victim)
    assert {outcome.lost for outcome in ranks.outcomes(survivors)} == {victim}
    for rank in survivors:
        rank.begin("comm = comm.shrink(); result = comm.meeting_point")
    point = {outcome.result for outcome in ranks.outcomes(survivors)}.pop()
    newcomer = ranks.spawn(3)
    newcomer.begin(join(point) + "state = np.zeros(9)\n" + SHARE)
    for rank in survivors:
        rank.begin(GROW.format(size=3) + SHARE)
    *olds, new = ranks.outcomes([*survivors, newcomer])
    assert new.result[:2] == [2, 3]
    assert new.result[2] > 0
    assert [old.result for old in olds] == [[rank, 3, new.result[2]] for rank in range(2)]


# As in docs/training.md, until those that were lost are back.
LOOP = """
shared, lost, left = None, False, None
while left != 0:
    try:
        if comm is not shared:
            state = comm.broadcast(np.array([lost and comm.world_size == 3, *weights], np.float64))
            weights, shared, left = state[1:], comm, 5 if state[0] else None
        weights += comm.all_reduce(np.array([comm.rank, 1.0]), 'avg')
        if left is None: comm = comm.grow()
        else: left -= 1
    except gr.PeerLost:
        lost, comm = True, comm.shrink()
result = [comm.rank, comm.world_size, *weights]
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_training_loop_goes_on_after_a_death_and_with_the_process_that_comes_for_it(
    job: StartJob, transport: str
) -> None:
    ranks = job(3, transport=transport, secret=SECRET)
    point = ranks.meeting_point()
    ranks.begin("weights = np.ones(2)\n" + LOOP)
    ranks.ranks[2].kill()
    ranks.spawn(2).begin(join(point) + "weights = np.zeros(2)\n" + LOOP)
    ends = [outcome.result for outcome in ranks.outcomes([*ranks.ranks[:2], ranks.ranks[3]])]
    assert [end[:2] for end in ends] == [[0, 3], [1, 3], [2, 3]]
    assert ends[0][2:] == ends[1][2:] == ends[2][2:]
    assert ends[0][3] >= 6


# As in docs/training.md.
NUMPY = """
params, state, step = comm.broadcast_value((params, state, step))
optimizer = gr.SyncOptimizer(params, gr.optim.Adam(lr=0.1), comm)
if state is not None:
    optimizer.load_state_dict(state)
for step in range(step, {end}):
    optimizer.step([np.arange(4, dtype=np.float32) - step])
state, step = optimizer.state_dict(), {end}
result = params[0].tobytes().hex()
"""


def test_a_newcomer_has_the_state_of_a_numpy_optimizer_that_the_others_have(job: StartJob) -> None:
    ranks = job(2, transport="shm", secret=SECRET)
    point = ranks.meeting_point()
    fresh = "params, state, step = [np.ones(4, np.float32)], None, 0\n"
    ranks.begin(fresh + NUMPY.format(end=3) + GROW.format(size=3) + NUMPY.format(end=6))
    ranks.spawn(2).begin(join(point) + fresh + NUMPY.format(end=6))
    outcomes = ranks.outcomes()
    assert not any(outcome.error for outcome in outcomes), outcomes
    with alone() as comm:
        params = [np.ones(4, np.float32)]
        optimizer = gr.SyncOptimizer(params, gr.optim.Adam(lr=0.1), comm)
        for step in range(6):
            optimizer.step([np.arange(4, dtype=np.float32) - step])
    assert {outcome.result for outcome in outcomes} == {params[0].tobytes().hex()}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_job_of_one_grows_again_and_again_and_is_always_found_where_it_was(
    transport: str,
) -> None:
    comm = alone(transport=transport)
    point = comm.meeting_point

    def member(index: int) -> list[Any]:
        mine = comm if index == 0 else gr.join(point, secret=SECRET)
        for size in range(max(2, mine.world_size + (index > 0)), 5):
            mine = grown(mine, size)
        seen = [mine.rank, mine.meeting_point, int(mine.all_reduce(np.array([1]))[0])]
        mine.close()
        return seen

    assert sorted(on_workers(4, member)) == [[rank, point, 4] for rank in range(4)]


def test_the_place_of_a_job_is_free_again_when_it_has_ended() -> None:
    point = ""
    for _ in range(2):
        comm = alone(rendezvous=point) if point else alone()
        point = comm.meeting_point

        def member(index: int, comm: gr.Communicator = comm, point: str = point) -> int:
            with gr.join(point, secret=SECRET) if index else grown(comm, 2) as mine:
                return mine.world_size

        assert on_workers(2, member) == [2, 2]
        with pytest.raises(gr.TimedOut, match="rank 0 does not answer at"):
            gr.join(point, secret=SECRET, timeout=0.1)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_where_nobody_waits_the_communicator_stays_as_it_is(
    world: GetWorld, transport: str
) -> None:
    def grow(comm: Any) -> bool:
        return all(comm.grow() is comm for _ in range(100)) and not comm.is_closed

    assert world(3, transport).run(grow) == [True] * 3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_groups_of_before_live_on_beside_the_larger_communicator(
    job: StartJob, transport: str
) -> None:
    ranks = job(2, transport=transport, secret=SECRET)
    point = ranks.meeting_point()
    ranks.call("old, group, other = comm, comm.split(0), comm.split(0); group.barrier()")
    newcomer = ranks.spawn(2)
    newcomer.begin(join(point))
    olds = ranks.ranks[:2]
    for rank in olds:
        # A link that is first needed now is made by the doors of before.
        rank.begin(
            GROW.format(size=3) + "total = lambda comm: int(comm.all_reduce(np.ones(9000))[0])\n"
            "result = [total(group), total(other)]\n"
            "try: old.barrier()\n"
            "except gr.Closed as error: result.append(str(error))\n"
        )
    text = "this communicator has grown: use the one that grow() returned"
    assert [outcome.result for outcome in ranks.outcomes(olds)] == [[2, 2, text]] * 2
    assert newcomer.outcome().error is None
    assert ranks.call("result = int(comm.all_reduce(np.ones(9000))[0])") == [3] * 3


def test_calls_without_a_communicator_take_the_larger_one(job: StartJob) -> None:
    ranks = job(1, secret=SECRET)
    point = ranks.meeting_point()
    ranks.spawn(1).begin(join(point))
    ranks.ranks[0].begin(GROW.format(size=2))
    assert not any(outcome.error for outcome in ranks.outcomes())
    ranks.call("from gradring.collectives.joining import current")
    assert ranks.call("result = current() is comm") == [True, True]


def test_a_newcomer_has_the_jobs_settings_whatever_it_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comm = alone(transport="tcp", timeout=23.0)
    point = comm.meeting_point
    monkeypatch.setenv("GRADRING_TRANSPORT", "shm")
    monkeypatch.setenv("GRADRING_SECRET", SECRET)
    monkeypatch.setenv("GRADRING_RENDEZVOUS", point)

    def member(index: int) -> float:
        with gr.join(timeout=20) if index else grown(comm, 2) as mine:
            mine.barrier()
            return mine.timeout

    assert on_workers(2, member) == [23.0, 23.0]


def test_init_in_a_newcomer_joins_the_job_and_does_it_once(job: StartJob) -> None:
    ranks = job(1, secret=SECRET)
    point = ranks.meeting_point()
    ranks.ranks[0].begin(GROW.format(size=2))
    newcomer = ranks.spawn(1)
    role = {"NEWCOMER": "1", "SECRET": SECRET, "RENDEZVOUS": point}
    newcomer.begin(
        f"import os; os.environ |= { {f'GRADRING_{name}': text for name, text in role.items()}!r}\n"
        "from gradring.collectives.joining import current\n"
        "comm = current()\n"
        "assert (gr.init(), comm.rank) == (comm, 1)\n"
        "assert gr.init(rank=0, world_size=1).world_size == 1\n"  # Arguments make another role.
        "gr.init()"
    )
    outcome = newcomer.outcome()
    assert outcome.text.startswith(f"this process is a newcomer at {point} already: use"), outcome
    assert ranks.ranks[0].outcome().error is None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_group_of_the_ranks_is_refused_and_nothing_is_sent(
    world: GetWorld, transport: str
) -> None:
    def grow(comm: Any) -> None:
        with comm.split(0) as group:
            assert group.meeting_point == ""
            with pytest.raises(gr.InvalidArgument, match=r"what init\(\) returned"):
                group.grow()
            group.barrier()

    world(2, transport).run(grow)


@pytest.mark.parametrize("given", [{}, {"rendezvous": "127.0.0.1:0"}, {"secret": SECRET}])
def test_a_world_of_one_that_nobody_can_find_stays_alone(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADRING_SECRET", raising=False)
    with gr.init(rank=0, world_size=1, **given) as comm:  # type: ignore[arg-type]
        assert comm.meeting_point == ""
        assert comm.grow() is comm


def test_a_rank_that_calls_something_else_is_a_mismatch_that_names_both(job: StartJob) -> None:
    ranks = job(2)
    ranks.ranks[0].begin("comm.grow(); comm.barrier()")
    ranks.ranks[1].begin("comm.all_reduce(np.ones(2))")
    for outcome in ranks.outcomes():
        assert outcome.error == "Mismatch", outcome
        assert "grow: broadcast" in outcome.text
        assert "all_reduce" in outcome.text


def test_a_newcomer_without_an_address_or_a_secret_is_told_what_to_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRADRING_SECRET", raising=False)
    monkeypatch.delenv("GRADRING_RENDEZVOUS", raising=False)
    with pytest.raises(gr.InvalidArgument, match=r"Communicator\.meeting_point"):
        gr.join(secret=SECRET)
    with pytest.raises(gr.InvalidArgument, match="GRADRING_SECRET is not set"):
        gr.join("127.0.0.1:1")
    with pytest.raises(gr.InvalidArgument, match="rendezvous='nowhere' is not host:port"):
        gr.join("nowhere", secret=SECRET)


def test_a_newcomer_that_nobody_takes_in_says_what_it_waited_for() -> None:
    with alone() as comm:
        with pytest.raises(gr.AuthError):
            gr.join(comm.meeting_point, secret="another", timeout=5)
        with pytest.raises(gr.TimedOut) as raised:
            gr.join(comm.meeting_point, secret=SECRET, timeout=0.3)
        assert f"0.3 s at the door of the job at {comm.meeting_point}" in str(raised.value)
        assert "its ranks have not called grow()" in str(raised.value)
        assert comm.grow() is comm


def door_of_rank_1(ranks: Job) -> str:
    text: str = ranks.ranks[0].call("result = comm.describe(1)")
    return text.partition("(")[2].rstrip(")")


def test_a_newcomer_at_another_ranks_door_is_sent_where_it_is_let_in(job: StartJob) -> None:
    ranks = job(2, secret=SECRET)
    ranks.spawn(2).begin(join(door_of_rank_1(ranks)) + "result = comm.rank")
    for rank in ranks.ranks[:2]:
        rank.begin(GROW.format(size=3) + "result = comm.rank")
    assert [outcome.result for outcome in ranks.outcomes()] == [0, 1, 2]


def test_doors_that_send_to_each_other_are_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def refuse(place: joining.Place, _: object) -> None:
        asked.append(place.rendezvous)
        other = {"one:1": "other:1", "other:1": "one:1"}[place.rendezvous]
        raise gr.InvalidArgument(f"join: rank 1 leads this job now; newcomers come to {other}")

    monkeypatch.setattr(joining, "join", refuse)
    monkeypatch.setattr(newcomers, "_PAUSE_SECONDS", 0.01)
    with pytest.raises(gr.InvalidArgument, match="newcomers come to"):
        gr.join("one:1", secret=SECRET, timeout=0.1)
    assert asked[:7] == ["one:1", "other:1", "one:1", "other:1", "one:1", "one:1", "other:1"]


def test_doors_of_a_job_that_has_grown_name_the_place_where_it_stays(job: StartJob) -> None:
    ranks = job(2, secret=SECRET)
    point = ranks.meeting_point()
    ranks.spawn(2).begin(join(point))
    for rank in ranks.ranks[:2]:
        rank.begin(GROW.format(size=3))
    assert not any(outcome.error for outcome in ranks.outcomes())
    with pytest.raises(gr.TimedOut, match=f"at the door of the job at {point}"):
        gr.join(door_of_rank_1(ranks), secret=SECRET, timeout=0.3)


def test_init_where_the_job_met_is_refused_after_it_has_grown_and_shrunk(job: StartJob) -> None:
    ranks = job(2, secret=SECRET)
    point = ranks.meeting_point()
    ranks.spawn(2).begin(join(point))
    again = f"world_size=2, rendezvous={point!r}, secret={SECRET!r}, timeout=5)"
    for rank in ranks.ranks[:2]:
        rank.begin(GROW.format(size=3) + f"gr.init(rank=comm.rank, {again}")
    olds = ranks.outcomes(ranks.ranks[:2])
    assert ranks.ranks[2].outcome().error is None
    ranks.ranks[2].kill()
    for rank in ranks.ranks[:2]:
        rank.begin(f"comm = comm.shrink(); gr.init(rank=comm.rank, {again}")
    for outcome in olds + ranks.outcomes(ranks.ranks[:2]):
        assert outcome.error == "InvalidArgument"
        assert "already: use the communicator" in outcome.text


def test_a_newcomer_that_comes_before_the_job_waits_for_it() -> None:
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        point = f"127.0.0.1:{kept.getsockname()[1]}"

        def member(index: int) -> int:
            with gr.join(point, secret=SECRET) if index else grown(alone(rendezvous=point), 2) as c:
                return c.world_size

        assert on_workers(2, member) == [2, 2]
