"""Input and output may be the same memory, or this rank's part of it, and nothing in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from thread_ranks import TRANSPORTS

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)

SIZE = 3
PART = 100
Call = Callable[[Any, Any], Any]

# Each with an array of (SIZE + 1) * PART floats.
WRONG: dict[str, Call] = {
    "all_reduce, ahead": lambda comm, a: comm.all_reduce(a[:PART], out=a[7 : 7 + PART]),
    "all_reduce, behind": lambda comm, a: comm.all_reduce(a[7 : 7 + PART], out=a[:PART]),
    "all_reduce, async": lambda comm, a: comm.all_reduce(
        a[7 : 7 + PART], out=a[:PART], async_op=True
    ),
    "all_gather": lambda comm, a: comm.all_gather(a[3 : 3 + PART], a[: SIZE * PART]),
    "all_gather, another's part": lambda comm, a: comm.all_gather(
        part(a, (comm.rank + 1) % SIZE), a[: SIZE * PART]
    ),
    "reduce_scatter": lambda comm, a: comm.reduce_scatter(a[: SIZE * PART], a[5 : 5 + PART]),
    "gather": lambda comm, a: comm.gather(a[1 : 1 + PART], root=comm.rank, out=rows(a)),
    "scatter": lambda comm, a: comm.scatter(rows(a), root=comm.rank, out=a[1 : 1 + PART]),
    "all_to_all": lambda comm, a: comm.all_to_all(a[: SIZE * PART], out=a[: SIZE * PART]),
}


# By operation, the parts of an array that are its input and its output.
PACKED: dict[str, tuple[str, slice, slice]] = {
    "turned round": ("all_reduce", slice(None), slice(None, None, -1)),
    "apart by one": ("all_reduce", slice(0, -2, 2), slice(2, None, 2)),
    "gathered into every second": ("all_gather", slice(7, 7 + PART), slice(None, None, 2)),
    "scattered over every second": (
        "reduce_scatter",
        slice(0, SIZE * PART),
        slice(3, 3 + 2 * PART, 2),
    ),
    "exchanged and turned round": ("all_to_all", slice(None), slice(None, None, -1)),
}


def part(a: Any, rank: int) -> Any:
    return a[rank * PART : (rank + 1) * PART]


def rows(a: Any) -> Any:
    return a[: SIZE * PART].reshape(SIZE, PART)


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_an_output_that_overlaps_the_input_is_refused_before_anything_is_sent(
    world: GetWorld, transport: str, call: Call
) -> None:
    def overlap(comm: Any) -> bool:
        a = np.arange((SIZE + 1) * PART, dtype=np.float32)
        with pytest.raises(gr.InvalidArgument, match=r"overlap|overwrite"):
            call(comm, a)
        assert (a == np.arange(a.size)).all()
        return bool(comm.all_reduce(np.ones(1))[0] == SIZE)

    assert world(SIZE, transport).run(overlap) == [True] * SIZE


@pytest.mark.parametrize(("operation", "source", "target"), PACKED.values(), ids=PACKED)
def test_arrays_of_which_one_is_packed_may_overlap(
    world: GetWorld, transport: str, operation: str, source: slice, target: slice
) -> None:
    def overlap(comm: Any) -> bool:
        a = np.arange(2 * SIZE * PART, dtype=np.float32) + comm.rank
        apart, before = a.copy(), a.copy()
        getattr(comm, operation)(a[source], out=a[target])
        getattr(comm, operation)(before[source], out=apart[target])
        return bool((a == apart).all() and (a != before).any())

    assert world(SIZE, transport).run(overlap) == [True] * SIZE


@pytest.mark.parametrize("count", [1, 1000, 300_000])
def test_this_ranks_part_may_lie_in_the_whole(world: GetWorld, transport: str, count: int) -> None:
    def in_place(comm: Any) -> bool:
        whole = np.arange(SIZE * count, dtype=np.float32) % 97
        mine = whole[comm.rank * count : (comm.rank + 1) * count]
        wanted = SIZE * mine
        comm.reduce_scatter(whole, mine)
        assert (mine == wanted).all()
        mine[:] = comm.rank
        comm.all_gather(mine, whole)
        assert (whole == np.repeat(np.arange(SIZE), count)).all()
        comm.all_reduce(whole, out=whole)
        return bool((whole == SIZE * np.repeat(np.arange(SIZE), count)).all())

    assert world(SIZE, transport).run(in_place) == [True] * SIZE


def test_arrays_of_one_call_are_apart_from_each_other(world: GetWorld, transport: str) -> None:
    def many(comm: Any) -> bool:
        a = np.ones(24)
        table = a.reshape(4, 6)
        wrong: list[list[Any]] = [
            [a, a],
            [a[:10], np.ones(3), a[9:]],
            [table[:, :3], table[:, 2:]],
            [a[::2], a[::2]],
            [a[::-1], a[:3]],
        ]
        for xs in wrong:
            for bucket_bytes in (8, 1 << 20):
                with pytest.raises(gr.InvalidArgument, match="overlap"):
                    comm.all_reduce_many(xs, bucket_bytes=bucket_bytes)
        right: list[list[Any]] = [
            [a[:10], a[10:]],
            [a[10:], a[:10], a[3:3], a[5:5]],
            [table[:, :3], table[:, 3:]],
            [a[::2], a[1::2]],
            [a[:12][::-1], a[12:]],
        ]
        for xs in right:
            a[:] = comm.rank + 1
            comm.all_reduce_many(xs)
            assert (a == SIZE * (SIZE + 1) / 2).all()
        return True

    assert world(SIZE, transport).run(many) == [True] * SIZE
