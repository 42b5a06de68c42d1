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
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from gradring.errors import InvalidArgument
from gradring.torch.c10d.calls.streams import has_device_path

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
        InvalidArgument: The tensor is sparse, has no memory of its own, or is of a dtype that
            cannot be reduced.
    """
    if tensor.layout is not torch.strided:
        raise InvalidArgument(
            f"a {tensor.layout} tensor: only all_reduce takes sparse tensors, in COO format"
        )
    own = _own(tensor)
    home = _home([own])
    if own.device == home and own.is_contiguous() and _holds_itself(own) and not copies:
        return Staged(_flat(own, reduces=reduces))
    if reads:
        plain = own.resolve_conj().resolve_neg()
        contiguous = plain.to(home, memory_format=torch.contiguous_format, copy=True)
    else:
        contiguous = torch.empty(own.shape, dtype=own.dtype, device=home)

    def write_back() -> None:
        _write(own, contiguous)

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
    own = [_own(tensor) for tensor in tensors]
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
            _write(tensor, part.view(tensor.shape))

    return Staged(_flat(whole, reduces=reduces), write_back if writes else None)


def units(tensor: Tensor) -> int:
    """Return how many elements of the core one element of this tensor becomes."""
    if tensor.dtype in _SENDABLE:
        return 1
    return 2 if tensor.dtype.is_complex else tensor.element_size()


def collide(target: Tensor, source: Tensor, shift: int | None) -> bool:
    """Tell whether two staged tensors share memory in a way that the core refuses.

    Args:
        target: Written.
        source: Read; of the dtype of `target`.
        shift: Where an operation in place has `target`: as many elements behind `source`'s
            beginning. ``None``: nowhere.
    """
    if target.device != source.device:
        return False
    begin, other = target.data_ptr(), source.data_ptr()
    if shift is not None and begin == other + shift * source.element_size():
        return False
    return begin < other + source.nbytes and other < begin + target.nbytes


def _own(tensor: Tensor) -> Tensor:
    # What functional collectives return is waited for at its first use, which this is.
    if isinstance(tensor, AsyncCollectiveTensor):
        tensor = tensor.trigger_wait()  # type: ignore[no-untyped-call]
    own = tensor.detach()
    if own.numel() > 0 and own.data_ptr() == 0:
        raise InvalidArgument(
            f"a {type(tensor).__name__} of shape {tuple(tensor.shape)} has no memory of its own; "
            "pass the tensor that it stands for, such as a DTensor's to_local()"
        )
    return own


def _holds_itself(tensor: Tensor) -> bool:
    # Not so after conj() and conj().imag: the memory holds other numbers.
    return not tensor.is_conj() and not tensor.is_neg()


def _write(tensor: Tensor, result: Tensor) -> None:
    """Copy a result to the user's tensor.

    Raises:
        InvalidArgument: Elements of an expanded tensor share memory, and their results differ.
    """
    for dim, stride in enumerate(tensor.stride()):
        if stride != 0 or tensor.shape[dim] < 2:
            continue
        # Expanded: written once, for all of its elements that are one in memory.
        first = result.narrow(dim, 0, 1)
        if not _are_same(first.expand_as(result), result):
            raise InvalidArgument(
                f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} has "
                "elements that share memory, and their results differ; pass a clone() of it"
            )
        tensor, result = tensor.narrow(dim, 0, 1), first
    # Also by a thread that is not in inference mode, for a call that was made in it.
    with torch.inference_mode(tensor.is_inference()):
        tensor.copy_(result)


def _are_same(a: Tensor, b: Tensor) -> bool:
    # Bit for bit: NaNs are the same too.
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


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
        if tensor.layout is not torch.strided or not tensor.is_contiguous():
            return None
        if not _holds_itself(tensor) or size == 0 or tensor.data_ptr() != place:
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
