"""`OuterRounds`: GEO with outer=Nesterov(). All workers exchange in the same step (DiLoCo).

The servers' rule is SGD with Nesterov momentum; its gradient is the mean, over all workers, of how
far each has moved away from the values they all began with.
"""

from __future__ import annotations

import time

import numpy as np

from gradring.modes.contracts import Geo
from gradring.modes.exchange import Replicas
from gradring.modes.store import Domain, Gate, Ids, Push, Store


class OuterRounds(Replicas):
    """Exchanges in which everybody waits for everybody. The domain's clock counts them."""

    def __init__(self, store: Store, domain: Domain, mode: Geo, timeout: float) -> None:
        """Join the other workers; see `Replicas`."""
        super().__init__(store, domain, mode, timeout)
        self.report.workers = store.clock(domain, 0)
        self._clock = store.clocks(domain).living.get(store.rank, 0)
        self._is_due = False

    def poll(self) -> None:
        """Note a step: a flush has something to exchange."""
        self._is_due = True

    def begin(self) -> None:
        """Exchange now, and go on from the servers' values.

        Raises:
            PeerLost: A worker was lost or left; says which.
            TimedOut: Others did not come in time; says who.
        """
        begin = time.perf_counter()
        pushes, touched = self._pushes()
        gate = Gate(self.domain, self._clock)
        pending = self.store.push(pushes, gate) if pushes else None
        self._clock += 1
        self.report.workers = self.store.clock(self.domain, self._clock)
        self.store.wait(Gate(self.domain, self._clock))
        if pending is not None:
            self.report.refused += sum(pushed.refused for pushed in pending.result())
        self.adopt(touched)
        self._is_due = False
        seconds = time.perf_counter() - begin
        self.report.stalled_seconds += seconds
        self.pace.note_exchange(seconds, self.report.relative_divergence)

    def _pushes(self) -> tuple[list[Push], list[Ids]]:
        pushes = [
            Push(dense.table, None, np.negative(dense.offer_all().delta)) for dense in self.dense
        ]
        touched = []
        for sparse in self.sparse:
            offer = sparse.offer(1)
            ids = np.empty(0, np.uint64) if offer.ids is None else offer.ids
            touched.append(ids)
            self.report.pushed_rows += len(ids)
            if len(ids):
                pushes.append(Push(sparse.table, ids, np.negative(offer.delta)))
        return pushes, touched

    def settle(self) -> None:
        """Do nothing: no exchange is ever under way between two steps."""

    def flush(self) -> None:
        """Exchange, unless nothing happened since the last time; on every worker alike."""
        if self._is_due:
            self.begin()

    def leave(self) -> None:
        """Exchange what is left, and take no further part; on every worker alike."""
        self.flush()
        self.store.leave(self.domain)

    def abandon(self) -> None:
        """Do nothing: there is no thread."""
