"""`ParameterServer`: a worker's connection to all servers of a job, and its tables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from gradring.errors import Error, InvalidArgument
from gradring.initial import Initializer
from gradring.ps import many, removals
from gradring.ps.arguments import checks, specs
from gradring.ps.arguments.entries import Entry, Slots
from gradring.ps.calls import Calls
from gradring.ps.dense import DenseTable
from gradring.ps.handles import Pending, Pushed
from gradring.ps.sparse import SparseTable

if TYPE_CHECKING:
    from gradring.ps.saved.manifest import Manifest


class ParameterServer:
    """All servers of a job, as one worker sees them; made by `gradring.ps.connect`.

    May be used by several threads. Leaving a ``with`` block closes it.

    Attributes:
        servers: Addresses, in the servers' order.
        client: This worker's number, or a random one from 2^31.
        calls: What tables and modes send their requests by.
    """

    def __init__(
        self,
        calls: Calls,
        servers: Sequence[str],
        client: int,
        when_closed: Callable[[], None] | None = None,
    ) -> None:
        """Wrap a connected client; ``when_closed`` is called after it is closed."""
        self.calls = calls
        self.servers = tuple(servers)
        self.client = client
        self._when_closed = when_closed
        self._is_closed = False

    def sparse_table(  # noqa: PLR0913 - a table's settings; all but three have a default
        self,
        name: str,
        dim: int,
        optimizer: Any,
        *,
        init: Initializer | float | None = None,
        seed: int = 0,
        entry: Entry | None = None,
        expire_after: int | None = None,
        score_decay: float = 1.0,
        slots: Slots | None = None,
        codec: str | None = None,
    ) -> SparseTable:
        """Make a sparse table, or find the one of that name.

        Every worker calls this with the same settings; the first call makes the table.

        Args:
            name: Of the table; those that begin with ``gradring/`` are the library's own.
            dim: Floats a row.
            optimizer: A rule of `gradring.optim`; the servers apply it to each row, with a state
                and a number of steps of its own (as if each row were a parameter of torch.optim).
            init: How rows begin: `gr.init.Uniform`, `gr.init.Normal`, `gr.init.Constant` or a
                number; ``None`` is zero.
            seed: Of ``init`` and of an entry by probability.
            entry: When a pushed id becomes a row: `gr.ps.Count` or `gr.ps.Probability`; ``None``:
                at its first push.
            expire_after: A row goes that no push came to for more than so many ticks (see `tick`).
            score_decay: A row's score is the number of its pushes, times this at every tick.
            slots: What is different for the ids of single features.
            codec: How rows travel, both ways: ``None`` is float32; ``"bf16"``, ``"fp16"`` and
                ``"int8"`` take half and a quarter of the bytes and round. What rounding leaves out
                of a push is part of this client's next push of the same row.

        Raises:
            InvalidArgument: A setting makes no sense; nothing was sent.
            Mismatch: There is a table of that name with other settings.
            PeerLost: As for `SparseTable.pull`, and so for every other error.

        Example:
            >>> import gradring as gr
            >>> with gr.ps.connect() as ps:
            ...     words = ps.sparse_table("word", 2, gr.optim.Adagrad(lr=0.1), init=1.0)
            ...     words.pull([3, 2**60]).tolist()
            [[1.0, 1.0], [1.0, 1.0]]
        """
        specs.codec_number(codec)
        spec = specs.sparse_spec(
            name,
            dim,
            optimizer,
            init=init,
            seed=seed,
            entry=entry,
            expire_after=expire_after,
            score_decay=score_decay,
            slots=slots,
        )
        number = self.calls.make_table(spec)
        return SparseTable(
            self.calls, number, name=name, dim=spec["dim"], optimizer=optimizer, codec=codec
        )

    def dense_table(
        self,
        name: str,
        shape: int | Sequence[int],
        optimizer: Any,
        *,
        init: Initializer | float | None = None,
        seed: int = 0,
    ) -> DenseTable:
        """Make a dense table, or find the one of that name.

        Args:
            name: As for `sparse_table`, and so for the arguments not said here.
            shape: Of the array. Servers keep only how many floats there are: a table that is
                there already is seen in this shape, in the order of C, also if another worker has
                said another shape of as many floats.
            optimizer: A rule of `gradring.optim`; the whole array is one parameter.
            init: As for `sparse_table`.
            seed: Of ``init``.

        Raises:
            InvalidArgument: As for `sparse_table`, and so for every other error.
        """
        sizes, spec = specs.dense_spec(name, shape, optimizer, init=init, seed=seed)
        number = self.calls.make_table(spec)
        return DenseTable(self.calls, number, name=name, shape=sizes, optimizer=optimizer)

    def pull_many(
        self,
        pulls: Sequence[tuple[SparseTable, Any]],
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Pull from several tables in one round trip.

        Args:
            pulls: Pairs of a table and ids, as for `SparseTable.pull`. A table may come several
                times.
            async_op: As for `SparseTable.pull`.
            timeout: As for `SparseTable.pull`.

        Returns:
            Rows for each pair, in order; with ``async_op`` a `Pending` of them.

        Raises:
            InvalidArgument: Tables have different codecs, or one is another connection's; else as
                `SparseTable.pull`, and so for DeviceError and every other error.
        """
        requests, hand_out = many.pulls(self.calls, pulls)
        return self.calls.pull(requests, hand_out, async_op=async_op, timeout=timeout)

    @overload
    def push_many(
        self, pushes: Sequence[tuple[SparseTable, Any, Any]], *, distinct: bool = ...,
        async_op: Literal[False] = ..., timeout: float | None = ...,
    ) -> Pushed: ...  # fmt: skip

    @overload
    def push_many(
        self, pushes: Sequence[tuple[SparseTable, Any, Any]], *, distinct: bool = ...,
        async_op: Literal[True], timeout: float | None = ...,
    ) -> Pending[Pushed]: ...  # fmt: skip

    @overload
    def push_many(
        self, pushes: Sequence[tuple[SparseTable, Any, Any]], *, distinct: bool = ...,
        async_op: bool, timeout: float | None = ...,
    ) -> Pushed | Pending[Pushed]: ...  # fmt: skip

    def push_many(
        self,
        pushes: Sequence[tuple[SparseTable, Any, Any]],
        *,
        distinct: bool = False,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Pushed | Pending[Pushed]:
        """Push to several tables in one round trip.

        Args:
            pushes: Table, ids and gradients, as for `SparseTable.push`. A table that comes several
                times gets all of it as one push: gradients of equal ids are added up.
            distinct: As for `SparseTable.push`.
            async_op: As for `SparseTable.push`.
            timeout: As for `SparseTable.push`.

        Returns:
            What was done in all of them; with ``async_op`` a `Pending`.

        Raises:
            InvalidArgument: Tables have different codecs, or one is another connection's; else as
                `SparseTable.push`, and so for DeviceError and every other error.
        """
        items, are_joined = many.pushes(self.calls, pushes)
        return self.calls.push(
            items, distinct=distinct and not are_joined, async_op=async_op, timeout=timeout
        )

    def set_optimizers(
        self,
        optimizers: Sequence[tuple[SparseTable | DenseTable, Any]],
        *,
        timeout: float | None = None,
    ) -> None:
        """Give several tables other settings of their rules, in one round trip.

        In two where another worker has changed one of them since. Of workers that do it at once
        one has its way, on all servers.

        Args:
            optimizers: Pairs of a table and a rule, as for `SparseTable.set_optimizer`.
            timeout: As for `SparseTable.pull`.

        Raises:
            InvalidArgument: A table is another connection's; else as `SparseTable.set_optimizer`,
                and so for every other error.
        """
        rules = many.entries("set_optimizers", optimizers, ("table", "rule"))
        for table, _ in rules:
            many.require_table(self.calls, "set_optimizers", table)
        self.calls.set_rules(rules, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything this client has started is done, but prefetches of optimizers.

        What an asynchronous pull was given as ``out`` is filled by its `Pending`, in ``wait`` or
        ``done``, where it is not contiguous, and so is `DenseTable.version`.

        In a signal handler, inside of another call of this thread, it does not wait for pulls that
        wait for other workers.

        Args:
            timeout: Longest time without progress, in seconds; ``None`` is the connection's.

        Raises:
            TimedOut: It is not done; the message names what is not acknowledged.
            Error: The first failure of a push that nobody has waited for.
        """
        self.calls.flush(timeout)

    def stats(self) -> list[dict[str, Any]]:
        """Ask every shard what it holds and has done: tables, clients, staleness.

        Returns:
            A dictionary for each shard; docs/parameter_server.md says what is in it.

        Raises:
            PeerLost: As for `SparseTable.pull`, and so for TimedOut and Closed.
        """
        return self.calls.stats()

    def tick(self, tick: int) -> int:
        """Say how late it is: scores decay and rows expire, on all tables but the library's own.

        Args:
            tick: A number that only grows, such as that of the day or of the pass over the data.
                One that is not above the last one does nothing.

        Returns:
            How many rows went.

        Raises:
            InvalidArgument: ``tick`` is no whole number of 32 bits; nothing was sent.
            PeerLost: As for `SparseTable.pull`, and so for TimedOut and Closed.
        """
        return int(self.calls.core.tick(checks.whole("tick", tick)))

    def shrink(
        self,
        table: SparseTable | None = None,
        *,
        least_score: float = 0.0,
        unseen_ticks: int = 0,
    ) -> int:
        """Drop rows that are hardly used.

        Workers in GEO mode, which hold rows of their own, hear of it in their next `flush`, also
        when it fails here: some servers may have dropped theirs.

        Args:
            table: Of this table; ``None``: of all sparse tables but the library's own, whose names
                begin with ``gradring/``.
            least_score: Rows with a smaller score go.
            unseen_ticks: Rows go that no push came to for more than so many ticks; 0: stay.

        Returns:
            How many rows went.

        Raises:
            InvalidArgument: A number is negative or too large, or the table is dense or another
                connection's; nothing was sent.
            PeerLost: As for `SparseTable.pull`, and so for TimedOut and Closed.
        """
        least = checks.real("shrink: least_score", least_score)
        if not least >= 0:
            raise InvalidArgument(f"shrink: least_score must not be negative, got {least_score}")
        unseen = checks.whole("shrink: unseen_ticks", unseen_ticks)
        if table is not None:
            many.require_sparse(self.calls, "shrink", table)
        # Before, so that replicas hear of it whatever fails from here on; and after, for those that
        # have looked in between.
        counted = self.dense_table(removals.NAME, removals.SHAPE, removals.RULE)
        one_more = np.ones(removals.SHAPE, np.float32)
        counted.push(one_more)
        try:
            with self.calls.explaining([] if table is None else [table]):
                dropped = int(
                    self.calls.core.shrink(unseen, least, None if table is None else table.number)
                )
        except BaseException:
            with contextlib.suppress(Error):
                counted.push(one_more, async_op=True)
            raise
        if dropped:
            counted.push(one_more)
        return dropped

    def save(
        self,
        url: str | os.PathLike[str],
        base: str | os.PathLike[str] | None = None,
        *,
        notes: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Manifest:
        """Write a checkpoint of all servers: one consistent cut, taken while training goes on.

        Args:
            url: A folder: a path or any fsspec URL. Made by the servers, each its own part.
            base: An earlier checkpoint: only what has changed since is written.
            notes: Plain JSON values that `load` returns as ``.notes``: epoch, schedule, position.
            timeout: Seconds for all of it; by default an hour.

        Returns:
            As `gradring.ps.checkpoint.save`, which also says what can go wrong.
        """
        from gradring.ps import checkpoint

        return checkpoint.save(self, url, base, notes=notes, timeout=timeout)

    def load(self, url: str | os.PathLike[str], *, timeout: float | None = None) -> Manifest:
        """Replace what the servers hold by a checkpoint, of however many servers.

        Args:
            url: As for `save`.
            timeout: Seconds for all of it; by default an hour.

        Returns:
            As `gradring.ps.checkpoint.load`, which also says what can go wrong.
        """
        from gradring.ps import checkpoint

        return checkpoint.load(self, url, timeout=timeout)

    def close(self, timeout: float | None = None) -> None:
        """Finish what is under way, say goodbye, and stop a server inside the process.

        May be called again.

        Args:
            timeout: As for `flush`.

        Raises:
            TimedOut: As `flush`, and so for every other error; it is closed all the same.
        """
        if self._is_closed:
            return
        try:
            self.calls.flush(timeout)
        finally:
            self._end()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def bytes_sent(self) -> int:
        """Bytes that went to servers so far, headers and repetitions included."""
        return int(self.calls.core.bytes_sent)

    @property
    def bytes_received(self) -> int:
        """Bytes that came from servers so far."""
        return int(self.calls.core.bytes_received)

    def __enter__(self) -> ParameterServer:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; after an exception without waiting for what is under way."""
        if error is None:
            self.close()
        else:
            self._end()

    def __repr__(self) -> str:
        """Show where the servers are."""
        return f"ParameterServer({','.join(self.servers)}, client={self.client})"

    def _end(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.calls.core.close()
            if self._when_closed is not None:
                self._when_closed()
