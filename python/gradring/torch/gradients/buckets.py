"""Buckets: gradients of several parameters that travel in one operation.

A bucket is one flat tensor: the slots of its parameters, then one mark a parameter that counts the
ranks that had a gradient. Where a parameter's gradient has the dtype that travels, its ``.grad``
lies in its slot, so nothing is copied back; and a gradient that backward adds to its slot is not
copied at all. What a user gets as ``.grad`` is a tensor of its own over the slot's memory, which he
may give other memory (``.grad.data = ...``, ``model.to(...)``, ``model.share_memory()``): whether a
gradient is in its slot is asked of its address. Owned by `gradring.torch.gradients.averaging`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gradring.collectives.communicator import Communicator
from gradring.collectives.fusion import assign_buckets

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

_LINE_BYTES = 64

# The mark of a gradient that does not fit into a slot: whatever others add and divide, it is seen.
_SPARSE = -np.inf


class Bucket:
    """The gradients of some parameters in one flat tensor.

    Attributes:
        members: Indices of its parameters in the optimizer's list.
        buffer: The flat tensor as a NumPy array over the same memory: what travels.
        values: The part of it that holds gradients.
        marks: The other part.
        residual: What compression has left out of ``values`` so far (`keep_residual`).
        missing: Number of gradients that are not in it yet.
        is_apart: Whether the marks lie elsewhere and travel by themselves.
    """

    is_apart = False
    buffer: Any
    values: torch.Tensor
    marks: Any

    def __init__(self, members: Sequence[int], params: Sequence[torch.Tensor], memory: Any) -> None:
        """Take these members of ``params``, and bytes of ``memory`` (see `bytes_of`)."""
        self.members = list(members)
        tensors = [as_real(params[index].detach()) for index in self.members]
        count = sum(tensor.numel() for tensor in tensors)
        wire_dtype = _WIRE_DTYPES[params[self.members[0]].dtype]
        self._take(memory, count, wire_dtype)
        self.residual: Any = None
        parts = torch.split(self.values, [tensor.numel() for tensor in tensors])
        self._slots = {
            index: part.view(tensor.shape)
            for index, part, tensor in zip(self.members, parts, tensors, strict=True)
        }
        self._begin = self.values.data_ptr()
        self._end = self._begin + self.values.numel() * self.values.element_size()
        self._places = {index: place for place, index in enumerate(self.members)}
        # Whose .grad can lie in the slot.
        self._is_grad = {
            index: grad_dtype_of(params[index]) == wire_dtype and params[index].is_contiguous()
            for index in self.members
        }
        self.reset()

    def _take(self, memory: Any, count: int, wire_dtype: torch.dtype) -> None:
        whole_bytes = (count + len(self.members)) * wire_dtype.itemsize
        self._memory = memory  # Whatever happens to tensors over it, it is there.
        flat = torch.from_numpy(memory[:whole_bytes]).view(wire_dtype)
        self.buffer = flat.numpy()
        self.values = flat[:count]
        self.marks = self.buffer[count:]

    @property
    def travelling(self) -> Any:
        """The gradients as the core takes them."""
        return self.values.numpy()

    def sending(self) -> contextlib.AbstractContextManager[None]:
        """Be where the gradients have come, for what starts to send them."""
        return contextlib.nullcontext()

    def keep_residual(self, earlier: Mapping[int, Any]) -> None:
        """Compress from now on; ``earlier`` are residuals to go on from, by parameter."""
        self.residual = torch.zeros_like(self.values)
        for index, part in self.residuals().items():
            if index in earlier:
                part[:] = earlier[index]

    def residuals(self) -> dict[int, Any]:
        """Return each parameter's part of the residual."""
        sizes = [self._slots[index].numel() for index in self.members]
        ends = np.cumsum(sizes)
        return {
            index: self.residual[end - size : end]
            for index, size, end in zip(self.members, sizes, ends, strict=True)
        }

    def put(self, index: int, param: torch.Tensor, weight: float) -> None:
        """Take a parameter's gradient, or that there is none here."""
        try:
            self._fill(index, param, weight)
        finally:  # Not before: what is full may be sent. One that failed is dropped with its round.
            self.missing -= 1
        if self.missing == 0:
            self._is_filled()

    def _fill(self, index: int, param: torch.Tensor, weight: float) -> None:
        slot, grad = self._slots[index], param.grad
        if grad is None or weight == 0:
            slot.zero_()
            self.marks[self._places[index]] = 0
        elif grad.layout != torch.strided:
            slot.zero_()
            self.marks[self._places[index]] = _SPARSE
        elif not self._is_in_slot(index, grad):
            grad = as_real(grad.detach() if grad.requires_grad else grad)
            if self._begin <= grad.data_ptr() < self._end:
                grad = grad.clone()  # It is a view of what it is copied to, transposed say.
            self._copy(index, param, grad, weight)
        elif weight != 1:
            slot.mul_(weight)

    def _copy(self, index: int, param: torch.Tensor, grad: torch.Tensor, weight: float) -> None:
        slot = self._slots[index]
        if weight != 1 and grad.dtype == slot.dtype:
            torch.mul(grad, weight, out=slot)
        else:
            slot.copy_(grad)
            if weight != 1:
                slot.mul_(weight)
        self._hand_out(index, param)

    def _hand_out(self, index: int, param: torch.Tensor) -> None:
        if self._is_grad[index] and grad_dtype_of(param) == self.values.dtype:
            param.grad = self._alias(index)

    def _alias(self, index: int) -> torch.Tensor:
        """Return another tensor over a slot, with a storage of its own."""
        return torch.from_numpy(self._slots[index].numpy())

    def _is_in_slot(self, index: int, grad: torch.Tensor) -> bool:
        slot = self._slots[index]
        return (
            grad.layout == torch.strided
            and grad.data_ptr() == slot.data_ptr()
            and grad.dtype == slot.dtype
            and grad.shape == slot.shape
            and grad.stride() == slot.stride()
            and not grad.is_neg()
        )

    def _is_filled(self) -> None:
        """Do what is left to do once every gradient has come."""

    def has_sparse(self) -> bool:
        """Tell whether some rank had a gradient that is not dense, when all have been added up."""
        return bool((self.marks < 0).any())

    def give(
        self, params: Sequence[torch.Tensor], share: float, besides: Collection[int] = ()
    ) -> int:
        """Let every ``.grad`` be the average, or ``None`` where no counted rank had a gradient.

        Args:
            params: The optimizer's list.
            share: Of a rank in what arrived, as a multiple of the average: what compression had
                kept for a parameter that nobody has trained now is kept on.
            besides: Indices of those that get theirs elsewhere.

        Returns:
            The number of averages.
        """
        absent: Any = () if self.marks.all() else np.flatnonzero(self.marks == 0)
        is_absent = {self.members[place] for place in absent}
        for index in self.members:
            param = params[index]
            if index in besides:
                continue
            if index in is_absent:
                param.grad = None  # A rank of weight 0 may have one of its own.
                self._keep_on(index, share)
            elif self._is_grad[index] and grad_dtype_of(param) == self.values.dtype:
                if param.grad is None or not self._is_in_slot(index, param.grad):
                    self._hand_out(index, param)
            else:
                if param.grad is None or param.grad.is_conj() or param.grad.is_neg():
                    # A view of other numbers is not written; autograd may hold those too.
                    param.grad = torch.empty_like(param, dtype=grad_dtype_of(param))
                as_real(param.grad).copy_(self._slots[index])
        return len(self.members) - len(absent)

    def _keep_on(self, index: int, share: float) -> None:
        if self.residual is not None:
            self.residuals()[index] += self._slots[index].reshape(-1) * share

    def reset(self) -> None:
        """Wait for every gradient anew."""
        self.missing = len(self.members)
        self.marks[:] = 1


