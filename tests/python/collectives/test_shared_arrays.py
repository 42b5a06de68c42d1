"""Communicator.empty: arrays that the ranks of a host reduce where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from thread_ranks import TRANSPORTS


def filled(array: Any, seed: int) -> Any:
    array[...] = np.random.default_rng(seed).standard_normal(array.shape)
    return array


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_array_from_empty_gives_the_bits_of_any_other(
    world: GetWorld, size: int, transport: str
) -> None:
    def reduce(comm: Any) -> None:
        shared = comm.empty((300, 401), "float32")
        assert shared.flags.c_contiguous
        assert shared.flags.writeable
        for op in ("sum", "avg", "max"):
            ordinary = filled(np.empty((300, 401), np.float32), comm.rank)
            shared[...] = ordinary
            for x in (ordinary, shared):
                comm.all_reduce(x, op)
            assert np.array_equal(shared.view(np.uint32), ordinary.view(np.uint32))
        part = filled(shared[7:290], comm.rank)
        assert np.array_equal(comm.all_reduce(part.copy()), comm.all_reduce(part))

    world(size, transport).run(reduce)


def test_shapes_and_dtypes_are_numpys(world: GetWorld) -> None:
    def make(comm: Any) -> None:
        assert comm.empty(3).dtype == np.float32
        assert comm.empty((2, 3), np.int64).shape == (2, 3)
        assert comm.empty((0, 3), "float64").shape == (0, 3)
        assert comm.empty((), "float64").shape == ()

    world(2, "shm").run(make)


def test_ranks_that_pass_different_parts_still_get_the_sum(world: GetWorld) -> None:
    def reduce(comm: Any) -> float:
        shared = comm.empty(100_000, "float64")
        # One rank from the beginning, one from further on, one from memory of its own.
        x = (shared[:50_000], shared[50_000:], np.empty(50_000))[comm.rank]
        x[...] = comm.rank + 1
        comm.all_reduce(x)
        return float(x.min()) if x.min() == x.max() else -1

    assert world(3, "shm").run(reduce) == [6, 6, 6]


def test_an_array_outlives_its_communicator(world: GetWorld) -> None:
    def make(comm: Any) -> bool:
        child = comm.split(0)
        array = child.empty(100_000)
        array[...] = 1
        child.all_reduce(array)
        child.close()
        return bool((array == 2).all())

    assert world(2, "shm").run(make) == [True, True]


@pytest.mark.parametrize("shape", [(1 << 46,), (1 << 47,), (1 << 70,), (-1,), (2, -3)], ids=str)
def test_a_size_that_no_host_has_is_refused_and_nothing_is_lost(
    world: GetWorld, shape: tuple[int, ...]
) -> None:
    def ask(comm: Any) -> float:
        with pytest.raises(gr.InvalidArgument, match="empty: "):
            comm.empty(shape, "uint8")
        return float(comm.all_reduce(np.ones(1))[0])

    assert world(3, "shm").run(ask) == [3.0] * 3


def test_memory_that_a_rank_cannot_have_is_refused_on_all_and_nothing_is_lost(
    world: GetWorld,
) -> None:
    def ask(comm: Any) -> float:
        for asking, who in (((0, 1, 2), "rank 0"), ((2,), "rank 2")):
            size = 1 << 45 if comm.rank in asking else 16
            with pytest.raises(gr.DeviceError, match=f"empty: {who} .* cannot have so much shared"):
                comm.empty(size, "uint8")
        array = comm.empty(4)
        array[...] = 1
        return float(comm.all_reduce(array)[0])

    assert world(3, "shm").run(ask) == [3.0] * 3


def test_ranks_that_ask_for_different_sizes_are_told(fresh_world: Any) -> None:
    world = fresh_world(2, "shm")
    errors = world.errors(lambda comm: comm.empty(3 + comm.rank))
    assert [type(error) for error in errors] == [gr.Mismatch, gr.Mismatch]
    for error in errors:
        assert "12 bytes" in str(error) or "for 12" in str(error)
        assert "16 bytes" in str(error) or "for 16" in str(error)
    closed = world.errors(lambda comm: comm.barrier())  # As after every mismatch.
    assert [type(error) for error in closed] == [gr.Closed, gr.Closed]
