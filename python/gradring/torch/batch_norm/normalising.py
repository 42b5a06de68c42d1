"""What batch norm over ranks computes and sends: one all_gather forward, one all_reduce back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gradring.collectives.communicator import Communicator
from gradring.errors import Closed, InvalidArgument, Mismatch, TimedOut
from gradring.torch.batch_norm.moments import (
    Moments,
    along_channels,
    as_computed,
    merged,
    other_axes,
    own_moments,
)
from gradring.torch.batch_norm.ranks import Ranks
from gradring.torch.c10d.calls.profiled import shown

_HEAD = 3  # Numbers in front of a rank's moments: count, place, whether its input needs a gradient.


def moments_of_all(x: torch.Tensor, comm: Communicator, place: int) -> Moments:
    """Return the moments of all ranks' batches together; a collective call.

    Args:
        x: This rank's batch, channels along the second axis; may be empty.
        comm: The ranks.
        place: Of the layer in its model, compared.

    Raises:
        InvalidArgument: All ranks together have fewer than two numbers in a channel; on all.
        Mismatch: They are at other layers, or have other channels, or not all need a gradient.
    """
    channels = x.size(1)
    needs_gradient = torch.is_grad_enabled() and x.requires_grad
    with torch.no_grad():
        head = x.new_tensor([x.numel() // channels, place, needs_gradient], dtype=torch.float64)
        message = torch.cat([head, own_moments(x.detach()).view(-1)])
        with _told_of(f"SyncBatchNorm of {channels} channels"), shown("all_gather"):
            rows = comm.all_gather(message)
        heads = [[int(number) for number in row] for row in rows[:, :_HEAD].tolist()]
        _require_same_layer(heads)
        counts = [count for count, _, _ in heads]
        if sum(counts) < 2:
            raise InvalidArgument(
                f"SyncBatchNorm: all ranks together have {sum(counts)} values per channel, and a "
                "variance takes two; train on larger batches, or call model.eval()"
            )
        return merged(counts, rows[:, _HEAD:].view(len(counts), 2, channels))


def _require_same_layer(heads: list[list[int]]) -> None:
    for rank, (_, place, needs_gradient) in enumerate(heads):
        if place != heads[0][1]:
            raise Mismatch(
                f"SyncBatchNorm: rank 0 is at batch norm {heads[0][1]} of its model, and rank "
                f"{rank} at {place}; every rank runs the same layers in the same order"
            )
        if needs_gradient != heads[0][2]:
            raise Mismatch(
                f"SyncBatchNorm: on one of the ranks 0 and {rank} its input needs a gradient, and "
                "on the other not, so that one would wait for the other in backward; freeze and "
                "detach on every rank alike"
            )


@dataclass(frozen=True, slots=True)
class Whole:
    """What a batch is a part of.

    Attributes:
        moments: Of all ranks' batches.
        eps: Added to the variance.
        comm: Those ranks.
        ranks: Tell how much this one counts in averages of gradients; asked in backward.
    """

    moments: Moments
    eps: float
    comm: Communicator
    ranks: Ranks


class Normalised(torch.autograd.Function):
    """A batch less the mean of all ranks' batches, by their deviation, scaled and shifted."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        whole: Whole,
    ) -> torch.Tensor:
        """Normalise; nothing is sent."""
        dtype = as_computed(x[:0]).dtype
        moments, eps = whole.moments, whole.eps
        mean, variance = moments.mean.to(dtype), moments.variance.to(dtype)
        scale = None if weight is None else weight.to(dtype)
        shift = None if bias is None else bias.to(dtype)
        ctx.save_for_backward(x, weight, mean, (moments.variance + eps).rsqrt())
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.whole = whole
        return functional.batch_norm(x, mean, variance, scale, shift, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Send what this rank's gradient says of means and variances, and get what all say."""
        x, weight, mean, by_deviation = ctx.saved_tensors
        axes, full = other_axes(x), as_computed(gradient)
        distances = as_computed(x) - along_channels(mean, x)
        own = torch.stack([full.sum(axes).double(), (full * distances).sum(axes).double()])
        own[1] *= by_deviation
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            total = _all_say(ctx.whole, own) / ctx.whole.moments.count
            scale = by_deviation if weight is None else by_deviation * weight.double()
            slope, offset = -scale * by_deviation * total[1], -scale * total[0]
            scale, slope, offset = (
                along_channels(each.to(full.dtype), x) for each in (scale, slope, offset)
            )
            of_x = distances.mul_(slope).add_(offset).addcmul_(full, scale).to(x.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = own[1].to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = own[0].to(ctx.bias_dtype)
        return of_x, of_weight, of_bias, None


def _all_say(whole: Whole, own: torch.Tensor) -> torch.Tensor:
    """Add up what ranks' gradients say, as often as each rank's own are counted in averages.

    The average of gradients multiplies this rank's by its weight, so what others say is divided by
    that here.
    """
    weight = whole.ranks.weight
    sums = own * weight if weight else torch.zeros_like(own)
    with _told_of(f"backward of SyncBatchNorm of {own.size(1)} channels"), shown("all_reduce"):
        whole.comm.all_reduce(sums)
    return sums / weight if weight else sums


@contextlib.contextmanager
def _told_of(layer: str) -> Iterator[None]:
    """Have errors say which layer's they are, and what can be done where the operation cannot."""
    try:
        yield
    except Mismatch as error:
        raise Mismatch(f"{layer}: {error}") from error
    except TimedOut as error:
        raise TimedOut(
            f"{layer}: {error}; every rank runs the same layers, and backward, equally often: one "
            "without a batch leaves them out in a loop over uneven() alone, else it runs an empty "
            "batch"
        ) from error
    except Closed as error:
        raise Closed(
            f"{layer}: {error}; gradring.torch.sync_batch_norm(model, comm) gives the layers other "
            "ranks, as after shrink() and grow()"
        ) from error
