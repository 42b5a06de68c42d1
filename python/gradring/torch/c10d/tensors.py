"""From torch tensors to what the core moves: contiguous memory of a dtype it knows.

A contiguous tensor of such a dtype is used as it is, on the CPU and, where Gradring has a GPU
plugin, on CUDA. What is strided is staged in a contiguous tensor beside it, what is on another
device in one on the CPU, and written back afterwards. Complex numbers go as pairs of reals; where
nothing is added up, dtypes that the core does not know go as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradring.errors import InvalidArgument
from gradring.torch.c10d.streams import has_device_path

_SENDABLE = frozenset(
    (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16,
        torch.int32, torch.int64, torch.uint8, torch.bool,
    )
)  # fmt: skip


@dataclass(slots=True)
class Staged:
    """One tensor as the core takes it.

    Attributes:
        flat: Flat, contiguous, where the core can reach it, of a dtype that it knows.
        write_back: Copies the result to the user's tensor; ``None`` where ``flat`` is its memory.
    """

    flat: Tensor
    write_back: Callable[[], None] | None = None


def stage(
    tensor: Tensor, *, reads: bool, writes: bool, reduces: bool, copies: bool = False
) -> Staged:
    """See a tensor as the core takes it.

    Args:
        tensor: Dense, any dtype, any strides, any device.
        reads: Its values matter.
        writes: The operation writes it.
        reduces: Its values are added up, so that their dtype has to be known to the core.
        copies: Do not work in the tensor's own memory.

    Raises:
        InvalidArgument: The tensor is sparse, or of a dtype that cannot be reduced.
    """
    if tensor.layout is not torch.strided:
        raise InvalidArgument(
            f"a {tensor.layout} tensor: only all_reduce takes sparse tensors, in COO format"
        )
    own = tensor.detach()
    home = _home([own])
    if own.device == home and own.is_contiguous() and not own.is_neg() and not copies:
        return Staged(_flat(own, reduces=reduces))
    if reads:
        contiguous = own.resolve_neg().to(home, memory_format=torch.contiguous_format, copy=True)
    else:
        contiguous = torch.empty(own.shape, dtype=own.dtype, device=home)

    def write_back() -> None:
        own.copy_(contiguous)

    return Staged(_flat(contiguous, reduces=reduces), write_back if writes else None)


def packed(
    tensors: Sequence[Tensor], *, reads: bool, writes: bool, reduces: bool, copies: bool = False
) -> Staged:
    """See several tensors of one dtype as one, one after another.

    Args:
        tensors: Dense, of any shapes, strides and devices.
        reads: As for `stage`.
        writes: As for `stage`.
        reduces: As for `stage`.
        copies: As for `stage`.

    Raises:
        InvalidArgument: Their dtypes differ, or as `stage`.
    """
    own = [tensor.detach() for tensor in tensors]
    dtypes = {tensor.dtype for tensor in own}
    if len(dtypes) > 1:
        raise InvalidArgument(f"tensors of one call have different dtypes: {dtypes}")
    sizes = [tensor.numel() for tensor in own]
    whole = None if copies else _joined(own, sizes)
    if whole is not None:
        return Staged(_flat(whole, reduces=reduces))
    dtype = own[0].dtype if own else torch.uint8
    whole = torch.empty(sum(sizes), dtype=dtype, device=_home(own))
    parts = torch.split_with_sizes(whole, sizes)
    if reads:
        for part, tensor in zip(parts, own, strict=True):
            part.copy_(tensor.reshape(-1))

    def write_back() -> None:
        for part, tensor in zip(parts, own, strict=True):
            tensor.copy_(part.view(tensor.shape))

    return Staged(_flat(whole, reduces=reduces), write_back if writes else None)


def units(tensor: Tensor) -> int:
    """Return how many elements of the core one element of this tensor becomes."""
    if tensor.dtype in _SENDABLE:
        return 1
    return 2 if tensor.dtype.is_complex else tensor.element_size()


def _home(tensors: Sequence[Tensor]) -> torch.device:
    # Where the core takes them.
    devices = {tensor.device for tensor in tensors}
    if len(devices) == 1 and next(iter(devices)).type == "cuda" and has_device_path():
        return tensors[0].device
    return torch.device("cpu")


def _joined(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor | None:
    # Slices of one buffer in order, as torch.chunk makes them: nothing has to be packed.
    if not tensors:
        return None
    first = tensors[0]
    if first.device != _home(tensors):
        return None
    place = first.data_ptr()
    for tensor, size in zip(tensors, sizes, strict=True):
        if tensor.layout is not torch.strided or not tensor.is_contiguous() or tensor.is_neg():
            return None
        if size == 0 or tensor.data_ptr() != place:
            return None
        place += size * tensor.element_size()
    end = first.storage_offset() + sum(sizes)
    if end * first.element_size() > first.untyped_storage().nbytes():
        return None  # Neighbours by chance.
    return first.as_strided((sum(sizes),), (1,))


def _flat(contiguous: Tensor, *, reduces: bool) -> Tensor:
    flat = contiguous.view(-1)
    if flat.dtype in _SENDABLE:
        return flat
    if flat.dtype.is_complex:
        return torch.view_as_real(flat).view(-1)
    if reduces:
        raise InvalidArgument(f"{flat.dtype} cannot be reduced; convert the tensor first")
    return flat.view(torch.uint8)
