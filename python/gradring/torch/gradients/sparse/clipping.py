"""Clips the norm of gradients, sparse ones too, which torch's own function does not take."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def clip_grad_norm(params: Iterable[torch.Tensor], most: float) -> torch.Tensor:
    """Scale gradients down so that the norm of all together is at most ``most``.

    Args:
        params: Their ``.grad`` is changed in place; a sparse one is coalesced.
        most: As ``max_norm`` of `torch.nn.utils.clip_grad_norm_`.

    Returns:
        The norm before that.
    """
    return torch.nn.utils.clip_grad_norm_([_clippable(param) for param in params], most)


def _clippable(param: torch.Tensor) -> torch.Tensor:
    if param.grad is None or not param.grad.is_sparse:
        return param
    param.grad = param.grad.coalesce()  # Parts of one element have no norm.
    values = param.grad.values()
    stand_in = values.new_zeros(()).expand(values.shape)  # Takes no memory; torch reads its .grad.
    stand_in.grad = values
    return stand_in
