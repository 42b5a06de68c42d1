"""Whole tables as NumPy arrays, with their optimizer state under torch.optim's names.

For tables that fit into the memory of one process: to look at, to move a training from torch.optim
to servers or back, to keep a small table. Larger ones are saved by their servers
(`gradring.ps.checkpoint`). What is pushed meanwhile may be in it or not.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gradring import _core, arrays
from gradring.errors import InvalidArgument
from gradring.optim.state import steps_of

if TYPE_CHECKING:
    from gradring.ps.dense import DenseTable
    from gradring.ps.sparse import SparseTable

Array = npt.NDArray[Any]

# ps::RowMeta.
_META = np.dtype(
    [
        ("id", "<u8"), ("stamp", "<u8"), ("version", "<u4"), ("step", "<u4"), ("writer", "<u4"),
        ("tick", "<u4"), ("score", "<f4"), ("reserved", "<u4"),
    ]
)  # fmt: skip
# Of a row's meta, what a state dictionary holds besides the id.
_KEPT = ("step", "version", "tick", "score")

_ROWS_AT_ONCE = 1 << 14
_LINE = 16  # Floats; see dense_range() in csrc/ps/partition.h.


def read_rows(core: Any, table: SparseTable) -> dict[str, Any]:
    """Return all rows of a sparse table, in the order of ids.

    Returns:
        ``ids`` uint64 (n,), ``rows`` float32 (n, dim), ``state`` with an array for each of the
        rule's names, float32 (n, dim) or (n, 1), and ``step``, ``version``, ``tick``, ``score``
        of each row. With a rule whose steps are the table's (`gradring.optim.SparseAdam`)
        ``updates`` is their number.
    """
    metas, floats = [], []
    for shard in range(core.shards):
        cursor, more = 0, True
        while more:
            heads, values, cursor, more = core.read_rows(table.number, shard, cursor, _ROWS_AT_ONCE)
            metas.append(np.frombuffer(heads, _META))
            floats.append(np.frombuffer(values, np.float32))
    meta = np.concatenate(metas)
    order = np.argsort(meta["id"])
    meta = meta[order]
    widths = [table.dim, *(width for _, width in _fields(table.optimizer, table.dim))]
    wide = np.concatenate(floats).reshape(len(meta), sum(widths))
    parts = np.split(wide[order], np.cumsum(widths)[:-1], axis=1)
    updates = {"updates": _updates(core, table)} if _counts_for_table(table.optimizer) else {}
    return {
        **updates,
        "ids": meta["id"].copy(),
        "rows": parts[0].copy(),
        "state": {
            name: part.copy()
            for (name, _), part in zip(_fields(table.optimizer, table.dim), parts[1:], strict=True)
        },
        **{name: meta[name].copy() for name in _KEPT},
    }


def write_rows(core: Any, table: SparseTable, saved: Mapping[str, Any]) -> None:
    """Make or replace rows as `read_rows` returned them; other rows stay.

    Args:
        core: The compiled client.
        table: Of the same dim, with a rule that has the same state.
        saved: ``ids`` and ``rows``; ``state`` begins anew where it is missing, and ``version``,
            ``tick`` and ``score`` at 0. ``step`` is the state's where it has one, as torch's
            entries do, and else 0, but 1 with a ``momentum_buffer``: torch's SGD does not count.
            ``updates`` are then the same, with a rule whose steps are the table's.

    Raises:
        InvalidArgument: Shapes or names do not fit; nothing was sent.
    """
    ids = arrays.as_ids(saved["ids"])
    meta = np.zeros(len(ids), _META)
    meta["id"] = ids
    steps = _steps_of(saved)
    for name in _KEPT:
        meta[name] = saved.get(name, steps if name == "step" else 0)
    parts = [_fitting(saved["rows"], (len(ids), table.dim), "rows")]
    for name, width, initial in _core.state_fields(table.optimizer.to_core(), table.dim):
        given = _state_of(saved, name)
        parts.append(
            np.full((len(ids), width), initial, np.float32)
            if given is None
            else _fitting(given, (len(ids), width), name)
        )
    wide = np.concatenate(parts, axis=1)
    updates = int(saved.get("updates", steps if _counts_for_table(table.optimizer) else 0))
    for first in range(0, len(ids), _ROWS_AT_ONCE):
        some = slice(first, first + _ROWS_AT_ONCE)
        core.write_rows(table.number, meta[some].view(np.uint8), wide[some], updates)


def read_array(core: Any, table: DenseTable) -> dict[str, Any]:
    """Return a dense table.

    Returns:
        ``weights`` float32 of the table's shape, ``state`` with an array of that shape for each of
        the rule's names, and ``step``, the number of updates.
    """
    names = [name for name, _ in _fields(table.optimizer, table.size)]
    steps, flats = [], []
    for step, values in core.read_dense(table.number):
        steps.append(step)
        flats.append(np.frombuffer(values, np.float32).reshape(1 + len(names), -1))
    weights, *state = np.concatenate(flats, axis=1).reshape(1 + len(names), *table.shape)
    return {
        "weights": weights,
        "state": dict(zip(names, state, strict=True)),
        "step": max(steps),
    }


def write_array(core: Any, table: DenseTable, saved: Mapping[str, Any]) -> None:
    """Replace a dense table by what `read_array` returned.

    Args:
        core: The compiled client.
        table: Of the same shape, with a rule that has the same state.
        saved: ``weights``; ``state`` begins anew where it is missing, and ``step`` is as in
            `write_rows`.

    Raises:
        InvalidArgument: Shapes or names do not fit; nothing was sent.
    """
    parts = [_fitting(saved["weights"], table.shape, "weights")]
    for name, _, initial in _core.state_fields(table.optimizer.to_core(), table.size):
        given = _state_of(saved, name)
        parts.append(
            np.full(table.shape, initial, np.float32)
            if given is None
            else _fitting(given, table.shape, name)
        )
    flat = np.stack([part.reshape(-1) for part in parts])
    lines = math.ceil(table.size / _LINE)
    ends = [
        min(table.size, lines * shard // core.shards * _LINE) for shard in range(core.shards + 1)
    ]
    step = int(saved["step"]) if "step" in saved else _steps_of(saved)
    core.write_dense(
        table.number,
        [(step, flat[:, begin:end].copy()) for begin, end in itertools.pairwise(ends)],
    )


def _counts_for_table(rule: Any) -> bool:
    return bool(rule.to_core()["kind"] == "sparse_adam")


def _updates(core: Any, table: SparseTable) -> int:
    shards = [json.loads(text)["tables"] for text in core.stats()]
    return max(int(one["steps"]) for shard in shards for one in shard if one["name"] == table.name)


def _fields(rule: Any, dim: int) -> list[tuple[str, int]]:
    return [(name, width) for name, width, _ in _core.state_fields(rule.to_core(), dim)]


def _steps_of(saved: Mapping[str, Any]) -> int:
    return steps_of(saved.get("state") or {})


def _state_of(saved: Mapping[str, Any], name: str) -> Any:
    state = saved.get("state")
    if not state:
        return None
    if name not in state:
        raise InvalidArgument(f"the state lacks {name!r}; it has {', '.join(state)}")
    return state[name]


def _fitting(values: Any, shape: tuple[int, ...], name: str) -> Array:
    array = arrays.as_float32(values, name)
    if array.shape != shape:
        raise InvalidArgument(f"{name} has shape {array.shape}, the table needs {shape}")
    return array
