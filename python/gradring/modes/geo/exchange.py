"""`Exchange`: when and how GEO's replicas and servers tell each other what changed.

The training thread makes offers between two steps and takes what has come between two later ones;
one thread in the background carries them. So replicas have one writer and need no lock, and at most
one exchange is under way.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradring.errors import Closed, Error, InternalError
from gradring.modes.contracts import Geo, Mean
from gradring.modes.geo.flush_clock import FlushClock
from gradring.modes.geo.pace import Pace
from gradring.modes.geo.replica import PUSHES_UNDER_WAY, DenseReplica, Offer, SparseReplica
from gradring.modes.geo.report import Divergence, Exposed, GeoReport
from gradring.modes.parameters.rows import Slots
from gradring.modes.stepping.background import Background
from gradring.modes.stores.store import (
    Array,
    Changed,
    Domain,
    Ids,
    Pending,
    Pull,
    Push,
    Pushed,
    Store,
)
from gradring.ps import removals

# A difference of two floats may be rounded; what is left of it is pushed too, and so on. It shrinks
# by 2^-24 each time.
_MOST_PUSHES = 8


@dataclass(slots=True)
class _Arrived:
    """What an exchange has brought."""

    offers: list[Offer]
    pushed: list[Pushed | None]
    changed: list[Changed]
    living: int
    seconds: float


class Replicas:
    """A worker's replicas, and what both ways of exchanging them do alike.

    Attributes:
        dense: Of the dense parameters.
        sparse: Of the sparse tables.
        pace: When the next exchange is due.
        report: What was measured.
        exposed: Counts there what the training thread does for others.
    """

    def __init__(self, store: Store, domain: Domain, mode: Geo, timeout: float) -> None:
        """Begin without replicas.

        Args:
            store: The servers.
            domain: The workers.
            mode: Pace and outer rule.
            timeout: Seconds.
        """
        self.store = store
        self.domain = domain
        self.timeout = timeout
        self.pace = Pace(mode.k_steps)
        self.report = GeoReport()
        self.exposed = Exposed(self.report)
        self.dense: list[DenseReplica] = []
        self.sparse: list[SparseReplica] = []
        self._removals: Any = None  # The table that counts them.
        self._removals_known = 0.0
        # For each sparse replica, as `Store.written_past` says it.
        self._past_known: list[int] = []

    def add(self, table: Any, dim: int, rare_every: int) -> SparseReplica:
        """Keep a replica of a sparse table too; no exchange is under way."""

        def pull(ids: Ids) -> Array:
            rows = np.empty((len(ids), dim), np.float32)
            with self.exposed:
                self.store.pull([Pull(table, ids, rows)])
            return rows

        since = self.store.changed(table, None).since
        sparse = SparseReplica(table, dim, pull, since, rare_every)
        if self._removals is None:
            self._removals = self.store.dense_table(removals.NAME, removals.SHAPE, removals.RULE)
            self._removals_known = self._count_removals()
        self.sparse.append(sparse)
        self._past_known.append(self.store.written_past(sparse.table))
        return sparse

    def rows(self, asked: Sequence[tuple[SparseReplica, Ids]]) -> list[Array]:
        """Return local rows of flat ids; those that are new here come in one round trip.

        Raises:
            TimedOut: Servers did not bring new ones; nothing has changed.
        """
        if len(asked) > 1:  # One brings its own.
            self._bring([(sparse, sparse.missing(ids)) for sparse, ids in asked])
        found = []
        for sparse, ids in asked:
            slots = sparse.slots(ids)  # May move the weights.
            found.append(np.take(sparse.weights, slots, axis=0))  # Thrice as fast as [slots].
        return found

    def _bring(self, missing: Sequence[tuple[SparseReplica, Ids]]) -> None:
        pulls = [
            (sparse, Pull(sparse.table, ids, np.empty((len(ids), sparse.dim), np.float32)))
            for sparse, ids in missing
            if len(ids)
        ]
        if not pulls:
            return
        with self.exposed:
            self.store.pull([pull for _, pull in pulls])
        for sparse, pull in pulls:
            sparse.insert(pull.ids, pull.out)

    @property
    def all(self) -> list[DenseReplica | SparseReplica]:
        """Dense ones first: the order of offers."""
        return [*self.dense, *self.sparse]

    def adopt(self, pushed: list[Ids]) -> None:
        """Make every replica the servers' values, and forget its progress.

        Args:
            pushed: For each sparse replica the rows that this worker has pushed and not read since.
        """
        count = self._count_removals()
        past = [self.store.written_past(sparse.table) for sparse in self.sparse]
        # No list has rows that are gone, or that this worker's connection has written by itself.
        pushed = [
            own if (count, now) == (self._removals_known, known) else sparse.ids
            for sparse, own, now, known in zip(
                self.sparse, pushed, past, self._past_known, strict=True
            )
        ]
        outs = [np.empty_like(replica.weights) for replica in self.dense]
        if outs:
            self.store.pull(
                [Pull(each.table, None, out) for each, out in zip(self.dense, outs, strict=True)]
            )
        brought = Divergence()
        for replica, out in zip(self.dense, outs, strict=True):
            brought.add(replica.adopt(out), out)
        for sparse, ids in zip(self.sparse, pushed, strict=True):
            sparse.expect(ids)
            self._adopt_changed(sparse, brought)
            self._adopt_unread(sparse, brought)
        self._removals_known, self._past_known = count, past
        self.report.note_exchange(brought)

    def _adopt_changed(self, sparse: SparseReplica, brought: Divergence) -> None:
        more = True
        while more:
            changed = self.store.changed(sparse.table, sparse.since, most=1)
            for ids, values in changed.pages:
                brought.add(sparse.adopt_changed(ids, values), values)
                self.report.taken_rows += len(ids)
            sparse.since, more = changed.since, changed.more

    def _adopt_unread(self, sparse: SparseReplica, brought: Divergence) -> None:
        ids = sparse.unread
        for begin in range(0, len(ids), sparse.slice_rows):
            some = ids[begin : begin + sparse.slice_rows]
            out = sparse.room(len(some))
            try:
                self.store.pull([Pull(sparse.table, some, out)])
            except BaseException:
                sparse.forget_room()
                raise
            brought.add(sparse.adopt(sparse.find(some), out), out)

    def _count_removals(self) -> float:
        count = np.zeros(removals.SHAPE, np.float32)
        if self._removals is not None:
            self.store.pull([Pull(self._removals, None, count)])
        return float(count[0])

    def residual_norm(self) -> float:
        """Return the norm of the progress that servers do not have yet."""
        return math.sqrt(sum(replica.squared_progress() for replica in self.all))


class Exchange(Replicas):
    """Exchanges in the background: outer=Sum() and Mean()."""

    def __init__(self, store: Store, domain: Domain, mode: Geo, timeout: float) -> None:
        """Join the other workers; see `Replicas`."""
        super().__init__(store, domain, mode, timeout)
        self._is_mean = isinstance(mode.outer, Mean)
        self._background = Background(f"gradring exchange of {domain.name}", 1)
        self._arrived: _Arrived | None = None
        self._is_under_way = False
        self._clock = FlushClock(store, domain)
        # Those that have not come yet count until the first exchange says otherwise.
        self.report.workers = max(self._clock.living(), domain.workers)

    def poll(self) -> None:
        """Take what an exchange has brought, if it has ended; between two steps."""
        self.require_well()
        if self._arrived is not None:
            self._take()

    def begin(self) -> None:
        """Start an exchange; waits for the one before to end, if it has not."""
        self.settle()
        workers = self.report.workers if self._is_mean else 1
        offers = [replica.offer(workers) for replica in self.all]
        self._is_under_way = True
        self._background.submit(lambda: self._carry(offers), self.timeout)

    is_late = False  # No step waits for an exchange to end.

    def require_well(self) -> None:
        """Raise what an exchange in the background has raised."""
        self._background.require_well()

    def finish(self) -> None:
        """Do nothing: what an exchange brings is taken between later steps."""

    def settle(self) -> None:
        """Wait for the exchange under way and take what it brings."""
        if self._is_under_way:
            begin = time.perf_counter()
            self._background.drain(self.timeout)
            self.report.stalled_seconds += time.perf_counter() - begin
            self._take()

    def flush(self) -> None:
        """Push all progress, wait until all living workers have, and take the servers' values.

        Afterwards every replica equals the servers', bit for bit, on every worker.
        """
        self.settle()
        self._push_rest()
        self._clock.wait_until_all_pushed()
        self.adopt([replica.unread for replica in self.sparse])
        self.report.workers = self._clock.wait_until_all_read()

    def leave(self) -> None:
        """Push all progress and take no further part."""
        self.settle()
        self._push_rest()
        self.adopt([replica.unread for replica in self.sparse])
        self._clock.leave()
        self._background.close(self.timeout)

    def abandon(self) -> None:
        """End the thread without waiting for servers."""
        self._background.close(0)

    def _carry(self, offers: list[Offer]) -> None:
        # On the thread in the background.
        begin = time.perf_counter()
        # There is nothing to say of no rows; a dense parameter's push also brings its values.
        places = [place for place, offer in enumerate(offers) if offer.delta.size]
        pushed: list[Pushed | None] = [None] * len(offers)
        if places:
            pushes = [
                Push(self.all[at].table, offers[at].ids, offers[at].delta, after=offers[at].server)
                for at in places
            ]
            results = self.store.push(pushes).result()
            for place, result in zip(places, results, strict=True):
                pushed[place] = result
        changed = [self.store.changed(replica.table, replica.since) for replica in self.sparse]
        living = self._clock.living()
        self._arrived = _Arrived(offers, pushed, changed, living, time.perf_counter() - begin)

    def _take(self) -> None:
        arrived, self._arrived = self._arrived, None
        self._is_under_way = False
        if arrived is None:
            raise InternalError("an exchange ended without a result")
        brought = Divergence()
        for replica, offer, pushed in zip(self.all, arrived.offers, arrived.pushed, strict=True):
            if pushed is None:
                continue
            if pushed.refused:
                self.report.refused += pushed.refused
                replica.drop_refused(offer)  # Else it would be offered again and again.
            brought.add(replica.accept(offer), offer.server)
            self.report.pushed_rows += 0 if offer.ids is None else len(offer.ids)
        for sparse, changed in zip(self.sparse, arrived.changed, strict=True):
            for ids, rows in changed.pages:
                brought.add(sparse.accept_changed(ids, rows), rows)
                self.report.taken_rows += len(ids)
            sparse.since = changed.since
        self.report.note_exchange(brought)
        self.report.workers = arrived.living
        self.pace.note_exchange(arrived.seconds, self.report.relative_divergence)

    def _push_rest(self) -> None:
        self.require_well()
        try:
            self._push_all()
        except BaseException as error:
            # The bases have moved by what was offered: asked again, nothing would be left to push.
            self._background.fail(
                Closed(
                    "the progress of this worker could not be pushed, and parts of it may be with "
                    f"the servers: {error}. Its replicas cannot go on from that: abandon() this "
                    "optimizer and make another one, which takes the servers' values, or go on "
                    "from a checkpoint"
                )
            )
            raise

    def _push_all(self) -> None:
        # Answers move neither weights nor base here: what is pushed is exactly this worker's own.
        among: list[Slots | None] = [None] * len(self.sparse)
        for _ in range(_MOST_PUSHES):
            under_way: deque[Pending] = deque()
            try:
                has_pushed = self._push_dense(under_way)
                among = [
                    self._push_rows(sparse, slots, under_way)
                    for sparse, slots in zip(self.sparse, among, strict=True)
                ]
                while under_way:
                    self._note_pushed(under_way.popleft())
            except Error:
                for pending in under_way:  # Else they would come out of a later call.
                    with contextlib.suppress(Error):
                        pending.result()
                raise
            if not has_pushed and not any(len(slots) for slots in among if slots is not None):
                break

    def _push_dense(self, under_way: deque[Pending]) -> bool:
        offers = [(replica, replica.offer_all()) for replica in self.dense]
        pushes = [
            Push(replica.table, None, offer.delta) for replica, offer in offers if offer.delta.any()
        ]
        if pushes:
            under_way.append(self.store.push(pushes))
        return bool(pushes)

    def _push_rows(
        self, sparse: SparseReplica, among: Slots | None, under_way: deque[Pending]
    ) -> Slots:
        # Returns those that had progress.
        pushed = [np.empty(0, np.int64)]
        for offer in sparse.offer_all(among):
            assert offer.slots is not None
            pushed.append(offer.slots)
            self.report.pushed_rows += len(offer.slots)
            while len(under_way) >= PUSHES_UNDER_WAY:
                self._note_pushed(under_way.popleft())
            under_way.append(self.store.push([Push(sparse.table, offer.ids, offer.delta)]))
        return np.concatenate(pushed)

    def _note_pushed(self, pending: Pending) -> None:
        self.report.refused += sum(pushed.refused for pushed in pending.result())
