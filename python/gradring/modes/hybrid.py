"""`HybridOptimizer`: dense parameters in one mode, rows of sparse tables in another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from gradring.collectives.communicator import Communicator
from gradring.collectives.joining import current
from gradring.collectives.uneven import dealt_out
from gradring.errors import InvalidArgument
from gradring.modes.contracts import Hybrid, Sync, begins_together, is_in_step
from gradring.modes.parameters.dense import one_for_each
from gradring.modes.parameters.row_gradients import RowGradients, listed
from gradring.modes.parameters.tables import ModeTable
from gradring.modes.rounds import uneven_rounds
from gradring.modes.stepping.endings import for_all
from gradring.modes.stepping.lost_ranks import close_beside
from gradring.modes.stepping.optimizer import ModeOptimizer
from gradring.modes.stepping.waiting import StepTimedOut
from gradring.modes.stores.agreement import agreed_name
from gradring.modes.stores.store import Array
from gradring.optim.averaging import require_weight
from gradring.optim.rules import require_rule
from gradring.optim.state import require_successor
from gradring.optim.sync import SyncOptimizer
from gradring.settings import config

Batch = TypeVar("Batch")


class HybridOptimizer(ModeOptimizer):
    """Two optimizers that step together.

    Attributes:
        dense_side: Of the dense parameters.
        sparse_side: Of the rows; ``None`` until there is a table, so that no servers are needed.
    """

    def __init__(
        self,
        params: Iterable[Array],
        rule: Any,
        mode: Hybrid,
        *,
        ps: Any = None,
        comm: Communicator | None = None,
        name: str = "model",
        timeout: float | None = None,
    ) -> None:
        """Make both; see `gradring.distributed`, which calls this."""
        self.params = list(params)
        for each in one_for_each(self.params, rule):  # Before anybody is asked.
            require_rule(each)
        self.mode = mode
        self.name = name
        self.timeout = config.timeout_in_force(os.environ, timeout)
        self.is_closed = False
        self._process = os.getpid()
        self.tables: dict[str, ModeTable] = {}
        self.sparse_side: ModeOptimizer | None = None
        self._ps = ps
        self.comm = comm
        self._generation: str | None = None
        if begins_together(mode.sparse):  # Here: tables need not be made on all ranks at once.
            ranks = current() if comm is None else comm
            self._generation = agreed_name(ranks, None, name, mode)
        self.dense_side: SyncOptimizer | ModeOptimizer
        if mode.dense == Sync():
            self.dense_side = SyncOptimizer(
                self.params, _only_rule(rule, rule, len(self.params)), comm
            )
        else:
            self.dense_side = self._over_servers(mode.dense, self.params, rule, name)

    @property
    def is_in_step(self) -> bool:
        """Whether one of the two modes has workers do equally many steps."""
        return is_in_step(self.mode)

    def _over_servers(
        self, mode: Any, params: list[Array], rule: Any, name: str, **options: Any
    ) -> ModeOptimizer:
        from gradring.modes.factory import over_servers

        return over_servers(
            mode, params, rule, self._ps, name=name, comm=self.comm, timeout=self.timeout, **options
        )

    def sparse_table(
        self, name: str, dim: int, rule: Any, *, init: Any = None, seed: int = 0, **settings: Any
    ) -> ModeTable:
        """Make or find a table whose rows the mode's sparse part trains.

        The arguments are those of `ModeOptimizer.sparse_table`. The first table connects to the
        servers.

        Raises:
            InvalidArgument: As there; or there are several ranks and no servers.
            Mismatch: There is a table of that name with other settings.
            Closed: After `close`.
            PeerLost: As `gradring.ps.connect`, and so for AuthError.
            TimedOut: Servers or other workers did not answer.
        """
        self.require_open()
        if self.sparse_side is None:
            self.sparse_side = self._over_servers(
                self.mode.sparse, [], None, f"{self.name}/rows", generation=self._generation
            )
        table = self.sparse_side.sparse_table(name, dim, rule, init=init, seed=seed, **settings)
        self.tables[name] = table
        return table

    def set_rule(self, rule: Any) -> None:
        """Go on with other settings of the dense parameters' rule; see `ModeOptimizer.set_rule`.

        With ``dense=Sync()`` all parameters have one rule: a sequence must be of equal ones.

        Raises:
            InvalidArgument: It is another rule, or keeps another state; nothing was sent.
            Closed: After `close`.
            TimedOut: Servers did not answer, where they step.
        """
        self.require_open()
        if isinstance(self.dense_side, SyncOptimizer):
            rule = _only_rule(rule, self.dense_side.rule, len(self.params))
            require_successor(self.dense_side.rule, rule)
            self.dense_side.rule = rule
        else:
            self.dense_side.set_rule(rule)

    def step(
        self,
        grads: Sequence[Any] | None = None,
        weight: float = 1.0,
        rows: Iterable[RowGradients] = (),
    ) -> None:
        """Do a step of both; rows go first, and travel while dense gradients do.

        Args:
            grads: As for `ModeOptimizer.step`.
            weight: As there.
            rows: As there.

        Raises:
            InvalidArgument: Gradients do not fit, or a table is another optimizer's: nothing was
                sent. Or with `Sync` all weights are 0.
            Closed: After `close`.
            TimedOut: As in the two modes' own steps. Where it says that the step is done, or that
                nothing was sent, this is so for both.
            PeerLost: As there, and so for every other error: the rows' step may then be done and
                that of the dense parameters not. Go on from a checkpoint.
        """
        self.require_open()
        weight, rows = require_weight(weight), listed(rows)
        for table, *_ in rows:
            self.require_own(table)
        if self.params:
            # No gradients are not the same as no examples.
            is_out = grads is None and weight == 0
            grads = [None] * len(self.params) if grads is None and not is_out else grads
            self.dense_side.require_fitting(grads)
        self.finish_step()
        for side in self._served():
            side.make_room()
        late: StepTimedOut | None = None
        if self.sparse_side is not None:
            try:
                self.sparse_side.step(None, weight, rows)
            except StepTimedOut as error:  # It is done, so the other has to be.
                late = error
        if self.params:
            self.dense_side.step(grads, weight)
        if late is not None:
            raise late

    def finish_step(self) -> None:
        """Wait for what a step that timed out still waits for; see `ModeOptimizer.finish_step`."""
        for side in self._served():
            side.finish_step()

    def uneven(self, batches: Iterable[Batch]) -> Iterator[Batch | None]:
        """Go round as often as the stricter of the two modes wants; see `ModeOptimizer.uneven`."""
        dense = self.dense_side
        if isinstance(self.mode.sparse, Sync) and isinstance(dense, ModeOptimizer):
            return uneven_rounds(self.comm, dense.workers, batches)
        return dense.uneven(batches)

    def hand_out(self, name: str, count: int, *, ahead: bool = False) -> Iterator[int]:
        """Hand out as the stricter of the two modes wants; see `ModeOptimizer.hand_out`."""
        self.require_open()
        dense = self.dense_side
        if self.is_in_step and isinstance(dense, ModeOptimizer):
            return dealt_out(name, count, dense.store.rank, dense.workers)
        return dense.hand_out(name, count, ahead=ahead)

    def flush(self) -> None:
        """Flush both, the rows first.

        Raises:
            TimedOut: As the two modes' own, and so for every other error. Where that of the rows
                fails, the dense parameters are flushed all the same.
            Closed: After `close`.
        """
        self.require_open()
        for_all(self._served(), lambda side: side.flush())

    def close(self) -> None:
        """Close both, the rows first. May be called again.

        After a failure of the ranks (``dense=Sync()``) rows in rounds are not waited for.

        Raises:
            TimedOut: As the two modes' own, and so for every other error; call it again, or
                `abandon`. Where that of the rows fails, the dense parameters are closed all the
                same.
        """
        self.is_closed = True
        dense = self.dense_side
        if isinstance(dense, SyncOptimizer):
            for_all(self._served(), lambda side: close_beside(side, dense.comm))
        else:
            for_all(self._served(), lambda side: side.close())

    def abandon(self) -> None:
        """End the threads without waiting for servers."""
        self.is_closed = True
        for side in self._served():
            side.abandon()

    def _served(self) -> list[ModeOptimizer]:
        sides = [self.sparse_side, self.dense_side]
        return [side for side in sides if isinstance(side, ModeOptimizer)]


def _only_rule(rule: Any, before: Any, count: int) -> Any:
    # `SyncOptimizer` has one rule; of no parameters every rule is the rule before.
    if not isinstance(rule, Sequence):
        return rule
    if len(rule) != count:
        raise InvalidArgument(f"{len(rule)} rules for {count} parameters")
    if any(other != rule[0] for other in rule[1:]):
        raise InvalidArgument(
            "gr.Sync() has one rule for all parameters, and these differ; give one, or use "
            "gr.Sync(via='ps'), which has one for each"
        )
    return rule[0] if rule else before
