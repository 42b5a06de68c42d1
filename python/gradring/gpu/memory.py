"""Memory of a device and pinned memory of the host, as arrays.

`Array` is the least that an array on a device can be: memory with a dtype, a shape, and a copy in
each direction. Its contents belong to the legacy default stream unless a call says otherwise.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradring import _core
from gradring.arrays.device_arrays import LEGACY_STREAM, stream_handle
from gradring.dtypes import DTYPE_CODES, code_of, stored_as
from gradring.errors import DeviceError, InvalidArgument
from gradring.gpu.runtime import Event

_SMALLEST = 4096  # Bytes of a pinned block.
_BYTES = DTYPE_CODES["uint8"]


class Array:
    """An array on a device, C-contiguous; other libraries see it without a copy.

    Attributes:
        shape: In elements.
        dtype: NumPy's, or ml_dtypes' bfloat16.
        device: Number of its device.
        pointer: Its address there; 0 where it is empty.
        nbytes: Its size.
    """

    def __init__(
        self, shape: int | tuple[int, ...], dtype: Any = "float32", device: int = 0
    ) -> None:
        """Allocate; contents undefined.

        Raises:
            InvalidArgument: Nothing of this dtype can be sent.
            DeviceError: There is no such device, or not that much memory.
        """
        self.pointer = 0
        self._owner: Array | None = None
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.device = device
        if code_of(self.dtype) is None:
            raise InvalidArgument(f"an array of {self.dtype} cannot be sent")
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        if self.nbytes:
            self.pointer = _core.gpu_alloc(device, self.nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The protocol's version 3."""
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "stream": LEGACY_STREAM,
        }

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def new_empty(self, shape: tuple[int, ...]) -> Array:
        """Allocate another of the same kind."""
        return Array(shape, self.dtype, self.device)

    def reshape(self, *shape: int) -> Array:
        """See it in another shape of as many elements, of which one may be -1."""
        other = object.__new__(Array)
        other.__dict__.update(self.__dict__)
        other.shape = np.empty(self.shape, np.uint8).reshape(shape).shape
        other._owner = self  # The memory is its.
        return other

    def copy_from(self, values: Any, stream: Any = None) -> Array:
        """Take the values of a NumPy array of the same dtype and size; waits for the copy."""
        host = np.ascontiguousarray(values)
        if host.nbytes != self.nbytes or host.dtype != self.dtype:
            raise InvalidArgument(
                f"{host.size} of {host.dtype} do not fit into {self.size} of {self.dtype}"
            )
        block = pinned.take(self.nbytes)
        block.array(_BYTES, self.nbytes)[...] = host.reshape(-1).view(np.uint8)
        self._copy(block, self.pointer, block.address, stream)
        return self

    def copy_on_device(self, other: Array, stream: Any = None) -> Array:
        """Take the values of another of the same size, on a stream; does not wait."""
        if other.nbytes != self.nbytes or other.device != self.device:
            raise InvalidArgument(f"{other} does not fit into {self}")
        handle = stream_handle(stream) or LEGACY_STREAM
        if self.nbytes:
            _core.gpu_copy(self.device, self.pointer, other.pointer, self.nbytes, handle)
        return self

    def to_numpy(self, stream: Any = None) -> Any:
        """Return the values, after what is on the stream now; waits for them."""
        block = pinned.take(self.nbytes)
        self._copy(block, block.address, self.pointer, stream)
        return block.array(_BYTES, self.nbytes).copy().view(self.dtype).reshape(self.shape)

    def _copy(self, block: PinnedBlock, to: int, source: int, stream: Any) -> None:
        if self.nbytes == 0:
            return
        handle = stream_handle(stream) or LEGACY_STREAM
        with block.in_copies(self.device, handle):
            _core.gpu_copy(self.device, to, source, self.nbytes, handle)
            _core.gpu_stream_synchronize(self.device, handle)

    def __repr__(self) -> str:
        """Say what it is, not what it holds."""
        return f"Array({self.shape}, {self.dtype}, device={self.device})"

    def __del__(self) -> None:
        """Free the memory, once the device is done with it."""
        if self.pointer and self._owner is None:
            with contextlib.suppress(DeviceError):  # As the process ends, the driver goes first.
                _core.gpu_free(self.device, self.pointer)


def empty(shape: int | tuple[int, ...], dtype: Any = "float32", device: int = 0) -> Array:
    """Allocate an `Array`; contents undefined."""
    return Array(shape, dtype, device)


def from_numpy(values: Any, device: int = 0) -> Array:
    """Copy a NumPy array to a device."""
    host = np.asarray(values)
    return Array(host.shape, host.dtype, device).copy_from(host)


class PinnedBlock:
    """Pinned memory on loan; it goes back when the last array over it goes.

    Attributes:
        address: On the host.
        last_use: What has to pass on the device before it may be used again.
    """

    def __init__(self, pool: PinnedPool, address: int, size: int) -> None:
        """Made by `PinnedPool.take`."""
        self._pool = pool
        self._size = size
        self.address = address
        self.last_use: Event | None = None

    def array(self, dtype: int, count: int) -> Any:
        """See it as elements of a dtype's code; the array keeps it on loan."""
        return np.asarray(_Exported(self, dtype, count))

    @contextlib.contextmanager
    def in_copies(self, device: int, stream: Any) -> Iterator[None]:
        """Copy on a stream; left half-way, by Ctrl-C say, it is lent again only after that."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(DeviceError):  # Of a broken device nothing is under way.
                self.last_use = Event(device).record(stream)
            raise

    def __del__(self) -> None:
        """Give it back."""
        self._pool.give_back(self.address, self._size, self.last_use)


class _Exported:
    def __init__(self, block: PinnedBlock, dtype: int, count: int) -> None:
        self._block = block
        self.__array_interface__ = {
            "version": 3,
            "typestr": stored_as(dtype).str,
            "shape": (count,),
            "data": (block.address, False),
        }


class PinnedPool:
    """Pinned memory, in blocks of powers of two that are kept: to pin costs milliseconds."""

    def __init__(self) -> None:
        """Allocate nothing yet."""
        self._lock = threading.Lock()
        self._free: dict[int, list[tuple[int, Event | None]]] = {}
        # Blocks come back wherever the garbage collector runs, so that must need no lock.
        self._returned: deque[tuple[int, int, Event | None]] = deque()

    def take(self, nbytes: int) -> PinnedBlock:
        """Lend a block of at least so many bytes.

        Raises:
            DeviceError: There is no such memory left.
        """
        size = max(_SMALLEST, 1 << max(0, nbytes - 1).bit_length())
        with self._lock:
            while self._returned:
                returned, address, last_use = self._returned.popleft()
                self._free.setdefault(returned, []).append((address, last_use))
            blocks = self._free.get(size, [])
            for place, (address, last_use) in enumerate(blocks):
                if last_use is None or last_use.is_done():
                    del blocks[place]
                    return PinnedBlock(self, address, size)
        return PinnedBlock(self, _core.gpu_pinned_alloc(size), size)

    def give_back(self, address: int, size: int, last_use: Event | None) -> None:
        """Take a block back; it is lent again once ``last_use`` has passed."""
        self._returned.append((size, address, last_use))


pinned = PinnedPool()
