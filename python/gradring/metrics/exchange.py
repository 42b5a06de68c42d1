"""Examples to the rank that is to see them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def exchange(comm: Any, targets: NDArray[np.int64], *columns: NDArray[Any]) -> list[NDArray[Any]]:
    """Send each example to a rank, and return those that come here, from rank 0's on.

    Args:
        comm: Every rank of it calls this.
        targets: The rank for each example.
        columns: What belongs to the examples, arrays of their number; the same dtypes everywhere.
    """
    order = np.argsort(targets, kind="stable")
    counts = np.bincount(targets, minlength=comm.world_size).astype(np.int64)
    coming = comm.all_to_all(counts).tolist()
    return [
        comm.all_to_all(column[order], send_counts=counts.tolist(), recv_counts=coming)
        for column in columns
    ]
