"""CUDA streams of a call: its results belong to the stream that was current when it was made.

A call may be finished by another thread than the one that made it, whose current stream is another,
and a wait may come from a third: what is left to do runs on the call's stream, and whoever waits
has its own current stream ordered after it. Calls on CPU tensors have none of this.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


class CallStream:
    """The stream that was current on a device when a call was made."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        """Note it.

        Args:
            device: Where the call's tensors are.
            cuda: ``torch.cuda``.
        """
        self.device = device
        self._cuda = cuda
        self._stream = cuda.current_stream(device)
        self._end: Any = None

    @property
    def handle(self) -> int:
        """Its ``cudaStream_t``."""
        handle: int = self._stream.cuda_stream
        return handle

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Make it current for what finishes the call, and note where that ends."""
        with self._cuda.stream(self._stream):
            yield
            self._end = self._stream.record_event()

    def synchronize(self) -> None:
        """Wait on the host until what has finished the call is done."""
        if self._end is not None:
            self._end.synchronize()

    def order_current(self) -> None:
        """Let what comes next on this thread's current stream begin after the call."""
        current = self._cuda.current_stream(self.device)
        if self._end is not None and current != self._stream:
            current.wait_event(self._end)


def stream_of(tensors: Iterable[Tensor]) -> CallStream | None:
    """Return the stream of a call on these tensors; ``None``: none of them is on a GPU."""
    for tensor in tensors:
        if tensor.device.type == "cuda":
            return CallStream(tensor.device)
    return None


@functools.cache
def has_device_path() -> bool:
    """Tell whether Gradring itself can reach the GPU; without its plugin torch copies for it."""
    from gradring.errors import DeviceError
    from gradring.gpu import runtime

    try:
        return runtime.device_count() > 0
    except DeviceError:
        return False
