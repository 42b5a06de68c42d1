"""`DenseTable`: an array of floats that lives on the servers, cut into a part for each shard."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, overload

from gradring.arrays import buffers
from gradring.dtypes import DTYPE_CODES
from gradring.errors import InvalidArgument

if TYPE_CHECKING:
    from gradring.ps.calls import Calls
    from gradring.ps.handles import Pending, Pushed


class DenseTable:
    """A worker's view of one dense table; made by `ParameterServer.dense_table`.

    Attributes:
        name: The same for all workers.
        shape: Of the array.
        optimizer: The update rule that the servers apply.
        number: What the compiled client calls it.
        calls: What it sends its requests by: the connection's.
    """

    def __init__(
        self, calls: Calls, number: int, *, name: str, shape: tuple[int, ...], optimizer: Any
    ) -> None:
        """Keep what is known of a table that was made."""
        self.calls = calls
        self.number = number
        self.name = name
        self.shape = shape
        self.optimizer = optimizer
        self._version = 0

    @property
    def size(self) -> int:
        """Number of floats."""
        return math.prod(self.shape)

    @property
    def version(self) -> int:
        """How many pushes and rounds it had seen when this client last pulled it.

        Those that were refused because they were not finite count too.
        """
        return self._version

    def pull(self, out: Any = None, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Read the array; each shard's part is whole, never in the middle of an update.

        Args:
            out: Float32 of the table's shape, written in place; ``None`` allocates.
            async_op: Return a `Pending` at once.
            timeout: As for `SparseTable.pull`.

        Returns:
            ``out``, or a NumPy array; with ``async_op`` a `Pending`.

        Raises:
            InvalidArgument: Shape or dtype do not fit; nothing was sent.
            DeviceError: As for `SparseTable.pull`, and so for every other error.
        """
        result = buffers.new_float32(None, self.shape) if out is None else out
        view = buffers.view(result, "out", writes=True)
        self._require_fit("pull from", view.shape, view.dtype == DTYPE_CODES["float32"])

        def finish(version: int) -> Any:
            self._version = version
            if view.unpack is not None:
                view.unpack()
            return result

        return self.calls.pull_dense(self, view.buffer, finish, async_op=async_op, timeout=timeout)

    @overload
    def push(
        self, grad: Any, *, async_op: Literal[False] = ..., timeout: float | None = ...
    ) -> Pushed: ...

    @overload
    def push(
        self, grad: Any, *, async_op: Literal[True], timeout: float | None = ...
    ) -> Pending[Pushed]: ...

    @overload
    def push(
        self, grad: Any, *, async_op: bool, timeout: float | None = ...
    ) -> Pushed | Pending[Pushed]: ...

    def push(
        self, grad: Any, *, async_op: bool = False, timeout: float | None = None
    ) -> Pushed | Pending[Pushed]:
        """Have the servers do one update by a gradient, exactly once.

        Args:
            grad: Float32 of the table's shape; float16, bfloat16 and float64 are converted. Not
                written.
            async_op: Return a `Pending` at once.
            timeout: As for `SparseTable.pull`.

        Returns:
            What was done; with ``async_op`` a `Pending`.

        Raises:
            InvalidArgument: Shape or dtype do not fit; nothing was sent.
            DeviceError: As for `SparseTable.push`, and so for every other error.
        """
        values = buffers.as_float32(grad, "grad")
        self._require_fit("push to", values.shape, is_float32=True)

        return self.calls.push_dense(self, values, async_op=async_op, timeout=timeout)

    def set_optimizer(self, optimizer: Any, *, timeout: float | None = None) -> None:
        """Have the servers go on with other settings of the rule, such as a learning rate.

        They hold from this client's next push on, and for everybody: servers keep them, over
        restarts with a log and in checkpoints. Done once on every shard, like a push. Of workers
        that do it at once one has its way, on all servers.

        Args:
            optimizer: The same rule of `gradring.optim`; only its numbers differ.
            timeout: As for `SparseTable.pull`.

        Raises:
            InvalidArgument: It is another rule, or keeps another state; nothing was sent.
            TimedOut: As for `SparseTable.push`, and so for every other error.
        """
        self.calls.set_rules([(self, optimizer)], timeout)

    def state_dict(self) -> dict[str, Any]:
        """Return the array and its optimizer state; see `gradring.ps.saved.state.read_array`.

        Raises:
            Mismatch: As for `SparseTable.pull`, and so for PeerLost, TimedOut and Closed.
        """
        from gradring.ps.saved import state

        return state.read_array(self)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Write the array and its optimizer state; see `gradring.ps.saved.state.write_array`.

        Raises:
            InvalidArgument: They do not belong to a table like this one; nothing was sent.
            Mismatch: As for `SparseTable.pull`, and so for PeerLost, TimedOut and Closed.
        """
        from gradring.ps.saved import state

        state.write_array(self, saved)

    def __repr__(self) -> str:
        """Show name, shape and rule."""
        return f"DenseTable({self.name!r}, shape={self.shape}, {self.optimizer})"

    def _require_fit(self, what: str, shape: tuple[int, ...], is_float32: bool) -> None:
        if not is_float32:
            raise InvalidArgument(f"{what} table {self.name!r}: out must be float32")
        if shape != self.shape:
            raise InvalidArgument(
                f"{what} table {self.name!r}: the array has shape {shape}, the table {self.shape}"
            )
