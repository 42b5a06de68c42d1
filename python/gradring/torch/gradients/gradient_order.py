"""`GradientOrder`: learns in which order backward reaches the parameters.

All ranks take rank 0's, from one of the first rounds in which rank 0 ran a backward: it is one more
operation of such a round, and the buckets are laid out anew before the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Rounds after which rank 0 must have run a backward, for its order to be learned.
_ROUNDS_TO_LEARN = 3


class GradientOrder:
    """What one rank has seen in this round, and what rank 0 said."""

    def __init__(self, count: int, *, is_wanted: bool) -> None:
        """Begin without knowing; ``count`` is the number of parameters."""
        self._count = count
        self._rounds_left = _ROUNDS_TO_LEARN if is_wanted else 0
        self._seen: list[int] = []
        self._message: Any = None
        self._learned: list[int] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether rank 0's order is still to be learned; alike on all ranks."""
        return self._rounds_left > 0

    @property
    def is_asking(self) -> bool:
        """Whether this round has asked already."""
        return self._message is not None

    def see(self, index: int) -> None:
        """Note a gradient of this round."""
        self._seen.append(index)

    def message(self) -> Any:
        """Return what rank 0 broadcasts: an int64 array that `hear` reads afterwards."""
        unseen = sorted(set(range(self._count)) - set(self._seen), reverse=True)
        self._message = np.array([len(self._seen), *self._seen, *unseen], np.int64)
        return self._message

    def hear(self) -> None:
        """End the round, and read the message, if it has asked: when the broadcast is done."""
        self._seen.clear()
        message, self._message = self._message, None
        if message is None:
            return
        self._rounds_left -= 1
        if message[0] > 0:
            self._rounds_left = 0
            self._learned = [int(index) for index in message[1:]]

    def take_learned(self) -> list[int] | None:
        """Return all parameters' indices in rank 0's order, once, when they are known."""
        learned, self._learned = self._learned, None
        return learned
