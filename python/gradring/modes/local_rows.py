"""A rule's steps on rows of a local replica: every row is a parameter of its own.

What a server does to a sparse table, done by the worker with a rule of `gradring.optim`: a row that
a step does not touch is left alone, and its number of steps is its own. Used by one thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.modes.rows import Slots
from gradring.modes.store import Array


class LocalRows:
    """The states of a rule for rows by slot."""

    def __init__(self, rule: Any, dim: int) -> None:
        """Begin without states.

        Args:
            rule: Has ``update(param, grad, state)``, element by element.
            dim: Floats a row.
        """
        self.rule = rule
        self._dim = dim
        self._steps = np.zeros(0, np.int64)
        self._fields: dict[str, npt.NDArray[Any]] = {}
        self._is_stateless = False

    def update(self, weights: Array, slots: Slots, grads: Array) -> None:
        """Do one step of each row.

        Args:
            weights: All rows by slot; written in place.
            slots: The rows that have a gradient; distinct.
            grads: One for each slot.
        """
        if self._is_stateless:
            rows = weights[slots]
            self.rule.update(rows, grads, {})
            weights[slots] = rows
            return
        if len(self._steps) < len(weights):
            self._grow(len(weights))
        steps = self._steps[slots]
        # Rows of one age go together: a rule's state says one number of steps for all it is given.
        for age in np.unique(steps):
            chosen = np.flatnonzero(steps == age)
            self._update_together(int(age), weights, slots[chosen], grads[chosen])
        self._steps[slots] += 1

    def _update_together(self, age: int, weights: Array, slots: Slots, grads: Array) -> None:
        state: dict[str, Any] = {}
        if age > 0:
            state = {name: field[slots] for name, field in self._fields.items()}
            state["step"] = age
        rows = weights[slots]
        self.rule.update(rows, grads, state)
        weights[slots] = rows
        if not state and age == 0:
            self._is_stateless = True
        for name, value in state.items():
            if isinstance(value, np.ndarray):
                if name not in self._fields:
                    self._fields[name] = np.zeros((len(self._steps), self._dim), value.dtype)
                self._fields[name][slots] = value

    def _grow(self, count: int) -> None:
        count = max(count, 2 * len(self._steps))
        steps = np.zeros(count, np.int64)
        steps[: len(self._steps)] = self._steps
        self._steps = steps
        for name, field in self._fields.items():
            larger = np.zeros((count, self._dim), field.dtype)
            larger[: len(field)] = field
            self._fields[name] = larger
