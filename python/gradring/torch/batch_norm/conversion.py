"""`sync_batch_norm`: a model's batch norms become those of all ranks."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from gradring.collectives.communicator import Communicator
from gradring.collectives.joining import require_ranks
from gradring.collectives.same_lines import require_same_lines
from gradring.errors import InvalidArgument
from gradring.torch.batch_norm.layer import SyncBatchNorm
from gradring.torch.batch_norm.ranks import Ranks

Model = TypeVar("Model", bound=torch.nn.Module)

_KINDS = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
    SyncBatchNorm,
)


def sync_batch_norm(model: Model, comm: Communicator | None = None) -> Model:
    """Have every batch norm of a model take means and variances over all ranks' batches.

    A collective call, before or after the optimizer is made and before `distributed`. The layers
    become `SyncBatchNorm` where they are: the same objects, with their parameters, buffers, hooks
    and names, so that checkpoints of either kind load into the other. They share a communicator of
    their own. A second call takes them to other ranks, as after `shrink` and `grow`.

    Args:
        model: Changed in place; may be a batch norm itself.
        comm: The ranks; ``None``: what `init` made; else those of torch.distributed's default
            group, whatever its backend; else what `init` makes now.

    Returns:
        ``model``.

    Raises:
        InvalidArgument: A layer is a batch norm of its own class or of torch.jit.script, or does
            not know its channels yet; names it. Nothing was changed or sent.
        Mismatch: The ranks have different layers; names the first, and nothing was changed.
        PeerLost: As `Communicator.all_reduce`, and so for its other errors.
    """
    require_ranks(comm)
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"model is a {type(model).__name__}, not a torch.nn.Module")
    for name, each in model.named_modules():
        _require_changeable(name, each)
    layers = {name: each for name, each in model.named_modules() if isinstance(each, _BatchNorm)}
    for name, layer in layers.items():
        _require_plain(name, layer)
    ranks = Ranks(comm, is_shared=False)
    if ranks.comm.world_size > 1:
        lines = [_described(name, layer) for name, layer in layers.items()]
        require_same_lines(ranks.comm, lines, "give every rank the same model")
    for place, layer in enumerate(layers.values()):
        layer.__class__ = SyncBatchNorm
        assert isinstance(layer, SyncBatchNorm)
        layer.take_place(ranks, place)
    return model


def _require_changeable(name: str, module: torch.nn.Module) -> None:
    kind = getattr(module, "original_name", "")  # What a scripted module was made from.
    if isinstance(module, torch.jit.ScriptModule) and kind in {each.__name__ for each in _KINDS}:
        raise InvalidArgument(
            f"{name or 'model'} is a {kind} that torch.jit.script has compiled, which cannot be "
            "exchanged; train the model that it was compiled from"
        )


def _require_plain(name: str, layer: _BatchNorm) -> None:
    kind, name = type(layer), name or "model"
    if isinstance(layer, torch.nn.modules.lazy.LazyModuleMixin):
        raise InvalidArgument(
            f"{name} is a {kind.__name__} that does not know its channels yet; run the model on a "
            "batch before"
        )
    if kind not in _KINDS:
        raise InvalidArgument(
            f"{name} is a {kind.__name__}, a batch norm that may do more than torch's; exchange it "
            "for gradring.torch.SyncBatchNorm by hand, or convert the other parts of the model one "
            "by one"
        )


def _described(name: str, layer: _BatchNorm) -> str:
    return (
        f"batch norm {name or 'model'} of {layer.num_features} channels, eps={layer.eps}, "
        f"momentum={layer.momentum}, affine={layer.affine}, "
        f"track_running_stats={layer.track_running_stats}"
    )
