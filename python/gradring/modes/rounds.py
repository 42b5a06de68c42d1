"""`RoundOptimizer`: Sync(via="ps"). Pushes are contributions to a round, applied by servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from gradring.collectives.joining import current
from gradring.collectives.uneven import until_all_end
from gradring.errors import Error, InvalidArgument
from gradring.modes.contracts import Sync
from gradring.modes.parameters.row_gradients import RowGradients
from gradring.modes.parameters.tables import Asked, Prefetched
from gradring.modes.stepping.at_servers import AtServers
from gradring.modes.stepping.waiting import after_the_push, before_the_push
from gradring.modes.stores.store import Array, Domain, Gate, Pending
from gradring.optim.averaging import require_weight

Batch = TypeVar("Batch")

# Servers keep contributions of rounds to come; whoever only pushes must look up now and then.
_ROUNDS_UNSEEN = 16


class RoundOptimizer(AtServers):
    """Sync(via="ps"): n workers train as one process does on all their batches put together.

    In a step every worker gives its mean gradients and its number of examples. When all have,
    servers add them in the order of ranks, each times its number of examples, divide by the sum of
    these, and do one update of what anybody touched. Every pull after it waits for that.

    Attributes:
        clock: Steps done.
    """

    clock = 0
    domain: Domain

    @property
    def is_in_step(self) -> bool:
        """Yes: they wait for each other."""
        return True

    @property
    def begins_together(self) -> bool:
        """Yes: a round is all workers'."""
        return True

    def join(self) -> None:
        """Take part in the rounds."""
        self.domain = Domain(
            self.domain_name("rounds", Sync(via="ps")), self.workers, is_round=True
        )
        self.store.clock(self.domain, 0)
        self.clock = self.store.clocks(self.domain).living.get(self.store.rank, 0)
        self._known = self.clock  # Rounds before this are known to be applied.
        self._pending: Pending | None = None
        self._unsaid: float | None = None  # Weight of a step whose wait has not ended.

    def gate(self) -> Gate:
        """Rounds of all steps done so far."""
        return Gate(self.domain, self.clock)

    def read(self, asked: Sequence[Asked]) -> list[Array]:
        """Read rows as they are after the last step."""
        rows = super().read(asked)
        if any(len(ids) for _, ids in asked):  # Else nothing was waited for.
            self._known = self.clock
        return rows

    def begin_prefetch(self, coming: Sequence[Prefetched]) -> None:
        """Bring rows as they will be after the step that is being computed."""
        self.prefetches.keep(coming)

    def step(
        self,
        grads: Sequence[Any] | None = None,
        weight: float = 1.0,
        rows: Iterable[RowGradients] = (),
    ) -> None:
        """Contribute to this step's round, wait until it is applied, and take the result.

        Raises:
            InvalidArgument: Gradients do not fit, or the weight makes no sense; nothing was sent.
            PeerLost: A worker was lost or left; says which.
            TimedOut: Others did not come to this step in time; says who. The step is done: its
                gradients were sent, so do not repeat it. Call `flush`, or the next `step`, which
                waits for this one before it sends anything. Where servers did not acknowledge the
                gradients, that call says so, and the step counts as one of no examples. Only
                where the message says that nothing of it was sent, for want of room, repeat it.
        """
        self.require_open()
        weight = require_weight(weight)
        pushes = [] if weight == 0 else self.dense.pushes(grads) + self.row_pushes(rows)
        self.finish_step()
        kept = self.take_kept_prefetches()
        if pushes:
            self._pending = self.store.push(pushes, self.gate())
        self.clock += 1
        # A mean over one worker's examples is its own: times and by their number would round it.
        self._unsaid = float(weight > 0) if self.workers == 1 else weight
        with after_the_push(self.clock):
            self._finish(kept)

    def finish_step(self) -> None:
        """Wait for what a step that timed out still waits for; see `ModeOptimizer.finish_step`."""
        with before_the_push(self.clock):
            try:
                self.settle()
            except Error:
                # Servers may lack these gradients, so they must not count as so many examples.
                self._unsaid = None if self._unsaid is None else 0
                raise
            self._finish()

    def _finish(self, kept: Sequence[Prefetched] = ()) -> None:
        # What a step does after its push; again, where that has failed.
        if self._unsaid is None:
            return
        self.store.clock(self.domain, self.clock, self._unsaid)
        super().begin_prefetch(kept)
        if self.params:
            self.dense.pull(self.store, self.gate())
            self._known = self.clock
        elif self.clock - self._known >= _ROUNDS_UNSEEN:
            self.store.wait(self.gate())
            self._known = self.clock
        self._unsaid = None
        if self.params:
            self.settle()

    def tell_rules(self, rules: list[tuple[Any, Any]]) -> None:
        """Wait for the rounds of all steps done so far first: they are under the rules before."""
        self._wait_for_all_rounds()
        super().tell_rules(rules)

    def _wait_for_all_rounds(self) -> None:
        self.finish_step()
        self.store.wait(self.gate())
        self._known = self.clock

    def settle(self) -> None:
        """Wait until servers have acknowledged what was pushed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def uneven(self, batches: Iterable[Batch]) -> Iterator[Batch | None]:
        """Go round equally often on every worker; see `ModeOptimizer.uneven`."""
        return uneven_rounds(self.comm, self.workers, batches)

    def settle_own(self) -> None:
        """Wait until the rounds of all steps done so far are applied."""
        self._wait_for_all_rounds()

    def flush(self) -> None:
        """Wait until the last step's round is applied, and take the result.

        Raises:
            PeerLost: As `step`.
            TimedOut: Others did not come to the last step in time; says who. Call it again.
            Closed: After `close`.
        """
        self.require_open()
        self._wait_for_all_rounds()
        self.forget_prefetches()
        self.dense.pull(self.store)


def uneven_rounds(comm: Any, workers: int, batches: Iterable[Batch]) -> Iterator[Batch | None]:
    """Go round equally often on every worker.

    Args:
        comm: The workers as ranks; ``None``: those of `init`.
        workers: Their number.
        batches: This worker's.

    Raises:
        InvalidArgument: There are more ranks than workers, or fewer.
    """
    if workers == 1:
        return iter(batches)
    comm = current() if comm is None else comm
    if comm.world_size != workers:
        raise InvalidArgument(
            f"uneven: the job has {comm.world_size} ranks and the rounds {workers} workers"
        )
    return until_all_end(comm, batches)
