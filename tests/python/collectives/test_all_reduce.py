"""all_reduce gives the same bits as NumPy adding in the documented order, on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reference
from conftest import GetWorld
from thread_ranks import TRANSPORTS

Case = tuple[str, str, int]  # dtype, op, count

MILLION = 1_000_003


def counts_for(world_size: int) -> list[int]:
    return sorted({0, 1, world_size - 1, world_size, 37, 1001})


def all_cases(counts: list[int]) -> list[Case]:
    return [
        (dtype, op, count)
        for dtype in reference.DTYPES
        for op in reference.ops_of(dtype)
        for count in counts
    ]


def inputs_of(world_size: int, dtype: str, count: int) -> list[Any]:
    return [reference.sample(dtype, count, rank) for rank in range(world_size)]


def expect_documented_bits(
    get_world: GetWorld, size: int, transport: str, cases: list[Case], **options: Any
) -> None:
    """Run the cases on a world, and compare every rank's bytes with the reference."""
    world = get_world(size, transport)
    order = {"rank_order": "rank"}.get(options.get("deterministic", ""))
    order = order or {"ring": "ring", "doubling": "tree", "halving": "tree"}.get(
        options.get("algorithm", "")
    )

    def reduce_all(comm: Any) -> list[Any]:
        results = []
        for dtype, op, count in cases:
            x = reference.sample(dtype, count, comm.rank)
            assert comm.all_reduce(x, op, **options) is x
            results.append(x)
        return results

    results = world.run(reduce_all)
    for index, (dtype, op, count) in enumerate(cases):
        inputs = inputs_of(size, dtype, count)
        usual = reference.order_for("all_reduce", size, inputs[0].nbytes)
        expected = reference.reduced(inputs, op, order or usual)
        for rank in range(size):
            got = results[rank][index]
            assert got.tobytes() == expected.tobytes(), (dtype, op, count, rank, got, expected)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", range(1, 9))
def test_every_dtype_and_operator_gives_the_documented_bits(
    world: GetWorld, size: int, transport: str
) -> None:
    expect_documented_bits(world, size, transport, all_cases(counts_for(size)))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_a_long_vector_gives_the_documented_bits(
    world: GetWorld, size: int, transport: str
) -> None:
    cases = [("float32", "sum", MILLION), ("bfloat16", "avg", MILLION), ("int16", "prod", MILLION)]
    expect_documented_bits(world, size, transport, cases)


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", range(1, 9))
def test_every_dtype_and_operator_of_a_long_vector_gives_the_documented_bits(
    world: GetWorld, size: int, transport: str
) -> None:
    expect_documented_bits(world, size, transport, all_cases([100_003, MILLION]))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("algorithm", ["ring", "doubling", "halving"])
def test_a_forced_algorithm_adds_in_its_own_order(
    world: GetWorld, size: int, transport: str, algorithm: str
) -> None:
    dtypes = ("float32", "float64", "int32", "bool")
    cases = [(dtype, "sum", count) for dtype in dtypes for count in (0, 1, size - 1, 501, 200_003)]
    expect_documented_bits(world, size, transport, cases, algorithm=algorithm)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("transport", "algorithm"),
    [("tcp", "direct"), ("tcp", "gather"), ("shm", "direct"), ("shm", "gather"), ("shm", "flat")],
)
def test_an_algorithm_that_can_add_in_any_order_gives_the_bits_of_the_default(
    world: GetWorld, size: int, transport: str, algorithm: str
) -> None:
    cases = [
        (dtype, "avg", count)
        for dtype in reference.FLOATS
        for count in (0, 1, size - 1, 501, 200_003)
    ]
    expect_documented_bits(world, size, transport, cases, algorithm=algorithm)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("transport", "algorithm"),
    [("tcp", "auto"), ("shm", "auto"), ("tcp", "direct"), ("tcp", "gather"), ("shm", "flat")],
)
def test_rank_order_adds_from_rank_0_upwards_whatever_the_algorithm(
    world: GetWorld, size: int, transport: str, algorithm: str
) -> None:
    if size == 1 and algorithm == "flat":
        algorithm = "auto"
    cases = [
        (dtype, op, count)
        for dtype in reference.FLOATS
        for op in ("sum", "prod", "avg")
        for count in (1, 37, 70_001)
    ]
    expect_documented_bits(
        world, size, transport, cases, algorithm=algorithm, deterministic="rank_order"
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [1000, 400_003])
def test_twenty_repeats_give_one_result(world: GetWorld, transport: str, count: int) -> None:
    def repeat(comm: Any) -> set[bytes]:
        x = reference.sample("float32", count, comm.rank)
        return {comm.all_reduce(x.copy()).tobytes() for _ in range(20)}

    results = world(4, transport).run(repeat)
    assert len(set.union(*results)) == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("dtype", reference.FLOATS)
def test_nan_infinity_and_zeros_of_both_signs_are_kept(
    world: GetWorld, transport: str, dtype: str
) -> None:
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, -0.0], reference.numpy_dtype(dtype))
    others = np.array([1.0, 1.0, 2.0, 0.0, -0.0, -0.0], reference.numpy_dtype(dtype))

    def reduce_all(comm: Any) -> list[Any]:
        x = values if comm.rank == 1 else others
        return [comm.all_reduce(x.copy(), op) for op in ("sum", "min", "max")]

    for total, least, most in world(3, transport).run(reduce_all):
        shown = [total.astype(np.float64), least.astype(np.float64), most.astype(np.float64)]
        for result in shown:
            assert np.isnan(result[0])
        assert list(shown[0][1:3]) == [np.inf, -np.inf]
        assert list(shown[1][1:3]) == [1.0, -np.inf]
        assert list(shown[2][1:3]) == [np.inf, 2.0]
        assert list(np.signbit(shown[1][3:])) == [True, True, True]
        assert list(np.signbit(shown[2][3:])) == [False, False, True]
