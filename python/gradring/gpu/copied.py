"""Calls on device arrays by way of the host's memory: down, the CPU's call, and up again.

The plainest way, which every operation can take: the calling thread waits until what the arrays
hold has come to pinned memory, the core does what it does for arrays on the CPU (so the bits are
the same), and `Landing.wait` sends the result back. What `gradring.gpu.calls` can do better it does
not send here.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradring import _core
from gradring.arrays.device_arrays import UNKNOWN_DEVICE, DeviceView
from gradring.errors import DeviceError, Error
from gradring.gpu.flights import left_behind
from gradring.gpu.memory import PinnedBlock, pinned
from gradring.gpu.runtime import Event, Stream, device_of, order


class Road:
    """The way between one device and the host, with a stream of its own.

    Attributes:
        device: Number of the device.
    """

    def __init__(self, device: int) -> None:
        """Make the stream.

        Raises:
            DeviceError: There is no such device.
        """
        self.device = device
        self._stream = Stream(device, is_urgent=True)

    def down(self, views: Sequence[DeviceView]) -> Cargo:
        """Bring arrays of one dtype to the host, one after another; waits for them."""
        cargo = Cargo(views)
        self.follow(views)
        with cargo.block.in_copies(self.device, self._stream):
            for view, address in cargo.places():
                _core.gpu_copy(self.device, address, view.pointer, view.nbytes, self._stream.ptr)
            self._stream.synchronize()
        return cargo

    def follow(self, views: Sequence[DeviceView]) -> None:
        """Touch arrays only after what is on their streams now: who had the memory may use it."""
        for stream in {view.stream for view in views if view.stream}:
            order(self.device, self._stream.ptr, stream)

    def up(self, cargo: Cargo) -> Event:
        """Send arrays back; returns at once, with the event that they have come."""
        with cargo.block.in_copies(self.device, self._stream):
            for view, address in cargo.places():
                _core.gpu_copy(self.device, view.pointer, address, view.nbytes, self._stream.ptr)
            came = Event(self.device).record(self._stream)
            cargo.block.last_use = came
        return came


class Cargo:
    """Device arrays of one dtype, and as much pinned memory, in one piece.

    Attributes:
        views: The arrays.
        block: The memory.
        host: It as a flat array; bfloat16 as uint16.
    """

    def __init__(self, views: Sequence[DeviceView]) -> None:
        """Take the memory; contents undefined."""
        self.views = list(views)
        self.block: PinnedBlock = pinned.take(sum(view.nbytes for view in views))
        count = sum(view.count for view in views)
        self.host = self.block.array(views[0].dtype, count)

    def places(self) -> list[tuple[DeviceView, int]]:
        """Return where on the host each array is, but for empty ones."""
        address = self.block.address
        result = []
        for view in self.views:
            if view.nbytes:
                result.append((view, address))
            address += view.nbytes
        return result


class Landing:
    """A call in flight whose result still has to go up; has what `_core.Work` has."""

    def __init__(self, pending: _core.Work | None, road: Road, cargo: Cargo | None) -> None:
        """Take over a call.

        Args:
            pending: The core's; ``None``: it is done.
            road: Where the result goes.
            cargo: The result; ``None``: there is none on this rank.
        """
        self._pending = pending
        self._road = road
        self._cargo = cargo
        self._views = [] if cargo is None else cargo.views
        self._came: Event | None = None
        self._lock = threading.RLock()  # A signal handler may ask while this thread has it.
        left_behind.release()

    def wait(self, timeout_ms: int = -1, stream: int | None = None) -> None:
        """Wait for the ranks; then for the result, or have a stream wait for that.

        Args:
            timeout_ms: For the ranks; -1 is the communicator's.
            stream: Who goes on with the result; ``None``: this thread waits until it is there.
        """
        if self._pending is not None:
            self._pending.wait(timeout_ms)
        came = self._sent_up()
        if came is None:
            return
        if stream is None:
            came.synchronize()
        else:
            _core.gpu_stream_wait_event(self._road.device, stream, came.handle)

    def done(self) -> bool:
        """Tell, without waiting, whether it has ended, well or not; then the result is there.

        Whoever asks sends the result up: he may never wait.
        """
        if self._pending is not None and not self._pending.done():
            return False
        try:
            if self._pending is not None:
                self._pending.wait()  # It has ended; raises what it has ended with.
            came = self._sent_up()
            return came is None or came.is_done()
        except Error:  # To be raised by `wait`.
            return True

    def _sent_up(self) -> Event | None:
        with self._lock:
            if self._cargo is not None:
                self._came = self._road.up(self._cargo)
                self._cargo = None
            return self._came

    def __del__(self) -> None:
        """Let go of the arrays, or leave them to a later call to let go of."""
        came = self._came
        if came is not None and not _has_passed(came):
            left_behind.keep(functools.partial(_has_passed, came), self._views)

    @property
    def source(self) -> int:
        """Rank that sent a message; -1: none."""
        return -1 if self._pending is None else self._pending.source


def _has_passed(event: Event) -> bool:
    try:
        return event.is_done()
    except DeviceError:  # Of a broken device nothing is under way.
        return True


class CopiedCalls:
    """The calls of one communicator that go by way of the host."""

    def __init__(self, core: _core.Communicator) -> None:
        """Belong to a communicator."""
        self._core = core
        self._roads: dict[int, Road] = {}

    def run(
        self,
        op: int,
        sources: Sequence[DeviceView],
        targets: Sequence[DeviceView],
        **options: Any,
    ) -> Landing:
        """Do a collective.

        Args:
            op: Code of the operation.
            sources: What this rank gives, as one array; empty: nothing.
            targets: Where the result goes, as one array; may be ``sources`` itself.
            **options: Of `_core.Communicator.run`, with ``dtype``.

        Raises:
            DeviceError: The driver fails.
            PeerLost: As the CPU's call, and so for its other errors.
        """
        road = self._road((sources or targets)[0])
        given = road.down(sources) if sources else None
        result = None
        if targets:
            result = given if targets is sources else Cargo(targets)
            road.follow(targets)
        pending = self._core.run(
            op, None if given is None else given.host, None if result is None else result.host,
            **options,
        )  # fmt: skip
        return Landing(pending, road, result)

    def run_in_place(
        self, views: Sequence[DeviceView], start: Callable[..., _core.Work]
    ) -> Landing:
        """Do in place what ``start`` begins with as many flat arrays on the host, of one dtype."""
        road = self._road(views[0])
        cargo = road.down(views)
        ends = list(itertools.accumulate(view.count for view in views))
        parts = np.split(cargo.host, ends[:-1])
        return Landing(start(*parts), road, cargo)

    def transfer(
        self,
        view: DeviceView,
        peer: int,
        tag: int,
        *,
        is_recv: bool,
        timeout_ms: int,
        async_op: bool,
    ) -> Landing:
        """Send or receive; see `_core.Communicator.transfer`."""
        road = self._road(view)
        road.follow([view])
        cargo = Cargo([view]) if is_recv else road.down([view])
        pending = self._core.transfer(
            is_recv, cargo.host, view.dtype, peer, tag, timeout_ms, async_op
        )
        return Landing(pending, road, cargo if is_recv else None)

    def _road(self, view: DeviceView) -> Road:
        device = view.device
        if device == UNKNOWN_DEVICE:
            device = device_of(view.pointer) if view.pointer else 0
        if device not in self._roads:
            self._roads[device] = Road(device)
        return self._roads[device]
