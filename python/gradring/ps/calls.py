"""`Calls`: what tables share to reach the servers: the compiled client, timeouts and codecs.

Callable from any thread. Everything was checked before: here nothing is refused but what several
tables of one call disagree about.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gradring.errors import (
    Closed,
    Error,
    InvalidArgument,
    Mismatch,
    PeerLost,
    ProtocolError,
    TimedOut,
)
from gradring.ps.arguments import specs
from gradring.ps.arguments.requests import Ids, PullRequest, Rows
from gradring.ps.handles import Pending, Pushed
from gradring.ps.row_writes import RowWrites
from gradring.timeouts import milliseconds

if TYPE_CHECKING:
    from gradring import _core
    from gradring.ps.dense import DenseTable
    from gradring.ps.sparse import SparseTable

T = TypeVar("T")


class Calls:
    """A compiled client and the plumbing to call it; see `gradring.ps.ParameterServer`."""

    def __init__(self, core: _core.PsClient, timeout: float) -> None:
        """Take a connected client, and its timeout in seconds."""
        self.core = core
        self.timeout = timeout
        self.row_writes = RowWrites()
        self._specs: dict[int, specs.Spec] = {}

    def make_table(self, spec: specs.Spec) -> int:
        """Make or find a table, and return its number."""
        number = self.core.make_table(spec)
        self._specs[number] = spec
        return number

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

        tables = [table for table, _ in requests]
        codec, timeout_ms = _codec(tables), milliseconds(timeout)
        with self.explaining(tables):
            pending = self.core.pull(
                [table.number for table in tables],
                [request.ids for _, request in requests],
                [request.view.buffer for _, request in requests],
                codec=codec,
                gate=None,
                timeout_ms=timeout_ms,
                in_background=async_op,
            )
        return self._pending(pending, finish, tables) if async_op else finish(None)

    def push(
        self,
        items: Sequence[tuple[SparseTable, Ids, Rows]],
        *,
        distinct: bool,
        async_op: bool,
        timeout: float | None,
    ) -> Pushed | Pending[Pushed]:
        """Push to several tables in one round trip."""
        tables = [table for table, _, _ in items]
        codec, timeout_ms = _codec(tables), milliseconds(timeout)
        try:
            with self.explaining(tables):
                outcome = self.core.push(
                    [table.number for table in tables],
                    [ids for _, ids, _ in items],
                    [gradients for _, _, gradients in items],
                    codec=codec,
                    round=None,
                    returns_rows=None,
                    ids_are_distinct=distinct,
                    timeout_ms=timeout_ms,
                    in_background=async_op,
                )
        finally:  # One that failed may have been done.
            for table in tables:
                self.row_writes.note(table.name)
        return self._pending(outcome, pushed, tables) if async_op else pushed(outcome)

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
        timeout_ms = milliseconds(timeout)
        with self.explaining([table]):
            outcome = self.core.pull_dense(
                table.number,
                buffer,
                codec=0,
                gate=None,
                timeout_ms=timeout_ms,
                in_background=async_op,
            )
        return self._pending(outcome, finish, [table]) if async_op else finish(outcome)

    def push_dense(
        self, table: DenseTable, gradient: Rows, *, async_op: bool, timeout: float | None
    ) -> Pushed | Pending[Pushed]:
        """Push the gradient of an array."""
        timeout_ms = milliseconds(timeout)
        with self.explaining([table]):
            outcome = self.core.push_dense(
                table.number,
                gradient,
                codec=0,
                round=None,
                returns_rows=None,
                timeout_ms=timeout_ms,
                in_background=async_op,
            )
        return self._pending(outcome, pushed, [table]) if async_op else pushed(outcome)

    def set_rules(
        self, rules: Sequence[tuple[SparseTable | DenseTable, Any]], timeout: float | None
    ) -> None:
        """Give tables other settings of their rules, in one round trip or two."""
        pairs = [(table.number, specs.rule_spec(optimizer)) for table, optimizer in rules]
        before = self.core.bytes_sent
        try:
            self.core.set_rules(pairs, milliseconds(timeout))
        except InvalidArgument:
            # Else it was refused here already, and nothing is sent for it.
            if self.core.bytes_sent > before:
                for table, _ in rules:
                    self.stats_of(table.name)
            raise
        for table, optimizer in rules:
            table.optimizer = optimizer

    def stats(self) -> list[dict[str, Any]]:
        """Ask every shard what it holds and has done."""
        return [json.loads(text) for text in self.core.stats()]

    def stats_of(self, name: str) -> list[dict[str, Any]]:
        """Return what every shard says of a table.

        Raises:
            InvalidArgument: The servers have none of that name.
        """
        found = [one for shard in self.stats() for one in shard["tables"] if one["name"] == name]
        if not found:
            raise InvalidArgument(_gone(name))
        return found

    def rows_of(self, name: str) -> int:
        """Return the number of rows of a table on all shards.

        Raises:
            InvalidArgument: The servers have none of that name.
        """
        return sum(int(table["rows"]) for table in self.stats_of(name))

    def flush(self, timeout: float | None) -> None:
        """Wait until everything that was started is done, but hints."""
        self.core.flush(milliseconds(timeout))

    @contextlib.contextmanager
    def explaining(self, tables: Sequence[SparseTable | DenseTable]) -> Iterator[None]:
        """Say of bytes that do not fit that their table was replaced, where it was.

        For what servers refuse: to find out, they are asked. Arguments are checked before.

        Raises:
            Mismatch: A table has other settings than when its handle was made: `load` can do that.
        """
        try:
            yield
        except (ProtocolError, InvalidArgument) as error:
            with contextlib.suppress(TimedOut, PeerLost, Closed):  # Then this is the better error.
                for table in tables:
                    self._require_there(table, error)
            raise

    def _require_there(self, table: SparseTable | DenseTable, error: Error) -> None:
        # Asking must not make one that is not there.
        if all(one["name"] != table.name for one in self.stats()[0]["tables"]):
            raise InvalidArgument(_gone(table.name)) from error
        try:
            self.core.make_table(self._specs[table.number])
        except Mismatch as mismatch:
            raise Mismatch(
                f"table {table.name!r} was replaced since this handle of it was made, as loading a "
                f"checkpoint does; make the table again with the settings that it has now: "
                f"{mismatch}"
            ) from error

    def _pending(
        self, core: Any, finish: Callable[[Any], T], tables: Sequence[SparseTable | DenseTable]
    ) -> Pending[T]:
        return Pending(core, finish, lambda: self.explaining(tables))


def _gone(name: str) -> str:
    return (
        f"the servers have no table {name!r} any more: they have loaded a checkpoint without it, "
        "or began anew; make the table again"
    )


def pushed(report: Any) -> Pushed:
    """Return the core's report as users see it."""
    return Pushed(report.rows, report.refused, report.not_admitted, report.staleness)


def _codec(tables: Sequence[SparseTable]) -> int:
    codecs = {table.codec: table.name for table in tables}
    if len(codecs) > 1:
        names = ", ".join(f"{name!r}: {codec}" for codec, name in codecs.items())
        raise InvalidArgument(f"one round trip has one codec, but the tables differ: {names}")
    return specs.codec_number(next(iter(codecs), None))
