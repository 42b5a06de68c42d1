"""`SyncBatchNorm`: batch norm in which n ranks do what one process does with their batches."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from gradring.collectives.communicator import Communicator
from gradring.collectives.joining import require_ranks
from gradring.errors import InvalidArgument
from gradring.torch.batch_norm.moments import Moments
from gradring.torch.batch_norm.normalising import Normalised, Whole, moments_of_all
from gradring.torch.batch_norm.ranks import Ranks


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all ranks; parameters, buffers and state as BatchNorm's.

    While training, each forward is a collective call, and so is its backward where the input needs
    a gradient: every rank runs the same layers in the same order, on a batch that may be smaller
    than others' or empty. Running means have the same bits on every rank. In evaluation, and in a
    world of one, it is `torch.nn.BatchNorm2d` and sends nothing. `sync_batch_norm` makes the layers
    of a model into such. Floats of any dtype, of two axes or more, channels along the second one,
    on the CPU or CUDA.
    """

    def __init__(
        self,
        num_features: int,
        *options: Any,
        comm: Communicator | None = None,
        **named_options: Any,
    ) -> None:
        """Make a layer; nothing is sent before the first batch.

        Args:
            num_features: Channels.
            options: As for `torch.nn.BatchNorm2d`: ``eps``, ``momentum``, ``affine``,
                ``track_running_stats``.
            comm: The ranks. ``None``: what `init` made; else those of torch.distributed's default
                group, whatever its backend; else what `init` makes when the first batch comes.
            named_options: As for `torch.nn.BatchNorm2d`: also ``device``, ``dtype``.
        """
        require_ranks(comm)
        super().__init__(num_features, *options, **named_options)
        self.take_place(Ranks(comm), -1)

    def take_place(self, ranks: Ranks, place: int) -> None:
        """Normalise with these ranks, as one layer of a model; -1: nobody has counted them."""
        self.ranks = ranks
        self._place = place

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as torch's
        """Normalise a batch.

        Raises:
            InvalidArgument: It has one axis, other channels, or no floats; nothing was sent. Or all
                ranks together have fewer than two numbers in a channel; on all. Or this rank has no
                batch in this turn of a loop over ``uneven``.
            Mismatch: The ranks are at other layers, or their inputs do not all need a gradient.
            PeerLost: As `Communicator.all_reduce`, also out of backward, and so for its other
                errors: TimedOut where a rank runs the layer less often, Closed after a failure.
        """
        self._check_input_dim(input)
        if not self.training:
            return super().forward(input)
        group = self.ranks.group
        if group is None:
            return self._without_batch(input)
        if group.world_size == 1:
            return super().forward(input)
        moments = moments_of_all(input, group, self._place)
        self._follow(moments)
        whole = Whole(moments, self.eps, group, self.ranks)
        return Normalised.apply(  # type: ignore[no-untyped-call,no-any-return]
            input, self.weight, self.bias, whole
        )

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - as torch's
        if input.dim() < 2 or input.size(1) != self.num_features:
            raise InvalidArgument(
                f"SyncBatchNorm of {self.num_features} channels got a batch of shape "
                f"{tuple(input.shape)}; channels are its second axis"
            )
        if not input.is_floating_point():
            raise InvalidArgument(f"SyncBatchNorm takes floats, and got a batch of {input.dtype}")

    def _without_batch(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel():
            raise InvalidArgument(
                "SyncBatchNorm: this rank has run out of batches, and the others normalise without "
                "it; leave out forward where uneven() gives None"
            )
        nothing, one = x.new_zeros(x.size(1)), x.new_ones(x.size(1))
        return functional.batch_norm(x, nothing, one, self.weight, self.bias, eps=self.eps)

    @torch.no_grad()
    def _follow(self, moments: Moments) -> None:
        """Let the running mean and variance come nearer to those of a batch."""
        if not self.track_running_stats:
            return
        share = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # The mean of all batches.
                share = 1 / float(self.num_batches_tracked)
        for running, found in (
            (self.running_mean, moments.mean),
            (self.running_var, moments.unbiased_variance),
        ):
            if running is not None:
                running.copy_(running.double() * (1 - share) + found * share)
