"""`SparseTable`: a growing map from ids to rows of floats that lives on the servers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, overload

from gradring.ps.arguments.requests import pull_request, push_request

if TYPE_CHECKING:
    from gradring.ps.calls import Calls
    from gradring.ps.handles import Pending, Pushed


class SparseTable:
    """A worker's view of one sparse table; made by `ParameterServer.sparse_table`.

    Attributes:
        name: The same for all workers.
        dim: Floats a row.
        optimizer: The update rule that the servers apply.
        codec: How rows travel: ``None`` (float32), ``bf16``, ``fp16`` or ``int8``.
        number: What the compiled client calls it.
        calls: What it sends its requests by: the connection's.
    """

    def __init__(
        self, calls: Calls, number: int, *, name: str, dim: int, optimizer: Any, codec: str | None
    ) -> None:
        """Keep what is known of a table that was made."""
        self.calls = calls
        self.number = number
        self.name = name
        self.dim = dim
        self.optimizer = optimizer
        self.codec = codec

    def pull(
        self,
        ids: Any,
        out: Any = None,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Read rows. Ids that are no rows read as their initial value and stay no rows.

        Sees every push that this client has made before. Equal ids are asked for once.

        Args:
            ids: int64 or uint64, any shape; NumPy, torch (CPU), DLPack or a sequence.
            out: Float32 of shape ``ids.shape + (dim,)``, written in place; ``None`` allocates.
            async_op: Return a `Pending` at once; prefetch of the next batch.
            timeout: Longest time without progress, in seconds; ``None`` is the connection's.

        Returns:
            ``out``, or float32 rows in the library of ``ids``; with ``async_op`` a `Pending`.

        Raises:
            InvalidArgument: Shapes or dtypes do not fit; nothing was sent.
            DeviceError: An array is on a device; nothing was sent.
            Mismatch: The table was replaced by one with other settings, as loading does.
            TimedOut: A server did not answer in time; the client can still be used.
            PeerLost: A server lost what it knew: it was started again without a log.
            Closed: The connection was closed.
        """
        request = pull_request(self.name, self.dim, ids, out)
        return self.calls.pull([(self, request)], _only, async_op=async_op, timeout=timeout)

    @overload
    def push(
        self, ids: Any, grads: Any, *, distinct: bool = ..., async_op: Literal[False] = ...,
        timeout: float | None = ...,
    ) -> Pushed: ...  # fmt: skip

    @overload
    def push(
        self, ids: Any, grads: Any, *, distinct: bool = ..., async_op: Literal[True],
        timeout: float | None = ...,
    ) -> Pending[Pushed]: ...  # fmt: skip

    @overload
    def push(
        self, ids: Any, grads: Any, *, distinct: bool = ..., async_op: bool,
        timeout: float | None = ...,
    ) -> Pushed | Pending[Pushed]: ...  # fmt: skip

    def push(
        self,
        ids: Any,
        grads: Any,
        *,
        distinct: bool = False,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Pushed | Pending[Pushed]:
        """Have the servers update rows by gradients, each exactly once.

        Ids that are no rows become rows first, unless the table's entry rule says otherwise.

        Args:
            ids: As for `pull`. Gradients of equal ids are added up, in the order given.
            grads: Float32 of shape ``ids.shape + (dim,)`` or ``(ids.size, dim)``; float16, bfloat16
                and float64 are converted. Not written.
            distinct: The caller knows that no id is there twice, which saves looking. Sorted ids
                need no such promise.
            async_op: Return a `Pending` at once.
            timeout: As for `pull`.

        Returns:
            What was done, when every server has acknowledged it; with ``async_op`` a `Pending`.

        Raises:
            InvalidArgument: Shapes or dtypes do not fit; nothing was sent.
            DeviceError: As for `pull`, and so for Mismatch.
            TimedOut: Names what was not acknowledged: it was applied once or not at all.
            PeerLost: As for `pull`.
            Closed: As for `pull`.
        """
        flat, rows = push_request(self.name, self.dim, ids, grads)
        return self.calls.push(
            [(self, flat, rows)], distinct=distinct, async_op=async_op, timeout=timeout
        )

    def set_optimizer(self, optimizer: Any, *, timeout: float | None = None) -> None:
        """Have the servers go on with other settings of the rule, such as a learning rate.

        They hold from this client's next push on, and for everybody: servers keep them, over
        restarts with a log and in checkpoints. Done once on every shard, like a push. Of workers
        that do it at once one has its way, on all servers.

        Args:
            optimizer: The same rule of `gradring.optim`; only its numbers differ.
            timeout: As for `pull`.

        Raises:
            InvalidArgument: It is another rule, or keeps another state; nothing was sent.
            TimedOut: As for `push`, and so for every other error.
        """
        self.calls.set_rules([(self, optimizer)], timeout)

    def __len__(self) -> int:
        """Return the number of rows on all servers, asked for now."""
        return self.calls.rows_of(self.name)

    def __bool__(self) -> bool:
        """Return True, asking nobody: a table without rows is a table."""
        return True

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything this client has started is done, on all tables, but prefetches.

        As `ParameterServer.flush`.

        Args:
            timeout: Longest time without progress, in seconds; ``None`` is the connection's.

        Raises:
            TimedOut: It is not done; the message names what is not acknowledged.
            Error: The first failure of a push that nobody has waited for.
        """
        self.calls.flush(timeout)

    def export(self, url: str | os.PathLike[str], *, timeout: float | None = None) -> str:
        """Write ids and rows for serving; see `gradring.ps.checkpoint.export_table`.

        Args:
            url: A path or any fsspec URL that ends in ``.npz`` or ``.parquet``.
            timeout: Seconds for all of it; by default as long as it takes.

        Returns:
            Where they are.

        Raises:
            InvalidArgument: The ending is another, or an extra is missing; names it.
            DeviceError: The file cannot be written.
            TimedOut: It was not done in time; names the store that hangs. Or as for `pull`, and so
                for PeerLost and Closed.
        """
        from gradring.ps import checkpoint

        return checkpoint.export_table(self, url, timeout=timeout)

    def state_dict(self) -> dict[str, Any]:
        """Return all rows and their optimizer state; see `gradring.ps.saved.state.read_rows`.

        Raises:
            Mismatch: As for `pull`, and so for PeerLost, TimedOut and Closed.
        """
        from gradring.ps.saved import state

        return state.read_rows(self)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Write rows and their optimizer state; see `gradring.ps.saved.state.write_rows`.

        Raises:
            InvalidArgument: They do not belong to a table like this one; nothing was sent.
            Mismatch: As for `pull`, and so for PeerLost, TimedOut and Closed.
        """
        from gradring.ps.saved import state

        try:
            state.write_rows(self, saved)
        finally:  # Some may have been written.
            self.calls.row_writes.note(self.name)

    def __repr__(self) -> str:
        """Show name, dim and rule."""
        return f"SparseTable({self.name!r}, dim={self.dim}, {self.optimizer})"


def _only(results: list[Any]) -> Any:
    return results[0]
