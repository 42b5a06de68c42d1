"""`Parts`: numbers that workers take as they come for them, each once; parts of the data.

As in dynamic data sharding (ElasticDL, DLRover) a fast worker takes more than a slow one, so that
all are through at about the same time. What is taken is counted in a row on the servers, one for
each name: a push of one is told what the row came to, also where it had to be sent twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradring.modes.store import Push, Store
from gradring.optim import Sum


class Parts:
    """What a worker's servers have handed out."""

    def __init__(self, store: Store, model: str) -> None:
        """Make or find the table ``model/parts``."""
        self._store = store
        self._table: Any = store.sparse_table(f"{model}/parts", 1, Sum())

    def take(self, name: str, count: int) -> Iterator[int]:
        """Take one after the other until all ``count`` are gone."""
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        row = np.array([int.from_bytes(digest, "little")], np.uint64)
        one, taken = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)
        while True:
            self._store.push([Push(self._table, row, one, after=taken)]).result()
            number = int(taken[0, 0]) - 1
            if number >= count:
                return
            yield number
