"""Dense parameters that live in tables of parameter servers: one table for each.

The tables are called ``<name>/<parameter>``. The first time, worker 0's values go there; where the
servers have the tables already (a worker joins, or a checkpoint was loaded), theirs come back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradring.errors import InvalidArgument, TimedOut
from gradring.modes.store import Array, Gate, Pull, Push, Store

_POLL_SECONDS = 0.01


class DenseParameters:
    """The arrays of a model and their tables. Used by the training thread.

    Attributes:
        params: The user's arrays, written in place by `pull`.
        tables: The store's, one for each.
        seen: What the last pull said of each, for the pushes computed on it.
    """

    def __init__(self, params: Sequence[Array], names: Sequence[str]) -> None:
        """Check the arrays; nothing is sent.

        Args:
            params: Float32, contiguous, writeable.
            names: Of the tables.

        Raises:
            InvalidArgument: One is something else.
        """
        for name, param in zip(names, params, strict=True):
            _require_servable(name, param)
        self.params = list(params)
        self.names = list(names)
        self.tables: list[Any] = []
        self.seen: list[Any] = []

    def make(self, store: Store, rules: Sequence[Any], timeout: float) -> None:
        """Make the tables and give every worker the same values.

        Raises:
            TimedOut: Worker 0 has not given its values in ``timeout`` seconds.
        """
        self.tables = [
            store.dense_table(name, param.shape, rule)
            for name, param, rule in zip(self.names, self.params, rules, strict=True)
        ]
        deadline = time.monotonic() + timeout
        for name, table, param in zip(self.names, self.tables, self.params, strict=True):
            if store.rank == 0 and store.version(table) == 0:
                store.write(table, param)
            while param.size and store.version(table) == 0:
                if time.monotonic() > deadline:
                    raise TimedOut(
                        f"worker 0 has not given the first values of {name!r} in {timeout:g} s; "
                        "is it running, with the same parameters?"
                    )
                time.sleep(_POLL_SECONDS)
        self.seen = store.pull(self.pulls(self.params))

    def pulls(self, outs: Sequence[Array]) -> list[Pull]:
        """Return what to ask for to fill ``outs``."""
        return [Pull(table, None, out) for table, out in zip(self.tables, outs, strict=True)]

    def pull(self, store: Store, gate: Gate | None = None) -> None:
        """Take the servers' values now."""
        if self.tables:
            self.seen = store.pull(self.pulls(self.params), gate)

    def checked(self, grads: Sequence[Any] | None) -> list[Array | None]:
        """Return the gradients as contiguous float32 arrays, the user's own where they are.

        Raises:
            InvalidArgument: Their number or a shape does not fit.
        """
        if grads is None:
            return [None] * len(self.params)
        if len(grads) != len(self.params):
            raise InvalidArgument(
                f"{len(grads)} gradients for {len(self.params)} parameters; use None where there "
                "is none"
            )
        for index, (grad, param) in enumerate(zip(grads, self.params, strict=True)):
            if grad is not None and np.shape(grad) != param.shape:
                raise InvalidArgument(
                    f"gradient {index} has shape {np.shape(grad)}, its parameter {param.shape}"
                )
        # Not ascontiguousarray: that makes a number an array of one.
        return [None if grad is None else np.asarray(grad, np.float32, "C") for grad in grads]

    def pushes(self, grads: Sequence[Any] | None) -> list[Push]:
        """Return a push for each parameter that has a gradient; see `checked`."""
        return [
            Push(table, None, grad, seen)
            for table, grad, seen in zip(self.tables, self.checked(grads), self.seen, strict=True)
            if grad is not None
        ]


def _require_servable(name: str, param: Any) -> None:
    if not isinstance(param, np.ndarray) or param.dtype != np.float32:
        what = getattr(param, "dtype", type(param).__name__)
        raise InvalidArgument(f"{name} is {what}; servers hold float32 arrays")
    if not (param.flags.writeable and param.flags.c_contiguous):
        raise InvalidArgument(f"{name} must be contiguous and writeable: training writes it")
