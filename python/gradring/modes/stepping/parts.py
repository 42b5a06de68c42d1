"""`Parts`: numbers that workers take as they come for them, each once; parts of the data.

As in dynamic data sharding (ElasticDL, DLRover) a fast worker takes more than a slow one, so that
all are through at about the same time. What is taken is counted in a row on the servers, one for
each name: a push of one is told what the row came to, also where it had to be sent twice.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradring.core_arguments import OwnName
from gradring.errors import Error, Mismatch
from gradring.modes.stores.store import Pending, Push, Store
from gradring.optim import Sum

# Every push also adds the count, so that two counts of one name are noticed: quotient and remainder
# in a column each. Times all parts either is below 2^24, to which float32 counts.
_CHECK = 255

# Seconds that who leaves a pass early waits for the answer about a part that it does not want.
_LEAVES_WITHIN = 1.0


class Parts:
    """What a worker's servers have handed out."""

    def __init__(self, store: Store, model: str) -> None:
        """Make or find the table ``gradring/parts/MODEL``; that name keeps it from `shrink`."""
        self._store = store
        self._table: Any = store.sparse_table(OwnName(f"gradring/parts/{model}"), 3, Sum())

    def take(self, name: str, count: int, ahead: int | None = None) -> Iterator[int]:
        """Take one after the other until all ``count`` are gone.

        Args:
            name: Of the pass.
            count: Parts.
            ahead: Where the next one is asked for when one is given, this many of the last parts
                are not: who has one in hand then would keep the others waiting in the end.

        Raises:
            Mismatch: Somebody has another ``count`` for this name.
        """
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        row = np.array([int.from_bytes(digest, "little")], np.uint64)
        one = np.array([[1, count // _CHECK + 1, count % _CHECK + 1]], np.float32)
        coming: Pending | None = None
        taken = np.zeros_like(one)

        def ask() -> Pending:
            return self._store.push([Push(self._table, row, one, after=taken)])

        try:
            while True:
                asked, coming = coming or ask(), None
                asked.result()
                number = int(taken[0, 0])
                if not np.array_equal(taken, number * one):
                    raise Mismatch(
                        f"hand_out {name!r}: {count} parts here, and another number on another "
                        "worker or in an earlier run; say the same number everywhere, and give "
                        "every pass a name of its own"
                    )
                if number > count:
                    return
                if ahead is not None and number <= count - ahead:
                    with contextlib.suppress(Error):  # Else the part in hand would be lost with it.
                        coming = ask()
                yield number - 1
        finally:
            if coming is not None:  # Else its answer would come out of a later call.
                coming.leave(_LEAVES_WITHIN)
