"""`DeviceBucket`: a bucket of gradients of parameters on a GPU.

Its gradients lie in one flat tensor on the device; the marks are counted on the CPU and travel by
themselves. Gradients that are not in their slots are packed together once all have come, by one
kernel where Gradring has its plugin, else by torch's multi-tensor copies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradring.torch.c10d.calls.streams import has_device_path
from gradring.torch.gradients.buckets import Bucket
from gradring.torch.gradients.gradient_streams import GradientStreams


class DeviceBucket(Bucket):
    """The gradients of some parameters in one flat tensor on their device.

    Works on CPU tensors too, which is how its logic is tested.
    """

    is_apart = True

    def __init__(self, members: Sequence[int], params: Sequence[torch.Tensor], memory: Any) -> None:
        """As `Bucket`, but ``memory`` is a tensor of bytes on the parameters' device."""
        self._late: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        self._weight = 1.0
        self._packer = Packer()
        self._streams = GradientStreams(memory.device) if memory.is_cuda else None
        super().__init__(members, params, memory)

    def _take(self, memory: Any, count: int, wire_dtype: torch.dtype) -> None:
        self.values = memory[: count * wire_dtype.itemsize].view(wire_dtype)
        self.buffer = self.values
        self.marks = np.ones(len(self.members), np.float32)

    @property
    def travelling(self) -> Any:
        """What is reduced: a tensor."""
        return self.values

    def sending(self) -> contextlib.AbstractContextManager[None]:
        """See `Bucket.sending`."""
        return contextlib.nullcontext() if self._streams is None else self._streams.sending()

    def _fill(self, index: int, param: torch.Tensor, weight: float) -> None:
        if self._streams is not None:
            self._streams.see()
        super()._fill(index, param, weight)

    def _copy(self, index: int, param: torch.Tensor, grad: torch.Tensor, weight: float) -> None:
        self._late.append((index, grad, param))
        self._weight = weight

    def _is_filled(self) -> None:
        if self._streams is not None:
            self._streams.join(grad for _, grad, _ in self._late)
        if not self._late:
            return
        late, self._late = self._late, []
        slots = [self._slots[index] for index, _, _ in late]
        self._packer.pack(slots, [grad for _, grad, _ in late], self._weight)
        for index, _, param in late:
            self._hand_out(index, param)

    def _alias(self, index: int) -> torch.Tensor:
        # Its storage is that of the bucket: only memory of the CPU moves under a storage.
        return self._slots[index].detach()

    def reset(self) -> None:
        """Wait for every gradient anew."""
        self._late.clear()
        if self._streams is not None:
            self._streams.forget()
        super().reset()


class Packer:
    """Copies many gradients into their slots, cast and weighted, in few kernels."""

    def __init__(self) -> None:
        """Remember no layout yet."""
        self._layout: tuple[object, ...] = ()
        self._table: Any = None

    def pack(
        self, slots: Sequence[torch.Tensor], grads: Sequence[torch.Tensor], weight: float
    ) -> None:
        """Write ``grad * weight`` of each gradient into its slot.

        Args:
            slots: Contiguous, of the dtype that travels.
            grads: Of the slots' shapes.
            weight: Number of examples behind them.
        """
        targets = list(slots)
        if weight == 1 and self._can_use_kernel(slots, grads):
            self._pack_by_kernel(slots, grads)
            return
        torch._foreach_copy_(targets, list(grads))
        if weight != 1:
            torch._foreach_mul_(targets, weight)

    @staticmethod
    def _can_use_kernel(slots: Sequence[torch.Tensor], grads: Sequence[torch.Tensor]) -> bool:
        floats = (torch.float32, torch.float16, torch.bfloat16)
        return (
            slots[0].device.type == "cuda"
            and has_device_path()
            and all(slot.dtype == torch.float32 for slot in slots)
            and all(grad.dtype == grads[0].dtype for grad in grads)
            and grads[0].dtype in floats
            and all(grad.is_contiguous() for grad in grads)
        )

    def _pack_by_kernel(self, slots: Sequence[torch.Tensor], grads: Sequence[torch.Tensor]) -> None:
        from gradring.dtypes import DTYPE_CODES
        from gradring.gpu import kernels

        device = slots[0].device.index or 0
        first = min(slot.data_ptr() for slot in slots)
        layout = (
            grads[0].dtype,
            *(
                (slot.data_ptr(), grad.data_ptr(), grad.numel())
                for slot, grad in zip(slots, grads, strict=True)
            ),
        )
        if layout != self._layout:  # The allocator mostly gives the same addresses again.
            self._table = kernels.ChunkTable(
                [grad.data_ptr() for grad in grads],
                [grad.numel() for grad in grads],
                grads[0].element_size(),
                device,
                places=[(slot.data_ptr() - first) // slot.element_size() for slot in slots],
            )
            self._layout = layout
        kernels.launch(
            "pack",
            device,
            torch.cuda.current_stream(slots[0].device).cuda_stream or 1,
            **self._table.fields,
            bucket=first,
            from_dtype=DTYPE_CODES[str(grads[0].dtype).removeprefix("torch.")],
            to_dtype=DTYPE_CODES["float32"],
        )
