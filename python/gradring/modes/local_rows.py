"""A rule's steps on rows of a local replica: every row is a parameter of its own.

What a server does to a sparse table, done by the worker with the same arithmetic: a row that a step
does not touch is left alone, and its number of steps is its own. Used by one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring import _core
from gradring.errors import InvalidArgument
from gradring.modes.rows import Slots
from gradring.modes.store import Array

# From which step on a rule does the same in every step, where that is ever.
_SETTLED = {"sgd": 2, "rmsprop": 1}

_BESIDE_FIELDS = {"ids", "step", "updates"}


def _settled(core_rule: Mapping[str, Any]) -> int:
    if core_rule["kind"] == "adagrad" and core_rule["lr_decay"] == 0:
        return 1
    return _SETTLED.get(core_rule["kind"], np.iinfo(np.int64).max)


class LocalRows:
    """The states of a rule for rows by slot."""

    def __init__(self, rule: Any, dim: int) -> None:
        """Begin without states.

        Args:
            rule: Of `gradring.optim`.
            dim: Floats a row.
        """
        self.rule = rule
        self._dim = dim
        self._core_rule = rule.to_core()
        self._layout = _core.state_fields(self._core_rule, dim)
        self._settled = _settled(self._core_rule)
        self._counts_for_table = self._core_rule["kind"] == "sparse_adam"
        self._updates = 0
        self._steps = np.zeros(0, np.int64)
        self._fields: list[npt.NDArray[np.float32]] = [
            np.zeros((0, floats), np.float32) for _, floats, _ in self._layout
        ]

    def set_rule(self, rule: Any) -> None:
        """Go on with other settings, for which the state is the same.

        Raises:
            InvalidArgument: It needs steps that were not counted.
        """
        core_rule = rule.to_core()
        if _settled(core_rule) != self._settled:
            raise InvalidArgument(f"{rule}: an lr_decay is there from the start or not at all")
        self.rule, self._core_rule = rule, core_rule

    def update(self, weights: Array, slots: Slots, grads: Array) -> None:
        """Do one step of each row.

        Args:
            weights: All rows by slot; written in place.
            slots: The rows that have a gradient; distinct.
            grads: One for each slot.
        """
        if len(slots) == 0:
            return
        if not self._layout:
            self._update_together(1, weights, slots, grads)
            return
        if len(self._steps) < len(weights):
            self._grow(len(weights))
        self._updates += 1
        if self._counts_for_table:
            self._update_together(self._updates, weights, slots, grads)
            return
        steps = np.minimum(self._steps[slots] + 1, self._settled)
        self._steps[slots] = steps
        if self._settled == 1:
            self._update_together(1, weights, slots, grads)
            return
        # Rows of one age go together.
        for step in np.unique(steps):
            chosen = np.flatnonzero(steps == step)
            self._update_together(int(step), weights, slots[chosen], grads[chosen])

    def state(self, slots: Slots) -> dict[str, Any]:
        """Return a copy of the states of some rows: arrays by name, and steps.

        Args:
            slots: The rows.
        """
        self._reach(slots)
        return {
            "step": self._steps[slots],
            "updates": self._updates,
            **{
                name: field[slots]
                for (name, _, _), field in zip(self._layout, self._fields, strict=True)
            },
        }

    def load_state(self, slots: Slots, saved: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            InvalidArgument: It is of another rule or another number of rows; nothing was changed.
        """
        shapes = {name: (len(slots), floats) for name, floats, _ in self._layout}
        given = {name: np.shape(saved[name]) for name in saved if name not in _BESIDE_FIELDS}
        if given != shapes:
            raise InvalidArgument(f"the state of rows has {given}, the rule needs {shapes}")
        self._reach(slots)
        self._updates = int(saved["updates"])
        self._steps[slots] = saved["step"]
        for (name, _, _), field in zip(self._layout, self._fields, strict=True):
            field[slots] = saved[name]

    def _reach(self, slots: Slots) -> None:
        count = int(slots.max(initial=-1)) + 1
        if len(self._steps) < count:
            self._grow(count)

    def _update_together(self, step: int, weights: Array, slots: Slots, grads: Array) -> None:
        rows = weights[slots]
        states = [field[slots] for field in self._fields]
        _core.update_dense(self._core_rule, step, self._dim, rows, states, grads)
        weights[slots] = rows
        for field, state in zip(self._fields, states, strict=True):
            field[slots] = state

    def _grow(self, count: int) -> None:
        before = len(self._steps)
        count = max(count, 2 * before)
        self._steps = np.concatenate([self._steps, np.zeros(count - before, np.int64)])
        for place, (_, floats, initial) in enumerate(self._layout):
            fresh = np.full((count - before, floats), initial, np.float32)
            self._fields[place] = np.concatenate([self._fields[place], fresh])
