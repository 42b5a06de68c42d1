"""`FlushClock`: what GEO's workers wait for in a flush, and where one that joins begins.

The domain's clock counts flushes, two ticks for each: a worker says t+1 when it has pushed all its
progress, and t+2 when it has read the servers' values. An even clock is that of a worker that
trains. Gate g opens when no living worker is below g, and a worker says g+1 only after gate g was
open to it.

One that joins must take part in every flush that completes after it came, and must not push while
others read. It

1. says 0. A worker's clock does not go back, so this says that it is here, at whatever clock its
   number had (0: it is new; call it w);
2. reads all clocks: m is the largest of a living worker;
3. says t, which is m rounded up to an even number;
4. waits for gate t, and only then reads its first values or pushes.

From 1 on it keeps every gate above w closed until 3. So nobody passes gate t+1, which ends the
pushes of the next flush, without it: whoever passed it before 1 had said t+1 by then, 2 would have
seen that, and m would be above t. Between 1 and 3 it keeps the gate closed itself, after 3 it is
open only to those whom it has joined. Others may say t+1 in the meantime: they wait for it there.

If others are in a flush when it comes (m is odd, or some are still below m), that flush goes on
without it, and 4 waits until all have read. Several may join at once: before its 3 each is at a
clock that it had before, and the proof asks nothing else of the others.

Ranks below the domain's number of workers count before they come. The first time such a one comes,
nobody can have passed gate 1: it begins at 0, and the others' first flush is its own.
"""

from __future__ import annotations

from gradring.errors import TimedOut
from gradring.modes.geo.gates import wait_for_all
from gradring.modes.stores.store import Domain, Gate, Store, WorkerClocks


class FlushClock:
    """A worker's clock of flushes. Used by one thread, but for `living`."""

    def __init__(self, store: Store, domain: Domain) -> None:
        """Join the other workers; waits for those that are in the middle of a flush.

        Args:
            store: The servers; each wait is at most as long as its timeout.
            domain: The workers.

        Raises:
            TimedOut: Others did not end their flush in time; says who. Nobody waits for this
                worker then.
        """
        self._store = store
        self._domain = domain
        self._now = 0
        before = store.clocks(domain)
        is_first = store.rank not in before.living | before.gone
        store.clock(domain, 0)
        if is_first and store.rank < domain.workers:
            return
        try:
            self._now = _start(store.clocks(domain))
            store.clock(domain, self._now)
            wait_for_all(
                store, Gate(domain, self._now), "ended a flush()",
                "One that joins waits for that: make the optimizer again when they have",
            )  # fmt: skip
        except BaseException:
            store.leave(domain)
            raise

    def living(self) -> int:
        """Return the number of living workers."""
        return self._store.clock(self._domain, self._now)

    def wait_until_all_pushed(self) -> None:
        """Say that this worker's progress is with the servers; wait for the others'.

        Raises:
            TimedOut: Others did not come in time; says who. It may be called again.
        """
        self._say_and_wait(self._now + 1, "called it")

    def wait_until_all_read(self) -> int:
        """Say that this worker has read; nobody goes on to push before all have.

        Returns:
            Living workers.

        Raises:
            TimedOut: As `wait_until_all_pushed`; the flush may be tried again, from its beginning.
        """
        living = self._say_and_wait(self._now + 2, "read the servers' values")
        self._now += 2  # Not before: a flush that timed out may be tried again.
        return living

    def leave(self) -> None:
        """Take no further part."""
        self._store.leave(self._domain)

    def _say_and_wait(self, clock: int, what: str) -> int:
        living = self._store.clock(self._domain, clock)
        what_next = (
            "Every living worker has to call it. This worker's progress is with the servers: call "
            "flush() again before training goes on"
        )
        try:
            wait_for_all(self._store, Gate(self._domain, clock), what, what_next)
        except TimedOut as error:
            raise TimedOut(f"flush: {error}") from error.__cause__
        return living


def _start(clocks: WorkerClocks) -> int:
    # Those that are gone keep nobody, but another one that joins now may have seen them alive: both
    # are to begin at the same clock. What they had not ended counts as not begun.
    latest = max(clocks.living.values(), default=0)
    gone = max(clocks.gone.values(), default=0)
    return max(latest + latest % 2, gone - gone % 2)
