"""The backend "gradring" of torch.distributed: every operation, its tensors and its handles."""

from __future__ import annotations

import gc
import threading
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gradring as gr
from gradring.collectives.joining import current
from torch_ranks import on_ranks

pytestmark = [pytest.mark.timeout(120)]

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.complex64, torch.complex128,
]  # fmt: skip
# Moved, but not added up.
ONLY_MOVED = [torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.bool]


def ramp(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Small whole numbers that differ between ranks."""
    values = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape) % 7
    return (values + dist.get_rank()).to(dtype)


def of_rank(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    values = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape) % 7
    return (values + rank).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit; float8 has no comparison of its own."""
    a, b = a.contiguous(), b.contiguous()
    return a.shape == b.shape and torch.equal(
        a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)
    )


def every_dtype() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype in DTYPES:
        total = sum(of_rank(r, torch.complex128, 4, 3) for r in range(size))
        total = total.to(dtype) if dtype.is_complex else total.real.to(dtype)  # type: ignore[union-attr]
        x = ramp(dtype, 4, 3)
        dist.all_reduce(x)
        assert same(x, total), dtype
        strided = ramp(dtype, 3, 4).t()
        dist.all_reduce(strided)
        assert strided.shape == (4, 3)
        whole = ramp(dtype, size * 2)
        part = torch.empty(2, dtype=dtype)
        dist.reduce_scatter_single(part, whole)
        expected = sum(of_rank(r, torch.complex128, size * 2) for r in range(size))
        assert isinstance(expected, torch.Tensor)
        expected = expected if dtype.is_complex else expected.real
        assert same(part, expected.to(dtype)[2 * rank : 2 * rank + 2]), dtype
    for dtype in DTYPES + ONLY_MOVED:
        x = ramp(dtype, 5)
        dist.broadcast(x, size - 1)
        assert same(x, of_rank(size - 1, dtype, 5)), dtype
        parts = [torch.empty(5, dtype=dtype) for _ in range(size)]
        dist.all_gather(parts, ramp(dtype, 5))
        assert all(same(parts[r], of_rank(r, dtype, 5)) for r in range(size)), dtype
        out = torch.empty(size * 3, 2, dtype=dtype)
        dist.all_gather_single(out, ramp(dtype, 3, 2))
        assert same(out, torch.cat([of_rank(r, dtype, 3, 2) for r in range(size)])), dtype
        dist.all_to_all_single(got := torch.empty(size, 2, dtype=dtype), ramp(dtype, size, 2))
        assert same(got, torch.stack([of_rank(r, dtype, size, 2)[rank] for r in range(size)]))


def test_every_dtype_keeps_its_bits_and_adds_up_as_torch_does() -> None:
    on_ranks(3, every_dtype)


def reductions() -> list[Any]:
    from torch.distributed import ReduceOp

    results: list[Any] = []
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG):
        x = ramp(torch.float32, 6) + 1
        dist.all_reduce(x, op)
        results.append(x)
        y = ramp(torch.float32, 6) + 1
        dist.reduce(y, 1, op)
        if dist.get_rank() == 1:
            assert torch.equal(x, y)
        else:
            assert torch.equal(y, ramp(torch.float32, 6) + 1)
    for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        x = ramp(torch.int32, 6)
        dist.all_reduce(x, op)
        results.append(x)
    x = ramp(torch.float32, 6)
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    results.append(x)
    with pytest.raises(ValueError, match="MAX"):
        dist.all_reduce(torch.zeros(2, dtype=torch.complex64), ReduceOp.MAX)
    with pytest.raises(gr.InvalidArgument, match="cannot be reduced"):
        dist.all_reduce(torch.zeros(2, dtype=torch.float8_e4m3fn))
    return results


def test_every_operator_combines_as_numpy_does() -> None:
    inputs = np.stack([np.arange(6) % 7 + rank for rank in range(3)]).astype(np.float32)
    whole = inputs.astype(np.int32)
    expected = [
        (inputs + 1).sum(0), (inputs + 1).prod(0), (inputs + 1).min(0), (inputs + 1).max(0),
        (inputs + 1).sum(0) / 3, np.bitwise_and.reduce(whole), np.bitwise_or.reduce(whole),
        np.bitwise_xor.reduce(whole), (inputs * 0.5).sum(0),
    ]  # fmt: skip
    for results in on_ranks(3, reductions):
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


