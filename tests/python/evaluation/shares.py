"""One data set, cut in all kinds of ways: into batches, and over the ranks of worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from thread_ranks import ThreadWorld


def values_of(make: Callable[[], Any], *columns: Any) -> Iterator[Any]:
    """Compute a metric over the same examples in several orders, batches and worlds.

    Args:
        make: Makes the metric.
        columns: What `update` takes, whole.
    """
    size = len(columns[0])
    random = np.random.default_rng(size)
    for ranks in (1, 2, 3, 5):
        for kind in ("in order", "shuffled", "one rank has all"):
            order = random.permutation(size) if kind == "shuffled" else np.arange(size)
            ends = sorted(random.integers(0, size + 1, ranks - 1).tolist())
            shares = np.split(order, [size] * (ranks - 1) if kind == "one rank has all" else ends)
            yield from on_ranks(make, [_batches(share, random) for share in shares], columns)


def value_of(metric: Any) -> Any:
    """Compute a metric over its own examples, in a world of one."""
    world = ThreadWorld(1, "shm")
    try:
        return world.run(metric.compute)[0]
    finally:
        world.close()


def _batches(share: Any, random: np.random.Generator) -> list[Any]:
    return np.split(share, sorted(random.integers(0, len(share) + 1, 4).tolist()))


def on_ranks(make: Callable[[], Any], shares: list[list[Any]], columns: Any) -> list[Any]:
    """Compute a metric on ranks of which each has some batches: lists of places in the columns."""

    def on_rank(comm: Any) -> Any:
        metric = make()
        for batch in shares[comm.rank]:
            metric.update(*(None if column is None else column[batch] for column in columns))
        return metric.compute(comm)

    world = ThreadWorld(len(shares), "shm")
    try:
        return list(world.run(on_rank))
    finally:
        world.close()
