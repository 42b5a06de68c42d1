"""From arrays on a CUDA device to what the core moves: a pointer, a dtype, a shape and a stream.

With `gradring.arrays.buffers` all that the communicator knows about array libraries; it imports
none that has not made the array. torch tensors are read by their attributes, other arrays (CuPy,
Numba, JAX) through ``__cuda_array_interface__`` (versions 2 and 3) and, where that cannot say what
they hold, through DLPack. Nothing here calls the driver, so all of it works without a GPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradring.arrays.dlpack import CUDA_DEVICES, read_capsule
from gradring.dtypes import BFLOAT16, DTYPE_CODES, code_of, stored_as
from gradring.errors import DeviceError, InvalidArgument

# CUDA's own name for a stream; 2 is the default one of each thread, every other number a handle.
LEGACY_STREAM = 1

UNKNOWN_DEVICE = -1  # The exporter does not say; the driver knows it from the pointer.


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One array on a device as the core takes it; has what `gradring.arrays.buffers.View` has.

    Attributes:
        pointer: Address on the device; 0 for an empty array.
        dtype: Code of the element type.
        shape: The user's shape; C-contiguous.
        device: Number of the CUDA device, or `UNKNOWN_DEVICE`.
        stream: Handle after whose work the contents are valid; 0: valid already.
        owner: Keeps the memory alive.
    """

    pointer: int
    dtype: int
    shape: tuple[int, ...]
    device: int
    stream: int
    owner: Any

    @property
    def count(self) -> int:
        """Number of elements."""
        result = 1
        for length in self.shape:
            result *= length
        return result

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.count * stored_as(self.dtype).itemsize

    @property
    def memory(self) -> None:
        """Nothing is ever packed: device arrays are contiguous."""
        return


def stream_handle(stream: Any) -> int | None:
    """Return what the core calls a stream.

    Args:
        stream: ``None``; a number as CUDA, DLPack and CuPy use it (0 and 1 the legacy default
            stream, 2 the per-thread one, else a ``cudaStream_t``); or a stream of torch
            (``cuda_stream``), CuPy (``ptr``) or any library with ``__cuda_stream__``.

    Returns:
        ``None`` for ``None``; else 1, 2 or a handle, never 0.

    Raises:
        InvalidArgument: It is none of these.
    """
    if stream is None:
        return None
    number = stream
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__() if callable(stream.__cuda_stream__) else None
        if not isinstance(protocol, tuple) or len(protocol) != 2 or protocol[0] != 0:
            raise InvalidArgument(
                f"stream: {type(stream).__name__}.__cuda_stream__ is no version 0"
            )
        number = protocol[1]
    elif hasattr(stream, "cuda_stream"):
        number = stream.cuda_stream
    elif hasattr(stream, "ptr"):
        number = stream.ptr
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 0:
        raise InvalidArgument(
            f"stream is a {type(stream).__name__}; pass None, a cudaStream_t as a number, or a "
            "stream of torch, CuPy or another library with __cuda_stream__"
        )
    return int(number) or LEGACY_STREAM


def find(x: Any, name: str, *, writes: bool, stream: Any = None) -> DeviceView | None:
    """See an array on a CUDA device; ``None`` for everything that is not on one.

    Args:
        x: Anything.
        name: What to call it in errors.
        writes: The operation writes it.
        stream: Where the user has made it and goes on with it (`stream_handle`); ``None``: what the
            array says, or torch's current stream.

    Raises:
        InvalidArgument: A dtype that cannot be sent, not contiguous, or read-only where it is
            written.
        DeviceError: It is on a device that is none of CUDA's.
    """
    if isinstance(x, np.ndarray):
        return None
    if is_torch(x):
        return _from_torch(x, name, stream)
    exported = _interface_of(x, name)
    if exported is not None:
        return _from_interface(x, name, exported, writes=writes, stream=stream_handle(stream))
    if is_on_cuda(x):
        return _from_dlpack(x, name, writes=writes, stream=stream_handle(stream))
    return None


def empty_like(x: Any, shape: tuple[int, ...]) -> Any:
    """Allocate an array of the library, dtype and device of ``x``; contents undefined.

    Raises:
        InvalidArgument: Nobody knows how: pass ``out=``.
    """
    if is_torch(x):
        return x.new_empty(shape)
    if type(x).__module__.partition(".")[0] == "cupy":
        import cupy

        with cupy.cuda.Device(x.device.id):
            return cupy.empty(shape, x.dtype)
    make = getattr(x, "new_empty", None)
    if callable(make):
        return make(shape)
    raise InvalidArgument(
        f"a result like a {type(x).__name__} on a device cannot be allocated; pass out="
    )


