"""Whole tables as NumPy arrays, with their optimizer state under torch.optim's names.

For tables that fit into the memory of one process: to look at, to move a training from torch.optim
to servers or back, to keep a small table. Larger ones are saved by their servers
(`gradring.ps.checkpoint`). What is pushed meanwhile may be in it or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gradring import _core
from gradring.arrays import buffers
from gradring.errors import InvalidArgument, PeerLost, ProtocolError
from gradring.optim.state import steps_of
from gradring.ps.saved import saved_numbers
from gradring.ps.saved.read_ids import ReadIds

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
_ROW_KEYS = ("ids", "rows", "state", *_KEPT, "updates")
_ARRAY_KEYS = ("weights", "state", "step")

_ROWS_AT_ONCE = 1 << 14


def pages(
    table: SparseTable, most: int = _ROWS_AT_ONCE, timeout_ms: Callable[[], int] = lambda: -1
) -> Iterator[tuple[Array, Array]]:
    """Read a sparse table, shard by shard and in no order, each id once.

    A row that goes and comes back meanwhile may lie where reading has not come yet: it was read
    already then, as it was before.

    Args:
        table: It.
        most: Rows of a page.
        timeout_ms: Asked before each request for how long it may take; -1: the connection's time.

    Yields:
        What is known of some rows, a record each, and their floats: float32 (n, dim + state).

    Raises:
        Mismatch: The table was replaced by one with other settings.
        PeerLost: A server was started again, or loaded a checkpoint, while the table was read:
            what comes from there belongs to another state than what was read before.
    """
    core = table.calls.core
    lineages = _lineages(table, timeout_ms)
    width = table.dim + sum(floats for _, floats in _fields(table.optimizer, table.dim))
    for shard in range(core.shards):
        cursor, more, read = 0, True, ReadIds()
        while more:
            with table.calls.explaining([table]):
                heads, values, cursor, more, of_page = core.read_rows(
                    table.number, shard, cursor, most, timeout_ms()
                )
                _require_lineage(table, shard, of_page, lineages)
                meta, floats = np.frombuffer(heads, _META), np.frombuffer(values, np.float32)
                _require_floats(table.name, floats.size, len(meta) * width)
            wide = floats.reshape(len(meta), width)
            is_new = read.take(meta["id"], meta["stamp"])
            yield (meta, wide) if is_new.all() else (meta[is_new], wide[is_new])
    for shard, now in enumerate(
        _lineages(table, timeout_ms)
    ):  # After the last page of the first shards.
        _require_lineage(table, shard, now, lineages)


def _lineages(table: SparseTable, timeout_ms: Callable[[], int]) -> list[Any]:
    """Ask each shard which life, and which checkpoint, its rows are of: all begin as one state."""
    core = table.calls.core
    with table.calls.explaining([table]):
        return [
            core.read_rows(table.number, shard, 0, 1, timeout_ms())[4]
            for shard in range(core.shards)
        ]


def _require_lineage(table: SparseTable, shard: int, now: Any, before: Sequence[Any]) -> None:
    if now != before[shard]:
        raise PeerLost(
            f"the server of shard {shard} was started again, or loaded a checkpoint, while table "
            f"{table.name!r} was read, and has other rows, or has them in other places, since: "
            "read it again"
        )


def read_rows(table: SparseTable) -> dict[str, Any]:
    """Return all rows of a sparse table, in the order of ids.

    Returns:
        ``ids`` uint64 (n,), ``rows`` float32 (n, dim), ``state`` with an array for each of the
        rule's names, float32 (n, dim) or (n, 1), and ``step``, ``version``, ``tick``, ``score``
        of each row. With a rule whose steps are the table's (`gradring.optim.SparseAdam`)
        ``updates`` is their number.

    Raises:
        Mismatch: The table was replaced by one with other settings.
        PeerLost: As `pages`.
    """
    metas, floats = zip(*pages(table), strict=True)
    meta = np.concatenate(metas)
    order = np.argsort(meta["id"])
    meta = meta[order]
    fields = _fields(table.optimizer, table.dim)
    widths = [table.dim, *(width for _, width in fields)]
    parts = np.split(np.concatenate(floats)[order], np.cumsum(widths)[:-1], axis=1)
    updates = {"updates": _updates(table)} if _counts_for_table(table.optimizer) else {}
    return {
        **updates,
        "ids": meta["id"].copy(),
        "rows": parts[0].copy(),
        "state": {name: part.copy() for (name, _), part in zip(fields, parts[1:], strict=True)},
        **{name: meta[name].copy() for name in _KEPT},
    }


def write_rows(table: SparseTable, saved: Mapping[str, Any]) -> None:
    """Make or replace rows as `read_rows` returned them; other rows stay.

    Args:
        table: Of the same dim, with a rule that has the same state.
        saved: ``ids``, whole numbers (n,), and ``rows`` (n, dim); ``state`` begins anew where it is
            missing, ``version`` and ``score`` at 0, and ``tick`` is the last one that
            `ParameterServer.tick` was told, by anybody. ``step`` is the state's where it has one,
            as torch's entries do, and else 0, but 1 with a ``momentum_buffer``: torch's SGD does
            not count. These four are one number, or one for each row. ``updates`` are then the
            same, with a rule whose steps are the table's; where neither is there they stay.

    Raises:
        InvalidArgument: Shapes or names do not fit, or the state has what the table's rule does
            not keep, or an id is there twice; nothing was sent.
    """
    _require_keys(
        saved,
        table.name,
        ("ids", "rows"),
        f"A sparse table takes 'ids', whole numbers (n,), and 'rows', float32 (n, {table.dim}); of "
        "the weight of a torch.nn.Embedding range(n) and the weight",
    )
    _require_known(saved, table.name, _ROW_KEYS, "rows have")
    ids = buffers.as_ids(saved["ids"])
    if ids.ndim != 1:
        raise InvalidArgument(f"ids has shape {ids.shape}; give a list of them")
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        raise InvalidArgument(
            f"id {distinct[counts > 1][0]} of table {table.name!r} is there more than once: which "
            "of its rows counts?"
        )
    parts = [_fitting(saved["rows"], (len(ids), table.dim), "rows")]
    for name, width, initial in _core.state_fields(table.optimizer.to_core(), table.dim):
        given = _state_of(saved, name)
        parts.append(
            np.full((len(ids), width), initial, np.float32)
            if given is None
            else _fitting(given, (len(ids), width), name)
        )
    _require_no_more(saved, table, table.dim)
    of_state = _steps_of(saved)
    updates = _updates_in(saved, table, of_state)
    meta = np.zeros(len(ids), _META)
    meta["id"] = ids
    meta["step"] = saved_numbers.counts("step", saved.get("step", of_state), ids.shape)
    meta["version"] = saved_numbers.counts("version", saved.get("version", 0), ids.shape)
    meta["score"] = saved_numbers.scores(saved.get("score", 0), ids.shape)
    # Asked for last: all else is checked before anything is sent.
    tick = saved["tick"] if "tick" in saved else _tick_of(table)
    meta["tick"] = saved_numbers.counts("tick", tick, ids.shape)
    wide = np.concatenate(parts, axis=1)
    with table.calls.explaining([table]):
        for first in range(0, max(len(ids), 1), _ROWS_AT_ONCE):  # Without rows, for `updates`.
            some = slice(first, first + _ROWS_AT_ONCE)
            heads = meta[some].view(np.uint8)
            table.calls.core.write_rows(table.number, heads, wide[some], updates)


def read_array(table: DenseTable) -> dict[str, Any]:
    """Return a dense table.

    Returns:
        ``weights`` float32 of the table's shape, ``state`` with an array of that shape for each of
        the rule's names, and ``step``, the number of updates.

    Raises:
        Mismatch: The table was replaced by one with other settings.
    """
    names = [name for name, _ in _fields(table.optimizer, table.size)]
    with table.calls.explaining([table]):
        read = table.calls.core.read_dense(table.number)
        flats = [np.frombuffer(values, np.float32) for _, values in read]
        floats = (1 + len(names)) * table.size
        _require_floats(table.name, sum(flat.size for flat in flats), floats)
    parts = [flat.reshape(1 + len(names), -1) for flat in flats]
    weights, *state = np.concatenate(parts, axis=1).reshape(1 + len(names), *table.shape)
    return {
        "weights": weights,
        "state": dict(zip(names, state, strict=True)),
        # A shard without any of its floats counts nothing.
        "step": max(
            (step for (step, _), flat in zip(read, flats, strict=True) if flat.size), default=0
        ),
    }


def write_array(table: DenseTable, saved: Mapping[str, Any]) -> None:
    """Replace a dense table by what `read_array` returned.

    Args:
        table: Of the same shape, with a rule that has the same state.
        saved: ``weights``; ``state`` begins anew where it is missing, and ``step``, a number, is as
            in `write_rows`.

    Raises:
        InvalidArgument: Shapes or names do not fit, or the state has what the table's rule does
            not keep; nothing was sent.
    """
    _require_keys(
        saved,
        table.name,
        ("weights",),
        f"A dense table takes 'weights', float32 of shape {table.shape}",
    )
    _require_known(saved, table.name, _ARRAY_KEYS, "a dense table has")
    parts = [_fitting(saved["weights"], table.shape, "weights")]
    for name, _, initial in _core.state_fields(table.optimizer.to_core(), table.size):
        given = _state_of(saved, name)
        parts.append(
            np.full(table.shape, initial, np.float32)
            if given is None
            else _fitting(given, table.shape, name)
        )
    _require_no_more(saved, table, table.size)
    step = int(saved_numbers.counts("step", saved.get("step", _steps_of(saved)), ()))
    flat = np.stack([part.reshape(-1) for part in parts])
    ends = [0, *table.calls.core.dense_ends(table.number)]
    with table.calls.explaining([table]):
        table.calls.core.write_dense(
            table.number,
            [(step, flat[:, begin:end].copy()) for begin, end in itertools.pairwise(ends)],
        )


def _updates_in(saved: Mapping[str, Any], table: SparseTable, of_state: Any) -> int | None:
    """Return the table's number of updates, None where nothing is said of it."""
    is_of_table = _counts_for_table(table.optimizer) and "step" in (saved.get("state") or {})
    if "updates" not in saved and not is_of_table:
        return None
    return int(saved_numbers.counts("updates", saved.get("updates", of_state), ()))


