"""A forked child cannot use its parent's communicator, and does not disturb it either."""

from __future__ import annotations

import os
import signal

import pytest

from rank_job import StartJob
from thread_ranks import TRANSPORTS

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.parametrize("transport", TRANSPORTS),
    pytest.mark.filterwarnings("default:.*fork.*:DeprecationWarning"),
]

# Runs `code` in a forked child and leaves in `result` what it raised; the child then ends as the
# second text says.
IN_A_CHILD = """
inside, outside = os.pipe()
child = os.fork()
if child == 0:
    try:
        {code}
        said = "nothing raised"
    except BaseException as error:
        said = type(error).__name__ + ": " + str(error)
    os.write(outside, said.encode())
    {end}
os.close(outside)
result = os.fdopen(inside).read()
os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    "call",
    [
        "comm.all_reduce(np.ones(3))",
        "comm.barrier()",
        "comm.send(np.ones(3), 1)",
        "comm.recv(np.ones(3), 1, async_op=True)",
        "comm.all_reduce(np.ones(3), async_op=True)",
        "comm.split(0)",
        "comm.shrink()",
    ],
)
def test_a_forked_child_is_told_that_the_communicator_is_its_parents(
    job: StartJob, transport: str, call: str
) -> None:
    ranks = job(2, transport=transport)
    ranks.call("comm.all_reduce(np.ones(3))")
    said = ranks.ranks[0].call(IN_A_CHILD.format(code=call, end="os._exit(0)"))
    assert said.startswith("Closed: "), said
    assert "fork" in said
    assert ranks.call("result = comm.all_reduce(np.ones(2)).tolist()") == [[2.0, 2.0]] * 2


def test_a_forked_child_does_not_wait_for_what_its_parent_has_under_way(
    job: StartJob, transport: str
) -> None:
    ranks = job(2, transport=transport)
    ranks.ranks[0].call("work = comm.all_reduce(np.ones(3), async_op=True)")
    said = ranks.ranks[0].call(IN_A_CHILD.format(code="work.wait()", end="os._exit(0)"))
    assert said.startswith("Closed: "), said
    assert "fork" in said
    ranks.ranks[1].begin("result = comm.all_reduce(np.ones(3)).tolist()")
    assert ranks.ranks[0].call("result = work.wait().tolist()") == [2.0] * 3
    assert ranks.ranks[1].outcome().result == [2.0] * 3


@pytest.mark.parametrize("call", ["work.wait()", "work.done()", "work.source"])
def test_a_forked_child_is_told_that_a_message_under_way_is_its_parents(
    job: StartJob, transport: str, call: str
) -> None:
    ranks = job(2, transport=transport)
    ranks.ranks[0].call("work = comm.recv(np.zeros(3), 1, async_op=True)")
    said = ranks.ranks[0].call(IN_A_CHILD.format(code=call, end="os._exit(0)"))
    assert said.startswith("Closed: "), said
    assert "fork" in said
    ranks.ranks[1].call("comm.send(np.ones(3), 0)")
    assert ranks.ranks[0].call("result = work.wait().tolist()") == [1.0] * 3


def test_to_a_forked_child_its_parents_communicator_is_closed(
    job: StartJob, transport: str
) -> None:
    ranks = job(2, transport=transport)
    asked = "assert comm.is_closed and 'closed' in repr(comm)"
    assert ranks.ranks[0].call(IN_A_CHILD.format(code=asked, end="os._exit(0)")) == "nothing raised"
    assert ranks.call("result = comm.is_closed") == [False] * 2


def test_a_forked_child_ends_at_once_whatever_its_parents_threads_were_at(
    job: StartJob, transport: str
) -> None:
    ranks = job(2, transport=transport)
    # The parent's progress thread may hold a work's lock when the child is made.
    ranks.ranks[0].begin("""
for turn in range(60):
    works = [comm.all_reduce(np.ones(3), async_op=True) for _ in range(3)]
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        del works
        os._exit(0)
    for work in works: work.wait()
    status = os.waitpid(child, 0)[1]
    if status: break
result = status
""")
    ranks.ranks[1].begin("for _ in range(180): comm.all_reduce(np.ones(3))", is_fatal=False)
    assert ranks.ranks[0].outcome().result == 0


@pytest.mark.parametrize(
    "end",
    [
        "os._exit(0)",
        "sys.exit(0)",  # Runs the exit handlers, ours among them.
        "del comm; __import__('gc').collect(); sys.exit(0)",
    ],
)
def test_the_end_of_a_forked_child_does_not_disturb_its_parent(
    job: StartJob, transport: str, end: str
) -> None:
    ranks = job(2, transport=transport)
    ranks.call("x = np.ones(100_000); comm.all_reduce(x)")
    code = f"child = os.fork()\nif child == 0: {end}\nresult = os.waitpid(child, 0)[1]"
    ranks.ranks[1].begin(code, is_fatal=True)
    outcome = ranks.ranks[1].outcome()
    assert outcome.result == 0, ranks.ranks[1].log
    assert not ranks.ranks[1].log
    assert ranks.call("result = comm.all_reduce(np.ones(2)).tolist()") == [[2.0, 2.0]] * 2


@pytest.mark.parametrize(
    "call",
    [
        "group.all_reduce(np.ones(3), async_op=True).wait()",
        "group.send(np.ones(3), comm.rank, async_op=True).wait()",
    ],
    ids=["collective", "message"],
)
def test_a_child_may_drop_a_group_whose_thread_sleeps_in_the_parent(
    job: StartJob, transport: str, call: str
) -> None:
    ranks = job(2, transport=transport)
    ranks.call(f"group = comm.split(0); {call}")
    dropped = IN_A_CHILD.format(code="del group; __import__('gc').collect()", end="os._exit(0)")
    assert ranks.ranks[0].call(dropped) == "nothing raised"
    assert ranks.call("result = group.all_reduce(np.ones(2)).tolist()") == [[2.0, 2.0]] * 2


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_parent_is_noticed_although_its_child_lives_on(
    job: StartJob, transport: str, victim: int
) -> None:
    ranks = job(3, transport=transport)
    ranks.call("comm.all_reduce(np.ones(100_000))")
    child = ranks.ranks[victim].call(
        "child = os.fork()\nif child == 0:\n    while True: signal.pause()\nresult = child"
    )
    for rank in ranks.others(victim):
        rank.begin("say('waiting'); comm.all_reduce(np.ones(5))")
    for rank in ranks.others(victim):
        rank.expect("waiting")
    killed = ranks.ranks[victim].kill()
    try:
        for outcome in ranks.outcomes(ranks.others(victim)):
            assert (outcome.error, outcome.lost) == ("PeerLost", victim), outcome
            assert outcome.at - killed < 8.0
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_may_join_a_job_of_its_own(job: StartJob, transport: str) -> None:
    ranks = job(2, transport=transport)
    own = "own = gr.init(rank=0, world_size=1); own.all_reduce(np.ones(2)); own.close()"
    said = ranks.ranks[0].call(IN_A_CHILD.format(code=own, end="os._exit(0)"))
    assert said == "nothing raised"
    ranks.call("comm.barrier()")
