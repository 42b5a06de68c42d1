"""The ids of what `GeoOptimizer.state_dict` returns, checked before any of it is taken. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradring.arrays.buffers import as_ids
from gradring.errors import InvalidArgument
from gradring.modes.stores.store import Ids


def ids_of(name: str, rows: Mapping[str, Any]) -> Ids:
    """Return the ids of a table's saved rows.

    Raises:
        InvalidArgument: They are no ids, or one is there twice.
    """
    ids = as_ids(rows["ids"], f"ids of table {name!r}")
    if ids.ndim != 1 or len(np.unique(ids)) != len(ids):
        raise InvalidArgument(f"ids of table {name!r}: each row is there once, in a flat array")
    return ids
