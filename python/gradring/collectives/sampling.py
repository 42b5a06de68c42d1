"""Which examples are whose: shards of a data set that fit together into the same global batches.

Pure and without communication: every rank computes its part from the same seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.collectives import calling
from gradring.collectives.communicator import Communicator
from gradring.errors import InvalidArgument


def shard(
    count: int,
    comm: Communicator,
    *,
    epoch: int = 0,
    first: int = 0,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    pad: bool = False,
) -> npt.NDArray[np.int64]:
    """Return the indices of this rank's examples, in the order to use them.

    Rank r gets every world_size-th index of one shuffled list, from the r-th on. So when each rank
    takes ``b`` at a time, the ranks' t-th batches together are the t-th ``b * world_size`` of the
    list, however many ranks there are. By default every example is used exactly once and the first
    ``count % world_size`` ranks have one more than the others: batches, and the number of them,
    then differ at the end, which `SyncOptimizer.uneven` and weights are for.

    The list depends on ``count``, ``seed`` and ``epoch`` alone. So an epoch that n ranks began and
    left after t such steps goes on with ``first=t * b * n``, on any number of ranks.

    Args:
        count: Number of examples in the data set.
        comm: Whose rank and world size count; nothing is sent.
        epoch: Gives another order in each epoch.
        first: How many examples at the head of the list are done, counted over all ranks: what is
            behind them is dealt out as if it were all. ``count`` or more leaves nothing: a last
            step that is not full counts beyond the end.
        shuffle: Shuffle, the same way on every rank.
        seed: Of the shuffle; the same on every rank.
        drop_last: Leave out the last examples, so that every rank has equally many.
        pad: Repeat examples from the head of the list, so that every rank has equally many.

    Returns:
        Int64 array of indices below ``count``.

    Raises:
        InvalidArgument: ``count``, ``epoch``, ``first`` or ``seed`` is negative or no whole number,
            or both ``drop_last`` and ``pad`` are asked for.

    Example:
        >>> import gradring as gr
        >>> with gr.init() as comm:
        ...     gr.shard(5, comm, shuffle=False).tolist()
        [0, 1, 2, 3, 4]

        Of two ranks the first has ``[0, 2, 4]`` and the other ``[1, 3]``.
    """
    count = calling.whole_number("shard: count", count, bits=64)
    if count < 0:
        raise InvalidArgument(f"shard: count is {count}; a data set has at least 0 examples")
    epoch, seed = require_order("epoch", epoch), require_order("seed", seed)
    first = min(require_order("first", first), count)
    length = shard_length(count - first, comm.rank, comm.world_size, drop_last=drop_last, pad=pad)
    if shuffle:
        order: npt.NDArray[np.int64] = np.random.default_rng([seed, epoch]).permutation(count)
    else:
        order = np.arange(count)
    positions = first + comm.rank + comm.world_size * np.arange(length)
    return order[positions % count] if length else np.empty(0, np.int64)


def shard_length(count: int, rank: int, world_size: int, *, drop_last: bool, pad: bool) -> int:
    """Return how many indices `shard` gives to ``rank`` where ``count`` examples are left.

    Raises:
        InvalidArgument: Both ``drop_last`` and ``pad`` are asked for.
    """
    if drop_last and pad:
        raise InvalidArgument(
            "shard: drop_last and pad exclude each other; the default does neither"
        )
    rest = count % world_size
    has_extra = rest > 0 and (pad or (rank < rest and not drop_last))
    return count // world_size + int(has_extra)


def require_order(what: str, number: Any) -> int:
    """Return what chooses the order of a shuffle, or the place in it.

    Raises:
        InvalidArgument: It is negative, or no whole number.
    """
    order: int = calling.whole_number(f"shard: {what}", number, bits=64)
    if order < 0:
        raise InvalidArgument(f"shard: {what} is {order}; it counts from 0")
    return order


def length_of(data: Any) -> int:
    """Return the number of examples of a data set, or the number itself.

    Raises:
        InvalidArgument: It has no length.
    """
    if isinstance(data, int):
        return data
    try:
        return len(data)
    except TypeError:
        raise InvalidArgument(
            f"a {type(data).__name__} has no length, so nobody knows which examples are whose; "
            "deal its examples out by comm.rank, or give the number of examples"
        ) from None
