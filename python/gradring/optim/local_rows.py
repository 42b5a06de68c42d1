"""A rule's steps on rows of an array in this process: every row is a parameter of its own.

What a server does to a sparse table, done by the worker with the same arithmetic: a row that a step
does not touch is left alone, and its number of steps is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring import _core
from gradring.collectives.calling import whole_number
from gradring.errors import InvalidArgument
from gradring.optim.gradients import is_finite
from gradring.optim.rules import require_rule
from gradring.optim.state import as_array, whole_steps

Array = npt.NDArray[np.float32]
Slots = npt.NDArray[np.int64]

# From which step on a rule does the same in every step, where that is ever.
_SETTLED = {"sgd": 2, "rmsprop": 1}

_NEVER = int(np.iinfo(np.int64).max)

_BESIDE_FIELDS = {"ids", "rule", "step", "counted", "updates"}


def _settled(core_rule: Mapping[str, Any]) -> int:
    if core_rule["kind"] == "adagrad" and core_rule["lr_decay"] == 0:
        return 1
    return _SETTLED.get(core_rule["kind"], _NEVER)


class LocalRows:
    """A rule for the rows of one array, and their states. Used by one thread.

    An embedding that one process trains, without a server and without touching more than the rows
    of a batch::

        rows = gr.optim.LocalRows(gr.optim.Adagrad(lr=0.1), weights.shape[1])
        rows.step(weights, ids, gradients)

    Host memory only. States grow with the array.
    """

    def __init__(self, rule: Any, dim: int) -> None:
        """Begin without states.

        Args:
            rule: Of `gradring.optim`.
            dim: Floats a row, at least 1.

        Raises:
            InvalidArgument: One of them is none.
        """
        require_rule(rule, "to_core")
        self.rule = rule
        self._dim = dim = whole_number("LocalRows: dim", dim)
        if dim < 1:
            raise InvalidArgument(f"LocalRows: dim is {dim}; a row has at least 1 float")
        self._core_rule = rule.to_core()
        self._layout = _core.state_fields(self._core_rule, dim)
        self._settled = _settled(self._core_rule)
        self._counts_for_table = self._core_rule["kind"] == "sparse_adam"
        self._updates = 0
        self._steps = np.zeros(0, np.int64)
        self._fields: list[Array] = [
            np.zeros((0, floats), np.float32) for _, floats, _ in self._layout
        ]
        # For merging; they serve again, because fresh pages cost more than the additions.
        self._places = np.zeros(0, np.int32)
        self._sums = np.empty((0, dim), np.float32)

    def set_rule(self, rule: Any) -> None:
        """Go on with other settings, for which the state is the same.

        Args:
            rule: Of the kind that it was made with.

        Raises:
            InvalidArgument: It needs steps that were not counted.
        """
        core_rule = rule.to_core()
        if _settled(core_rule) != self._settled:
            raise InvalidArgument(f"{rule}: an lr_decay is there from the start or not at all")
        self.rule, self._core_rule = rule, core_rule

    def step(self, weights: Array, slots: Any, grads: Any) -> int:
        """Add up the gradients of equal rows, in the order given, and do one step of each row.

        Rows whose sums are not finite are left alone, with their states.

        Args:
            weights: Float32 (rows, dim), contiguous; written in place.
            slots: Rows of it, int64 (n,), as often as there are gradients of them.
            grads: Float32 (n, dim); not written.

        Returns:
            How many rows were left alone.

        Raises:
            InvalidArgument: Shapes or dtypes do not fit, or there is no such row; nothing was
                written.
        """
        slots, grads = np.asarray(slots), np.ascontiguousarray(grads)
        if slots.size and slots.dtype.kind not in "iu":
            raise InvalidArgument(f"rows are named by whole numbers, not by {slots.dtype}")
        if not isinstance(weights, np.ndarray):
            raise InvalidArgument(f"weights are a {type(weights).__name__}, not a NumPy array")
        if weights.ndim != 2 or weights.shape[1] != self._dim:
            raise InvalidArgument(f"weights of shape {weights.shape}, not of rows of {self._dim}")
        if grads.shape != (slots.size, self._dim):
            raise InvalidArgument(
                f"gradients of shape {grads.shape}, not a row of {self._dim} for each of "
                f"{slots.size} slots"
            )
        for what, array in (("weights", weights), ("gradients", grads)):
            if array.dtype != np.float32:  # The kernel sees their bytes alone.
                raise InvalidArgument(f"{what} are {array.dtype}, not float32")
        if not (weights.flags.c_contiguous and weights.flags.writeable):
            raise InvalidArgument("weights are not contiguous, or read-only; they are written")
        slots = np.ascontiguousarray(slots.reshape(-1), np.int64)
        if len(self._places) < len(weights):
            self._places = np.zeros(len(weights), np.int32)
        if len(self._sums) < len(slots):
            self._sums = np.empty((len(slots), self._dim), np.float32)
        places, sums = self._places[: len(weights)], self._sums[: len(slots)]
        distinct = np.empty_like(slots)
        count = _core.merge_rows(slots, grads, places, distinct, sums)
        return self._update(weights, distinct[:count], sums[:count]) if count else 0

    def _update(self, weights: Array, slots: Slots, grads: Array) -> int:
        refused = 0
        if not is_finite(grads):
            are_finite = np.isfinite(grads).all(axis=1)
            refused = len(slots) - int(are_finite.sum())
            slots, grads = slots[are_finite], grads[are_finite]
        if len(self._steps) < len(weights):
            self._grow(len(weights))
        if self._counts_for_table:
            steps = np.full(len(slots), self._updates + 1)
        else:
            steps = np.minimum(self._steps[slots] + 1, self._settled)
        fields = [field[: len(weights)] for field in self._fields]
        _core.update_rows(self._core_rule, weights, fields, slots, steps, grads)
        self._updates += 1
        if self._layout and not self._counts_for_table:
            self._steps[slots] = steps
        return refused

    def state(self, slots: Slots) -> dict[str, Any]:
        """Return a copy of the states of some rows: arrays by name, steps, and the rule's name.

        Args:
            slots: The rows.

        Returns:
            ``rule``; for each row ``step``, int64, and whether these were all ``counted``: not
            where the rule does the same in every step; ``updates`` of the array; for each of the
            rule's fields float32 (rows, floats).
        """
        self._reach(slots)
        return {
            "rule": type(self.rule).__name__,
            "step": self._steps[slots],
            "counted": self._settled == _NEVER,
            "updates": self._updates,
            **{
                name: field[slots]
                for (name, _, _), field in zip(self._layout, self._fields, strict=True)
            },
        }

    def load_state(self, slots: Slots, saved: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Args:
            slots: The rows that it is given to, as for `state`.
            saved: Its arrays, a row for each of them; not written.

        Raises:
            InvalidArgument: As `require_fitting`; nothing was changed.
        """
        self.require_fitting(len(slots), saved, "the rows")
        self._reach(slots)
        self._updates = int(saved["updates"])
        self._steps[slots] = saved["step"]
        for (name, _, _), field in zip(self._layout, self._fields, strict=True):
            field[slots] = saved[name]

    def require_fitting(self, count: int, saved: Mapping[str, Any], owner: str) -> None:
        """Refuse what `load_state` would refuse.

        Args:
            count: Rows.
            saved: What `state` returned.
            owner: What to call the rows in errors.

        Raises:
            InvalidArgument: It is of another rule or another number of rows, or the rule needs
                steps that were not counted.
        """
        name = type(self.rule).__name__
        if saved.get("rule", name) != name:  # Those that were saved earlier say none.
            raise InvalidArgument(f"the state of {owner} is of {saved['rule']}, the rule is {name}")
        missing = {"step", "updates"} - saved.keys()
        if missing:
            raise InvalidArgument(f"the state of {owner} has no {', '.join(sorted(missing))}")
        counted = saved.get("counted", True)
        if not isinstance(counted, (bool, np.bool_)):
            raise InvalidArgument(f"counted of {owner} is {counted!r}, not a truth value")
        if not counted and self._settled == _NEVER:
            raise InvalidArgument(
                f"the state of {owner} was saved under settings with which rows' steps are not "
                f"counted, and {self.rule} needs them: an lr_decay is there from the start or not "
                "at all"
            )
        wanted = {name: (count, floats) for name, floats, _ in self._layout}
        given = {
            name: as_array(value, f"{name} of {owner}")
            for name, value in saved.items()
            if name not in _BESIDE_FIELDS
        }
        shapes = {name: array.shape for name, array in given.items()}
        if shapes != wanted:
            raise InvalidArgument(f"the state of {owner} has {shapes}, the rule needs {wanted}")
        for name, array in given.items():
            if not np.can_cast(array.dtype, np.float32, "same_kind"):
                raise InvalidArgument(f"{name} of {owner} is {array.dtype}, not float32")
        steps = as_array(saved["step"], f"step of {owner}")
        if steps.shape != (count,) or steps.dtype.kind not in "iu" or steps.min(initial=0) < 0:
            raise InvalidArgument(f"step of {owner}: a number of steps for each of {count} rows")
        whole_steps(saved["updates"], f"updates of {owner}")

    def _reach(self, slots: Slots) -> None:
        count = int(slots.max(initial=-1)) + 1
        if len(self._steps) < count:
            self._grow(count)

    def _grow(self, count: int) -> None:
        count = max(count, 2 * len(self._steps))
        self._steps = enlarged(self._steps, count)
        for place, (_, _, initial) in enumerate(self._layout):
            self._fields[place] = enlarged(self._fields[place], count, initial)


def enlarged(array: Any, count: int, initial: float = 0) -> Any:
    """Return a copy with more rows, those of `initial`."""
    larger = np.zeros((count, *array.shape[1:]), array.dtype)  # Its pages come when they are used.
    larger[: len(array)] = array
    if initial != 0:
        larger[len(array) :] = initial
    return larger
