"""Loops in which ranks have unequally many batches.

A rank that runs out keeps going round, without a batch, until all have; so whatever the loop's body
does after the gradients (clipping, schedules, logging) happens equally often everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from gradring.communicator import Communicator

Batch = TypeVar("Batch")


def until_all_end(comm: Communicator, batches: Iterable[Batch]) -> Iterator[Batch | None]:
    """Yield this rank's batches, then ``None`` while another rank still has some.

    Before each batch the ranks tell each other whether they have one: an operation of one number.
    """
    if comm.world_size == 1:
        yield from batches
        return
    source = iter(batches)
    has_batch = np.empty(1, np.int32)
    while True:
        batch: Batch | None = None
        try:
            batch = next(source)
            has_batch[0] = 1
        except StopIteration:
            has_batch[0] = 0
        comm.all_reduce(has_batch, "max")
        if not has_batch[0]:
            return
        yield batch
