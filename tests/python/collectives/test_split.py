"""split makes communicators of their own; shrink makes one of those who are left."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from rank_job import StartJob
from thread_ranks import TRANSPORTS, ThreadWorld

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.parametrize("transport", TRANSPORTS),
]

FreshWorld = Callable[..., ThreadWorld]


def test_ranks_of_one_color_form_a_group_ordered_by_key(world: GetWorld, transport: str) -> None:
    def split(comm: Any) -> Any:
        with comm.split(comm.rank % 2, key=-comm.rank) as sub:
            gathered = sub.all_gather(np.array([comm.rank])).ravel().tolist()
            return sub.rank, sub.world_size, gathered

    assert world(5, transport).run(split) == [
        (2, 3, [4, 2, 0]), (1, 2, [3, 1]), (1, 3, [4, 2, 0]), (0, 2, [3, 1]), (0, 3, [4, 2, 0]),
    ]  # fmt: skip


def test_a_rank_without_a_color_is_in_no_group(world: GetWorld, transport: str) -> None:
    def split(comm: Any) -> Any:
        sub = comm.split(None if comm.rank == 1 else 7)
        if sub is None:
            return None
        total = int(sub.all_reduce(np.array([comm.rank]))[0])
        sub.close()
        return total

    assert world(4, transport).run(split) == [5, None, 5, 5]


def test_a_group_lives_on_when_its_parent_is_closed(
    fresh_world: FreshWorld, transport: str
) -> None:
    def split(comm: Any) -> Any:
        sub = comm.split(0)
        comm.close()
        totals = [int(sub.all_reduce(np.full(count, 1))[-1]) for count in (3, 300_000)]
        subsub = sub.split(sub.rank // 2)
        sub.close()
        totals.append(int(subsub.all_reduce(np.array([1]))[0]))
        subsub.close()
        return totals

    assert fresh_world(4, transport).run(split) == [[4, 4, 2]] * 4


def test_groups_work_at_the_same_time_as_their_parent(world: GetWorld, transport: str) -> None:
    def split(comm: Any) -> Any:
        subs = [comm.split(comm.rank // 2), comm.split(comm.rank % 2)]
        works = [
            one.all_reduce(np.full(50_000, comm.rank), async_op=True)
            for _ in range(5)
            for one in (comm, *subs)
        ]
        totals = [int(work.wait()[0]) for work in works]
        for sub in subs:
            sub.close()
        return totals

    expected = [[6, 1, 2], [6, 1, 4], [6, 5, 2], [6, 5, 4]]
    assert world(4, transport).run(split) == [totals * 5 for totals in expected]


def test_messages_in_a_group_go_by_the_groups_ranks(world: GetWorld, transport: str) -> None:
    def split(comm: Any) -> Any:
        with comm.split(0, key=-comm.rank) as sub:
            work = sub.send(np.array([comm.rank]), (sub.rank + 1) % 3, async_op=True)
            x = np.zeros(1, np.int64)
            sub.recv(x, (sub.rank - 1) % 3)
            work.wait()
            return int(x[0])

    assert world(3, transport).run(split) == [1, 2, 0]


def test_many_groups_can_be_made_and_closed(world: GetWorld, transport: str) -> None:
    def split(comm: Any) -> int:
        total = 0
        for turn in range(100):
            with comm.split((comm.rank + turn) % 2) as sub:
                total += int(sub.all_reduce(np.array([1]))[0])
        return total

    assert world(4, transport).run(split) == [200] * 4


SHRINK = """
comm = comm.shrink()
x = comm.all_gather(np.array([comm.rank, comm.world_size, {rank}]))
big = comm.all_reduce(np.ones(500_000, int))
result = [x.tolist(), int(big.min()), int(big.max())]
"""


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_the_survivors_of_a_loss_go_on_in_a_smaller_communicator(
    job: StartJob, transport: str, victim: int
) -> None:
    ranks = job(4, transport=transport)
    ranks.begin("x = np.ones(1_000_000)\nwhile True: comm.all_reduce(x, 'avg')")
    ranks.ranks[victim].kill()
    survivors = ranks.others(victim)
    for outcome in ranks.outcomes(survivors):
        assert (outcome.error, outcome.lost) == ("PeerLost", victim), outcome
    for rank in survivors:
        rank.begin(SHRINK.format(rank=rank.rank))
    expected = [[index, 3, rank.rank] for index, rank in enumerate(survivors)]
    for outcome in ranks.outcomes(survivors):
        assert outcome.error is None, outcome
        assert outcome.result == [expected, 3, 3]


def test_calls_without_a_communicator_take_the_smaller_one(job: StartJob, transport: str) -> None:
    ranks = job(3, transport=transport)
    ranks.call("from gradring.collectives.joining import current")
    ranks.call("group = comm.split(0).shrink(); assert current() is comm, 'not a group of it'")
    ranks.ranks[2].kill()
    survivors = ranks.ranks[:2]
    for rank in survivors:
        rank.begin("comm = comm.shrink(); result = current() is comm, current().world_size")
    assert [outcome.result for outcome in ranks.outcomes(survivors)] == [[True, 2]] * 2


def test_a_closed_communicator_keeps_no_memory_of_the_ranks(job: StartJob, transport: str) -> None:
    ranks = job(2, transport=transport)
    ranks.call(
        "def mapped(): return sum('memfd:gradring' in line for line in open('/proc/self/maps'))"
    )
    ranks.call("comm.barrier(); before = mapped(); groups = [comm.split(0) for _ in range(3)]")
    ranks.call("for group in groups: group.all_reduce(np.ones(1))")
    while_open = 0 if transport == "tcp" else 3
    assert ranks.call("result = mapped() - before") == [while_open] * 2
    ranks.call("for group in groups: group.close()")
    assert ranks.call("result = mapped() - before") == [0, 0]
    assert ranks.call("result = int(comm.all_reduce(np.array([1]))[0])") == [2, 2]


def test_a_group_can_shrink_to_one(job: StartJob, transport: str) -> None:
    ranks = job(4, transport=transport)
    left = list(ranks.ranks)
    for victim in (0, 3, 1):
        ranks.ranks[victim].kill()
        left.remove(ranks.ranks[victim])
        for rank in left:
            rank.begin("comm.barrier()")
        for outcome in ranks.outcomes(left):
            assert (outcome.error, outcome.lost) == ("PeerLost", victim), outcome
        for rank in left:
            rank.begin("comm = comm.shrink(); result = int(comm.all_reduce(np.array([1]))[0])")
        for outcome in ranks.outcomes(left):
            assert (outcome.error, outcome.result) == (None, len(left)), outcome


def test_a_group_of_a_split_shrinks_by_itself(job: StartJob, transport: str) -> None:
    ranks = job(4, transport=transport)
    ranks.call("sub = comm.split(comm.rank // 2)")
    ranks.ranks[3].kill()
    for rank in ranks.ranks[:2]:
        rank.begin("result = int(sub.all_reduce(np.array([1]))[0])")
    assert [outcome.result for outcome in ranks.outcomes(ranks.ranks[:2])] == [2, 2]
    ranks.ranks[2].begin("sub.barrier()")
    outcome = ranks.ranks[2].outcome()
    assert (outcome.error, outcome.lost) == ("PeerLost", 3), outcome
    assert ranks.ranks[2].call("alone = sub.shrink(); result = alone.world_size") == 1


def test_a_survivor_that_does_not_call_shrink_is_waited_for_until_the_timeout(
    fresh_world: FreshWorld, transport: str
) -> None:
    def shrink(comm: Any) -> None:
        if comm.rank == 2:
            return
        with pytest.raises(gr.TimedOut, match="shrink"):
            comm.shrink(timeout=0.5)

    fresh_world(3, transport).run(shrink)


def test_shrink_ends_the_operations_of_ranks_that_still_wait(
    fresh_world: FreshWorld, transport: str
) -> None:
    # Nobody was lost: shrink is then a way for all to start over.
    def shrink(comm: Any) -> int:
        if comm.rank == 0:
            with pytest.raises(gr.Closed, match="shrunk"):
                comm.barrier()
        with comm.shrink() as smaller:
            with pytest.raises(gr.Closed, match="use the one that it returned"):
                comm.shrink()  # Two of one name would take each other's messages.
            return int(smaller.all_reduce(np.array([1]))[0])

    assert fresh_world(3, transport).run(shrink) == [3] * 3


def test_what_a_rank_has_ended_before_it_shrinks_ends_on_the_others_too(
    fresh_world: FreshWorld, transport: str
) -> None:
    asked, ended = threading.Barrier(3), threading.Barrier(3)

    def shrink(comm: Any) -> list[float]:
        x = np.full(100, float(comm.rank))
        comm.broadcast(x, 2)
        if comm.rank == 0:
            comm.broadcast(x, 0)
            with pytest.raises(gr.TimedOut, match="shrink"):
                comm.shrink(timeout=0.1)
            asked.wait(30)
        else:
            asked.wait(30)
            comm.broadcast(x, 0)
        ended.wait(30)
        with comm.shrink() as smaller:
            return [float(x[-1]), float(smaller.all_reduce(np.ones(1))[0])]

    assert fresh_world(3, transport).run(shrink) == [[2.0, 3.0]] * 3


def test_a_shrink_names_who_did_not_call_it_and_may_be_called_again(
    fresh_world: FreshWorld, transport: str
) -> None:
    told = threading.Barrier(3)

    def shrink(comm: Any) -> int:
        if comm.rank != 2:
            with pytest.raises(gr.TimedOut, match=r"1\.5 s; rank 2 had not; call it again"):
                comm.shrink(timeout=1.5)
            with pytest.raises(gr.Closed, match=r"call shrink\(\) again"):
                comm.barrier()
        told.wait(30)
        with comm.shrink() as smaller:
            return int(smaller.all_reduce(np.array([1]))[0])

    assert fresh_world(3, transport).run(shrink) == [3] * 3


def test_a_subgroup_is_made_by_its_members_alone(world: GetWorld, transport: str) -> None:
    def make(comm: Any) -> Any:
        if comm.rank == 1:
            return None
        with comm.subgroup([2, 0], "pair") as sub:
            gathered = sub.all_gather(np.array([comm.rank])).ravel().tolist()
            with pytest.raises(gr.InvalidArgument, match="not one of the ranks listed"):
                comm.subgroup([1], "other")
            return sub.rank, gathered

    assert world(3, transport).run(make) == [(1, [2, 0]), None, (0, [2, 0])]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_subgroup_of_a_name_that_was_used_before_is_refused_and_no_rank_is_accused(
    fresh_world: FreshWorld, transport: str, ranks: int
) -> None:
    # One rank may still have the group of that name open when another asks for it again.
    def make(comm: Any) -> None:
        ours = list(range(ranks))
        comm.subgroup(ours, "first").close()
        with pytest.raises(gr.InvalidArgument, match="of this name was made before"):
            comm.subgroup(ours, "first")
        with comm.subgroup(ours, "second") as sub:
            with pytest.raises(gr.InvalidArgument, match="of this name was made before"):
                comm.subgroup(ours, "second")
            assert sub.all_reduce(np.array([1]))[0] == ranks

    fresh_world(ranks, transport).run(make)


# What each rank gives, None where it calls nothing.
DIFFERENT_RANKS: dict[str, list[list[int] | None]] = {
    "order": [[0, 1], [1, 0], None],
    "one more": [[0, 1], [0, 1, 2], None],
    "one more, that waits": [[0, 1], [0, 1], [0, 1, 2]],
    "others": [[0, 2], [1, 2], [2, 0]],
}


@pytest.mark.parametrize("ranks", DIFFERENT_RANKS.values(), ids=DIFFERENT_RANKS)
@pytest.mark.parametrize("count", [3, 30_000])
def test_a_subgroup_of_different_ranks_is_a_mismatch_and_no_data_of_others(
    fresh_world: FreshWorld, transport: str, ranks: list[list[int] | None], count: int
) -> None:
    agreed = all(given in (None, ranks[0]) for given in ranks[:2])

    def call(comm: Any) -> None:
        given = ranks[comm.rank]
        if given is None:
            return
        sub = comm.subgroup(given, "a")
        end = time.monotonic() + 20  # The third may come late on a busy machine.
        while True:  # Who has heard only of the first two is told in a later call.
            gathered = sub.all_gather(np.full(count, comm.rank))
            assert agreed
            assert gathered[:, 0].tolist() == given
            assert time.monotonic() < end

    for rank, error in enumerate(fresh_world(3, transport).errors(call)):
        if ranks[rank] is None:
            assert error is None
            continue
        assert type(error) is gr.Mismatch, error
        assert "subgroup with one name but different ranks" in str(error)
        assert any(f"called subgroup({one}, 'a')" in str(error) for one in ranks)


Call = Callable[[Any, Any], Any]


@pytest.mark.parametrize(
    "call",
    [
        lambda new, x: new().all_reduce(x, async_op=True).wait(),
        lambda new, x: new().all_reduce(x, algorithm="ring"),
        lambda new, x: new().all_reduce(x[::2]),
        lambda new, x: new().reduce_scatter(x, algorithm="direct"),
        lambda new, x: new().all_gather(x, timeout=9.0),
        lambda new, x: new().broadcast(x, 0, async_op=True).wait(),
        lambda new, _: new().barrier(async_op=True).wait(),
    ],
    ids=["async", "ring", "strided", "scatter", "gather", "broadcast", "barrier"],
)
def test_any_call_may_be_the_only_use_of_a_communicator(
    world: GetWorld, transport: str, call: Call
) -> None:
    def use(comm: Any) -> bool:
        x = np.arange(8.0)
        kept = comm.split(0)
        # What makes it keeps none, so that the call alone holds it.
        at_once = call(lambda: comm.split(0), x.copy())
        return bool(np.array_equal(call(lambda: kept, x), at_once))

    assert world(2, transport).run(use) == [True, True]


def test_a_method_and_a_copy_outlive_the_name_of_their_communicator(
    world: GetWorld, transport: str
) -> None:
    def use(comm: Any) -> list[float]:
        method = comm.split(0).all_reduce
        copied = copy.copy(comm.split(0))
        calls = (
            lambda: method(np.ones(1)),
            lambda: method(np.ones(1), algorithm="ring"),
            lambda: copied.all_reduce(np.ones(1)),
            lambda: copied.all_reduce(np.ones(1), async_op=True).wait(),
        )
        return [float(call()[0]) for call in calls]

    assert world(2, transport).run(use) == [[2.0] * 4] * 2
