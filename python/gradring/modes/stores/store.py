"""What a mode asks of parameter servers: the narrow surface between `gradring.modes` and `ps`.

`gradring.modes.stores.served` implements it over a client of real servers; the tests also implement
it in exact arithmetic. Methods may be called from any thread; each waits at most for the client's
timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Ids = npt.NDArray[np.uint64]


class Domain(NamedTuple):
    """The workers that train together, as servers know them.

    Attributes:
        name: The same for all of them.
        workers: Ranks 0 .. workers-1 take part even before they come.
        is_round: Pushes are contributions to rounds; else clocks bound staleness.
    """

    name: str
    workers: int
    is_round: bool


class Gate(NamedTuple):
    """A pull waits until living workers have come to ``clock``, or rounds before it are done."""

    domain: Domain
    clock: int


@dataclass(slots=True)
class Pull:
    """One table's share of a pull.

    Attributes:
        table: A sparse or dense table of the store.
        ids: May repeat; ``None`` for a dense table.
        out: Float32, contiguous, written in place: (ids, dim), or the dense table's shape.
    """

    table: Any
    ids: Ids | None
    out: Array


@dataclass(slots=True)
class Push:
    """One table's share of a push; one step of the table's rule.

    Attributes:
        table: A sparse or dense table of the store.
        ids: Each once; ``None`` for a dense table.
        values: Float32, contiguous, one row for each id; not written.
        seen: What `Store.pull` returned for the values that these were computed on.
        after: Where the rows, or the whole dense table, go as they are right after it: float32,
            contiguous, like ``values``, written in place; ``None``: they are not wanted.
    """

    table: Any
    ids: Ids | None
    values: Array
    seen: Any = None
    after: Array | None = None


@dataclass(slots=True)
class Pushed:
    """What became of one table's share.

    Attributes:
        staleness: Updates between the pull that it was computed on and it.
        refused: Rows left alone because their values were not finite.
    """

    staleness: int = 0
    refused: int = 0


@dataclass(slots=True)
class Changed:
    """Rows of a table that others have changed.

    Attributes:
        pages: Ids and the rows' values, (ids, dim). An id may come again: the later is newer.
        since: What to ask with next time.
        more: Whether there are others, where not all were asked for.
    """

    pages: list[tuple[Ids, Array]]
    since: Any
    more: bool = False


class Pending(Protocol):
    """A push that is under way."""

    def result(self) -> list[Pushed]:
        """Wait until all servers have acknowledged it."""

    def leave(self, seconds: float) -> None:
        """Wait so long for its end, then go: nobody hears of it, and its arrays are free again."""


class PendingPull(Protocol):
    """A pull that is under way. Nobody has to ask what became of it."""

    def is_done(self) -> bool:
        """Whether it has ended, one way or the other."""

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait until every ``out`` is filled; what `Store.pull` returns.

        Args:
            timeout: Seconds; one that takes longer raises `TimedOut`, and goes on. ``None``: as
                long as the pull itself may take.
        """


@dataclass
class WorkerClocks:
    """How far the workers of a domain have come.

    Attributes:
        living: Clock of each worker that has come, and has neither left nor been given up.
        gone: Last clock of those that have.
    """

    living: dict[int, int] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)

    def start(self, domain: Domain, rank: int) -> int:
        """Return where a worker begins: it must not hold back those that went on without it."""
        known = self.living | self.gone
        if rank in known or rank >= domain.workers:
            return max(known.get(rank, 0), min(self.living.values(), default=0))
        return 0  # The others count on it: they are not far.


class Store(Protocol):
    """A worker's client of the servers.

    Attributes:
        rank: The worker's number.
    """

    rank: int

    def dense_table(self, name: str, shape: tuple[int, ...], rule: Any) -> Any:
        """Make or find a dense table."""

    def sparse_table(
        self, name: str, dim: int, rule: Any, init: Any = None, seed: int = 0, **settings: Any
    ) -> Any:
        """Make or find a sparse table; ``settings`` are the others of `ParameterServer`'s."""

    def set_rules(self, rules: Sequence[tuple[Any, Any]]) -> None:
        """Give tables other settings of their rules, for all pushes that follow."""

    def write(self, table: Any, values: Array, state: Mapping[str, Any] | None = None) -> None:
        """Replace a dense table's values, and its optimizer state.

        Args:
            table: A dense one.
            values: Of its shape.
            state: An entry of `gradring.optim.state`; where it is empty the state begins anew.

        Raises:
            InvalidArgument: The state is not of the table's rule.
        """

    def read_state(self, table: Any) -> tuple[dict[str, Array], int]:
        """Return what a dense table keeps beside its values, in new arrays, and its steps.

        Args:
            table: A dense one.

        Returns:
            The fields of its rule, float32 of the table's shape, by their names; and the number of
            steps.
        """

    def pull(self, pulls: Sequence[Pull], gate: Gate | None = None) -> list[Any]:
        """Fill every ``out``, in one round trip; what to give as ``seen`` with a later push."""

    def begin_pull(self, pulls: Sequence[Pull], gate: Gate | None = None) -> PendingPull:
        """Begin to; ``out`` is written until it is done."""

    def push(self, pushes: Sequence[Push], round_: Gate | None = None) -> Pending:
        """Begin a push of several tables; requests that follow are done after it.

        Args:
            pushes: Their arrays must not change until the push is done.
            round_: The round that it contributes to; ``None``: applied as it arrives.
        """

    def changed(self, table: Any, since: Any, most: int | None = None) -> Changed:
        """Return rows whose last change was after ``since`` and not by us.

        The arrays are the store's, which fills them again when it is next asked of this table.

        Args:
            table: A sparse one.
            since: What an earlier call returned; ``None``: no rows, only what to ask with later.
            most: Answers of each server at most, of a few MB each; ``None``: until nothing is left.
        """

    def written_past(self, table: Any) -> int:
        """Return how often this worker's connection has written rows by other ways than this store.

        `changed` names no such rows. Whoever pulls after this sees what was counted.

        Args:
            table: A sparse one.
        """

    def clock(self, domain: Domain, clock: int, weight: float = 1.0) -> int:
        """Say that we are done with all steps before ``clock``; the number of living workers."""

    def wait(self, gate: Gate) -> None:
        """Wait until a gate opens."""

    def clocks(self, domain: Domain) -> WorkerClocks:
        """Ask how far the workers have come."""

    def leave(self, domain: Domain) -> None:
        """Take no further part."""
