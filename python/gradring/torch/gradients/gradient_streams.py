"""`GradientStreams`: on which streams of a GPU the gradients of one bucket have come.

Backward runs each operation on the stream of its forward, so the gradients of one bucket may come
on several; and on a thread of its own for each GPU, so that a bucket may be sent by the thread of
another GPU, on which none of those streams is current.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch


class GradientStreams:
    """The streams of one bucket's gradients, and then the one that comes after them all."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        """Know of none yet.

        Args:
            device: Where the bucket is.
            cuda: ``torch.cuda``.
        """
        self._device = device
        self._cuda = cuda
        self._streams: list[Any] = []

    def see(self) -> None:
        """Note the stream that is current: a gradient has come on it."""
        current = self._cuda.current_stream(self._device)
        if current not in self._streams:
            self._streams.append(current)

    def join(self, gradients: Iterable[torch.Tensor]) -> None:
        """Let the current stream, the last one seen, come after all of them.

        Args:
            gradients: What it reads; their memory is other streams'.
        """
        current = self._cuda.current_stream(self._device)
        others = [stream for stream in self._streams if stream != current]
        self._streams = [current]
        if not others:
            return
        for other in others:
            current.wait_event(other.record_event())
        for gradient in gradients:
            gradient.record_stream(current)

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Make the stream current that the bucket is full on, on whatever thread this is."""
        with self._cuda.stream(self._streams[0]):
            yield

    def forget(self) -> None:
        """Begin anew."""
        self._streams.clear()
