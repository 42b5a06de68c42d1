"""Every collective but all_reduce against NumPy: all dtypes, world sizes, counts and transports."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import reference
from conftest import GetWorld
from thread_ranks import TRANSPORTS

ALGORITHMS = {"tcp": ("auto", "ring", "direct"), "shm": ("auto", "ring", "direct", "flat")}

pytestmark = [
    pytest.mark.parametrize("transport", TRANSPORTS),
    pytest.mark.parametrize("size", range(1, 9)),
]


def counts_for(size: int) -> list[int]:
    return sorted({0, 1, size - 1, size, 501, 30_001})


def uneven(size: int, scale: int) -> list[int]:
    return [(rank * 7 + 3) % 5 * scale for rank in range(size)]


def same(got: Any, expected: Any) -> bool:
    return got.dtype == expected.dtype and got.tobytes() == expected.tobytes()


def test_reduce_scatter_leaves_each_rank_its_reduced_part(
    world: GetWorld, size: int, transport: str
) -> None:
    cases = [
        (dtype, op, parts)
        for dtype in reference.DTYPES
        for op in reference.ops_of(dtype)
        for parts in (None, [0] * size, uneven(size, 1), uneven(size, 333))
    ]

    def total(parts: list[int] | None) -> int:
        return 501 if parts is None else sum(parts)

    def scatter(comm: Any) -> list[Any]:
        return [
            comm.reduce_scatter(
                reference.sample(dtype, total(parts), comm.rank), op=op, counts=parts
            )
            for dtype, op, parts in cases
        ]

    results = world(size, transport).run(scatter)
    for index, (dtype, op, counts) in enumerate(cases):
        inputs = [reference.sample(dtype, total(counts), rank) for rank in range(size)]
        parts = reference.even_parts(total(counts), size) if counts is None else counts
        order = reference.order_for("reduce_scatter", size, inputs[0].nbytes)
        expected = reference.reduced(inputs, op, order, parts)
        ends = list(itertools.accumulate(parts))
        for rank in range(size):
            part = expected[ends[rank] - parts[rank] : ends[rank]]
            assert same(results[rank][index], part), (dtype, op, counts, rank)


def test_reduce_gives_the_root_alone_the_documented_bits(
    world: GetWorld, size: int, transport: str
) -> None:
    cases = [
        (dtype, op, count, (count + index) % size)
        for index, dtype in enumerate(reference.DTYPES)
        for op in reference.ops_of(dtype)
        for count in counts_for(size)
    ]

    def reduce(comm: Any) -> list[Any]:
        results = []
        for dtype, op, count, root in cases:
            x = reference.sample(dtype, count, comm.rank)
            assert comm.reduce(x, root, op) is x
            results.append(x)
        return results

    results = world(size, transport).run(reduce)
    for index, (dtype, op, count, root) in enumerate(cases):
        inputs = [reference.sample(dtype, count, rank) for rank in range(size)]
        for rank in range(size):
            is_root = rank == root
            order = reference.order_for("reduce", size, inputs[0].nbytes)
            expected = reference.reduced(inputs, op, order) if is_root else inputs[rank]
            assert same(results[rank][index], expected), (dtype, op, count, root, rank)


def test_all_gather_gives_everybody_all_parts_in_rank_order(
    world: GetWorld, size: int, transport: str
) -> None:
    cases = [
        (dtype, counts, algorithm)
        for dtype in reference.DTYPES
        for counts in ([0] * size, [1] * size, [501] * size, uneven(size, 1), uneven(size, 7000))
        for algorithm in ALGORITHMS[transport]
        if size > 1 or algorithm == "auto"
    ]

    def gather(comm: Any) -> list[Any]:
        results = []
        for dtype, counts, algorithm in cases:
            x = reference.sample(dtype, counts[comm.rank], comm.rank)
            is_even = len(set(counts)) == 1
            options = {} if is_even else {"counts": counts}
            results.append(comm.all_gather(x, algorithm=algorithm, **options))
        return results

    results = world(size, transport).run(gather)
    for index, (dtype, counts, algorithm) in enumerate(cases):
        parts = [reference.sample(dtype, counts[rank], rank) for rank in range(size)]
        for rank in range(size):
            got = results[rank][index]
            assert got.shape == ((size, counts[0]) if len(set(counts)) == 1 else (sum(counts),))
            assert same(got, np.concatenate(parts)), (dtype, counts, algorithm, rank)


def test_broadcast_gives_everybody_the_roots_array(
    world: GetWorld, size: int, transport: str
) -> None:
    cases = [
        (dtype, count, (count + index) % size, algorithm)
        for index, dtype in enumerate(reference.DTYPES)
        for count in counts_for(size)
        for algorithm in (*ALGORITHMS[transport], "doubling")
        if size > 1 or algorithm == "auto"
    ]

    def broadcast(comm: Any) -> list[Any]:
        results = []
        for dtype, count, root, algorithm in cases:
            x = reference.sample(dtype, count, comm.rank)
            x.flags.writeable = comm.rank != root
            assert comm.broadcast(x, root, algorithm=algorithm) is x
            results.append(x)
        return results

    results = world(size, transport).run(broadcast)
    for index, (dtype, count, root, algorithm) in enumerate(cases):
        expected = reference.sample(dtype, count, root)
        for rank in range(size):
            assert same(results[rank][index], expected), (dtype, count, root, algorithm, rank)


def test_gather_and_scatter_are_inverse_and_in_rank_order(
    world: GetWorld, size: int, transport: str
) -> None:
    cases = [
        (dtype, count, (count + index) % size)
        for index, dtype in enumerate(reference.DTYPES)
        for count in counts_for(size)
    ]

    def there_and_back(comm: Any) -> list[Any]:
        results = []
        for dtype, count, root in cases:
            x = reference.sample(dtype, count, comm.rank)
            rows = comm.gather(x, root)
            assert (rows is None) == (comm.rank != root)
            back = comm.scatter(rows, root, out=np.empty_like(x))
            results.append((rows, back))
        return results

    results = world(size, transport).run(there_and_back)
    for index, (dtype, count, root) in enumerate(cases):
        parts = [reference.sample(dtype, count, rank) for rank in range(size)]
        assert same(results[root][index][0], np.stack(parts)), (dtype, count, root)
        for rank in range(size):
            assert same(results[rank][index][1], parts[rank]), (dtype, count, root, rank)


def test_all_to_all_sends_part_r_to_rank_r(world: GetWorld, size: int, transport: str) -> None:
    def is_uneven(scale: int) -> bool:
        return scale % 2 == 1

    def count(scale: int, sender: int, receiver: int) -> int:
        return scale * ((3 * sender + 5 * receiver) % 4) if is_uneven(scale) else scale

    def part(dtype: str, scale: int, sender: int, receiver: int) -> Any:
        return reference.sample(dtype, count(scale, sender, receiver), sender, receiver)

    cases = [(dtype, scale) for dtype in reference.DTYPES for scale in (0, 1, 2, 501, 9_001)]

    def exchange(comm: Any) -> list[Any]:
        results = []
        ranks = range(size)
        for dtype, scale in cases:
            x = np.concatenate([part(dtype, scale, comm.rank, peer) for peer in ranks])
            options = {
                "send_counts": [count(scale, comm.rank, peer) for peer in ranks],
                "recv_counts": [count(scale, peer, comm.rank) for peer in ranks],
            }
            results.append(comm.all_to_all(x, **(options if is_uneven(scale) else {})))
        return results

    results = world(size, transport).run(exchange)
    for index, (dtype, scale) in enumerate(cases):
        for rank in range(size):
            expected = np.concatenate([part(dtype, scale, peer, rank) for peer in range(size)])
            assert same(results[rank][index], expected), (dtype, scale, rank)


def test_barrier_ends_on_no_rank_before_the_last_has_come(
    world: GetWorld, size: int, transport: str
) -> None:
    arrived: list[int] = []

    def meet(comm: Any) -> int:
        arrived.append(comm.rank)
        comm.barrier()
        return len(arrived)

    assert world(size, transport).run(meet) == [size] * size


def test_all_reduce_many_gives_what_single_calls_give_for_exact_values(
    world: GetWorld, size: int, transport: str
) -> None:
    shapes = [(3,), (0,), (2, 5), (), (70_000,), (1,), (7, 1, 3)]
    dtypes = ("float32", "int64", "bfloat16", "bool")

    def make(rank: int) -> list[Any]:
        # Small whole numbers: their sums are exact in any order.
        return [
            np.array(
                np.arange(int(np.prod(shape))).reshape(shape) % 7 + rank,
                reference.numpy_dtype(dtype),
            )
            for shape in shapes
            for dtype in dtypes
        ]

    def reduce_all(comm: Any) -> list[Any]:
        many = make(comm.rank)
        returned = comm.all_reduce_many(many, bucket_bytes=100_000)
        assert all(x is y for x, y in zip(returned, many, strict=True))
        single = [comm.all_reduce(x) for x in make(comm.rank)]
        return list(zip(many, single, strict=True))

    for results in world(size, transport).run(reduce_all):
        for fused, alone in results:
            assert fused.shape == alone.shape
            assert same(fused, alone)
