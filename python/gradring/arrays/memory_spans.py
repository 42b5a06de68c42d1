"""Where the user's arrays lie, and whether two of them share memory, however strided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradring.arrays import buffers
from gradring.arrays.device_arrays import DeviceView


class Span(NamedTuple):
    """Where an operand lies: from ``begin`` to before ``end``, on a device or (-1) the host."""

    device: int
    begin: int
    end: int

    def reaches(self, later: Span) -> bool:
        """Tell whether it goes on where one that begins no earlier begins."""
        return self.device == later.device and self.end > later.begin


def span(one: buffers.Operand) -> Span:
    """Return the user's memory that an operand lies in, gaps of a strided array included."""
    if isinstance(one, DeviceView):
        return Span(one.device, one.pointer, one.pointer + one.nbytes)
    array = one.array
    begin = end = array.__array_interface__["data"][0]
    for size, stride in zip(array.shape, array.strides, strict=True):
        begin += min(0, (size - 1) * stride)
        end += max(0, (size - 1) * stride)
    return Span(-1, begin, end + array.itemsize)


def share_memory(one: buffers.Operand, other: buffers.Operand) -> bool:
    """Tell whether two of the user's arrays have an element in common, however strided."""
    if isinstance(one, buffers.View) and isinstance(other, buffers.View):
        return bool(np.shares_memory(one.array, other.array))
    return buffers.overlap(one, other)


def first_shared(views: Sequence[buffers.Operand]) -> tuple[int, int] | None:
    """Return which two of several arrays have an element in common, if any; the earlier first."""
    # By address, so that it costs little: `open_spans` are those before that reach beyond where
    # this one begins.
    open_spans: list[tuple[Span, int]] = []
    for own, index in sorted(
        ((span(view), index) for index, view in enumerate(views) if view.count),
        key=lambda pair: pair[0],
    ):
        open_spans = [pair for pair in open_spans if pair[0].reaches(own)]
        for _, other in open_spans:
            if share_memory(views[other], views[index]):
                return min(other, index), max(other, index)
        open_spans.append((own, index))
    return None
