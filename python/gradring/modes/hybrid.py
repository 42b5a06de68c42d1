"""`HybridOptimizer`: dense parameters in one mode, rows of sparse tables in another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from gradring import config
from gradring.communicator import Communicator
from gradring.modes.contracts import Hybrid, Sync
from gradring.modes.optimizer import ModeOptimizer, RowGradients
from gradring.modes.store import Array
from gradring.modes.tables import ModeTable
from gradring.optim.state import require_successor
from gradring.optim.sync import SyncOptimizer

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
        self.mode = mode
        self.name = name
        self.timeout = config.timeout_in_force(os.environ, timeout)
        self.is_closed = False
        self.tables: dict[str, ModeTable] = {}
        self.sparse_side: ModeOptimizer | None = None
        self._ps = ps
        self.comm = comm
        workers = None if comm is None else comm.world_size
        self._options = {"workers": workers, "timeout": self.timeout}
        self.dense_side: SyncOptimizer | ModeOptimizer
        if mode.dense == Sync():
            self.dense_side = SyncOptimizer(self.params, rule, comm)
        else:
            self.dense_side = self._over_servers(mode.dense, self.params, rule, name)

    @property
    def is_in_step(self) -> bool:
        """Whether one of the two modes has workers do equally many steps."""
        sparse = self.sparse_side
        return self.dense_side.is_in_step or (sparse is not None and sparse.is_in_step)

    def _over_servers(self, mode: Any, params: list[Array], rule: Any, name: str) -> ModeOptimizer:
        from gradring.modes.factory import over_servers

        made = over_servers(mode, params, rule, self._ps, name=name, **self._options)
        made.comm = self.comm
        return made

    def sparse_table(
        self, name: str, dim: int, rule: Any, *, init: Any = None, seed: int = 0, **settings: Any
    ) -> ModeTable:
        """Make or find a table whose rows the mode's sparse part trains.

        The arguments are those of `ModeOptimizer.sparse_table`. The first table connects to the
        servers.

        Raises:
            InvalidArgument: As there; or there are several ranks and no servers.
            Mismatch: There is a table of that name with other settings.
            PeerLost: As `gradring.ps.connect`, and so for AuthError.
            TimedOut: Servers or other workers did not answer.
        """
        if self.sparse_side is None:
            self.sparse_side = self._over_servers(self.mode.sparse, [], None, f"{self.name}/rows")
        table = self.sparse_side.sparse_table(name, dim, rule, init=init, seed=seed, **settings)
        self.tables[name] = table
        return table

    def set_rule(self, rule: Any) -> None:
        """Go on with other settings of the dense parameters' rule; see `ModeOptimizer.set_rule`.

        Raises:
            InvalidArgument: It is another rule, or keeps another state; nothing was sent.
            TimedOut: Servers did not answer, where they step.
        """
        if isinstance(self.dense_side, SyncOptimizer):
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
            InvalidArgument: Gradients do not fit, or with `Sync` all weights are 0.
            Closed: After `close`.
            PeerLost: As in the two modes' own steps, and so for every other error.
        """
        self.require_open()
        if self.sparse_side is not None:
            self.sparse_side.step(None, weight, rows)
        if self.params:
            # No gradients are not the same as no examples.
            is_out = grads is None and weight == 0
            self.dense_side.step(
                [None] * len(self.params) if grads is None and not is_out else grads, weight
            )

    def uneven(self, batches: Iterable[Batch]) -> Iterator[Batch | None]:
        """Go round as often as the stricter of the two modes wants; see `ModeOptimizer.uneven`."""
        if self.sparse_side is not None and not isinstance(self.mode.dense, Sync):
            return self.sparse_side.uneven(batches)
        return self.dense_side.uneven(batches)

    def hand_out(self, name: str, count: int) -> Iterator[int]:
        """Hand out as the stricter of the two modes wants; see `ModeOptimizer.hand_out`."""
        if self.sparse_side is not None and not self.dense_side.is_in_step:
            return self.sparse_side.hand_out(name, count)
        return self.dense_side.hand_out(name, count)

    def flush(self) -> None:
        """Flush both, the rows first.

        Raises:
            TimedOut: As the two modes' own, and so for every other error. Where that of the rows
                fails, the dense parameters are not flushed.
        """
        for side in self._served():
            side.flush()

    def close(self) -> None:
        """Close both, the rows first. May be called again.

        Raises:
            TimedOut: As the two modes' own, and so for every other error; call it again, or
                `abandon`.
        """
        self.is_closed = True
        for side in self._served():
            side.close()

    def abandon(self) -> None:
        """End the threads without waiting for servers."""
        self.is_closed = True
        for side in self._served():
            side.abandon()

    def _served(self) -> list[ModeOptimizer]:
        sides = [self.sparse_side, self.dense_side]
        return [side for side in sides if isinstance(side, ModeOptimizer)]
