"""The short forms in which the methods of torch's own ProcessGroup may be called too.

    group.allreduce(tensor, op=ReduceOp.MAX)
    group.allgather([a, b], tensor, timeout=timedelta(seconds=5))

A tensor stands for a list of one, a list of tensors for a list of one such list, and an operator, a
root and a timeout for the options object. torch's C++ and torch.distributed use the long forms.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from gradring.errors import InvalidArgument
from gradring.torch.c10d.calls.errors import for_torch
from gradring.torch.c10d.calls.work import Work

Method = Callable[..., Work]

_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
# What a tensor is called where the long form has a list.
_LONG_NAMES = {
    "tensor": "tensors", "output_tensor": "output_tensors", "input_tensor": "input_tensors",
    "output": "output_tensors", "input": "input_tensors",
}  # fmt: skip


def also_short(
    options: str, *settings: str, one: str | None = None, per_rank: str | None = None
) -> Callable[[Method], Method]:
    """Let a method of a process group be called in torch's short form too.

    Args:
        options: The class of torch.distributed that ``opts``, its last parameter, is of.
        settings: What the short form has in its place, in order: ``op``, ``root``, ``timeout``.
        one: The parameter that is a list of tensors, or in short a tensor.
        per_rank: The parameter that is a list of lists, or in short a list with one tensor a rank.

    Returns:
        A decorator. The method it makes raises InvalidArgument where a setting is of a wrong type,
        or a tensor stands where one for every rank belongs.
    """
    kind = getattr(dist.distributed_c10d, options)

    def decorate(method: Method) -> Method:
        named = list(inspect.signature(method).parameters)[1:-1]  # Without self and opts.
        long, short = _signature(named, ()), _signature(named, settings)

        @functools.wraps(method)
        def either(self: Any, *args: Any, **keywords: Any) -> Work:
            opts = keywords.pop("opts", None)
            if opts is None and len(args) > len(named) and isinstance(args[-1], kind):
                args, opts = args[:-1], args[-1]
            if keywords or len(args) != len(named):  # Not how torch calls: it takes 2 us.
                keywords = {_long_name(name, named): value for name, value in keywords.items()}
                given = (short if opts is None else long).bind(*args, **keywords).arguments
            else:
                given = dict(zip(named, args, strict=True))
            tensors = {name: given.pop(name) for name in named}
            if per_rank is not None:
                tensors[per_rank] = _lists(method.__name__, per_rank, tensors[per_rank])
            if one is not None and isinstance(tensors[one], Tensor):
                tensors[one] = [tensors[one]]
            if opts is None:
                opts = _options(method.__name__, kind(), given)
            return method(self, **tensors, opts=opts)

        return either

    return decorate


def _signature(required: Sequence[str], optional: Sequence[str]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [inspect.Parameter(name, kind) for name in required]
        + [inspect.Parameter(name, kind, default=None) for name in optional]
    )


def _long_name(name: str, named: Sequence[str]) -> str:
    long = _LONG_NAMES.get(name, name)
    return long if long in named else name


def _lists(method: str, name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        raise for_torch(
            InvalidArgument(f"{method}: {name} is a tensor; pass a list with one for every rank")
        )
    return [value] if any(isinstance(each, Tensor) for each in value) else value


def _options(method: str, options: Any, given: dict[str, Any]) -> Any:
    for name, value in given.items():
        if value is None:
            continue
        try:
            setattr(options, _FIELDS[name], value)
        except TypeError:
            raise for_torch(InvalidArgument(f"{method}: {value!r} is no {name}")) from None
    return options
