"""The state of rules, between a table's floats and `torch.optim`'s entries of `state_dict`.

Pure functions over NumPy arrays. Training that moves from torch to a table, or back, goes on with
the same bits. A table holds, beside the weights, the rule's fields one after the other and a number
of steps: for each row, or for a dense table in all. An entry is what torch keeps for one parameter:
the same fields under the same names, with ``step`` where torch counts steps. Arrays of an entry are
NumPy; ``torch.as_tensor`` makes tensors of them, and tensors on the CPU are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring import _core
from gradring.errors import InvalidArgument
from gradring.optim.rules import CoreRule

Array = npt.NDArray[Any]
Entry = dict[str, Any]


def fields_of(rule: CoreRule, dim: int) -> dict[str, int]:
    """Return the names of a rule's fields and their floats in a row of ``dim``, in their order."""
    return {name: floats for name, floats, _ in _core.state_fields(rule.to_core(), dim)}


def require_successor(rule: Any, successor: Any) -> None:
    """Refuse a rule that cannot go on with what another one keeps.

    Raises:
        InvalidArgument: It is another rule, or keeps another state.
    """
    if type(successor) is not type(rule):
        raise InvalidArgument(
            f"the rule is {type(rule).__name__} and stays so: {type(successor).__name__} cannot go "
            "on with its state; other settings of it can"
        )
    if not isinstance(rule, CoreRule):
        return
    kept, wanted = (list(fields_of(each, 2)) for each in (rule, successor))
    if kept != wanted:
        raise InvalidArgument(
            f"{rule} keeps {', '.join(kept) or 'no state'}; {successor} needs "
            f"{', '.join(wanted) or 'none'}"
        )


def require_kept(rule: CoreRule, param: Array, state: Entry, owner: str) -> None:
    """Refuse what a rule cannot go on with; of an array of one number make its number of steps.

    What other settings of the rule have left beside its own fields stays.

    Args:
        rule: Whose state it is.
        param: The parameter.
        state: Fields under their names, all or none, and ``step`` where the rule counts steps.
        owner: What to call the parameter in errors.

    Raises:
        InvalidArgument: A field is missing, of another shape, or holds no real numbers.
    """
    fields = fields_of(rule, 2)
    missing = [name for name in fields if name not in state]
    if len(missing) == len(fields) and (not fields or state.keys() <= {"step"}):
        missing = []  # No step was done yet; else what is there is another rule's.
    elif rule.counts_steps and "step" not in state:
        missing.append("step")
    if missing:
        raise InvalidArgument(f"the state of {owner} has no {', '.join(missing)}")
    for name, floats_of_two in fields.items():
        if name not in state:
            continue
        shape = param.shape if floats_of_two == 2 else param.shape[:-1]
        value = as_array(state[name], f"{name} of {owner}")
        if value.shape != shape:
            raise InvalidArgument(
                f"{name} of {owner} has shape {value.shape}, not {shape}: the parameter has "
                f"{param.shape}"
            )
        if not np.can_cast(value.dtype, param.dtype, "same_kind"):
            raise InvalidArgument(f"{name} of {owner} is {value.dtype}, not {param.dtype}")
    if "step" in state:
        state["step"] = whole_steps(state["step"], f"step of {owner}")


