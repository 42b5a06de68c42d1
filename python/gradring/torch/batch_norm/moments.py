"""Counts, means and squares of batches, and how those of all ranks become one; pure.

Each rank adds up the squares of distances from its own mean, in a second pass, and theirs are put
together by the distances of those means from the mean of all: nothing large is taken from something
large, as where the square of a sum is taken from a sum of squares. What the rounding of a mean has
left over is in the distances, and is put right. All travel and are merged as float64, rank by rank
in their order, by operations that round each number by itself, so that the result has the same bits
on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Moments:
    """Of each channel of a batch.

    Attributes:
        count: Numbers in a channel, at least 1.
        mean: Float64.
        squares: Squared distances from ``mean``, added up; float64.
    """

    count: int
    mean: torch.Tensor
    squares: torch.Tensor

    @property
    def variance(self) -> torch.Tensor:
        """By which a batch is normalised; float64."""
        return self.squares / self.count

    @property
    def unbiased_variance(self) -> torch.Tensor:
        """What running means take; float64, of two numbers at least."""
        return self.squares / (self.count - 1)


def as_computed(x: torch.Tensor) -> torch.Tensor:
    """Return a batch in the dtype in which batch norm computes: float32 for 16-bit floats."""
    return x.float() if x.dtype in HALF else x


def other_axes(x: torch.Tensor) -> list[int]:
    """Return all axes of a batch but that of its channels, the second."""
    return [axis for axis in range(x.dim()) if axis != 1]


def along_channels(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return numbers, one a channel, in the shape in which they meet ``x`` in an operation."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def own_moments(x: torch.Tensor) -> torch.Tensor:
    """Return mean and squares of each channel of this rank's batch as float64[2, channels].

    Args:
        x: Floats, channels along the second axis. Of an empty one all are 0.
    """
    if x.numel() == 0:
        return torch.zeros(2, x.size(1), dtype=torch.float64, device=x.device)
    x, axes = as_computed(x), other_axes(x)
    mean = x.mean(axes)
    distances = x - along_channels(mean, x)
    count = x.numel() // x.size(1)
    slip = distances.sum(axes).double() / count
    squares = (distances * distances).sum(axes).double() - slip * slip * count
    return torch.stack([mean.double() + slip, squares])


def merged(counts: Sequence[int], each: torch.Tensor) -> Moments:
    """Return the moments of all ranks' batches together.

    Args:
        counts: Numbers in a channel on each rank; not all 0.
        each: Float64[ranks, 2, channels], as `own_moments` has them.
    """
    total = sum(counts)
    mean = torch.zeros_like(each[0, 0])
    for count, (own_mean, _) in zip(counts, each, strict=True):
        mean += own_mean * (count / total)
    squares = torch.zeros_like(mean)
    for count, (own_mean, own_squares) in zip(counts, each, strict=True):
        distance = own_mean - mean
        squares += own_squares + distance * distance * count
    return Moments(total, mean, squares)
