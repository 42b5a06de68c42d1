"""A rank that calls something else is told so, and so is every other rank; nothing is reduced."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from thread_ranks import TRANSPORTS, ThreadWorld

SIZE = 3
ODD_RANK = 1
SHORT, LONG = 1000, 900_000

FreshWorld = Callable[..., ThreadWorld]
Call = Callable[..., Any]


def all_reduce(**options: Any) -> Call:
    return lambda comm, x: comm.all_reduce(x, **options)


# Name -> what most ranks call, what rank 1 calls. Every x is float32 of SHORT or LONG elements.
CASES: dict[str, tuple[Call, Call]] = {
    "operation": (all_reduce(), lambda comm, x: comm.all_gather(x)),
    "operation without data": (all_reduce(), lambda comm, x: comm.barrier()),
    "count": (all_reduce(), lambda comm, x: comm.all_reduce(x[:-1])),
    "count of nothing": (all_reduce(), lambda comm, x: comm.all_reduce(x[:0])),
    "dtype": (all_reduce(), lambda comm, x: comm.all_reduce(x.view(np.int32))),
    "size of the dtype": (all_reduce(), lambda comm, x: comm.all_reduce(x.view(np.int16)[::2])),
    "operator": (all_reduce(), all_reduce(op="max")),
    "algorithm": (all_reduce(algorithm="direct"), all_reduce(algorithm="gather")),
    "algorithm, ring": (all_reduce(algorithm="ring"), all_reduce(algorithm="direct")),
    "order of additions": (all_reduce(), all_reduce(deterministic="rank_order")),
    "root of a reduce": (lambda comm, x: comm.reduce(x, 0), lambda comm, x: comm.reduce(x, 1)),
    "all or one": (all_reduce(), lambda comm, x: comm.reduce(x, 0)),
    "counts": (
        lambda comm, x: comm.reduce_scatter(x, counts=[x.size, 0, 0]),
        lambda comm, x: comm.reduce_scatter(x, counts=[0, x.size, 0]),
    ),
    "part": (lambda comm, x: comm.all_gather(x), lambda comm, x: comm.all_gather(x[:-1])),
    "root of a broadcast": (
        lambda comm, x: comm.broadcast(x, 0),
        lambda comm, x: comm.broadcast(x, 1),
    ),
    "root of a broadcast, nobody sends": (
        lambda comm, x: comm.broadcast(x, 1),
        lambda comm, x: comm.broadcast(x, 2),
    ),
    "root of a gather": (lambda comm, x: comm.gather(x, 0), lambda comm, x: comm.gather(x, 1)),
    "root of a scatter": (
        lambda comm, x: comm.scatter(x[: 3 * (x.size // 3)].reshape(3, -1), 0),
        lambda comm, x: comm.scatter(x[: 3 * (x.size // 3)].reshape(3, -1), 1),
    ),
    "counts of an all_to_all": (
        lambda comm, x: comm.all_to_all(x[:9]),
        lambda comm, x: comm.all_to_all(x[:12]),
    ),
}


# Calls in which some ranks only send: such a rank may be done before it can know of the mismatch.
# It learns of it in a later call, at the latest when it gets what another rank sent in this one.
ONE_SIDED = ("root", "counts", "all or one")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("name", CASES)
def test_different_calls_are_a_mismatch_on_every_rank_and_reduce_nothing(
    fresh_world: FreshWorld, name: str, count: int, transport: str
) -> None:
    usual, odd = CASES[name]
    world = fresh_world(SIZE, transport)
    arrays = [np.full(count, rank + 1, np.float32) for rank in range(SIZE)]

    def call(comm: Any) -> tuple[float, str]:
        x = arrays[comm.rank]
        began = time.monotonic()
        try:
            (odd if comm.rank == ODD_RANK else usual)(comm, x)
            usual(comm, x)
            comm.barrier()
        except (gr.Mismatch, gr.Closed) as error:
            return time.monotonic() - began, f"{type(error).__name__}: {error}"
        return 0.0, "nothing raised"

    outcomes = world.run(call)
    for seconds, text in outcomes:
        assert seconds < 10.0
        assert text.startswith("Mismatch: ") or name.startswith(ONE_SIDED), text
        assert " #1" in text, text
    assert any(text.startswith("Mismatch: ") for _, text in outcomes)
    with pytest.raises(gr.Closed) as closed:
        world.comms[0].barrier()
    assert isinstance(closed.value.__cause__, gr.Mismatch)
    if "broadcast" not in name and "scatter" not in name:
        for rank, x in enumerate(arrays):
            assert (x == rank + 1).all()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_in_another_order_are_a_mismatch(fresh_world: FreshWorld, transport: str) -> None:
    def call(comm: Any) -> None:
        x = np.ones(100)
        first, second = comm.all_reduce, comm.all_gather
        if comm.rank == 2:
            first, second = second, first
        first(x)
        second(x)

    errors = fresh_world(SIZE, transport).errors(call)
    for error in errors:
        assert type(error) is gr.Mismatch
        assert "all_reduce #1" in str(error)
        assert "all_gather #1" in str(error)


# What a rank that only gives calls, and the other one, which takes from it.
AHEAD: dict[str, tuple[Call, Call]] = {
    "broadcast": (
        lambda comm, x: comm.broadcast(x, comm.rank),
        lambda comm, x: comm.all_to_all(x),
    ),
    "reduce": (
        lambda comm, x: comm.reduce(x, 1 - comm.rank),
        lambda comm, x: comm.scatter(x.reshape(2, -1), 1 - comm.rank),
    ),
    "compressed": (
        lambda comm, x: comm.broadcast(x, comm.rank),
        lambda comm, x: comm.all_reduce_compressed(x, "bf16"),
    ),
    "nothing": (
        lambda comm, x: comm.all_reduce(x[:0]),
        lambda comm, x: comm.broadcast(x, 1 - comm.rank),
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("giver", [0, 1])
@pytest.mark.parametrize("calls", AHEAD.values(), ids=AHEAD)
def test_a_rank_that_is_calls_ahead_of_another_one_is_a_mismatch(
    fresh_world: FreshWorld, calls: tuple[Call, Call], giver: int, transport: str
) -> None:
    def call(comm: Any) -> None:
        calls[comm.rank != giver](comm, np.ones(8, np.float32))
        comm.barrier()

    began = time.monotonic()
    errors = fresh_world(2, transport).errors(call)
    assert [type(error) for error in errors] == [gr.Mismatch] * 2, errors
    assert time.monotonic() - began < 10.0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("count", [1, 256, 4096, 16384, 300_000])
def test_a_root_that_is_as_far_ahead_as_it_can_be_is_a_mismatch(
    fresh_world: FreshWorld, count: int
) -> None:
    def call(comm: Any) -> None:
        x = np.ones(count, np.float32)
        for _ in range(40):
            if comm.rank == 0:
                comm.broadcast(x, 0)
            else:
                comm.all_to_all(np.ones(SIZE))  # Not through the memory in which a root is ahead.

    began = time.monotonic()
    errors = fresh_world(SIZE, "shm").errors(call)
    assert [type(error) for error in errors] == [gr.Mismatch] * SIZE, errors
    assert all("#1 " in str(error) for error in errors)
    assert time.monotonic() - began < 10.0


def test_a_mismatch_names_what_the_caller_wrote(fresh_world: FreshWorld) -> None:
    calls = [all_reduce(algorithm="ring"), all_reduce(deterministic="rank_order")]
    errors = fresh_world(2, "shm").errors(lambda comm: calls[comm.rank](comm, np.ones(7)))
    for error in errors:
        assert "(float64 x 7, sum, algorithm ring)" in str(error)
        assert "(float64 x 7, sum, rank_order)" in str(error)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_one_call_behind_is_a_mismatch(fresh_world: FreshWorld, transport: str) -> None:
    def call(comm: Any) -> None:
        for step in range(5):
            if (comm.rank, step) != (2, 3):
                comm.all_reduce(np.ones(10 + step))

    errors = fresh_world(SIZE, transport).errors(call)
    assert [type(error) for error in errors] == [gr.Mismatch] * SIZE
    assert "#4" in str(errors[0])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_message_of_another_size_or_dtype_is_a_mismatch(
    fresh_world: FreshWorld, transport: str
) -> None:
    for sent, wanted in [(np.zeros(3), np.zeros(4)), (np.zeros(4), np.zeros(4, np.int64))]:

        def call(comm: Any, sent: Any = sent, wanted: Any = wanted) -> None:
            if comm.rank == 0:
                comm.send(sent, 1)
                comm.barrier()
            else:
                comm.recv(wanted, 0)

        errors = fresh_world(2, transport).errors(call)
        assert [type(error) for error in errors] == [gr.Mismatch, gr.Mismatch]
        assert "float64" in str(errors[1])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_mismatch_in_one_communicator_leaves_another_alone(
    fresh_world: FreshWorld, transport: str
) -> None:
    def call(comm: Any) -> float:
        other = comm.split(0)
        other.barrier()  # Nobody is still in the split when the mismatch comes.
        with pytest.raises(gr.Mismatch):
            comm.all_reduce(np.ones(3 + comm.rank))
        total = float(other.all_reduce(np.ones(1))[0])
        other.close()
        return total

    assert fresh_world(SIZE, transport).run(call) == [3.0] * SIZE


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("split", lambda comm: comm.split(0)),
        ("empty", lambda comm: comm.empty(3)),
        (
            "all_reduce_compressed",
            lambda comm: comm.all_reduce_compressed(np.ones(8, "f4"), "bf16"),
        ),
    ],
)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_step_of_a_call_is_told_under_the_name_that_was_called(
    fresh_world: FreshWorld, name: str, call: Call, transport: str
) -> None:
    def different(comm: Any) -> None:
        if comm.rank == ODD_RANK:
            comm.all_gather(np.zeros(SIZE - 1, np.int64))  # What a step of the others' is.
        else:
            call(comm)

    errors = fresh_world(SIZE - 1, transport).errors(different)
    texts = [str(error) for error in errors if isinstance(error, gr.Mismatch)]
    assert texts, errors
    assert all(f"{name}: " in text for text in texts), texts