def is_on_cuda(x: Any) -> bool:
    """Tell whether DLPack says that it is on a CUDA device."""
    return _dlpack_device(x) is not None


def is_torch(x: Any) -> bool:
    """Tell whether it is a tensor of torch, without importing it."""
    if type(x).__module__.partition(".")[0] == "torch":
        return hasattr(x, "data_ptr")
    torch = sys.modules.get("torch")  # A user's own class of tensors, or none.
    return isinstance(x, getattr(torch, "Tensor", ()))


def require_own_signs(x: Any, name: str) -> None:
    """Refuse a tensor whose memory has the numbers with their signs turned (``conj().imag``).

    Args:
        x: A tensor of torch, or anything that may be one of a class derived from it.
        name: What to call it in errors.

    Raises:
        InvalidArgument: It is one.
    """
    is_neg = getattr(x, "is_neg", None)
    if callable(is_neg) and is_neg():
        raise InvalidArgument(
            f"{name} is a view of other numbers with their signs turned; use {name}.resolve_neg()"
        )


def require_dense(x: Any, name: str) -> None:
    """Refuse a tensor of torch that is not one piece of memory with strides.

    Args:
        x: The tensor.
        name: What to call it in errors.

    Raises:
        InvalidArgument: It is sparse, say.
    """
    if x.is_nested:
        raise InvalidArgument(f"{name} is a nested tensor; give x.values(), or its parts")
    if str(x.layout) != "torch.strided":
        advice = "give its numbers as a dense tensor"
        if str(x.layout) == "torch.sparse_coo":
            advice = "give x.coalesce().indices() and .values()"
        raise InvalidArgument(f"{name} is a {x.layout} tensor; {advice}")


def require_memory(x: Any, name: str) -> None:
    """Refuse a tensor of torch that stands for others.

    Args:
        x: The tensor, with elements.
        name: What to call it in errors.

    Raises:
        InvalidArgument: It has no memory of its own.
    """
    if x.data_ptr() == 0:
        raise InvalidArgument(
            f"{name} is a {type(x).__name__} without memory of its own; pass the tensor that it "
            "stands for: a DTensor's to_local(), an asynchronous tensor's wait()"
        )


def require_same_device(views: dict[str, Any]) -> None:
    """Refuse operands of one call that live in different places.

    Args:
        views: Operands by name; `DeviceView` or views of host memory.

    Raises:
        DeviceError: They do.
    """
    places = {name: _place(view) for name, view in views.items() if view is not None}
    known = {place for place in places.values() if place != "a CUDA device"}
    is_mixed = "the CPU" in known and len(set(places.values())) > 1
    if len(known) > 1 or is_mixed:
        listed = ", ".join(f"{name} is on {place}" for name, place in places.items())
        raise DeviceError(f"{listed}; the arrays of one call must be on one device")


def _place(view: Any) -> str:
    if not isinstance(view, DeviceView):
        return "the CPU"
    return "a CUDA device" if view.device == UNKNOWN_DEVICE else f"cuda:{view.device}"


def _from_torch(x: Any, name: str, stream: Any) -> DeviceView | None:
    if x.device.type == "cpu":
        return None
    if x.device.type != "cuda":
        raise DeviceError(f"{name} is on {x.device}; tensors on the CPU or CUDA can be sent")
    kind = str(x.dtype).removeprefix("torch.")
    if kind not in DTYPE_CODES:
        raise _not_sendable(name, kind)
    require_dense(x, name)
    if x.numel() > 0:
        require_memory(x, name)
    if not x.is_contiguous():
        raise _not_contiguous(name, tuple(x.shape), "x.contiguous()")
    require_own_signs(x, name)
    if stream is None:
        stream = sys.modules["torch"].cuda.current_stream(x.device)
    handle = stream_handle(stream)
    assert handle is not None
    return DeviceView(
        x.data_ptr(), DTYPE_CODES[kind], tuple(x.shape), x.device.index or 0, handle, x
    )


def _interface_of(x: Any, name: str) -> Any:
    try:
        return getattr(x, "__cuda_array_interface__", None)
    except (RuntimeError, TypeError, ValueError) as error:  # As autograd's arrays.
        raise InvalidArgument(f"{name} does not give out its memory: {error}") from error


