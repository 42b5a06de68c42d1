"""A learning-rate scheduler that was there before an optimizer became distributed.

Schedulers of torch put a function in front of the optimizer's ``step``, by which they see whether
it has been called. It calls that of the class which the optimizer had then, so it is replaced by
one that calls the class's of now.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

_MARK = "_wrapped_by_lr_sched"  # By which schedulers know such a function.


def has_counted_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether what stands in front of the class's ``step`` is a scheduler's function alone."""
    step = vars(optimizer).get("step")
    # Somebody's own may be around a scheduler's, with its mark, or inside of it.
    return hasattr(step, _MARK) and getattr(step, "__wrapped__", None) is type(optimizer).step


def step_through_the_class(optimizer: torch.optim.Optimizer) -> None:
    """Have a scheduler's function, if there is one, call the ``step`` of the class of now."""
    if "step" not in vars(optimizer):
        return
    found = weakref.ref(optimizer)  # As torch's own: it lies in the optimizer.

    @functools.wraps(type(optimizer).step)
    def step(*given: Any, **named: Any) -> Any:
        counted: Any = found()
        counted._opt_called = True  # noqa: SLF001 - what schedulers look at
        return type(counted).step(counted, *given, **named)

    setattr(step, _MARK, True)
    vars(optimizer)["step"] = step
