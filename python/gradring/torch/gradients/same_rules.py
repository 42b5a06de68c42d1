"""Finds out whether all ranks would do the same steps with the averages, before the first one.

Ranks that step differently drift apart without an error, since gradients are averaged all the same:
where a checkpoint was loaded on one rank only, say, or a learning rate depends on the rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch

from gradring.collectives.communicator import Communicator
from gradring.collectives.same_lines import Mark, number_text, require_same_lines
from gradring.torch.gradients.parameters import Named

# How a step is computed, and not what; ranks on the CPU and on CUDA may differ there.
_WAYS = ("foreach", "fused", "capturable", "differentiable")
_SCHEDULED = ("lr", "momentum", "betas", "weight_decay")
FRONT = "Distributed"  # Begins the name of a class that has become distributed.
_ADVICE = (
    "give distributed() the same optimizer and options on every rank, and load a saved state on all"
)


def require_same_rule(
    comm: Communicator,
    optimizer: torch.optim.Optimizer,
    named: Named,
    options: Mapping[str, Any],
) -> None:
    """Compare what decides a step with that of all other ranks; a collective call.

    Of the optimizer's state it is which there is, and the number of steps: not all the values.

    Args:
        comm: The ranks.
        optimizer: Its class, settings and state.
        named: Its parameters by name, the same on every rank.
        options: What else is the same on all ranks, by name.

    Raises:
        Mismatch: Ranks differ; names the first difference, on every rank. ``comm`` stays usable.
    """
    require_same_lines(comm, list(_lines(optimizer, named, options)), _ADVICE)


class StepSettings:
    """What schedules change of an optimizer's settings, as it is when a step has been done.

    Other settings may be an optimizer's own: some count, or estimate, in their groups.
    """

    def __init__(self) -> None:
        """Know none yet."""
        self._known: list[list[Any]] | None = None
        self._mark = Mark([])

    def mark(self, optimizer: torch.optim.Optimizer) -> Mark:
        """Return what ranks that step alike have in common."""
        # Looked at in each step, so texts are made only of what has changed.
        found = [
            [_number(group.get(key)) for key in _SCHEDULED] for group in optimizer.param_groups
        ]
        if found != self._known:
            self._known, self._mark = found, Mark(list(_scheduled(optimizer)))
        return self._mark


class _Written:
    """A tensor as it was: equals itself until somebody writes into it."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: torch.Tensor) -> None:
        # Kept, or another one might be made in its place.
        self._tensor = tensor
        self._version = tensor._version  # noqa: SLF001 - PyTorch has no other way to say it

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Written):
            return NotImplemented
        return self._tensor is other._tensor and self._version == other._version


def _number(value: Any) -> Any:
    if value is None or isinstance(value, (int, float)):
        return value  # First: to ask whether something is a tensor takes long.
    if isinstance(value, (list, tuple)):
        return tuple(map(_number, value))
    if isinstance(value, torch.Tensor) and value.device.type != "cpu" and not value.is_inference():
        return _Written(value)  # A GPU is waited for only where the number has changed.
    return _plain(value)


def _scheduled(optimizer: torch.optim.Optimizer) -> Iterator[str]:
    for number, group in enumerate(optimizer.param_groups):
        for key in _SCHEDULED:
            if key in group:
                yield f"{key}={_rounded(group[key])} in group {number}"


def _rounded(value: Any) -> str:
    # To float32: on one rank it may be a tensor, whose schedule is computed in that.
    if isinstance(value, bool):
        return _plain(value)
    if isinstance(value, Real):
        return number_text(float(value))
    if isinstance(value, np.ndarray):
        return _rounded(value.tolist())
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_rounded, value))})"
    is_one = isinstance(value, torch.Tensor) and value.numel() == 1
    return _rounded(value.item()) if is_one else _plain(value)


def _settings(optimizer: torch.optim.Optimizer) -> Iterator[str]:
    for number, group in enumerate(optimizer.param_groups):
        for key in optimizer.defaults:
            if key in group and key not in _WAYS:
                yield f"{key}={_plain(group[key])} in group {number}"


def _lines(
    optimizer: torch.optim.Optimizer, named: Named, options: Mapping[str, Any]
) -> Iterator[str]:
    yield f"the optimizer {type(optimizer).__name__.removeprefix(FRONT)}"
    for name, value in options.items():
        yield f"{name}={_plain(value)}"
    yield from _settings(optimizer)
    for name, param in named.items():
        state = optimizer.state.get(param) or {}
        found = [f"step={_plain(state[key])}" if key == "step" else str(key) for key in state]
        yield f"{', '.join(sorted(found)) or 'nothing'} as the state of {name}"


def _plain(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _plain(value.item()) if value.numel() == 1 else f"a tensor {list(value.shape)}"
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_plain, value))})"
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    # 1 and 1.0 are one setting.
    return repr(float(value)) if isinstance(value, Real) else type(value).__name__