def _from_interface(
    x: Any, name: str, exported: Any, *, writes: bool, stream: int | None
) -> DeviceView:
    if exported["version"] < 2:
        raise InvalidArgument(
            f"{name}: version {exported['version']} of __cuda_array_interface__ is too old"
        )
    if "stream" not in exported and hasattr(x, "__dlpack__") and is_on_cuda(x):
        # JAX's: it says nothing of the stream on which the array is made still.
        return _from_dlpack(x, name, writes=writes, stream=stream)
    code = _code_of_typestr(x, exported["typestr"])
    if code is None:
        if exported["typestr"][1:] == "V2" and is_on_cuda(x):
            return _from_dlpack(x, name, writes=writes, stream=stream)
        raise _not_sendable(name, exported["typestr"])
    if exported.get("mask") is not None:
        raise InvalidArgument(f"{name} has a mask, which cannot be sent")
    shape = tuple(int(length) for length in exported["shape"])
    strides = exported.get("strides")
    if strides is not None and not _is_contiguous(shape, strides, stored_as(code).itemsize):
        raise _not_contiguous(name, shape, "cupy.ascontiguousarray(x)")
    pointer, is_read_only = exported["data"]
    if writes and is_read_only:
        raise InvalidArgument(f"{name} is read-only, but the operation writes it")
    producer = _producer(name, exported)
    device = _device_number(x)
    return DeviceView(int(pointer or 0), code, shape, device, stream or producer, (x, exported))


def _producer(name: str, exported: Any) -> int:
    # Version 2 has no word for it, and None says that nothing is under way: whoever wrote the
    # array later than that did so on the stream that orders after all others.
    stream = exported.get("stream")
    if stream is None:
        return LEGACY_STREAM
    if stream == 0:
        raise InvalidArgument(f"{name}: stream 0 in __cuda_array_interface__; it must be 1 or 2")
    handle = stream_handle(stream)
    assert handle is not None
    return handle


def _code_of_typestr(x: Any, typestr: str) -> int | None:
    if typestr[1:] == "V2":  # ml_dtypes' own text for bfloat16, and that of any two bytes.
        is_bfloat16 = str(getattr(x, "dtype", "")).endswith("bfloat16")
        return BFLOAT16 if is_bfloat16 else None
    try:
        return code_of(np.dtype(typestr))
    except TypeError:
        return None


def _device_number(x: Any) -> int:
    told = _dlpack_device(x)
    if told is not None:
        return told
    number = getattr(getattr(x, "device", None), "id", UNKNOWN_DEVICE)
    return number if isinstance(number, int) else UNKNOWN_DEVICE


def _dlpack_device(x: Any) -> int | None:
    """Return the CUDA device that DLPack tells; ``None`` where there is none."""
    if not hasattr(x, "__dlpack_device__"):
        return None
    kind, number = x.__dlpack_device__()
    return int(number) if int(kind) in CUDA_DEVICES else None


def _from_dlpack(x: Any, name: str, *, writes: bool, stream: int | None) -> DeviceView:
    # The producer makes this stream wait for what it has under way.
    asked = stream or LEGACY_STREAM
    try:
        try:
            capsule = x.__dlpack__(stream=asked, max_version=(1, 0))
        except TypeError:
            capsule = x.__dlpack__(stream=asked)
    except (BufferError, RuntimeError) as error:
        raise InvalidArgument(f"{name} cannot be read through DLPack: {error}") from error
    read = read_capsule(capsule)
    if read.kind is None or read.kind not in DTYPE_CODES:
        raise _not_sendable(name, read.kind or "a type of its own")
    code = DTYPE_CODES[read.kind]
    strides = (
        None if read.strides is None else [one * stored_as(code).itemsize for one in read.strides]
    )
    if strides is not None and not _is_contiguous(read.shape, strides, stored_as(code).itemsize):
        raise _not_contiguous(name, read.shape, "a contiguous copy")
    if writes and read.is_read_only:
        raise InvalidArgument(f"{name} is read-only, but the operation writes it")
    return DeviceView(read.pointer, code, read.shape, read.device, asked, (x, capsule))


def _is_contiguous(shape: tuple[int, ...], strides: Any, item: int) -> bool:
    if 0 in shape:
        return True
    expected = item
    for length, stride in zip(reversed(shape), reversed(tuple(strides)), strict=True):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


def _not_sendable(name: str, kind: str) -> InvalidArgument:
    known = ", ".join(DTYPE_CODES)
    return InvalidArgument(f"{name} has dtype {kind}, which cannot be sent; use {known}")


def _not_contiguous(name: str, shape: tuple[int, ...], what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name}, of shape {shape} on a device, is not contiguous; pass {what} and copy the "
        "result back (arrays on the CPU may be strided)"
    )
