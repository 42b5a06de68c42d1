"""The memory of many tensors from one rank to all: in pieces, small ones packed together.

Nothing is copied on the CPU but small tensors; those of a device, and strided ones, one piece or
one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from gradring.collectives.communicator import Communicator
from gradring.collectives.fusion import assign_buckets

_PIECE_BYTES = 32 << 20


def send(
    comm: Communicator,
    sources: Sequence[torch.Tensor],
    problems: list[Exception],
    timeout: float | None,
) -> None:
    """Send tensors' memory from this rank; a collective call, of the others to `receive`.

    Args:
        comm: The ranks.
        sources: Of any device and strides.
        problems: Gets what went wrong here with a tensor, where the others get zeros.
        timeout: As for `Communicator.broadcast`.
    """
    for group in _groups(sources):
        members = [sources[index] for index in group]
        size = sum(member.nbytes for member in members)
        whole = _made(partial(_joined, members), size, problems)
        for begin, end in _pieces(size):
            piece = _made(whole[begin:end].cpu, end - begin, problems)
            comm.broadcast(piece.contiguous(), comm.rank, timeout=timeout)


def _made(make: Callable[[], torch.Tensor], size: int, problems: list[Exception]) -> torch.Tensor:
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - the others wait for bytes, and are told after them
        problems.append(error)
        return torch.zeros(1, dtype=torch.uint8, device="cpu").expand(size)


def _joined(members: Sequence[torch.Tensor]) -> torch.Tensor:
    parts = [_bytes(member) for member in members]
    return parts[0] if len(parts) == 1 else torch.cat([part.cpu() for part in parts])


def receive(
    comm: Communicator, targets: Sequence[torch.Tensor], root: int, timeout: float | None
) -> None:
    """Fill tensors with what another rank sends; a collective call.

    Args:
        comm: The ranks.
        targets: Contiguous, on the CPU; dtypes and shapes of what is sent.
        root: The rank that sends.
        timeout: As for `Communicator.broadcast`.
    """
    for group in _groups(targets):
        parts = [_bytes(targets[index]) for index in group]
        sizes = [len(part) for part in parts]
        whole = parts[0]
        if len(parts) > 1:
            whole = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
        for begin, end in _pieces(len(whole)):
            comm.broadcast(whole[begin:end], root, timeout=timeout)
        if len(parts) > 1:
            for part, values in zip(parts, torch.split_with_sizes(whole, sizes), strict=True):
                part.copy_(values)


def _groups(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    sizes = [tensor.nbytes for tensor in tensors]
    present = [index for index, size in enumerate(sizes) if size > 0]
    groups = assign_buckets(
        [sizes[index] for index in present], [None] * len(present), _PIECE_BYTES
    )
    return [[present[place] for place in group] for group in groups]


def _pieces(length: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, length, _PIECE_BYTES):
        yield begin, min(begin + _PIECE_BYTES, length)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    # Not view(-1): a single element has any stride and is contiguous.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
