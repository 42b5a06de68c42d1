"""Streams and events of a CUDA device, with owners: the plugin's runtime table as Python has it.

Every number that is called a stream or an event here is a ``cudaStream_t`` or ``cudaEvent_t``.
Errors of the driver are `gradring.DeviceError`. Callable from any thread.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from gradring import _core
from gradring.arrays.device_arrays import LEGACY_STREAM, stream_handle
from gradring.errors import DeviceError

# Kinds of memory (csrc/gpu/api.h).
HOST, PINNED, DEVICE, MANAGED = range(4)


def build() -> str:
    """Return what the plugin was built for, or that it is the one of the tests.

    Raises:
        DeviceError: There is no plugin, or it does not load.
    """
    return _core.gpu_driver()[0]


def is_emulated() -> bool:
    """Tell whether the "device" is host memory, as in tests: nothing it measures is a figure."""
    return "emulated" in build()


def device_count() -> int:
    """Return the number of CUDA devices; 0 without a driver.

    Raises:
        DeviceError: There is no plugin, or it does not load.
    """
    return _core.gpu_device_count()


@functools.cache
def device_facts(device: int) -> dict[str, Any]:
    """Return a device's name, compute capability, memory and the like.

    Raises:
        DeviceError: There is no such device.
    """
    found = _core.gpu_devices()
    if not 0 <= device < len(found):
        raise DeviceError(f"there is no CUDA device {device}; there are {len(found)}, from 0")
    return dict(found[device])


def device_of(pointer: int) -> int:
    """Return the device whose memory an address is.

    Raises:
        DeviceError: It is no memory of a device.
    """
    kind, device = _core.gpu_place(pointer)
    if kind not in (DEVICE, MANAGED):
        raise DeviceError(
            f"0x{pointer:x} is no memory of a CUDA device, though the array says that it is"
        )
    return device


class Stream:
    """A stream of its own, which the legacy default stream does not wait for.

    Attributes:
        device: Number of its device.
        ptr: The ``cudaStream_t``, as CuPy calls it.
    """

    def __init__(self, device: int = 0, *, is_urgent: bool = False) -> None:
        """Make one.

        Args:
            device: Number of the device.
            is_urgent: Its kernels go before those of other streams.

        Raises:
            DeviceError: There is no such device.
        """
        self.device = device
        self.ptr = 0
        self.ptr = _core.gpu_stream_create(device, is_urgent)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version, and the handle."""
        return (0, self.ptr)

    def synchronize(self) -> None:
        """Wait until everything on it is done."""
        _core.gpu_stream_synchronize(self.device, self.ptr)

    def is_done(self) -> bool:
        """Tell, without waiting, whether everything on it is done."""
        return _core.gpu_stream_query(self.device, self.ptr)

    def wait_for(self, event: Event) -> None:
        """Let what comes next begin after an event."""
        _core.gpu_stream_wait_event(self.device, self.ptr, event.handle)

    def __del__(self) -> None:
        """End it; the driver does so once it is done."""
        if self.ptr:
            with contextlib.suppress(DeviceError):  # As the process ends, the driver goes first.
                _core.gpu_stream_destroy(self.device, self.ptr)


class Event:
    """A point in a stream's work.

    Attributes:
        device: Number of its device.
        handle: The ``cudaEvent_t``.
    """

    def __init__(self, device: int = 0, *, is_timed: bool = False) -> None:
        """Make one that nothing has recorded yet.

        Raises:
            DeviceError: There is no such device.
        """
        self.device = device
        self.handle = 0
        self.handle = _core.gpu_event_create(device, is_timed)

    def record(self, stream: Any = None) -> Event:
        """Be the point that a stream has come to; ``None`` is the legacy default stream."""
        handle = stream_handle(stream) or LEGACY_STREAM
        _core.gpu_event_record(self.device, self.handle, handle)
        return self

    def is_done(self) -> bool:
        """Tell, without waiting, whether the stream has passed it."""
        return _core.gpu_event_query(self.handle)

    def synchronize(self) -> None:
        """Wait until the stream has passed it."""
        _core.gpu_event_synchronize(self.handle)

    def seconds_until(self, later: Event) -> float:
        """Return the time between two timed events that have passed."""
        return _core.gpu_event_elapsed_ms(self.handle, later.handle) / 1e3

    def __del__(self) -> None:
        """Forget it."""
        if self.handle:
            with contextlib.suppress(DeviceError):
                _core.gpu_event_destroy(self.device, self.handle)


def order(device: int, later: int, earlier: int) -> None:
    """Let what comes next on one stream begin after what is on another now."""
    if later == earlier:
        return
    event = Event(device).record(earlier)
    _core.gpu_stream_wait_event(device, later, event.handle)
