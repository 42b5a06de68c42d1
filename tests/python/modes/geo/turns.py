"""Workers as threads that take turns: one at a time from one call of a store to the next.

A seed says whose turn it is, so an interleaving that breaks something plays again. Some workers are
favoured for a while: the others stand still between two calls for as long as much else happens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from exact_server import ExactServer
from gradring.modes.stores.store import Domain, Gate

SECONDS = 20.0
_IN_TURN = ("clock", "clocks", "push", "pull", "begin_pull", "changed", "leave")


class Turns:
    """Lets one of several workers go on, once all of them have come to their next call."""

    def __init__(self, server: ExactServer, workers: int, seed: int) -> None:
        self.server = server
        self.is_on = False  # Before, calls are made as they come.
        self._living = set(range(workers))
        self._waiting: dict[int, Callable[[], bool]] = {}
        self._turn: int | None = None
        self._random = np.random.default_rng(seed)
        self._favoured = list(range(workers))
        self._changed = threading.Condition()

    def store(self, rank: int) -> TurnStore:
        return TurnStore(self, self.server.client(rank))

    def take(self, rank: int, is_ready: Callable[[], bool] = lambda: True) -> None:
        """Wait for this worker's turn, which comes when ``is_ready``."""
        if not self.is_on:
            return
        with self._changed:
            self._waiting[rank] = is_ready
            self._draw()
            if not self._changed.wait_for(lambda: self._turn == rank, SECONDS):
                raise AssertionError(f"worker {rank} never had its turn: {self._waiting}")
            self._turn = None
            del self._waiting[rank]

    def end(self, rank: int) -> None:
        """This worker calls no more."""
        with self._changed:
            self._living.discard(rank)
            self._draw()

    def _draw(self) -> None:
        if set(self._waiting) != self._living:
            return  # One is on its way to its next call.
        ready = sorted(rank for rank, is_ready in self._waiting.items() if is_ready())
        if self._living:
            assert ready, f"workers {sorted(self._living)} wait for each other"
            if self._random.integers(8) == 0:
                self._random.shuffle(self._favoured)
            self._turn = min(ready, key=self._favoured.index)
            self._changed.notify_all()


class TurnStore:
    """A worker's `ExactStore`; every call that others could come between waits for its turn."""

    def __init__(self, turns: Turns, store: Any) -> None:
        self.rank = store.rank
        self._turns = turns
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in _IN_TURN:
            self._turns.take(self.rank)
        return getattr(self._store, name)

    def wait(self, gate: Gate) -> None:
        def is_open() -> bool:
            return not self._behind(gate.domain, gate.clock)

        self._turns.take(self.rank, is_open)
        self._store.wait(gate)

    def _behind(self, domain: Domain, clock: int) -> list[int]:
        return self._turns.server.domains[domain.name].behind(domain, clock)
