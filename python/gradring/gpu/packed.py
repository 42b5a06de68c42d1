"""Several arrays of one device as one, for calls that a device carries out by itself (NCCL).

They are copied side by side on the device, before and after: what they hold does not visit the
host. The memory for that is kept from call to call, since to allocate it waits for the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from gradring import _core
from gradring.arrays.device_arrays import DeviceView
from gradring.gpu.flights import Flight
from gradring.gpu.memory import Array
from gradring.gpu.runtime import Stream, order


class Packer:
    """The arrays of one device, side by side.

    Attributes:
        device: Number of the device.
    """

    def __init__(self, device: int) -> None:
        """Make a stream.

        Raises:
            DeviceError: There is no such device.
        """
        self.device = device
        self._stream = Stream(device, is_urgent=True)
        self._lock = threading.Lock()
        self._kept: Array | None = None  # Nobody's now.

    def run(
        self, views: Sequence[DeviceView], start: Callable[[DeviceView], Flight], for_good_ms: int
    ) -> None:
        """Do in place what ``start`` begins with one array; returns when the results are there.

        Args:
            views: Of one dtype.
            start: Begins a call on what the array's stream brings.
            for_good_ms: Longer than the call, which has a deadline of its own.

        Raises:
            DeviceError: The driver fails.
            PeerLost: As ``start`` and what it begins, and so for their other errors.
        """
        nbytes = sum(view.nbytes for view in views)
        memory = self._take(nbytes)
        stream = self._stream.ptr
        for earlier in {view.stream for view in views if view.stream}:
            order(self.device, stream, earlier)
        places = []
        address = memory.pointer
        for view in views:
            if view.nbytes:
                places.append((view, address))
            address += view.nbytes
        count = sum(view.count for view in views)
        whole = DeviceView(memory.pointer, views[0].dtype, (count,), self.device, stream, memory)
        try:
            for view, place in places:
                _core.gpu_copy(self.device, place, view.pointer, view.nbytes, stream)
            start(whole).wait(for_good_ms)
            for view, place in places:
                _core.gpu_copy(self.device, view.pointer, place, view.nbytes, stream)
        finally:
            self._stream.synchronize()
        with self._lock:  # Where something failed, a device may still be at it.
            self._kept = memory

    def _take(self, nbytes: int) -> Array:
        with self._lock:
            memory, self._kept = self._kept, None
        if memory is not None and memory.nbytes >= nbytes:
            return memory
        return Array(max(1, nbytes), "uint8", self.device)
