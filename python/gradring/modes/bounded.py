"""`BoundedOptimizer`: BoundedStaleness(s). Updates are applied as they come, pulls wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.core_arguments import OwnName
from gradring.errors import Error, InvalidArgument
from gradring.modes.contracts import BoundedStaleness
from gradring.modes.parameters.row_gradients import RowGradients
from gradring.modes.parameters.tables import Prefetched
from gradring.modes.stepping.at_servers import AtServers
from gradring.modes.stepping.staleness import Histogram
from gradring.modes.stepping.waiting import after_the_push, before_the_push
from gradring.modes.stores.store import Array, Domain, Gate, Pending, Pull, Push
from gradring.modes.stores.strangers import why_no_worker
from gradring.optim import Sum
from gradring.optim.averaging import require_weight

# A row holds a clock in two floats, each a whole number below 2^24, to which float32 counts.
_CARRY = 1 << 20
_PLACES = np.array([_CARRY, 1], np.int64)


class BoundedOptimizer(AtServers):
    """Stale synchronous parallel training: nobody is more than so many steps ahead.

    Every worker counts its steps in a row of a table of its own, pushed with the step's gradients
    and pulled with the parameters: so the staleness that is reported was measured where the
    parameters were read, not taken from the bound.

    Attributes:
        clock: Steps done.
        staleness: For every step, how many steps the slowest living worker was behind.
        refused: Rows whose gradients servers have refused because they were not finite.
    """

    domain: Domain

    def __init__(
        self,
        params: Iterable[Array],
        rule: Any,
        ps: Any = None,
        *,
        staleness: int,
        **options: Any,
    ) -> None:
        """Join the others; see `ModeOptimizer`.

        Args:
            params: As there.
            rule: As there.
            ps: As there.
            staleness: The bound, in steps.
            **options: As there.
        """
        self.bound = BoundedStaleness(staleness).staleness
        self.clock = 0
        self.refused = 0
        self.staleness = Histogram()
        super().__init__(params, rule, ps, **options)

    @property
    def is_in_step(self) -> bool:
        """Yes: they wait for each other."""
        return True

    def join(self) -> None:
        """Take part; one who comes back begins where the slowest is."""
        name = self.domain_name("clocks", BoundedStaleness(self.bound))
        self.domain = Domain(name, self.workers, is_round=False)
        if self.store.rank >= self.workers:
            raise InvalidArgument(
                why_no_worker(self.store.rank)
                or f"worker {self.store.rank} of {self.workers}: say the number of all workers"
            )
        self.clock = self.store.clocks(self.domain).start(self.domain, self.store.rank)
        self._ids = np.arange(self.workers, dtype=np.uint64)
        self._clocks = np.zeros((self.workers, len(_PLACES)), np.float32)
        self._counted = np.ones(self.workers, np.bool_)
        self._left_at = np.zeros(self.workers, np.int64)  # Clocks of those that do not count.
        self._pending: Pending | None = None
        self._table = self.store.sparse_table(
            OwnName(f"gradring/clocks/{self.name}"), len(_PLACES), Sum()
        )
        self._row: Array | None = None  # What this worker's has, where that is known.
        self.store.push([self._clock_push(self.clock)]).result()
        self._row = _row(self.clock)
        self.store.clock(self.domain, self.clock)

    def gate(self) -> Gate:
        """All living workers have come to the step that the bound allows."""
        return Gate(self.domain, max(0, self.clock - self.bound))

    def step(
        self,
        grads: Sequence[Any] | None = None,
        weight: float = 1.0,
        rows: Iterable[RowGradients] = (),
    ) -> None:
        """Push, and take the servers' values once no living worker is too far behind.

        Raises:
            InvalidArgument: Gradients do not fit, or the weight makes no sense; nothing was sent.
            TimedOut: A worker is too far behind for too long; says who. The step is done: its
                gradients were sent, so do not repeat it. Call `flush`, or the next `step`, which
                waits for this one before it sends anything. Only where the message says that
                nothing of it was sent, for want of room, repeat it.
        """
        self.require_open()
        require_weight(weight)
        pushes = self.dense.pushes(grads) + self.row_pushes(rows)
        self.finish_step()
        kept = self.take_kept_prefetches()
        self._pending = self.store.push([*pushes, self._clock_push(self.clock + 1)])
        self.clock += 1
        self._row = _row(self.clock)
        with after_the_push(self.clock):
            self._finish(kept)

    def begin_prefetch(self, coming: Sequence[Prefetched]) -> None:
        """Bring rows as they may be after the step that is being computed."""
        self.prefetches.keep(coming)

    def finish_step(self) -> None:
        """Wait for what a step that timed out still waits for; see `ModeOptimizer.finish_step`."""
        with before_the_push(self.clock):
            self._finish()

    def _finish(self, kept: Sequence[Prefetched] = ()) -> None:
        # What a step does after its push; again, where that has failed.
        if self._pending is None:
            return
        self.store.clock(self.domain, self.clock)
        super().begin_prefetch(kept)
        self._pull(self.gate())
        self._settle()
        self._measure()

    def _pull(self, gate: Gate | None = None) -> None:
        pulls = [*self.dense.pulls(self.params), Pull(self._table, self._ids, self._clocks)]
        self.dense.seen = self.store.pull(pulls, gate)[:-1]

    def _settle(self) -> None:
        # Wait until servers have acknowledged what was pushed.
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            self.refused += sum(pushed.refused for pushed in pending.result())
        except Error:
            self._row = None  # It was changed, or not.
            raise

    def _measure(self) -> None:
        clocks = self._clocks.astype(np.int64) @ _PLACES
        self._counted |= clocks != self._left_at  # Who does steps again has come back.
        lag = self._lag(clocks)
        if lag > self.bound:
            # Those that left or were lost bound nobody.
            living = self.store.clocks(self.domain).living
            self._counted = np.array([rank in living for rank in range(self.workers)])
            self._left_at = clocks
            lag = self._lag(clocks)
        self.staleness.add(lag)

    def _lag(self, clocks: npt.NDArray[np.int64]) -> int:
        return max(0, self.clock - int(clocks[self._counted].min(initial=self.clock)))

    def _clock_push(self, clock: int) -> Push:
        if self._row is None:
            self.store.pull([Pull(self._table, self._ids, self._clocks)])
            self._row = self._clocks[[self.store.rank]]
        own = np.array([self.store.rank], np.uint64)
        return Push(self._table, own, _row(clock) - self._row)

    def settle_own(self) -> None:
        """Wait for what a step that timed out still waits for; all others are done."""
        self.finish_step()

    def flush(self) -> None:
        """Take the servers' values now. Whether others are done is not waited for.

        After a step that timed out: wait for what that step waits for, and take its result.

        Raises:
            TimedOut: Servers did not answer; or what that step waits for still did not come.
            Closed: After `close`.
        """
        self.require_open()
        self.finish_step()
        self.forget_prefetches()
        self._pull()
        self._row = self._clocks[[self.store.rank]]
        if (self._row != _row(self.clock)).any():
            # A checkpoint was loaded, with the clock of its time.
            self._pending = self.store.push([self._clock_push(self.clock)])
            self._settle()
            self._row = _row(self.clock)

    def close(self) -> None:
        """Bring everything to the servers and take no further part; nobody is waited for.

        Raises:
            TimedOut: Servers did not answer; it stays open then (`abandon`).
        """
        self._settle()  # After a step that timed out; but the others are waited for no longer.
        super().close()


def _row(clock: int) -> Array:
    return np.array([[clock // _CARRY, clock % _CARRY]], np.float32)
