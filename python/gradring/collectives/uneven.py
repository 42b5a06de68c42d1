"""Loops in which ranks have unequally many batches.

A rank that runs out keeps going round, without a batch, until all have; so whatever the loop's body
does after the gradients (clipping, schedules, logging) happens equally often everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from gradring.collectives.communicator import Communicator
from gradring.errors import InvalidArgument

Batch = TypeVar("Batch")

_MOST_PARTS = 1 << 15  # `gradring.modes.stepping.parts` counts in float32.


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


def require_parts(name: str, count: int) -> None:
    """Raise `InvalidArgument` if data cannot be divided into so many parts."""
    if not isinstance(name, str):
        raise InvalidArgument(f"hand_out: the name of a pass is a string, got {name!r}")
    if not hasattr(count, "__index__"):
        raise InvalidArgument(f"hand_out {name!r}: parts are a whole number, got {count!r}")
    if not 1 <= count <= _MOST_PARTS:
        raise InvalidArgument(f"hand_out {name!r}: {count} parts; 1 to {_MOST_PARTS} are possible")


def dealt_out(name: str, count: int, rank: int, world_size: int) -> Iterator[int]:
    """Return this rank's share of ``count`` parts where all ranks have equally many, or one less.

    Args:
        name: Of the pass over the data, for errors.
        count: Parts.
        rank: Gets parts rank, rank + world_size, ...
        world_size: Ranks.

    Raises:
        InvalidArgument: There cannot be so many parts.
    """
    require_parts(name, count)
    return iter(range(rank, count, world_size))