def uneven() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    parts = [torch.empty(r + 1, 2) for r in range(size)]
    dist.all_gather(parts, torch.full((rank + 1, 2), float(rank)))
    assert all((parts[r] == r).all() for r in range(size))

    out = torch.empty(rank)
    dist.reduce_scatter(out, [torch.full((r,), r + 1.0) for r in range(size)])
    assert torch.equal(out, torch.full((rank,), (rank + 1.0) * size))

    sent = [torch.full((r, 3), 10.0 * rank + r) for r in range(size)]
    got = [torch.empty(rank, 3) for _ in range(size)]
    dist.all_to_all(got, sent)
    assert all((got[r] == 10 * r + rank).all() for r in range(size))

    rows = torch.cat(sent)
    back = torch.empty(rank * size, 3)
    dist.all_to_all_single(back, rows, [rank] * size, list(range(size)))
    assert torch.equal(back, torch.cat(got))
    with pytest.raises(gr.InvalidArgument, match="split sizes"):
        dist.all_to_all_single(back, rows, [5] * size, [5] * size)


def test_parts_may_differ_in_size_and_be_empty() -> None:
    on_ranks(3, uneven)


def rooted() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for root in range(size):
        parts = [torch.empty(2, 2) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((2, 2), float(rank)).t(), parts, root)
        if parts is not None:
            assert [float(part[0, 0]) for part in parts] == list(range(size))
        out = torch.empty(4)[::2]
        whole = [torch.full((2,), 5.0 * r) for r in range(size)] if rank == root else None
        dist.scatter(out, whole, root)
        assert torch.equal(out, torch.full((2,), 5.0 * rank))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": r, "text": "x" * r} for r in range(size)]
    values = [rank, "same"] if rank == 0 else [None, None]
    dist.broadcast_object_list(values)
    assert values == [0, "same"]
    gathered: Any = [None] * size if rank == 2 else None
    dist.gather_object(rank * rank, gathered, 2)
    assert rank != 2 or gathered == [0, 1, 4]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, ["a", "b", "c"] if rank == 1 else None, 1)
    assert mine == ["abc"[rank]]


def test_roots_gather_and_scatter_tensors_and_objects() -> None:
    on_ranks(3, rooted)


def coalesced() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((n,), float(rank)) for n in (0, 1, 5)]
    dist.all_reduce_coalesced(tensors)
    assert all((t == sum(range(size))).all() for t in tensors)
    mixed = [torch.ones(2), torch.ones(3, dtype=torch.int64), torch.ones(1)]
    dist.group.WORLD.allreduce_coalesced(mixed).wait()
    assert all((t == size).all() for t in mixed)
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        outs = [torch.empty(size * n) for n in (1, 3)]
        for out, n in zip(outs, (1, 3), strict=True):
            dist.all_gather_single(out, torch.full((n,), float(rank)))
    manager.wait()
    assert torch.equal(outs[1], torch.arange(size).repeat_interleave(3).float())
    lists = [[torch.empty(1), torch.empty(2)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((1,), float(rank)), torch.full((2,), -1.0)])
    assert [float(part[0]) for part, _ in lists] == list(range(size))


def test_coalesced_calls_do_what_the_single_ones_do() -> None:
    on_ranks(3, coalesced)


def sparse() -> list[Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    results: list[Any] = []
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        indices = torch.tensor([[rank, rank + 1, rank], [0, 1, 0]])  # The first one twice.
        values = torch.tensor([[1, 2], [3, 4], [5, 6]]).to(dtype)
        x = torch.sparse_coo_tensor(indices, values, (size + 1, 2, 2))
        work = dist.all_reduce(x, async_op=True)
        dist.all_reduce(torch.ones(1))  # Another operation may come in between.
        work.wait()
        results.append(x)
    empty = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0), (4,))
    dist.all_reduce(empty)
    assert empty.coalesce().indices().numel() == 0
    with pytest.raises(gr.Mismatch, match="shape"):
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (rank + 1,)))
    dist.all_reduce(torch.ones(1))
    return results


def test_a_sparse_all_reduce_adds_up_the_union_of_indices() -> None:
    dense = np.zeros((4, 2, 2))
    for rank in range(3):
        dense[rank, 0] += [6, 8]
        dense[rank + 1, 1] += [3, 4]
    for results in on_ranks(3, sparse):
        for result in results:
            np.testing.assert_array_equal(result, dense)


def asynchronous() -> None:
    size = dist.get_world_size()
    tensors = [torch.full((1000,), float(i)) for i in range(50)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    last = torch.ones(1)
    dist.all_reduce(last)  # A blocking call comes after all that was started before.
    assert all(work.is_completed() for work in works[:-1])
    for i, work in enumerate(works):
        assert work.wait(timedelta(seconds=20))
        assert work.is_success()
        assert (tensors[i] == i * size).all()

    x = torch.ones(4)
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda f: f.value()[0] * 2)
    assert torch.equal(doubled.wait(), torch.full((4,), 2.0 * size))

    # Nobody keeps the handle: the tensors live until the operation is done.
    parts = [torch.empty(2000) for _ in range(size)]
    for _ in range(20):
        dist.all_gather(parts, torch.full((2000,), 3.0), async_op=True)
        dist.all_reduce(torch.ones(100_000), async_op=True)
        gc.collect()
    dist.barrier()
    assert (parts[-1] == 3).all()


