"""Which tensors a training job shares, what to call them, and rank 0's values for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from gradring.communicator import Communicator
from gradring.errors import DeviceError, InvalidArgument
from gradring.same_shapes import require_same_shapes
from gradring.torch.buckets import can_be_compressed, can_travel

Named = dict[str, torch.Tensor]


def optimizer_parameters(
    groups: Iterable[Mapping[str, Any]], model: torch.nn.Module | None
) -> Named:
    """Return every parameter of an optimizer with the name that errors give it."""
    known = {} if model is None else {id(param): name for name, param in model.named_parameters()}
    named: Named = {}
    for number, group in enumerate(groups):
        own_names = group.get("param_names") or [None] * len(group["params"])
        for index, (own_name, param) in enumerate(zip(own_names, group["params"], strict=True)):
            place = f"parameter {index} of group {number}"
            name = known.get(id(param)) or own_name or place
            named[f"{name} ({place})" if name in named else name] = param
    return named


def model_tensors(model: torch.nn.Module | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a model's parameters and buffers."""
    if model is not None:
        yield from model.named_parameters()
        yield from model.named_buffers()


def require_averageable(named: Named) -> None:
    """Refuse parameters whose gradients cannot be averaged.

    Raises:
        DeviceError: One is neither on the CPU nor on CUDA.
        InvalidArgument: One has a dtype without an average.
    """
    for name, param in named.items():
        if param.device.type not in ("cpu", "cuda"):
            raise DeviceError(
                f"{name} is on {param.device}; models on the CPU and on CUDA can be trained"
            )
        if param.requires_grad and not can_travel(param):
            raise InvalidArgument(f"{name} has dtype {param.dtype}, which cannot be averaged")


def require_compressible(named: Named) -> None:
    """Refuse parameters whose gradients do not travel as float32.

    Raises:
        InvalidArgument: One does not; names it.
    """
    for name, param in named.items():
        if param.requires_grad and not can_be_compressed(param):
            raise InvalidArgument(f"{name} has dtype {param.dtype}, which cannot be compressed")


def share(comm: Communicator, named: Named) -> None:
    """Give every rank rank 0's values; a collective call.

    Raises:
        Mismatch: Number, shapes or dtypes differ between ranks; names the first difference.
    """
    tensors = [tensor.detach() for tensor in named.values()]
    require_same_shapes(
        comm,
        "tensors",
        list(named),
        [tuple(tensor.shape) for tensor in tensors],
        [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
    )
    for tensor in tensors:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if real.is_cuda and not real.is_contiguous():  # As channels_last; on the CPU it may be.
            real.copy_(comm.broadcast(real.contiguous(), 0))
        else:
            comm.broadcast(real, 0)
