"""`BoundedOptimizer`: BoundedStaleness(s). Updates are applied as they come, pulls wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gradring.errors import InvalidArgument
from gradring.modes.contracts import BoundedStaleness
from gradring.modes.optimizer import ModeOptimizer, RowGradients
from gradring.modes.staleness import Histogram
from gradring.modes.store import Array, Domain, Gate, Pull, Push
from gradring.optim import Sum


class BoundedOptimizer(ModeOptimizer):
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
        if self.store.rank >= self.workers:
            raise InvalidArgument(
                f"worker {self.store.rank} of {self.workers}: say the number of all workers"
            )
        self.domain = Domain(f"{self.name}/clocks", self.workers, is_round=False)
        self.clock = self.store.clocks(self.domain).start(self.domain, self.store.rank)
        self._ids = np.arange(self.workers, dtype=np.uint64)
        self._clocks = np.zeros((self.workers, 1), np.float32)
        self._counted = np.ones(self.workers, np.bool_)
        self._table = self.store.sparse_table(f"gradring/clocks/{self.name}", 1, Sum())
        self._read_clocks()
        self._add_to_clock(self.clock - self._clocks[self.store.rank, 0])
        self.store.clock(self.domain, self.clock)

    def gate(self) -> Gate:
        """All living workers have come to the step that the bound allows."""
        return Gate(self.domain, max(0, self.clock - self.bound))

    def step(
        self,
        grads: Sequence[Any] | None = None,
        weight: float = 1.0,  # noqa: ARG002 - one signature for all modes
        rows: Iterable[RowGradients] = (),
    ) -> None:
        """Push, and take the servers' values once no living worker is too far behind.

        Raises:
            TimedOut: A worker is too far behind for too long; says who.
        """
        self.require_open()
        pushes = self.dense.pushes(grads) + self.row_pushes(rows)
        pushes.append(self._clock_push(1))
        pending = self.store.push(pushes)
        self.clock += 1
        self.store.clock(self.domain, self.clock)
        pulls = [*self.dense.pulls(self.params), Pull(self._table, self._ids, self._clocks)]
        self.dense.seen = self.store.pull(pulls, self.gate())[:-1]
        self.refused += sum(pushed.refused for pushed in pending.result())
        self._measure()

    def _measure(self) -> None:
        lag = self._lag()
        if lag > self.bound:
            # Those that left or were lost bound nobody.
            living = self.store.clocks(self.domain).living
            self._counted = np.array([rank in living for rank in range(self.workers)])
            lag = self._lag()
        self.staleness.add(lag)

    def _lag(self) -> int:
        return max(0, self.clock - int(self._clocks[self._counted].min(initial=self.clock)))

    def _clock_push(self, steps: float) -> Push:
        own = np.array([self.store.rank], np.uint64)
        return Push(self._table, own, np.full((1, 1), steps, np.float32))

    def _add_to_clock(self, steps: float) -> None:
        self.store.push([self._clock_push(steps)]).result()

    def _read_clocks(self) -> None:
        self.store.pull([Pull(self._table, self._ids, self._clocks)])

    def flush(self) -> None:
        """Take the servers' values now. Whether others are done is not waited for."""
        self.dense.pull(self.store)
