"""Calls in flight on a device: what `gradring.Work` asks of them, whatever way they go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gradring import _core
from gradring.arrays.device_arrays import DeviceView


class Flight(Protocol):
    """A call in flight; has what `_core.Work` has, and can order a stream."""

    def wait(self, timeout_ms: int = -1, stream: int | None = None) -> None:
        """Wait for the result; or, with a stream, only have that wait for it.

        Args:
            timeout_ms: -1 is the communicator's.
            stream: Who goes on with the result.

        Raises:
            PeerLost: As the CPU's call, and so for its other errors; with a stream, what is known
                by now.
        """

    def done(self) -> bool:
        """Tell, without waiting, whether it has ended, well or not."""

    @property
    def source(self) -> int:
        """Rank that sent a message; -1: none."""


class StagedFlight:
    """A collective through pinned slots of host memory, all in the order of streams."""

    source = -1

    def __init__(self, work: _core.StagedWork) -> None:
        """Take it over; it keeps the arrays itself."""
        self._work = work

    def wait(self, timeout_ms: int = -1, stream: int | None = None) -> None:
        """See `Flight.wait`."""
        if stream is None:
            self._work.wait(timeout_ms)
        else:
            self._work.wait_stream(stream, timeout_ms)

    def done(self) -> bool:
        """See `Flight.done`."""
        return self._work.done()


# What is in a stream only when its turn has come, and says itself when its memory is free.
LaunchedWork = _core.NcclWork | _core.HostsWork | _core.GpuCompressedWork


class LeftBehind:
    """Arrays that a device still works with although the handle of their call was dropped.

    Handles go wherever the garbage collector runs, so that nothing here may need a lock.
    """

    def __init__(self) -> None:
        """Nothing is."""
        self._all: deque[tuple[Callable[[], bool], Any]] = deque()

    def keep(self, is_over: Callable[[], bool], arrays: Any) -> None:
        """Hold arrays until ``is_over`` says so to `release`."""
        self._all.append((is_over, arrays))

    def release(self) -> None:
        """Let go of what is over by now."""
        for _ in range(len(self._all)):
            try:
                is_over, arrays = self._all.popleft()
            except IndexError:  # Another thread does the same.
                return
            if not is_over():
                self._all.append((is_over, arrays))


left_behind = LeftBehind()


class LaunchedFlight:
    """A collective of NCCL's, among all ranks or inside the hosts, or a compressed sum."""

    source = -1

    def __init__(
        self,
        work: LaunchedWork,
        views: Sequence[DeviceView | None],
        usual_timeout_ms: int,
    ) -> None:
        """Take it over, and keep the arrays until it is done."""
        self._work = work
        self._views = views
        self._usual_timeout_ms = usual_timeout_ms
        left_behind.release()

    def wait(self, timeout_ms: int = -1, stream: int | None = None) -> None:
        """See `Flight.wait`."""
        limit_ms = self._usual_timeout_ms if timeout_ms < 0 else timeout_ms
        if stream is None:
            self._work.wait(limit_ms)
        else:
            self._work.order(stream, limit_ms)

    def done(self) -> bool:
        """See `Flight.done`."""
        return self._work.done()

    def __del__(self) -> None:
        """Let go of the arrays, or leave them to the next flight to let go of."""
        if not self._work.is_over():
            left_behind.keep(self._work.is_over, self._views)
