"""The rule of `gradring.optim` that a `torch.optim` optimizer's settings stand for.

Servers then do what the optimizer would do: `gradring.optim` follows `torch.optim` step by step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gradring import optim
from gradring.errors import InvalidArgument

# What each class takes from a parameter group, by torch's names, which are the rules' too.
_TAKEN: dict[type[Any], tuple[type[Any], tuple[str, ...]]] = {
    torch.optim.SGD: (optim.SGD, ("lr", "momentum", "dampening", "weight_decay", "nesterov")),
    torch.optim.Adagrad: (
        optim.Adagrad,
        ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
    ),
    torch.optim.RMSprop: (
        optim.RMSprop,
        ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
    ),
    torch.optim.Adam: (optim.Adam, ("lr", "betas", "eps", "weight_decay")),
    torch.optim.AdamW: (optim.AdamW, ("lr", "betas", "eps", "weight_decay")),
    torch.optim.SparseAdam: (optim.SparseAdam, ("lr", "betas", "eps")),
}
# Adam with this option on is AdamW, and torch's AdamW is made so.
_DECOUPLED = "decoupled_weight_decay"
_ADAMS = {torch.optim.Adam: False, torch.optim.AdamW: True}
# How the same numbers are computed, for which servers have their own way.
_IGNORED = {"foreach", "fused", "capturable"}


def rules_of(optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> list[Any]:
    """Return a rule for each parameter, in the order of the groups.

    Args:
        optimizer: One of torch's, maybe with settings that have changed.
        step: What it would do by itself.

    Raises:
        InvalidArgument: Servers have no such rule, or an option of the optimizer's that they do not
            know is on; or the class has a ``step`` of its own.
    """
    for kind in type(optimizer).__mro__:
        if kind in _TAKEN:
            _require_step_of(kind, optimizer, step)
            unknown = _unknown_options(kind, optimizer)
            return [
                rule
                for group in optimizer.param_groups
                for rule in [_rule_of(kind, group, unknown)] * len(group["params"])
            ]
    known = ", ".join(kind.__name__ for kind in _TAKEN)
    raise InvalidArgument(
        f"servers have no rule for {_name_of(optimizer)}; use one of torch.optim's {known}, or a "
        "mode in which workers step: gradring.Sync(), gradring.Geo()"
    )


def _require_step_of(
    kind: type[Any], optimizer: torch.optim.Optimizer, step: Callable[..., Any]
) -> None:
    # torch wraps the step of a class when its first optimizer is made, also an inherited one.
    if _unwrapped(step) is not _unwrapped(kind.step):
        raise InvalidArgument(
            f"servers have no rule for {_name_of(optimizer)}: its own step() would not run, they "
            f"would do that of {kind.__name__}; use a mode in which workers step: gradring.Sync(), "
            "gradring.Geo()"
        )


def _unwrapped(step: Callable[..., Any]) -> Any:
    function = inspect.unwrap(step)
    return getattr(function, "__func__", function)


def _name_of(optimizer: torch.optim.Optimizer) -> str:
    return type(optimizer).__name__.removeprefix("Distributed")


def _unknown_options(kind: type[Any], optimizer: torch.optim.Optimizer) -> set[str]:
    # Whatever else stands in a group is a label of the user's ("name", "lr_scale"), which the
    # optimizer itself does not read either.
    unknown = optimizer.defaults.keys() - _IGNORED - set(_TAKEN[kind][1])
    return unknown - {_DECOUPLED} if kind in _ADAMS else unknown


def settings_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return what `rules_of` reads, as it is; cheaper to compare than rules."""
    for kind in type(optimizer).__mro__:
        if kind in _TAKEN:
            taken, unknown = _TAKEN[kind][1], _unknown_options(kind, optimizer)
            # Of options that servers do not know, whether they are on: then they are refused. Of
            # this one, since it is another rule's.
            read = {*taken, *unknown, _DECOUPLED}
            return [
                {
                    option: _plain(value) if option in taken else bool(value)
                    for option, value in group.items()
                    if option in read
                }
                for group in optimizer.param_groups
            ]
    return []


def _rule_of(kind: type[Any], group: Mapping[str, Any], unknown: set[str]) -> Any:
    rule, taken = _TAKEN[kind]
    if kind in _ADAMS:
        rule = optim.AdamW if group.get(_DECOUPLED, _ADAMS[kind]) else optim.Adam
    for option, value in group.items():
        if option in unknown and value:
            raise InvalidArgument(f"{kind.__name__}: servers do not know {option}={value!r}")
    return rule(**{option: _plain(group[option]) for option in taken})


def _plain(value: Any) -> Any:
    if torch.is_tensor(value):
        return value.item()
    return tuple(_plain(part) for part in value) if isinstance(value, (tuple, list)) else value
