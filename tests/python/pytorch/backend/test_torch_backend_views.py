"""The backend "gradring" of torch.distributed: tensors whose memory holds others, or fewer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives

import gradring as gr
from torch_ranks import on_ranks

pytestmark = [pytest.mark.timeout(120)]


def signs_turned() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()

    def turned(count: int) -> torch.Tensor:
        # What conj().imag gives, without its strides, which would be reason enough for a copy.
        view = torch._neg_view(torch.arange(1.0, count + 1) + rank)
        assert view.is_neg()
        assert view.is_contiguous()
        return view

    total = [-(i * size + size * (size - 1) / 2) for i in range(1, 4)]
    x = turned(3)
    dist.all_reduce(x)
    assert x.tolist() == total
    dist.broadcast(y := turned(3), size - 1)
    assert y.tolist() == [-(i + size - 1.0) for i in range(1, 4)]
    into = list(turned(2 * size).chunk(size))  # Slices of one buffer, its signs turned.
    dist.all_gather(into, turned(2))
    for other, part in enumerate(into):
        assert part.tolist() == [-(other + 1.0), -(other + 2.0)]


def test_tensors_with_their_signs_turned_are_sent_as_what_they_stand_for() -> None:
    on_ranks(3, signs_turned)


def conjugated() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()

    def view() -> torch.Tensor:
        return torch.arange(2 * size).add(1j * (rank + 1)).conj()

    # What torch hands on as it is; in all_reduce and most others it refuses such views itself.
    part = torch.zeros(2, dtype=torch.complex64)
    dist.reduce_scatter_single(part, view())
    total = size * (size + 1) / 2
    assert part.tolist() == [size * (2 * rank + i) - 1j * total for i in range(2)]
    group: Any = dist.group.WORLD
    group.broadcast([x := view()]).wait()
    assert x.tolist() == [i - 1j for i in range(2 * size)]
    assert x.is_conj()
    group.allreduce([x := view()]).wait()
    assert x.tolist() == [size * i - 1j * total for i in range(2 * size)]
    into = list(view().chunk(size))
    group.allgather([into], [view()[:2]]).wait()
    assert [part.tolist() for part in into] == [
        [-1j * (r + 1), 1 - 1j * (r + 1)] for r in range(size)
    ]


def test_conjugated_tensors_are_sent_as_what_they_stand_for() -> None:
    on_ranks(2, conjugated)


def expanded() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    base = torch.full((1, 2, 1), rank + 1.0)
    for x in (base.expand(3, 2, 2), torch.tensor(float(rank + 1)).expand(4)):
        dist.all_reduce(x)
        assert x.unique().tolist() == [size * (size + 1) / 2]
        dist.broadcast(x, 1)
    broken = torch.tensor([[rank], [float("nan")]]).expand(2, 3)
    dist.all_reduce_coalesced([broken, torch.ones(2)])
    assert broken[0].tolist() == [size * (size - 1) / 2] * 3
    assert broken[1].isnan().all()

    mixed = torch.ones(1).expand(2) if rank == 0 else torch.tensor([1.0, 2.0])
    if rank > 0:
        dist.all_reduce(mixed)
        assert mixed.tolist() == [size, 2 * size - 1]
        return
    with pytest.raises(gr.InvalidArgument, match=r"strides \(0,\).*clone") as caught:
        dist.all_reduce(mixed)
    assert isinstance(caught.value, dist.DistBackendError)
    assert mixed.tolist() == [1, 1]


def functional() -> None:
    size = dist.get_world_size()
    # A tensor that stands for one that is on its way.
    late = dist._functional_collectives.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    dist.all_reduce(late)
    assert late.tolist() == [size * size] * 3
    parts = [torch.zeros(3) for _ in range(size)]
    late = dist._functional_collectives.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    dist.all_gather(parts, late)
    assert torch.stack(parts).unique().tolist() == [size]


def test_what_functional_collectives_return_is_waited_for() -> None:
    on_ranks(2, functional)


class Stands(torch.Tensor):
    """For another tensor; has no memory."""

    @staticmethod
    def __new__(cls, of: torch.Tensor) -> Stands:
        return torch.Tensor._make_wrapper_subclass(cls, of.shape, dtype=of.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is torch.ops.aten.detach.default else NotImplemented


def without_memory() -> None:
    with pytest.raises(gr.InvalidArgument, match=r"Stands of shape .* no memory of its own"):
        dist.all_reduce(Stands(torch.ones(3)))
    dist.barrier()


def test_a_tensor_without_memory_of_its_own_is_refused() -> None:
    on_ranks(2, without_memory)
    with gr.init() as comm, pytest.raises(gr.InvalidArgument, match="Stands without memory"):
        comm.all_reduce(Stands(torch.ones(3)))


def test_an_expanded_tensor_takes_results_that_are_one_where_its_memory_is() -> None:
    on_ranks(2, expanded)


def on_their_own_input() -> None:
    rank = dist.get_rank()

    def whole() -> tuple[torch.Tensor, list[torch.Tensor]]:
        buffer = torch.arange(4.0) + 10 * rank
        return buffer, list(buffer.chunk(2))

    # The first part is rank 0's place, so that it alone may work in place; the middle is nobody's.
    for begin in range(3):
        buffer, parts = whole()
        dist.reduce_scatter(out := buffer[begin : begin + 2], parts)
        assert out.tolist() == [10 + 4 * rank, 12 + 4 * rank]
        buffer, _ = whole()
        dist.reduce_scatter_single(out := buffer[begin : begin + 2], buffer)
        assert out.tolist() == [10 + 4 * rank, 12 + 4 * rank]
        gathered = [begin, begin + 1, begin + 10, begin + 11]
        buffer, parts = whole()
        dist.all_gather(parts, buffer[begin : begin + 2])
        assert buffer.tolist() == gathered
        buffer, _ = whole()
        dist.all_gather_single(buffer, buffer[begin : begin + 2])
        assert buffer.tolist() == gathered
        buffer, parts = whole()
        dist.gather(buffer[begin : begin + 2], parts if rank == 1 else None, dst=1)
        assert rank == 0 or buffer.tolist() == gathered
        buffer, parts = whole()
        dist.scatter(out := buffer[begin : begin + 2], parts if rank == 1 else None, src=1)
        assert out.tolist() == [10 + 2 * rank, 11 + 2 * rank]
    buffer, parts = whole()
    dist.all_to_all(parts, parts)
    assert buffer.tolist() == [2 * rank, 2 * rank + 1, 2 * rank + 10, 2 * rank + 11]
    buffer, _ = whole()
    dist.all_to_all_single(buffer, buffer)
    assert buffer.tolist() == [2 * rank, 2 * rank + 1, 2 * rank + 10, 2 * rank + 11]


def test_a_result_may_lie_on_what_is_read_wherever_that_is() -> None:
    on_ranks(2, on_their_own_input)


def places() -> list[bool]:
    rank = dist.get_rank()
    group: Any = dist.group.WORLD
    buffer = torch.zeros(4)
    staged = []
    for begin in (2 * rank, 2 - 2 * rank):
        call = group._call("all_gather", None, None)
        out = call.output(buffer[begin : begin + 2], beside=buffer, shift=2 * rank)
        staged.append(out.data_ptr() != buffer[begin:].data_ptr())
    return staged


def test_a_result_in_its_rank_s_own_place_is_not_copied() -> None:
    assert on_ranks(2, places) == [[False, True]] * 2
