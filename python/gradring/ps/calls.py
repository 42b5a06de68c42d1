"""`Calls`: what tables share to reach the servers: the compiled client, timeouts and codecs.

Callable from any thread. Everything was checked before: here nothing is refused but what several
tables of one call disagree about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gradring.errors import InvalidArgument
from gradring.ps import specs
from gradring.ps.handles import Pending, Pushed
from gradring.ps.requests import Ids, PullRequest, Rows
from gradring.ps.row_writes import RowWrites
from gradring.timeouts import milliseconds

if TYPE_CHECKING:
    from gradring import _core
    from gradring.ps.dense import DenseTable
    from gradring.ps.sparse import SparseTable

T = TypeVar("T")


class Calls:
    """A compiled client and the plumbing to call it; see `gradring.ps.ParameterServer`."""

    def __init__(self, core: _core.PsClient) -> None:
        """Take a connected client."""
        self.core = core
        self.row_writes = RowWrites()

    def pull(
        self,
        requests: Sequence[tuple[SparseTable, PullRequest]],
        choose: Callable[[list[Any]], T],
        *,
        async_op: bool,
        timeout: float | None,
    ) -> T | Pending[T]:
        """Pull from several tables in one round trip; ``choose`` makes the result of theirs."""

        def finish(_: Any) -> T:
            return choose([request.finish() for _, request in requests])

        pending = self.core.pull(
            [table.number for table, _ in requests],
            [request.ids for _, request in requests],
            [request.view.buffer for _, request in requests],
            codec=_codec([table for table, _ in requests]),
            gate=None,
            timeout_ms=milliseconds(timeout),
            in_background=async_op,
        )
        return Pending(pending, finish) if async_op else finish(None)

    def push(
        self,
        items: Sequence[tuple[SparseTable, Ids, Rows]],
        *,
        distinct: bool,
        async_op: bool,
        timeout: float | None,
    ) -> Pushed | Pending[Pushed]:
        """Push to several tables in one round trip."""
        codec = _codec([table for table, _, _ in items])
        try:
            outcome = self.core.push(
                [table.number for table, _, _ in items],
                [ids for _, ids, _ in items],
                [gradients for _, _, gradients in items],
                codec=codec,
                round=None,
                returns_rows=None,
                ids_are_distinct=distinct,
                timeout_ms=milliseconds(timeout),
                in_background=async_op,
            )
        finally:  # One that failed may have been done.
            for table, _, _ in items:
                self.row_writes.note(table.name)
        return Pending(outcome, pushed) if async_op else pushed(outcome)

    def pull_dense(
        self,
        table: DenseTable,
        buffer: Rows,
        finish: Callable[[int], T],
        *,
        async_op: bool,
        timeout: float | None,
    ) -> T | Pending[T]:
        """Pull an array; ``finish`` makes the result from its version."""
        outcome = self.core.pull_dense(
            table.number,
            buffer,
            codec=0,
            gate=None,
            timeout_ms=milliseconds(timeout),
            in_background=async_op,
        )
        return Pending(outcome, finish) if async_op else finish(outcome)

    def push_dense(
        self, table: DenseTable, gradient: Rows, *, async_op: bool, timeout: float | None
    ) -> Pushed | Pending[Pushed]:
        """Push the gradient of an array."""
        outcome = self.core.push_dense(
            table.number,
            gradient,
            codec=0,
            round=None,
            returns_rows=None,
            timeout_ms=milliseconds(timeout),
            in_background=async_op,
        )
        return Pending(outcome, pushed) if async_op else pushed(outcome)

    def set_rules(
        self, rules: Sequence[tuple[SparseTable | DenseTable, Any]], timeout: float | None
    ) -> None:
        """Give tables other settings of their rules, in one round trip."""
        pairs = [(table.number, specs.rule_spec(optimizer)) for table, optimizer in rules]
        self.core.set_rules(pairs, milliseconds(timeout))
        for table, optimizer in rules:
            table.optimizer = optimizer

    def stats(self) -> list[dict[str, Any]]:
        """Ask every shard what it holds and has done."""
        return [json.loads(text) for text in self.core.stats()]

    def rows_of(self, name: str) -> int:
        """Return the number of rows of a table on all shards."""
        return sum(
            int(table["rows"])
            for shard in self.stats()
            for table in shard["tables"]
            if table["name"] == name
        )

    def flush(self, timeout: float | None) -> None:
        """Wait until everything that was started is done."""
        self.core.flush(milliseconds(timeout))


def pushed(report: Any) -> Pushed:
    """Return the core's report as users see it."""
    return Pushed(report.rows, report.refused, report.not_admitted, report.staleness)


def _codec(tables: Sequence[SparseTable]) -> int:
    codecs = {table.codec: table.name for table in tables}
    if len(codecs) > 1:
        names = ", ".join(f"{name!r}: {codec}" for codec, name in codecs.items())
        raise InvalidArgument(f"one round trip has one codec, but the tables differ: {names}")
    return specs.codec_number(next(iter(codecs), None))