def _tick_of(table: SparseTable) -> int:
    return max(int(one["tick"]) for one in table.calls.stats_of(table.name))


def _counts_for_table(rule: Any) -> bool:
    return bool(rule.to_core()["kind"] == "sparse_adam")


def _updates(table: SparseTable) -> int:
    return max(int(one["steps"]) for one in table.calls.stats_of(table.name))


def _fields(rule: Any, dim: int) -> list[tuple[str, int]]:
    return [(name, width) for name, width, _ in _core.state_fields(rule.to_core(), dim)]


def _require_floats(name: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ProtocolError(f"read of table {name!r}: {found} floats instead of {wanted}")


def _require_keys(saved: Any, name: str, keys: Sequence[str], wanted: str) -> None:
    what = f"load_state_dict of table {name!r}"
    if not isinstance(saved, Mapping):
        raise InvalidArgument(
            f"{what}: a dictionary is needed, not a {type(saved).__name__}. {wanted}"
        )
    for key in keys:
        if key not in saved:
            found = ", ".join(map(str, saved)) or "nothing"
            raise InvalidArgument(f"{what}: {key!r} is missing; there is {found}. {wanted}")
    state = saved.get("state")
    if state is not None and not isinstance(state, Mapping):
        raise InvalidArgument(f"{what}: the state is a {type(state).__name__}, no dictionary")


def _require_known(saved: Mapping[str, Any], name: str, known: Sequence[str], whose: str) -> None:
    unknown = [key for key in saved if key not in known]
    if unknown:
        raise InvalidArgument(
            f"load_state_dict of table {name!r}: {unknown[0]!r} is nothing that {whose}; there is "
            f"{', '.join(known)}"
        )


def _require_no_more(saved: Mapping[str, Any], table: SparseTable | DenseTable, dim: int) -> None:
    """Refuse what another optimizer has kept: training would go on without it, and differ."""
    known = [name for name, _ in _fields(table.optimizer, dim)]
    state = saved.get("state") or {}
    lost = [
        name
        for name, value in state.items()
        if value is not None and name != "step" and name not in known
    ]
    if lost:
        raise InvalidArgument(
            f"the state has {', '.join(map(repr, lost))}, but table {table.name!r} keeps "
            f"{', '.join(known) or 'nothing'}, as {table.optimizer} does: make the table with the "
            "rule that the state is of, or leave out the state to begin anew"
        )


def _steps_of(saved: Mapping[str, Any]) -> Any:
    state = saved.get("state") or {}
    return state["step"] if "step" in state else steps_of(state)


def _state_of(saved: Mapping[str, Any], name: str) -> Any:
    state = saved.get("state")
    if not state:
        return None
    if name not in state:
        raise InvalidArgument(f"the state lacks {name!r}; it has {', '.join(state)}")
    return state[name]


def _fitting(values: Any, shape: tuple[int, ...], name: str) -> Array:
    array = buffers.as_float32(values, name)
    if array.shape != shape:
        raise InvalidArgument(f"{name} has shape {array.shape}, the table needs {shape}")
    return array
