"""Several tables in one round trip, and which tables a call may be given.

Entries of one table become one request: servers would take two for two updates, but equal ids in
one call are one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from gradring.arrays import buffers
from gradring.errors import InvalidArgument
from gradring.ps.arguments.requests import Ids, PullRequest, Rows, pull_request, push_request
from gradring.ps.calls import Calls
from gradring.ps.dense import DenseTable
from gradring.ps.sparse import SparseTable

T = TypeVar("T")


def entries(what: str, given: Iterable[Any], parts: Sequence[str]) -> list[Any]:
    """Return what a call was given for each table.

    Args:
        what: The call, for messages.
        given: Tuples or lists.
        parts: What belongs into each.

    Raises:
        InvalidArgument: One has another length, or is none.
    """
    try:
        found = list(given)
    except TypeError:
        raise InvalidArgument(
            f"{what} takes a list of ({', '.join(parts)}), not {_shown(given)}"
        ) from None
    for entry in found:
        if not isinstance(entry, (tuple, list)) or len(entry) != len(parts):
            raise InvalidArgument(
                f"{what} takes a list of ({', '.join(parts)}); one of them is {_shown(entry)}"
            )
    return found


def require_sparse(calls: Calls, what: str, table: Any) -> None:
    """Refuse what is no sparse table of this connection.

    Raises:
        InvalidArgument: It is something else; names it.
    """
    if not isinstance(table, SparseTable):
        raise InvalidArgument(f"{what} takes sparse tables, not {_shown(table)}")
    _require_own(calls, table)


def require_table(calls: Calls, what: str, table: Any) -> None:
    """Refuse what is no table of this connection.

    Raises:
        InvalidArgument: It is something else; names it.
    """
    if not isinstance(table, (SparseTable, DenseTable)):
        raise InvalidArgument(f"{what} takes tables, not {_shown(table)}")
    _require_own(calls, table)


def pulls(
    calls: Calls, given: Iterable[Any]
) -> tuple[list[tuple[SparseTable, PullRequest]], Callable[[list[Any]], list[Any]]]:
    """Check a pull from several tables.

    Returns:
        A request for each table, and what makes the results for each entry of what those brought.

    Raises:
        InvalidArgument: Tables, shapes or dtypes do not fit.
        DeviceError: An array lives on a device.
    """
    asked: list[tuple[SparseTable, PullRequest]] = []
    for table, ids in entries("pull_many", given, ("table", "ids")):
        require_sparse(calls, "pull_many", table)
        asked.append((table, pull_request(table.name, table.dim, ids, None)))
    by_table = [
        (table, each, each[0] if len(each) == 1 else _joined(table, each))
        for table, each in _by_table(asked)
    ]

    def hand_out(_: list[Any]) -> list[Any]:
        for table, each, whole in by_table:
            begin = 0
            for request in each if len(each) > 1 else ():
                end = begin + len(request.ids)
                np.copyto(request.view.buffer.reshape(-1, table.dim), whole.result[begin:end])
                begin = end
        return [request.result for _, request in asked]

    return [(table, whole) for table, _, whole in by_table], hand_out


def pushes(calls: Calls, given: Iterable[Any]) -> tuple[list[tuple[SparseTable, Ids, Rows]], bool]:
    """Check a push to several tables.

    Returns:
        Ids and gradients for each table, and whether a table had several entries: an id may then be
        there twice although it was in none of them.

    Raises:
        InvalidArgument: Tables, shapes or dtypes do not fit.
        DeviceError: An array lives on a device.
    """
    brought: list[tuple[SparseTable, tuple[Ids, Rows]]] = []
    for table, ids, gradients in entries("push_many", given, ("table", "ids", "gradients")):
        require_sparse(calls, "push_many", table)
        brought.append((table, push_request(table.name, table.dim, ids, gradients)))
    items = []
    for table, each in _by_table(brought):
        flats, rows = zip(*each, strict=True)
        one = len(each) == 1
        items.append(
            (
                table,
                flats[0] if one else np.concatenate(flats),
                rows[0] if one else np.concatenate(rows),
            )
        )
    return items, len(items) < len(brought)


def _by_table(given: Sequence[tuple[SparseTable, T]]) -> list[tuple[SparseTable, list[T]]]:
    """Gather entries in the order of their tables' first ones.

    Tables are told apart by name: a table may have several handles, and each a number of its own.
    """
    found: dict[tuple[str, int, str | None], tuple[SparseTable, list[T]]] = {}
    for table, entry in given:
        found.setdefault((table.name, table.dim, table.codec), (table, []))[1].append(entry)
    return list(found.values())


def _joined(table: SparseTable, requests: Sequence[PullRequest]) -> PullRequest:
    ids = np.concatenate([request.ids for request in requests])
    rows = np.empty((len(ids), table.dim), np.float32)
    return PullRequest(ids, buffers.view(rows, "out", writes=True), rows)


def _require_own(calls: Calls, table: SparseTable | DenseTable) -> None:
    if table.calls is not calls:
        raise InvalidArgument(
            f"table {table.name!r} belongs to another connection; make it with this one, or call "
            "that one"
        )


def _shown(given: Any) -> str:
    return repr(given) if isinstance(given, DenseTable) else f"a {type(given).__name__}"
