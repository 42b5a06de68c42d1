"""`Room`: memory for rows that serves again."""

from __future__ import annotations

import numpy as np

from gradring.modes.stores.store import Array


class Room:
    """Memory for rows that serves again: fresh pages cost more than what is done with the rows."""

    def __init__(self) -> None:
        """Begin with none."""
        self._floats = np.empty(0, np.float32)

    def rows(self, count: int, dim: int) -> Array:
        """Return so many rows, of whatever values."""
        if count * dim > len(self._floats):
            self._floats = np.empty(max(count * dim, len(self._floats) * 5 // 4), np.float32)
        return self._floats[: count * dim].reshape(count, dim)
