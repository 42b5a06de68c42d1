"""`OuterRounds`: GEO with outer=Nesterov(). All workers exchange in the same step (DiLoCo).

The servers' rule is SGD with Nesterov momentum; its gradient is the mean, over all workers, of how
far each has moved away from the values they all began with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from gradring.modes.contracts import Geo
from gradring.modes.geo.exchange import Replicas
from gradring.modes.geo.gates import wait_for_all
from gradring.modes.stores.store import Domain, Gate, Ids, Pending, Push, Store


@dataclass(slots=True)
class _Round:
    """An exchange that has begun.

    Attributes:
        pending: Its push; ``None`` where there was nothing to push, or once it is acknowledged.
        touched: For each sparse replica the rows that it pushes.
        begin: When it began, in seconds of `time.perf_counter`.
    """

    pending: Pending | None
    touched: list[Ids]
    begin: float


class OuterRounds(Replicas):
    """Exchanges in which everybody waits for everybody. The domain's clock counts them."""

    def __init__(self, store: Store, domain: Domain, mode: Geo, timeout: float) -> None:
        """Join the other workers; see `Replicas`."""
        super().__init__(store, domain, mode, timeout)
        self.report.workers = store.clock(domain, 0)
        self._clock = store.clocks(domain).living.get(store.rank, 0)
        self._is_due = False  # A step was done since the last exchange began.
        self._round: _Round | None = None

    def poll(self) -> None:
        """Note a step: a flush has something to exchange."""
        self._is_due = True

    def begin(self) -> None:
        """Push this worker's progress; `finish` takes what comes of it.

        Raises:
            TimedOut: The exchange before has not ended, as `finish`; nothing was pushed.
        """
        self.finish()
        begin = time.perf_counter()
        pushes, touched = self._pushes()
        gate = Gate(self.domain, self._clock)
        pending = self.store.push(pushes, gate) if pushes else None
        self._clock += 1
        self._is_due = False
        self._round = _Round(pending, touched, begin)

    def require_well(self) -> None:
        """Do nothing: there is no thread that could have failed."""

    @property
    def is_late(self) -> bool:
        """Whether the exchange that was begun last has not ended."""
        return self._round is not None

    def finish(self) -> None:
        """Go on from the servers' values once everybody has pushed, if an exchange has begun.

        Of steps done since it began, where it did not end in time before, nothing is lost.

        Raises:
            PeerLost: A worker was lost or left; says which.
            TimedOut: Others did not come in time; says who. Call it again.
        """
        if self._round is None:
            return
        self.report.workers = self.store.clock(self.domain, self._clock)
        wait_for_all(
            self.store, Gate(self.domain, self._clock), "come to the exchange of all workers",
            "Call flush() to wait again",
        )  # fmt: skip
        pending, self._round.pending = self._round.pending, None
        if pending is not None:
            self.report.refused += sum(pushed.refused for pushed in pending.result())
        if self._is_due:
            self._adopt_below_progress(self._round.touched)
        else:
            self.adopt(self._round.touched)
        seconds = time.perf_counter() - self._round.begin
        self._round = None
        self.report.stalled_seconds += seconds
        self.pace.note_exchange(seconds, self.report.relative_divergence)

    def _adopt_below_progress(self, touched: list[Ids]) -> None:
        progress = [replica.progress() for replica in self.all]
        try:
            self.adopt(touched)
        finally:
            for replica, values in zip(self.all, progress, strict=True):
                replica.put_on_top(values)

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
        """Wait for the exchange that has begun, if one has; as `finish`."""
        self.finish()

    def flush(self) -> None:
        """Exchange, unless nothing happened since the last time; on every worker alike."""
        self.finish()
        if self._is_due:
            self.begin()
            self.finish()

    def leave(self) -> None:
        """Exchange what is left, and take no further part; on every worker alike."""
        self.flush()
        self.store.leave(self.domain)

    def abandon(self) -> None:
        """Do nothing: there is no thread."""
