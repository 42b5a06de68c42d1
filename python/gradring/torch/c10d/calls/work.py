"""`Work`: what a call of the backend returns, and `Flight`, the operations behind it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradring.collectives.work import Work as CoreWork
from gradring.errors import Error
from gradring.torch.c10d.calls.errors import for_torch
from gradring.torch.c10d.calls.job import Job
from gradring.torch.c10d.calls.streams import CallStream

Watcher = Callable[["Flight"], None]

# A collective has a deadline of its own, so that whoever waits for it needs none.
FOR_GOOD = 365 * 24 * 3600.0


class Flight:
    """The operations that one call has started, and what is left to do after them.

    Whoever comes first, the user's wait or a thread of the group, does that once; everybody gets
    its result or its error.
    """

    def __init__(
        self,
        pending: Sequence[CoreWork | Job],
        finishers: Sequence[Callable[[], None]],
        result: Any,
        *,
        patience: float,
        watcher: Watcher,
        stream: CallStream | None = None,
    ) -> None:
        """Take over operations.

        Args:
            pending: Started in this order.
            finishers: To be called when all are done.
            result: The tensors that then hold the results.
            patience: Seconds that a wait lasts where it does not say.
            watcher: Sees to it that `complete` is called.
            stream: Of the call's tensors, where they are on a GPU.
        """
        self.pending = list(pending)
        self.result = result
        self.patience = patience
        self.error: Error | None = None
        self.source: int | None = None
        self.is_settled = False
        self._finishers = list(finishers)
        self._watcher = watcher
        self._stream = stream
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        self._told: torch.futures.Future[Any] | None = None
        if not self.pending:
            self.settle(None)

    def is_ready(self) -> bool:
        """Tell, without waiting, whether all operations have ended."""
        return self.is_settled or all(work.done() for work in self.pending)

    def settle(self, timeout: float | None) -> None:
        """Wait for the operations, or have the call's stream wait, and do what is left to do.

        Args:
            timeout: Seconds for each operation; ``None`` is `patience`.

        Raises:
            TimedOut: They are not done yet.
        """
        self._wait_for_all(timeout, None if self._stream is None else self._stream.handle)

    def _wait_for_all(self, timeout: float | None, stream: int | None) -> None:
        for work in self.pending:
            try:
                _wait(work, self.patience if timeout is None else timeout, stream)
            except Error as error:
                if not work.done():
                    raise for_torch(error) from error.__cause__
                self._settle_with(for_torch(error))
                return
        self._settle_with(None)

    def _settle_with(self, error: Error | None) -> None:
        with self._lock:
            if self.is_settled:
                return
            if error is None:
                error = self._finish()
                if self.pending:
                    self.source = self.pending[0].source
            self.error = error
            self._finishers.clear()
            self.is_settled = True
            told = self._told
        if told is not None:
            self._tell(told)

    def _finish(self) -> Error | None:
        try:
            with contextlib.nullcontext() if self._stream is None else self._stream.finishing():
                for finish in self._finishers:
                    finish()
        except Error as error:  # A result that does not fit into the user's tensor.
            return for_torch(error)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits, not in our threads
            failed = Error(f"a result cannot be written to its tensor: {error}")
            failed.__cause__ = error
            return for_torch(failed)
        return None

    def _tell(self, told: torch.futures.Future[Any]) -> None:
        if self._stream is None or self.error is not None:
            told.set_result(None)
            return
        with self._stream.finishing():  # A future orders others after what is current now.
            told.set_result(self.result)

    def complete(self, timeout: float | None = None) -> None:
        """Settle, as `settle` does; an error is kept for those who ask.

        For threads of the group: the host waits. Whoever made the call goes on putting work into
        its stream, DDP's backward for one, and that is not to wait for other ranks.
        """
        try:
            self._wait_for_all(timeout, None)
        except Error as error:  # The deadline of a message that nobody waited for.
            self._settle_with(error)

    def order_current(self) -> None:
        """Let the current stream go on after the results, where they are on a GPU."""
        if self._stream is not None:
            self._stream.order_current()

    def outcome(self) -> Any:
        """Return the result of a settled flight, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result

    def future(self) -> torch.futures.Future[Any]:
        """Return a future of the result."""
        with self._lock:
            if self._future is not None:
                return self._future
            devices: list[Any] = [] if self._stream is None else [self._stream.device]
            told: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
            self._future = told.then(lambda _: self.outcome())
            if not self.is_settled:
                self._told = told
        if self._told is None:
            self._tell(told)
        else:
            self._watcher(self)
        return self._future

    def abandon(self) -> None:
        """The user has let go of the handle: keep the tensors until all is done.

        Raises:
            RuntimeError: Something is under way, and no thread can be started to wait for it.
        """
        if self.is_settled:
            return
        try:
            self._watcher(self)
        except RuntimeError:  # Python has ended its threads already, or there are too many.
            if not self.is_ready():
                raise
            self.complete()


def _wait(work: CoreWork | Job, seconds: float, stream: int | None) -> None:
    if stream is None:
        work.wait(seconds)
    else:
        work.wait(seconds, stream=stream)


class Work(dist.Work):
    """The handle that torch.distributed gives to its users."""

    # The last handles go when modules are empty already.
    _is_interpreter_ending = staticmethod(sys.is_finalizing)

    def __init__(self, flight: Flight) -> None:
        """Wrap the operations of one call."""
        super().__init__()
        self._flight = flight

    def __del__(self) -> None:
        """Let the group see to it that what was started is finished.

        Not at the end of the interpreter: no thread runs any more, and nobody sees the results.
        """
        flight = getattr(self, "_flight", None)
        if flight is not None and not self._is_interpreter_ending():
            flight.abandon()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the result is there; on a GPU, until the current stream will find it.

        Args:
            timeout: Zero is the group's.

        Raises:
            TimedOut: It is not done yet. A collective goes on, so wait again; a send or recv has
                closed the group.
            PeerLost: A rank died, froze or left, and so on: docs/errors.md. Each is also a
                torch.distributed.DistBackendError.
        """
        flight = self._flight
        if not flight.is_settled:
            seconds = timeout.total_seconds()
            flight.settle(seconds if seconds > 0 else None)
        if flight.error is not None:
            raise flight.error
        flight.order_current()
        return True

    def synchronize(self) -> None:
        """Wait; the same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Tell, without waiting, whether it has ended, well or not."""
        flight = self._flight
        if not flight.is_settled and flight.is_ready():
            flight.complete()
        return flight.is_settled

    def is_success(self) -> bool:
        """Tell whether it has ended well."""
        return self.is_completed() and self._flight.error is None

    def exception(self) -> Exception | None:
        """Return what went wrong, if it has ended badly."""
        return self._flight.error if self.is_completed() else None

    def result(self) -> Any:
        """Return the tensors that hold the results; waits."""
        self.wait()
        return self._flight.result

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors that hold the results."""
        return self._flight.future()

    def source_rank(self) -> int:
        """Return the rank in the group that sent a message which was received."""
        self.wait()
        return -1 if self._flight.source is None else self._flight.source

    _source_rank = source_rank
