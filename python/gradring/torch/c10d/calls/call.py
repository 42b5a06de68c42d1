"""`Call`: one call of a process group, from its tensors to its `Work`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

from torch import Tensor

from gradring import errors
from gradring.collectives.work import Work as CoreWork
from gradring.torch.c10d.calls import tensors
from gradring.torch.c10d.calls.errors import for_torch
from gradring.torch.c10d.calls.job import Job
from gradring.torch.c10d.calls.profiled import is_profiled, leave_with, range_of
from gradring.torch.c10d.calls.streams import CallStream, stream_of
from gradring.torch.c10d.calls.work import FOR_GOOD, Flight, Watcher, Work


class Call:
    """Collects what a call starts; as a context manager it raises errors as torch knows them.

    Attributes:
        name: What torch's profiler shows it as.
        is_async: Whether the caller wants to wait later.
        timeout: Seconds.
        work: The handle; after the block.
    """

    name: str
    _range: Any = None  # Where it is shown.

    def __init__(
        self,
        options: Any,
        result: Any,
        *,
        timeout: float,
        watcher: Watcher,
        patience: float = FOR_GOOD,
    ) -> None:
        """Read torch's options.

        Args:
            options: An ``...Options`` object of torch.distributed, or ``None``.
            result: The tensors that will hold the results.
            timeout: The group's, in seconds.
            watcher: See `Flight`.
            patience: See `Flight`.
        """
        self.is_async = bool(getattr(options, "asyncOp", True))
        asked = getattr(options, "timeout", timedelta(0)).total_seconds()
        self.timeout = asked if asked > 0 else timeout
        self._result = result
        self._watcher = watcher
        self._patience = patience
        self._pending: list[CoreWork | Job] = []
        self._finishers: list[Callable[[], None]] = []
        self._stream: CallStream | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What every operation of the core is given.

        On a GPU nothing blocks the host: torch waits for the handle, which orders streams.
        """
        is_async = self.is_async or self._stream is not None
        return {"async_op": is_async, "timeout": self.timeout}

    def __enter__(self) -> Call:
        """Begin the block that starts the operations."""
        if is_profiled():
            self._range = range_of(self.name)
            self._range.__enter__()
        return self

    def __exit__(
        self, _kind: Any, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Make `work`, or raise what went wrong."""
        if error is None:
            flight = self._flight(self._finishers)
            self.work = Work(flight)
            self._end_range(flight)
            return
        self._end_range(None)
        if self._pending:  # Some operations of the call have started.
            self._flight([]).abandon()
        if isinstance(error, errors.Error):
            raise for_torch(error) from error.__cause__

    def _end_range(self, flight: Flight | None) -> None:
        if self._range is None:
            return
        if flight is None or flight.is_settled:
            self._range.__exit__(None, None, None)
        else:
            leave_with(self._range, flight.future())

    def _flight(self, finishers: Sequence[Callable[[], None]]) -> Flight:
        return Flight(
            self._pending, finishers, self._result,
            patience=self._patience, watcher=self._watcher, stream=self._stream,
        )  # fmt: skip

    def started(self, pending: Any) -> None:
        """Note an operation to wait for; what a blocking one returned is not needed."""
        if isinstance(pending, (CoreWork, Job)):
            self._pending.append(pending)

    def finally_do(self, finish: Callable[[], None] | None) -> None:
        """Note what has to be done when the operations are."""
        if finish is not None:
            self._finishers.append(finish)

    def input(self, tensor: Tensor, *, reduces: bool = False, copies: bool = False) -> Tensor:
        """Stage a tensor that is only read."""
        self._see([tensor])
        return tensors.stage(tensor, reads=True, writes=False, reduces=reduces, copies=copies).flat

    def output(
        self, tensor: Tensor, *, reduces: bool = False,
        beside: Tensor | None = None, shift: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Stage a tensor that is only written.

        Args:
            tensor: The user's.
            reduces: As for `tensors.stage`.
            beside: What the operation reads, staged: the result gets memory of its own where the
                two overlap, as each rank for itself may pass them.
            shift: How many elements behind the beginning of `beside` it may begin all the same,
                for an operation in place.
        """
        self._see([tensor])
        staged = tensors.stage(tensor, reads=False, writes=True, reduces=reduces)
        if beside is not None and tensors.collide(staged.flat, beside, shift):
            staged = tensors.stage(tensor, reads=False, writes=True, reduces=reduces, copies=True)
        return self._take(staged)

    def both(self, tensor: Tensor, *, reduces: bool = False, copies: bool = False) -> Tensor:
        """Stage a tensor that is read and written."""
        self._see([tensor])
        return self._take(
            tensors.stage(tensor, reads=True, writes=True, reduces=reduces, copies=copies)
        )

    def inputs(
        self, parts: Sequence[Tensor], *, reduces: bool = False, copies: bool = False
    ) -> Tensor:
        """Stage tensors that are only read, as one."""
        self._see(parts)
        return tensors.packed(parts, reads=True, writes=False, reduces=reduces, copies=copies).flat

    def outputs(
        self, parts: Sequence[Tensor], *, beside: Tensor, shift: int | None = None
    ) -> Tensor:
        """Stage tensors that are only written, as one; `beside` and `shift` as for `output`."""
        self._see(parts)
        staged = tensors.packed(parts, reads=False, writes=True, reduces=False)
        if tensors.collide(staged.flat, beside, shift):
            staged = tensors.packed(parts, reads=False, writes=True, reduces=False, copies=True)
        return self._take(staged)

    def boths(
        self, parts: Sequence[Tensor], *, reduces: bool = False, copies: bool = False
    ) -> Tensor:
        """Stage tensors that are read and written, as one."""
        self._see(parts)
        return self._take(
            tensors.packed(parts, reads=True, writes=True, reduces=reduces, copies=copies)
        )

    def _see(self, parts: Sequence[Tensor]) -> None:
        if self._stream is None:
            self._stream = stream_of(parts)

    def _take(self, staged: tensors.Staged) -> Tensor:
        self.finally_do(staged.write_back)
        return staged.flat