def as_array(value: Any, what: str) -> Array:
    """Return what was saved as an array.

    Raises:
        InvalidArgument: It makes none.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{what} makes no array: {error}") from error


def whole_steps(value: Any, what: str) -> int:
    """Return a saved number of steps, maybe an array of one number, as Python's.

    Raises:
        InvalidArgument: It is none.
    """
    number = as_array(value, what)
    is_number = number.shape == () and number.dtype.kind in "iuf"
    if not is_number or not 0 <= number < 2**53 or number != int(number):
        raise InvalidArgument(f"{what} is {value!r}, not a number of steps")
    return int(number)


def split(rule: CoreRule, state: Array, dim: int) -> dict[str, Array]:
    """Cut rows of state into fields.

    Args:
        rule: The table's.
        state: Float32; shape ``(rows, floats of state)``.
        dim: Floats of a row's weights.

    Returns:
        For each field an array of shape ``(rows, dim)``, or ``(rows,)`` if a row has one number.

    Raises:
        InvalidArgument: The shape does not fit the rule.
    """
    floats = fields_of(rule, dim)
    if state.ndim != 2 or state.shape[1] != sum(floats.values()):
        raise InvalidArgument(
            f"{type(rule).__name__} has {sum(floats.values())} floats of state beside {dim} "
            f"weights; the state's shape is {state.shape}"
        )
    is_row_wise = fields_of(rule, 2)
    result, begin = {}, 0
    for name, count in floats.items():
        part = state[:, begin : begin + count]
        result[name] = part.copy() if is_row_wise[name] == 2 else part[:, 0].copy()
        begin += count
    return result


def join(rule: CoreRule, fields: Mapping[str, Any], rows: int, dim: int) -> Array:
    """Put fields together to rows of state: the inverse of `split`.

    A field that is missing has what a new row has.

    Args:
        rule: The table's.
        fields: For each field as many numbers as `split` gives, in any shape; not written.
        rows: How many rows.
        dim: Floats of a row's weights.

    Returns:
        Float32; shape ``(rows, floats of state)``.

    Raises:
        InvalidArgument: A field's size does not fit.
    """
    parts = [np.empty((rows, 0), np.float32)]
    for name, count, initial in _core.state_fields(rule.to_core(), dim):
        value = fields.get(name)
        if value is None:
            parts.append(np.full((rows, count), initial, np.float32))
            continue
        part = np.asarray(value, np.float32)
        if part.size != rows * count:
            raise InvalidArgument(f"{name} has {part.size} values, not {rows} x {count}")
        parts.append(part.reshape(rows, count))
    return np.concatenate(parts, axis=1)


def to_entry(rule: CoreRule, state: Array, steps: int, shape: tuple[int, ...]) -> Entry:
    """Return torch's entry for one parameter: a dense table, or one row of a sparse one.

    Args:
        rule: The table's.
        state: Float32; the parameter's floats of state, field after field.
        steps: Of the table, or of the row.
        shape: The parameter's.

    Returns:
        What ``optimizer.state_dict()["state"][index]`` has after so many steps. Before the first
        one it is empty, but for Adagrad's.
    """
    if steps == 0 and rule.to_core()["kind"] != "adagrad":
        return {}
    size = int(np.prod(shape))
    entry: Entry = _step_of(rule, steps)
    for name, field in split(rule, np.asarray(state, np.float32).reshape(1, -1), size).items():
        entry[name] = field.reshape(shape) if field.ndim == 2 else field
    if rule.to_core()["kind"] == "sgd":
        entry.setdefault("momentum_buffer", None)  # torch's key without momentum.
    return entry


def entry_of_fields(rule: CoreRule, fields: Mapping[str, Array], steps: int) -> Entry:
    """Return torch's entry for one parameter from its fields; see `to_entry`.

    Args:
        rule: The table's.
        fields: Those of `fields_of`, in the parameter's shape; not copied.
        steps: Of the table.

    Returns:
        Empty where there is nothing to go on from: with a rule that keeps nothing, and before the
        first step of those that tell it by their steps.
    """
    # Of the others' steps entries say nothing, so a table that took one over may have none.
    if steps == 0 and rule.to_core()["kind"] not in ("adagrad", "ftrl", "row_wise_adagrad"):
        return {}
    return {**_step_of(rule, steps), **fields}


def from_entry(rule: CoreRule, entry: Mapping[str, Any], size: int) -> tuple[Array, int]:
    """Return one parameter's floats of state and its number of steps: the inverse of `to_entry`.

    Args:
        rule: With the options that torch's optimizer has.
        entry: Torch's; empty if the parameter has not had a step.
        size: Weights of the parameter.

    Raises:
        InvalidArgument: A field's size does not fit.
    """
    return join(rule, entry, 1, size)[0], steps_of(entry)


def steps_of(entry: Mapping[str, Any]) -> int:
    """Return the number of steps that a torch entry stands for."""
    if "step" in entry:
        return int(entry["step"])
    # torch's SGD counts none, and its first step is the one that finds no buffer.
    return int(entry.get("momentum_buffer") is not None)


def to_row_entries(rule: CoreRule, state: Array, steps: Any, dim: int) -> list[Entry]:
    """Return an entry for each row of a sparse table, as if every row were a parameter.

    Args:
        rule: The table's.
        state: Float32; shape ``(rows, floats of state)``.
        steps: Integers; shape ``(rows,)``.
        dim: Floats of a row's weights.
    """
    rows = zip(state, np.asarray(steps).tolist(), strict=True)
    return [to_entry(rule, row, count, (dim,)) for row, count in rows]


def from_row_entries(
    rule: CoreRule, entries: Sequence[Mapping[str, Any]], dim: int
) -> tuple[Array, Array]:
    """Return the rows of state, and uint32 steps: the inverse of `to_row_entries`.

    Args:
        rule: With the options that torch's optimizer has.
        entries: One for each row; empty where the row has not had a step.
        dim: Floats of a row's weights.

    Returns:
        Float32 of shape ``(rows, floats of state)``, and steps of shape ``(rows,)``.

    Raises:
        InvalidArgument: A field's size does not fit.
    """
    width = sum(fields_of(rule, dim).values())
    state = np.empty((len(entries), width), np.float32)
    steps = np.zeros(len(entries), np.uint32)
    for index, entry in enumerate(entries):
        state[index], steps[index] = from_entry(rule, entry, dim)
    return state, steps


def to_matrix_entry(rule: CoreRule, state: Array, steps: int, dim: int) -> Entry:
    """Return one entry for a whole sparse table: `torch.optim.SparseAdam`'s of an embedding.

    Args:
        rule: The table's; one whose steps are the table's.
        state: Float32; shape ``(rows, floats of state)``, one for each row of the embedding.
        steps: Of the table.
        dim: Floats of a row's weights.
    """
    return _step_of(rule, steps) | split(rule, state, dim) if steps > 0 else {}


def from_matrix_entry(
    rule: CoreRule, entry: Mapping[str, Any], rows: int, dim: int
) -> tuple[Array, int]:
    """Return the rows of state and the table's steps: the inverse of `to_matrix_entry`.

    Args:
        rule: With the options that torch's optimizer has; one whose steps are the table's.
        entry: Torch's; empty if the embedding has not had a step.
        rows: Rows of the embedding.
        dim: Floats of a row's weights.

    Returns:
        Float32 of shape ``(rows, floats of state)``, and the number of steps.

    Raises:
        InvalidArgument: A field's size does not fit.
    """
    return join(rule, entry, rows, dim), int(entry.get("step", 0))


def _step_of(rule: CoreRule, steps: int) -> Entry:
    kind = rule.to_core()["kind"]
    if kind in ("sgd", "sum", "ftrl", "row_wise_adagrad"):
        return {}
    # torch counts in a float32 tensor; its SparseAdam in an integer.
    return {"step": steps if kind == "sparse_adam" else np.array(steps, np.float32)}
