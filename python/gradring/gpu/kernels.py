"""The GPU plugin's kernels with names and owners; for buckets of gradients and for the bench.

What each computes, and in which bits, is said in csrc/gpu/stream_calls.h, codec_calls.h and
row_calls.h. Every call only puts work on a stream. Pointers are addresses on the device; whoever
calls keeps the memory until the stream is done with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradring import _core
from gradring.gpu.memory import Array

CHUNK_ITEMS = 8192  # csrc/gpu/stream_calls.h

_CHUNK = np.dtype([("tensor", "<u8"), ("place", "<u8"), ("count", "<u4"), ("unused", "<u4")])


def launch(name: str, device: int, stream: int, **fields: Any) -> None:
    """Put one kernel on a stream.

    Args:
        name: Such as ``pack``.
        device: Number of the device.
        stream: A ``cudaStream_t``.
        **fields: Of the kernel's call; what is left out is 0.

    Raises:
        InvalidArgument: There is no such kernel or field.
        DeviceError: The driver refuses it, or the plugin has no such kernel.
    """
    _core.gpu_kernel(name, device, stream, fields)


def scratch(name: str, count: int, device: int) -> Array:
    """Allocate the scratch memory that a kernel asks for.

    Args:
        name: ``check``, ``sparsify`` or ``unique``.
        count: Chunks for ``check``, else elements.
        device: Number of the device.
    """
    return Array(max(1, _core.gpu_scratch_bytes(name, count)), np.uint8, device)


class ChunkTable:
    """Where the pieces of many tensors lie in their bucket, on the device.

    Attributes:
        pointer: Of the table.
        count: Number of pieces.
        elements: Number of elements of the bucket.
    """

    def __init__(
        self,
        pointers: Sequence[int],
        counts: Sequence[int],
        item_bytes: int,
        device: int,
        *,
        places: Sequence[int] | None = None,
    ) -> None:
        """Cut tensors into pieces.

        Args:
            pointers: Of the tensors.
            counts: Their elements.
            item_bytes: Bytes of one element of a tensor.
            device: Number of the device.
            places: Where in the bucket each begins, in elements; ``None``: one after another.
        """
        if places is None:
            places = [0, *itertools.accumulate(counts)][:-1]
        self.elements = sum(counts)
        table = np.concatenate(
            [
                _pieces(pointer, place, count, item_bytes)
                for pointer, place, count in zip(pointers, places, counts, strict=True)
            ]
            or [np.zeros(0, _CHUNK)]
        )
        self.count = len(table)
        self._memory = Array(max(1, table.nbytes), np.uint8, device)
        if table.nbytes:
            self._memory.copy_from(table.view(np.uint8))
        self.pointer = self._memory.pointer

    @property
    def fields(self) -> dict[str, int]:
        """The table as fields of a call."""
        return {"chunks": self.pointer, "chunk_count": self.count}


def _pieces(pointer: int, place: int, count: int, item_bytes: int) -> Any:
    begins = np.arange(0, count, CHUNK_ITEMS, dtype=np.uint64)
    pieces = np.zeros(len(begins), _CHUNK)
    pieces["tensor"] = np.uint64(pointer) + begins * np.uint64(item_bytes)
    pieces["place"] = np.uint64(place) + begins
    pieces["count"] = np.minimum(np.uint64(count) - begins, np.uint64(CHUNK_ITEMS))
    return pieces
