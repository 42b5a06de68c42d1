"""`GeoOptimizer`: Geo(). Local steps on a replica, and exchanges of what they changed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gradring.errors import InvalidArgument, TimedOut
from gradring.modes import contracts
from gradring.modes.contracts import Geo, Mean, Nesterov, Outer
from gradring.modes.geo.exchange import Exchange
from gradring.modes.geo.outer import OuterRounds
from gradring.modes.geo.replica import DenseReplica, SparseReplica, require_exact_rows
from gradring.modes.geo.report import GeoReport
from gradring.modes.geo.saved import ids_of
from gradring.modes.geo.step_clock import StepClock
from gradring.modes.parameters.row_gradients import RowGradients
from gradring.modes.parameters.rows import Slots
from gradring.modes.parameters.tables import Asked, ModeTable, Prefetched
from gradring.modes.stepping.optimizer import ModeOptimizer
from gradring.modes.stepping.saved_states import dense_states, names_of, parts_of
from gradring.modes.stepping.waiting import after_the_local_step, before_the_local_step
from gradring.modes.stores.store import Array, Domain, Ids
from gradring.optim import SGD, LocalRows, State, Sum
from gradring.optim.averaging import require_weight
from gradring.optim.gradients import is_finite
from gradring.optim.rules import require_rule


class GeoOptimizer(ModeOptimizer):
    """Trains a replica of its own and exchanges progress with the servers every k steps.

    The rule is the worker's: it and its state stay local, and servers hold values only (with
    `Nesterov`: and the outer momentum).

    Attributes:
        mode: Pace and outer rule.
    """

    def __init__(
        self,
        params: Iterable[Array],
        rule: Any,
        ps: Any = None,
        *,
        k_steps: int | Literal["auto"] = 100,
        outer: Outer | None = None,
        rare_every: int = 1,
        **options: Any,
    ) -> None:
        """Join the others and take the servers' values; see `ModeOptimizer`.

        Args:
            params: As there.
            rule: The local one; ``None`` if the caller does the dense steps (`advance`).
            ps: As there.
            k_steps: Local steps between two exchanges, or ``"auto"``.
            outer: What servers make of the progress; ``None`` is `Sum`.
            rare_every: Exchanges that a rarely touched row may wait for; see `Geo`.
            **options: As there.
        """
        self.mode = Geo(k_steps, contracts.Sum() if outer is None else outer, rare_every)
        super().__init__(params, rule, ps, **options)
        self.replicas.dense = list(map(DenseReplica, self.dense.tables, self.params))
        self._sparse: dict[str, SparseReplica] = {}
        self._local_rows: dict[str, LocalRows] = {}
        self._coming: list[Prefetched] = []
        self._state: list[State] = [{} for _ in self.params]
        self._count_down()
        self._clock = StepClock()

    def join(self) -> None:
        """Take part."""
        is_outer = isinstance(self.mode.outer, Nesterov)
        domain = Domain(self.domain_name("geo", self.mode), self.workers, is_round=is_outer)
        kind = OuterRounds if is_outer else Exchange
        self.replicas: Exchange | OuterRounds = kind(self.store, domain, self.mode, self.timeout)

    @property
    def is_in_step(self) -> bool:
        """With `Nesterov`: all exchange in the same step."""
        return isinstance(self.mode.outer, Nesterov)

    @property
    def begins_together(self) -> bool:
        """With `Nesterov`."""
        return self.is_in_step

    def require_rule(self, rule: Any) -> None:
        """Take any that steps here, and ``None`` from a caller who does the dense steps."""
        if rule is not None:
            require_rule(rule)

    def server_rule(self, rule: Any) -> Any:  # noqa: ARG002 - servers only add up
        """Return the outer rule."""
        outer = self.mode.outer
        if isinstance(outer, Nesterov):
            return SGD(lr=outer.lr, momentum=outer.momentum, nesterov=outer.momentum > 0)
        return Sum()

    def sparse_table(
        self, name: str, dim: int, rule: Any, *, init: Any = None, seed: int = 0, **settings: Any
    ) -> ModeTable:
        """Make or find a table, and a replica of those of its rows that are asked for.

        Raises:
            InvalidArgument: The rule is none, or there are other settings: rows that servers leave
                out, drop or round would not be those of the replicas.
            Mismatch: There is a table of that name with other settings.
            Closed: After `close`.
        """
        self.require_open()  # Before an exchange is settled.
        require_exact_rows(f"table {name!r}", settings)
        if name not in self._sparse:
            self._settle()  # An exchange under way knows the tables that it began with.
        table = super().sparse_table(name, dim, rule, init=init, seed=seed)
        if name in self._sparse:
            return table  # With its rows, what they have learned and their optimizer state.
        self._sparse[name] = self.replicas.add(table.table, dim, self.mode.rare_every)
        self._local_rows[name] = LocalRows(rule, dim)
        return table

    def move_params(self, params: Sequence[Array]) -> None:
        """Train these arrays instead; see `ModeOptimizer.move_params`."""
        super().move_params(params)
        for replica, param in zip(self.replicas.dense, params, strict=True):
            replica.weights = param

    def tell_rules(self, rules: list[tuple[Any, Any]]) -> None:
        """Tell nobody: the rule is the worker's."""

    def set_table_rule(self, table: ModeTable, rule: Any) -> None:
        """Train this worker's rows with other settings."""
        self._local_rows[table.name].set_rule(rule)

    def replica(self, table: ModeTable) -> SparseReplica:
        """Return the local rows of a table, for a training loop that writes them itself.

        Raises:
            InvalidArgument: The table is another optimizer's.
        """
        self.require_own(table)
        return self._sparse[table.name]

    def read(self, asked: Sequence[Asked]) -> list[Array]:
        """Return local rows; those that are new here come from the servers in one round trip."""
        return self.replicas.rows([(self._sparse[table.name], ids) for table, ids in asked])

    def begin_prefetch(self, coming: Sequence[Prefetched]) -> None:
        """Bring rows that the replicas do not have yet; they are put there after the step."""
        with self.replicas.exposed:
            fresh = []
            for each in coming:
                each.table.forget_prefetch()
                missing = np.unique(each.ids[self.replica(each.table).find(each.ids) < 0])
                if len(missing):
                    fresh.append(Prefetched(each.table, missing))
            self._coming += fresh
            super().begin_prefetch(fresh)

    def step(
        self,
        grads: Sequence[Any] | None = None,
        weight: float = 1.0,
        rows: Iterable[RowGradients] = (),
    ) -> None:
        """Do a local step; exchange if it is time.

        A row, or a dense parameter, whose gradient is not finite is left alone, with its state, and
        counted in ``report.refused``.

        Raises:
            InvalidArgument: Gradients do not fit, or the weight makes no sense; nothing has
                changed.
            TimedOut: An exchange was late, and the message says that the local step is done: do not
                repeat it. Or nothing has changed: servers did not bring rows that are new here, or
                an exchange that was late before still is, which the message says.
            Error: An exchange in the background failed; as it did, or `Closed` if it timed out:
                `abandon` this optimizer.
        """
        self.require_open()
        require_weight(weight)
        checked, entries = self.dense.checked(grads), self.by_table(rows)
        for rule, grad in zip(self.rules, checked, strict=True):
            if grad is not None and rule is None:
                raise InvalidArgument(
                    "this optimizer was made without a rule, so the dense steps are the caller's: "
                    "give step() rows alone, or call train_rows() and advance()"
                )
        self.finish_step()
        local = self._local(entries)
        for rule, param, grad, state in zip(
            self.rules, self.params, checked, self._state, strict=True
        ):
            if grad is None:
                continue
            if is_finite(grad):
                rule.update(param, grad, state)
            else:
                self.report.refused += 1
        self._train(local)
        self.advance()

    def train_rows(self, rows: Iterable[RowGradients]) -> None:
        """Do a local step of rows alone."""
        self._train(self._local(self.by_table(rows)))

    def _local(self, entries: list[tuple[ModeTable, Ids, Array]]) -> list[tuple[str, Slots, Array]]:
        # Everything that can fail, for all tables, before any row is trained.
        return [
            (table.name, self._sparse[table.name].slots(ids), grads)
            for table, ids, grads in entries
        ]

    def _train(self, local: list[tuple[str, Slots, Array]]) -> None:
        for name, slots, grads in local:
            replica = self._sparse[name]
            self.report.refused += self._local_rows[name].step(replica.weights, slots, grads)
            replica.mark(slots)

    def finish_step(self) -> None:
        """Wait for an exchange with `Nesterov` that did not end in time, if there is one.

        The next `step` calls it before it trains anything.

        Raises:
            TimedOut: It still has not; says who did not come. Nothing was trained.
            Error: An exchange in the background failed; as it did, or `Closed` if it timed out.
        """
        self.replicas.require_well()
        if self.replicas.is_late:
            with before_the_local_step(), self._clock.paused(), self.replicas.exposed:
                self._take_prefetched()
                self.replicas.finish()

    def make_room(self) -> None:
        """Wait for the exchange under way if the next step is to begin another one."""
        if self._steps_left <= 1:
            self._settle()

    def advance(self) -> None:
        """End a local step that the caller has done itself; exchange if it is time.

        Call `finish_step` before such a step where an exchange has timed out.

        Raises:
            TimedOut: The exchange was late; the step is done.
            Error: An exchange in the background failed; as it did, or `Closed` if it timed out:
                `abandon` this optimizer.
        """
        self.require_open()
        self._clock.tell(self.replicas.pace)
        with self.replicas.exposed:
            self._take_prefetched()
            self.replicas.poll()
        self._steps_left -= 1
        with after_the_local_step(), self.replicas.exposed:
            self.replicas.finish()
            while self._steps_left <= 0:
                self.replicas.begin()
                # Where all exchange in the same step, a late worker leaves out no exchange.
                self._count_down(self._steps_left if self.is_in_step else 0)
                self.replicas.finish()
        self._clock.start()

    def _count_down(self, owed: int = 0) -> None:
        self._counted_from = self.k_steps  # Which may change before the next exchange.
        self._steps_left = self._counted_from + owed

    def _settle(self) -> None:
        with self._clock.paused(), self.replicas.exposed:
            self._take_prefetched()
            self.replicas.settle()

    def _take_prefetched(self) -> None:
        # Before anything else that came from the servers: rows that arrive must not be older than
        # the changes that were already taken, which name each change once.
        coming, self._coming = self._coming, []
        with contextlib.suppress(TimedOut):  # A hint: what is late is asked for when it is needed.
            for each in coming:
                if each.wait(self.timeout):
                    self.replica(each.table).insert(each.ids, each.rows)

    def left_behind(self) -> str:
        """Say how many steps were not offered yet."""
        steps = self._counted_from - self._steps_left
        if steps > 0:
            return f"what its last {steps} steps have learned"
        if any(replica.has_waiting for replica in self._sparse.values()):
            return "what it has learned of rarely touched rows"
        if isinstance(self.mode.outer, Mean) and self.replicas.residual_norm() > 0:
            return "what it has held back of its progress"
        return ""

    @property
    def report(self) -> GeoReport:
        """What was measured: divergence, stalls, rows exchanged."""
        return self.replicas.report

    @property
    def k_steps(self) -> int:
        """Local steps between two exchanges, at present."""
        return self.replicas.pace.k_steps

    def residual_norm(self) -> float:
        """Return the norm of the progress that servers do not have yet."""
        self._settle()
        return self.replicas.residual_norm()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the local optimizer's state; the values are the servers' (`flush`).

        Returns:
            ``dense``: for each parameter a dict under the names of `torch.optim`; ``rules``: the
            rules' names; ``rows``: for each table ``ids`` and what `LocalRows.state` returns.
        """
        return {
            "dense": copy.deepcopy(self._state),
            "rules": names_of(self.rules),
            "rows": {
                name: {
                    "ids": replica.ids.copy(),
                    **self._local_rows[name].state(np.arange(len(replica))),
                }
                for name, replica in self._sparse.items()
            },
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from a saved state of this worker; make the tables first.

        Rows that the state does not have begin without one.

        Raises:
            InvalidArgument: It is of other parameters, tables or rules, or is none; nothing was
                changed.
            TimedOut: Servers did not bring rows that are new here; nothing was changed.
            Closed: After `close`.
        """
        dense, rows = parts_of(saved)
        if len(dense) != len(self.params) or set(rows) != set(self._sparse):
            raise InvalidArgument(
                f"the state is of {len(dense)} parameters and tables {sorted(rows, key=str)}, "
                f"there are {len(self.params)} and {sorted(self._sparse)}"
            )
        self.require_open()
        states = dense_states(saved, self.params, self.rules)
        ids = {name: ids_of(name, each) for name, each in rows.items()}
        for name, each in rows.items():
            self._local_rows[name].require_fitting(len(ids[name]), each, f"table {name!r}")
        slots = {name: self._sparse[name].slots(flat) for name, flat in ids.items()}
        for name, each in rows.items():
            # Anew: rows that this worker has and the state has not go on from nothing.
            self._local_rows[name] = LocalRows(self._local_rows[name].rule, self._sparse[name].dim)
            self._local_rows[name].load_state(slots[name], each)
        self._state = states

    def flush(self) -> None:
        """Bring all progress of all workers together: call it on every worker.

        Afterwards all replicas equal the servers' values, bit for bit, and every local update of
        everybody is in them once. Those that left or were lost are not waited for.

        Raises:
            TimedOut: Others did not come in time; says who. Call it again before training goes on:
                the others take this worker's progress as pushed. Or servers did not acknowledge
                that progress; says which pushes.
            Closed: They did not the time before: `abandon` this optimizer.
        """
        self._clock.stop()
        with self.replicas.exposed:
            self._take_prefetched()
            self.replicas.settle()
            self._count_down()  # Also where others are late: theirs begins anew with this exchange.
            self.replicas.flush()

    def close(self) -> None:
        """Bring this worker's progress to the servers, take their values and leave.

        With `Nesterov` all workers leave together.
        """
        if not self.begin_to_close():
            return
        with self.replicas.exposed:
            self._take_prefetched()
            self.replicas.leave()
        self.abandon()

    def abandon(self) -> None:
        """End the threads without waiting for servers."""
        super().abandon()
        self.replicas.abandon()
