"""Buckets: gradients of several parameters that travel in one operation.

A bucket is one flat tensor: each parameter's gradient times the rank's weight, then one mark a
parameter that counts the ranks that had a gradient. Owned by `gradring.torch.averaging`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradring.fusion import assign_buckets

# How gradients travel. 16-bit ones as float32: products with weights must not overflow, and a sum
# is rounded once, in the end.
_WIRE_DTYPES = {
    torch.float64: torch.float64,
    torch.complex128: torch.float64,
    torch.float32: torch.float32,
    torch.complex64: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


class Bucket:
    """The gradients of some parameters in one flat tensor.

    Attributes:
        members: Indices of its parameters in the optimizer's list.
        buffer: The flat tensor as a NumPy array over the same memory: what travels.
        missing: Number of gradients that are not in it yet.
    """

    def __init__(self, members: Sequence[int], params: Sequence[torch.Tensor]) -> None:
        """Take memory for these members of ``params``."""
        self.members = list(members)
        tensors = [_as_real(params[index].detach()) for index in self.members]
        values = sum(tensor.numel() for tensor in tensors)
        wire_dtype = _WIRE_DTYPES[params[self.members[0]].dtype]
        flat = torch.zeros(values + len(tensors), dtype=wire_dtype)
        self.buffer: Any = flat.numpy()
        self._values = flat[:values]
        self._marks = flat[values:]
        parts = torch.split(self._values, [tensor.numel() for tensor in tensors])
        self._slots = {
            index: part.view(tensor.shape)
            for index, part, tensor in zip(self.members, parts, tensors, strict=True)
        }
        self._places = {index: place for place, index in enumerate(self.members)}
        self.missing = len(self.members)

    def put(self, index: int, grad: torch.Tensor | None, weight: float) -> None:
        """Take a parameter's gradient, or that there is none here."""
        slot = self._slots[index]
        counts = grad is not None and weight > 0
        if grad is None or not counts:
            slot.zero_()
        else:
            slot.copy_(_as_real(grad))
            if weight != 1:
                slot.mul_(weight)
        self._marks[self._places[index]] = float(counts)
        self.missing -= 1

    def divide(self, total: float) -> None:
        """Turn the sums over all ranks into averages."""
        if total != 1:
            self._values.div_(total)

    def reset(self) -> None:
        """Wait for every gradient anew."""
        self.missing = len(self.members)

    def take(self, param: torch.Tensor, index: int) -> None:
        """Write the average to ``param.grad``, or leave it absent if no rank had a gradient."""
        if self._marks[self._places[index]] == 0:
            return
        if param.grad is None:
            param.grad = torch.empty_like(param)
        _as_real(param.grad).copy_(self._slots[index])


def make_buckets(params: Sequence[torch.Tensor], bucket_bytes: int) -> list[Bucket]:
    """Lay out buckets in the order in which backward usually reaches the parameters: from the end.

    Args:
        params: In the order of the forward pass.
        bucket_bytes: Most bytes in a bucket; a larger parameter gets one of its own.
    """
    order = range(len(params) - 1, -1, -1)
    dtypes = [_WIRE_DTYPES[params[index].dtype] for index in order]
    sizes = [
        _as_real(params[index].detach()).numel() * dtype.itemsize
        for index, dtype in zip(order, dtypes, strict=True)
    ]
    groups = assign_buckets(sizes, dtypes, bucket_bytes)
    return [Bucket([order[position] for position in group], params) for group in groups]


def can_travel(param: torch.Tensor) -> bool:
    """Tell whether gradients of this dtype can be averaged."""
    return param.dtype in _WIRE_DTYPES


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
