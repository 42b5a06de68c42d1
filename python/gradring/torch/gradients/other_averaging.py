"""Finds what averages gradients beside `gradring.torch.distributed`: DDP, and FSDP.

Both write averages of their own into ``.grad`` while ours are under way, and ranks drift apart.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

import torch

from gradring.errors import InvalidArgument
from gradring.torch.gradients.parameters import Named

# Classes by the module that has them: where nobody has imported that, there is none of them.
_WRAPPERS = {
    "torch.nn.parallel.distributed": ("DistributedDataParallel",),
    "torch.distributed.fsdp": ("FullyShardedDataParallel", "FSDPModule"),
}
_PARAMETERS = {"torch.distributed.tensor": ("DTensor",)}


def require_no_other_averaging(named: Named, model: torch.nn.Module | None) -> None:
    """Refuse parameters of a model that is wrapped to be averaged already.

    Args:
        named: The parameters, by name.
        model: Where it is known. DistributedDataParallel is searched for elsewhere too.

    Raises:
        InvalidArgument: They are averaged twice; says by what.
    """
    for name, param in named.items():
        if isinstance(param, _classes(_PARAMETERS)):
            raise InvalidArgument(
                f"{name} is a {type(param.data).__name__}, whose gradients FSDP or DTensor reduce "
                f"already; {_WAYS_OUT}"
            )
    wrappers = _classes(_WRAPPERS)
    own = [] if model is None else list(model.modules())
    known = {id(param) for param in named.values()}
    for module in [*own, *_living(wrappers)]:
        is_of_ours = isinstance(module, wrappers) and any(
            id(param) in known for param in module.parameters()
        )
        if is_of_ours:
            raise InvalidArgument(
                f"the model is in a {type(module).__name__}, and its gradients would be averaged "
                f"twice; {_WAYS_OUT}"
            )


_WAYS_OUT = (
    "give gradring.torch.distributed the plain model's parameters, or leave it out and have "
    "torch.distributed.init_process_group('gradring') carry what they reduce"
)


def _classes(places: Mapping[str, tuple[str, ...]]) -> tuple[type[Any], ...]:
    found = [
        getattr(sys.modules[place], name, None)
        for place, names in places.items()
        if place in sys.modules
        for name in names
    ]
    return tuple(kind for kind in found if kind is not None)


def _living(wrappers: tuple[type[Any], ...]) -> list[Any]:
    # A wrapper is not reachable from its parameters. Without a process group there is none.
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    gc.collect()  # One that nobody can call any more averages nothing.
    return [each for each in gc.get_objects() if issubclass(type(each), wrappers)]
