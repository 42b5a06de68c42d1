"""What an update rule is, and the way of NumPy arrays into the compiled kernel.

The arithmetic is in the core, one copy for arrays here and for the tables of parameter servers:
step by step that of `torch.optim`'s single-tensor path on a CPU with FMA, float32 or float64
(docs/update_rules.md). Rules hold no state; they may be shared, and swapped between steps to
follow a schedule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from gradring import _core
from gradring.collectives.same_lines import number_text
from gradring.errors import InvalidArgument

Array = npt.NDArray[Any]
# Of one parameter: arrays of its dtype under torch's names, and the number of steps.
State = dict[str, Any]


class Rule(Protocol):
    """What an optimizer asks of an update rule."""

    def update(self, param: Array, grad: Array, state: State) -> None:
        """Do one step.

        Args:
            param: Float32 or float64; written in place.
            grad: Shape of ``param``; taken in its dtype; not written.
            state: Empty before the first step; belongs to the rule.
        """


class CoreRule:
    """An update rule whose arithmetic is in the core; a frozen dataclass of numbers.

    Fields have the names of kernels::Rule's members, but for those that `to_core` translates.
    """

    _kind: ClassVar[str]
    counts_steps: ClassVar[bool] = True  # Whether the number of steps is a part of the state.
    _is_row_wise: ClassVar[bool] = False  # Each run along the last axis is a row with one number.
    _positive: ClassVar[tuple[str, ...]] = ()  # Fields that may not be 0.

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        name = type(self).__name__
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            try:
                _require_sense(name, field.name, value)
            except InvalidArgument:  # A ValueError too, which says what is wrong with the number.
                raise
            except (TypeError, ValueError, OverflowError):
                raise InvalidArgument(f"{name}: {field.name} is no number: {value!r}") from None
        for zero in (field for field in self._positive if getattr(self, field) == 0):
            raise InvalidArgument(f"{name}: {zero} must be positive")

    def to_core(self) -> dict[str, Any]:
        """Return the rule as the core takes it, for `ps` tables: kernels::Rule's members."""
        core: dict[str, Any] = {"kind": self._kind}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            match field.name:
                case "betas":
                    core["beta1"], core["beta2"] = (float(beta) for beta in value)
                case "initial_accumulator_value":
                    core["initial_accumulator"] = float(value)
                case "clip_value" | "clip_norm":
                    core[field.name] = 0.0 if value is None else float(value)
                case _:
                    core[field.name] = value if isinstance(value, bool) else float(value)
        return core

    def update(self, param: Array, grad: Array, state: State) -> None:
        """Do one step; see `Rule.update`.

        Raises:
            InvalidArgument: The parameter is neither float32 nor float64, or shapes differ.
        """
        if param.dtype not in (np.float32, np.float64):
            raise InvalidArgument(f"a parameter is float32 or float64, not {param.dtype}")
        if grad.shape != param.shape:
            raise InvalidArgument(f"the gradient's shape is {grad.shape}, not {param.shape}")
        core = self.to_core()
        arrays = self._state_arrays(core, param, state)
        step = self._next_step(arrays, state)
        if param.size == 0:
            return
        dim = param.shape[-1] if self._is_row_wise and param.ndim > 0 else param.size
        whole = np.ascontiguousarray(param)
        grad = np.ascontiguousarray(grad, param.dtype)
        _core.update_dense(core, step, dim, whole, list(arrays.values()), grad)
        if not param.flags.c_contiguous:
            param[...] = whole

    def _state_arrays(self, core: dict[str, Any], param: Array, state: State) -> dict[str, Array]:
        """Return the arrays that a step changes, in the core's order; new ones are not in state."""
        arrays = {}
        for name, floats_of_two, initial in _core.state_fields(core, 2):
            shape = param.shape if floats_of_two == 2 else param.shape[:-1]
            old = state.get(name)
            if old is None:
                arrays[name] = np.full(shape, initial, param.dtype)
            elif np.shape(old) != shape:
                raise InvalidArgument(f"{name} has shape {np.shape(old)}, not {shape}")
            else:
                arrays[name] = np.require(old, param.dtype, ["C", "W"])
        return arrays

    def _next_step(self, arrays: dict[str, Array], state: State) -> int:
        """Put the arrays into the state and return the number of this step."""
        # torch's SGD counts no steps: its first one is that without a buffer.
        step = 2 if arrays.keys() <= state.keys() else 1
        state.update(arrays)
        if self.counts_steps:
            step = state["step"] = int(state.get("step", 0)) + 1
        return step


def require_rule(rule: Any, method: str = "update") -> None:
    """Refuse what is no update rule.

    Args:
        rule: Anything.
        method: What it has to have: ``update`` to step here, ``to_core`` to be told to servers.

    Raises:
        InvalidArgument: It is none.
    """
    if isinstance(rule, CoreRule):
        return
    if isinstance(rule, (type, Mapping)) or not callable(getattr(rule, method, None)):
        kind = rule if isinstance(rule, type) else type(rule)
        what = f"the class {kind.__qualname__}" if kind is rule else f"a {kind.__qualname__}"
        raise InvalidArgument(
            f"rule is {what} of {kind.__module__}; use a rule of gradring.optim, such as "
            "gr.optim.Adagrad(lr=0.05)"
        )


def lines_of(rule: Any) -> list[str]:
    """Return what decides a rule's steps, to be compared; of a rule of the user's the class."""
    numbers = rule.to_core() if isinstance(rule, CoreRule) else {}
    settings = [
        f"{name}={number_text(value) if isinstance(value, float) else value}"
        for name, value in numbers.items()
        if name != "kind"
    ]
    # Without its module, which is another one in processes that a program has spawned.
    return [f"the rule {type(rule).__qualname__}", *settings]


def _require_sense(name: str, field: str, value: Any) -> None:
    """Refuse one number of a rule; raises TypeError if it is none, OverflowError if it is huge."""
    for number in value if field == "betas" else (value,):
        if np.ndim(number) != 0:  # An array of several is neither true nor false.
            raise TypeError
        if number is not None:
            float(number)
    if field == "betas":
        if not (len(value) == 2 and all(0 <= beta < 1 for beta in value)):
            raise InvalidArgument(f"{name}: betas are two numbers in [0, 1), got {value}")
    elif field in ("clip_value", "clip_norm"):
        if value is not None and not 0 < value < math.inf:
            raise InvalidArgument(f"{name}: {field} must be positive and finite, got {value}")
    elif field == "dampening":
        if not math.isfinite(value):
            raise InvalidArgument(f"{name}: dampening must be finite, got {value}")
    elif not isinstance(value, bool) and not 0 <= value < math.inf:
        raise InvalidArgument(f"{name}: {field} must be finite and not negative, got {value}")
