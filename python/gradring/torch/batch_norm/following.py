"""`follow`: a model's layers know what the optimizer that trains it knows of batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradring.errors import InvalidArgument
from gradring.torch.batch_norm.layer import SyncBatchNorm
from gradring.torch.batch_norm.ranks import Ranks, Weights


class Follower:
    """The layers of one model, in the loops over ``uneven`` of one optimizer."""

    def __init__(self, layers: Sequence[SyncBatchNorm]) -> None:
        """Take them; may be none."""
        self._layers = layers
        self._ranks: list[Ranks] = []
        for layer in layers:
            if not any(layer.ranks is known for known in self._ranks):
                self._ranks.append(layer.ranks)

    def take_turn(self, present: Sequence[int] | None) -> None:
        """Have those ranks normalise that have a batch in this turn; ``None``: all.

        Layers of other ranks than the optimizer's, of those of one host say, do not follow.
        """
        for ranks in self._ranks:
            ranks.take_turn(present)

    def share_running(self, root: int) -> None:
        """Give every rank the running means of one that had the last batch; a collective call."""
        with torch.no_grad():
            for layer in self._layers:
                for buffer in layer.buffers():
                    layer.ranks.comm.broadcast(buffer.view(-1), root)


def weigh_by(model: torch.nn.Module | None, weights: Weights) -> list[SyncBatchNorm]:
    """Have a model's layers count ranks as the optimizer does that trains it; returns them."""
    layers = layers_of(model)
    for layer in layers:
        layer.ranks.weights = weights
    return layers


def follow(model: torch.nn.Module | None, weights: Weights, world_size: int) -> Follower:
    """Have a model's layers follow an optimizer that averages gradients.

    A collective call where layers that were made one by one have no communicator yet.

    Args:
        model: ``None`` has no layers.
        weights: The optimizer's.
        world_size: Of the optimizer; layers over fewer ranks follow no turns.
    """
    layers = weigh_by(model, weights)
    return Follower([each for each in layers if each.ranks.comm.world_size == world_size])


def layers_of(model: torch.nn.Module | None) -> list[SyncBatchNorm]:
    """Return the batch norms of a model that are over ranks."""
    modules = [] if model is None else model.modules()
    return [each for each in modules if isinstance(each, SyncBatchNorm)]


def require_common_batches(model: torch.nn.Module | None, *, is_so: bool) -> None:
    """Refuse such layers where workers do not wait for each other at every step.

    Args:
        model: ``None`` has no layers.
        is_so: Whether they do.

    Raises:
        InvalidArgument: They do not, and there is one.
    """
    if not is_so and layers_of(model):
        raise InvalidArgument(
            "the model has gradring.torch.SyncBatchNorm, whose ranks run every batch together; "
            "this mode's workers do not: leave its batch norms as they are, or use gradring.Sync()"
        )