def test_asynchronous_operations_run_in_order_and_complete_their_futures() -> None:
    on_ranks(3, asynchronous)


def in_inference_mode() -> None:
    rank = dist.get_rank()
    with torch.inference_mode():
        staged = [torch.zeros(3) for _ in range(2)]  # No slices of one buffer: copied in the end.
        gathered = dist.all_gather(staged, torch.full((3,), float(rank)), async_op=True)
        started = [torch.zeros(3) for _ in range(2)]
        later = dist.all_gather(started, torch.ones(3), async_op=True)
        sparse = torch.sparse_coo_tensor([[rank, 2]], [1.0, 1.0], (4,))
        summed = dist.all_reduce(sparse, async_op=True)
    gathered.get_future().wait()
    later.wait()
    summed.wait()
    assert sparse.to_dense().tolist() == [1, 1, 2, 0]
    x = torch.ones(3)
    dist.all_reduce(x, async_op=True).get_future().wait()  # The group's threads go on.
    assert (x == 2).all()
    assert all((part == other).all() for other, part in enumerate(staged))
    assert all((part == 1).all() for part in started)


def test_calls_made_in_inference_mode_complete_outside_of_it() -> None:
    on_ranks(2, in_inference_mode)


def messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    out, back = torch.full((3, 2), float(rank)), torch.empty(2, 3)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, out, after), dist.P2POp(dist.irecv, back.t(), before)]
    ):
        work.wait()
    assert (back == before).all()

    # By tag, in the other order.
    sends = [dist.isend(torch.full((1,), float(tag)), after, tag=tag) for tag in (1, 2)]
    for tag in (2, 1):
        x = torch.empty(1)
        assert dist.recv(x, before, tag=tag) == before
        assert float(x) == tag
    for work in sends:
        work.wait()

    # From whoever sends.
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            x = torch.empty(1, dtype=torch.int64)
            sources.add(source := dist.recv(x))
            assert int(x) == source
        assert sources == set(range(1, size))
        future = dist.irecv(y := torch.empty(1), 1, tag=3).get_future()
        assert float(future.wait()[0]) == float(y) == 9
    else:
        dist.send(torch.tensor([rank]), 0)
        if rank == 1:
            dist.isend(torch.full((1,), 9.0), 0, tag=3).wait()


def test_messages_go_by_rank_and_tag_or_come_from_anyone() -> None:
    on_ranks(3, messages)


def groups() -> None:
    rank = dist.get_rank()
    pair = dist.new_group([2, 0])
    if rank != 1:
        x = torch.full((2,), float(rank))
        dist.all_reduce(x, group=pair)
        assert (x == 2).all()
        y = torch.full((1,), float(rank))
        dist.broadcast(y, src=2, group=pair)
        assert float(y) == 2
    for _ in range(3):  # A name that torch uses again is not the old group.
        again = dist.new_group([0, 1, 2])
        x = torch.ones(1)
        dist.all_reduce(x, group=again)
        assert float(x) == 3
        dist.destroy_process_group(again)
    with pytest.raises(gr.Closed):
        again.allreduce([torch.ones(1)])
    local = dist.new_group([rank], use_local_synchronization=True)
    dist.all_reduce(x := torch.ones(1), group=local)
    assert float(x) == 1

    # Threads of one rank, each with a group of its own.
    threads, failures = [], []
    for group in [dist.new_group([0, 1, 2]) for _ in range(3)]:

        def reduce(group: Any = group) -> None:
            for _ in range(50):
                dist.all_reduce(y := torch.ones(10), group=group)
                if float(y[0]) != 3:
                    failures.append(float(y[0]))

        threads.append(threading.Thread(target=reduce))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_groups_are_independent_and_may_be_made_again() -> None:
    on_ranks(3, groups)


def alone() -> None:
    x = torch.arange(3.0)
    dist.all_reduce(x)
    parts = [torch.empty(3)]
    dist.all_gather(parts, x)
    dist.barrier()
    assert torch.equal(parts[0], torch.arange(3.0))


def test_a_world_of_one_needs_no_peers() -> None:
    on_ranks(1, alone)


def ours_beside_torchs() -> None:
    with gr.init(rank=0, world_size=1) as comm:
        assert current() is comm, "the group's own communicator is to be used by nobody else"


def test_a_groups_communicator_is_not_what_calls_without_one_take() -> None:
    on_ranks(1, ours_beside_torchs)
