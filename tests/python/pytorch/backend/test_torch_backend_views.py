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
