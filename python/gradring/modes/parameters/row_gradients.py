"""What a step is given for sparse tables: entries of a table, its ids and their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gradring.errors import InvalidArgument
from gradring.modes.parameters.tables import ModeTable
from gradring.modes.stores.store import Array, Ids
from gradring.ps.arguments.requests import push_request

RowGradients = tuple[ModeTable, Any, Any]  # Table, ids, one gradient row for each id.


def listed(rows: Iterable[RowGradients]) -> list[RowGradients]:
    """Return what a step was given for sparse tables as a list.

    Raises:
        InvalidArgument: It is something else than entries of a table, its ids and its gradients.
    """
    try:
        return [(table, ids, grads) for table, ids, grads in rows]
    except (TypeError, ValueError):
        raise InvalidArgument(
            "rows: entries (table, ids, gradients) are wanted, one for each table that was used; "
            f"got {type(rows).__name__}: {rows!r:.80}"
        ) from None


def joined(entries: Sequence[RowGradients]) -> list[tuple[ModeTable, Ids, Array]]:
    """Return one entry for each table that has gradients: contiguous, maybe the caller's arrays.

    Raises:
        InvalidArgument: Shapes or dtypes do not fit.
        DeviceError: An array lives on a device.
    """
    by_table: dict[str, list[RowGradients]] = {}
    for entry in entries:
        by_table.setdefault(entry[0].name, []).append(entry)
    result = []
    for each in by_table.values():
        table = each[0][0]
        checked = [push_request(table.name, table.dim, ids, grads) for _, ids, grads in each]
        given = [one for one in checked if len(one[0])]
        if len(given) == 1:
            result.append((table, *given[0]))
        elif given:
            flats, grads = zip(*given, strict=True)
            result.append((table, np.concatenate(flats), np.concatenate(grads)))
    return result
