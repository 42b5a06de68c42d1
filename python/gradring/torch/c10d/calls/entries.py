"""Sparse COO tensors of all ranks added up: their entries travel in one operation.

An entry's values are added in the order of ranks, whatever sorts the indices: how a host's sort
orders equal ones depends on its processor, and ranks must not differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradring.collectives.communicator import Communicator

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_INDEX_BYTES = torch.int64.itemsize


def wider(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of ``dtype`` are added up."""
    return _WIDER.get(dtype, dtype)


def no_entries(shape: Sequence[int], sparse_dim: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor on the CPU that is zero everywhere, with so many sparse dimensions."""
    values = torch.empty(0, *shape[sparse_dim:], dtype=dtype)
    return _coalesced(torch.empty(sparse_dim, 0, dtype=torch.int64), values, shape)


def with_values(tensor: Tensor, values: Tensor) -> Tensor:
    """Return a coalesced tensor with the indices of another one."""
    return _coalesced(tensor.indices(), values, tensor.shape)


def merged(
    comm: Communicator,
    mine: Sequence[Tensor],
    counts: Sequence[Sequence[int]],
    timeout: float | None = None,
) -> list[Tensor]:
    """Add up the tensors of all ranks, each with those at its place; a collective call.

    Args:
        comm: The ranks.
        mine: On the CPU, coalesced; shapes, sparse dimensions and dtypes are those of all ranks.
        counts: Of each rank, how many entries each of its tensors has.
        timeout: As for `Communicator.all_gather`.

    Returns:
        The sums, coalesced: an index that some rank has is in there. Same bits on every rank.

    Raises:
        PeerLost: As `Communicator.all_gather`, and so for its other errors.
    """
    sizes = [
        [count * _entry_bytes(tensor) for tensor, count in zip(mine, of_rank, strict=True)]
        for of_rank in counts
    ]
    whole = torch.empty(sum(map(sum, sizes)), dtype=torch.uint8)
    if whole.numel() > 0:
        parts = [part for each in mine for part in (_bytes(each.indices()), _bytes(each.values()))]
        of_ranks = [sum(of_rank) for of_rank in sizes]
        comm.all_gather(torch.cat(parts), whole, counts=of_ranks, timeout=timeout)
    # By rank, then by tensor.
    blocks = iter(torch.split(whole, [size for of_rank in sizes for size in of_rank]))
    arrived = [
        [
            _unpacked(next(blocks), tensor, count)
            for tensor, count in zip(mine, of_rank, strict=True)
        ]
        for of_rank in counts
    ]
    return [
        _added_up(tensor, [of_rank[place] for of_rank in arrived])
        for place, tensor in enumerate(mine)
    ]


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes in which a coalesced tensor travels."""
    return tensor.indices().shape[1] * _entry_bytes(tensor)


def _entry_bytes(tensor: Tensor) -> int:
    row = tensor.shape[tensor.sparse_dim() :].numel() * tensor.dtype.itemsize
    return tensor.sparse_dim() * _INDEX_BYTES + row


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _unpacked(block: Tensor, tensor: Tensor, count: int) -> tuple[Tensor, Tensor]:
    # Copies: in the block numbers may lie at any address.
    dims = tensor.sparse_dim()
    cut = count * dims * _INDEX_BYTES
    indices = block[:cut].clone().view(torch.int64).view(dims, count)
    values = block[cut:].clone().view(tensor.dtype)
    return indices, values.view(count, *tensor.shape[dims:])


def _added_up(tensor: Tensor, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    sizes = tensor.shape[: tensor.sparse_dim()]
    places = torch.cat([_places(indices, sizes) for indices, _ in parts])
    places, which = torch.unique(places, return_inverse=True)
    total = torch.zeros(len(places), *tensor.shape[len(sizes) :], dtype=tensor.dtype)
    begin = 0
    for _, values in parts:  # Each rank has an index once.
        total.index_add_(0, which[begin : begin + len(values)], values)
        begin += len(values)
    return _coalesced(_indices(places, sizes), total, tensor.shape)


def _places(indices: Tensor, sizes: Sequence[int]) -> Tensor:
    places = torch.zeros(indices.shape[1], dtype=torch.int64)
    for size, row in zip(sizes, indices, strict=True):
        places = places * size + row
    return places


def _indices(places: Tensor, sizes: Sequence[int]) -> Tensor:
    indices = torch.empty(len(sizes), len(places), dtype=torch.int64)
    for dim in reversed(range(len(sizes))):
        size = max(sizes[dim], 1)
        indices[dim] = places % size
        places = places.div(size, rounding_mode="floor")
    return indices


def _coalesced(indices: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.sparse_coo_tensor(
        indices, values, tuple(shape), is_coalesced=True, check_invariants=False
    )