def make_buckets(
    layout: Sequence[Sequence[int]], params: Sequence[torch.Tensor], comm: Communicator
) -> list[Bucket]:
    """Take memory for buckets; on the CPU the ranks of a host reach into it. A collective call."""
    from gradring.torch.gradients.device_buckets import DeviceBucket

    devices = [params[members[0]].device for members in layout]
    sizes = [bytes_of(members, params) for members in layout]
    host_sizes = [size for size, device in zip(sizes, devices, strict=True) if device.type == "cpu"]
    memory = comm.empty(sum(host_sizes), "uint8")
    buckets: list[Bucket] = []
    begin = 0
    for members, size, device in zip(layout, sizes, devices, strict=True):
        if device.type != "cpu":
            on_device = torch.empty(size, dtype=torch.uint8, device=device)
            buckets.append(DeviceBucket(members, params, on_device))
            continue
        buckets.append(Bucket(members, params, memory[begin : begin + size]))
        begin += size
    return buckets


def bytes_of(members: Sequence[int], params: Sequence[torch.Tensor]) -> int:
    """Return the bytes of a bucket, in whole cache lines."""
    item_bytes = _WIRE_DTYPES[params[members[0]].dtype].itemsize
    count = sum(as_real(params[index].detach()).numel() + 1 for index in members)
    return -(-count * item_bytes // _LINE_BYTES) * _LINE_BYTES


def lay_out(
    order: Sequence[int], params: Sequence[torch.Tensor], bucket_bytes: int
) -> list[list[int]]:
    """Group parameters so that no bucket holds more than ``bucket_bytes`` of gradients.

    Args:
        order: Indices of all parameters, as backward reaches them.
        params: What they are indices of.
        bucket_bytes: Most bytes in a bucket; a larger parameter gets one of its own.
    """
    dtypes = [_WIRE_DTYPES[params[index].dtype] for index in order]
    sizes = [
        as_real(params[index].detach()).numel() * dtype.itemsize
        for index, dtype in zip(order, dtypes, strict=True)
    ]
    devices = [str(params[index].device) for index in order]
    groups = assign_buckets(sizes, list(zip(dtypes, devices, strict=True)), bucket_bytes)
    return [[order[position] for position in group] for group in groups]


def grad_dtype_of(param: torch.Tensor) -> torch.dtype:
    """Return the dtype that a parameter's ``.grad`` has to have."""
    # Before torch 2.10 always its own; ``None``: any will do.
    wanted: torch.dtype | None = getattr(param, "grad_dtype", None)
    return param.dtype if wanted is None else wanted


def can_travel(param: torch.Tensor) -> bool:
    """Tell whether gradients of this dtype can be averaged."""
    return param.dtype in _WIRE_DTYPES


def can_be_compressed(param: torch.Tensor) -> bool:
    """Tell whether gradients of this dtype travel as float32."""
    return _WIRE_DTYPES.get(param.dtype) == torch.float32


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's numbers, in its own memory except where that holds other ones."""
    tensor = tensor.resolve_conj().resolve_neg()  # As they stand after conj() and conj().imag.
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
