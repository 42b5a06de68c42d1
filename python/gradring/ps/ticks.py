"""The last tick that servers were told, for rows that are written as they are.

Servers say of no table how late it is. So `ParameterServer.tick` notes it in a dense table.
"""

from __future__ import annotations

import numpy as np

from gradring.optim import Sum
from gradring.ps import specs
from gradring.ps.calls import Calls
from gradring.ps.dense import DenseTable

NAME = "gradring/tick"
_SHAPE = (2,)  # Its upper and lower 16 bits: a float has no room for all.
_RULE = Sum()


def note(calls: Calls, tick: int) -> None:
    """Keep a tick that is about to be told, if it is above the last one.

    Before, not after: a row that is dated too late by a failure is kept for a tick more.
    """
    table = _table(calls)
    if tick > _read(table):
        table.load_state_dict({"weights": np.array([tick >> 16, tick & 0xFFFF], np.float32)})


def present(calls: Calls) -> int:
    """Return the last tick; 0 if there was none."""
    is_noted = any(table["name"] == NAME for shard in calls.stats() for table in shard["tables"])
    return _read(_table(calls)) if is_noted else 0


def _table(calls: Calls) -> DenseTable:
    shape, spec = specs.dense_spec(NAME, _SHAPE, _RULE)
    return DenseTable(calls, calls.make_table(spec), name=NAME, shape=shape, optimizer=_RULE)


def _read(table: DenseTable) -> int:
    upper, lower = table.pull().tolist()
    return (int(upper) << 16) + int(lower)
