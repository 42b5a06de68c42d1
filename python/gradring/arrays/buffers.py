"""From the user's arrays to buffers the core can use, and back.

With `gradring.arrays.device_arrays` all that the communicator knows about array libraries. NumPy
arrays go through as they are; torch CPU tensors, DLPack exporters and anything with the buffer
protocol are viewed as NumPy arrays without a copy; what is not contiguous is packed, and written
back afterwards: by the core, in the operation's turn (`operand`), or by the caller (`view`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gradring import _core
from gradring.arrays import device_arrays, dlpack
from gradring.arrays.device_arrays import DeviceView, is_torch
from gradring.arrays.strides import lies_upon_itself
from gradring.dtypes import BFLOAT16, DTYPE_CODES, code_of, stored_as
from gradring.errors import DeviceError, InvalidArgument

Array = npt.NDArray[Any]

LARGEST_BYTES = 1 << 47  # Of one host's memory; the core's own limit.

_torch_codes: dict[Any, int] = {}  # By torch's dtypes; empty until a tensor was met.


@dataclass(slots=True)
class View:
    """One array as the core takes it.

    Attributes:
        buffer: C-contiguous array over the user's memory, or one as large that stands for it;
            bfloat16 as uint16.
        dtype: Code of the element type.
        shape: The user's shape.
        unpack: Writes a packed copy back to the user's array; ``None`` where nobody has to.
        memory: The user's array where ``buffer`` is not its memory.
    """

    buffer: Array
    dtype: int
    shape: tuple[int, ...]
    unpack: Callable[[], None] | None = None
    memory: Array | None = None

    @property
    def array(self) -> Array:
        """The user's memory, however strided."""
        return self.buffer if self.memory is None else self.memory

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.buffer.size

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.buffer.nbytes


Operand = View | DeviceView


def operand(x: Any, name: str, *, writes: bool, stream: Any = None) -> Operand:
    """See any array, wherever it lives, as the core takes it.

    What is not contiguous has a buffer whose contents are undefined: the core packs it, and writes
    it back, when the operation's turn has come.

    Args:
        x: What `view` takes, or an array on a CUDA device.
        name: As for `view`.
        writes: As for `view`.
        stream: The user's, for an array on a device
            (`gradring.arrays.device_arrays.stream_handle`).

    Raises:
        InvalidArgument: As `view`, or `gradring.arrays.device_arrays.find`.
        DeviceError: It is on a device that is none of CUDA's.
    """
    found = device_arrays.find(x, name, writes=writes, stream=stream)
    return _view(x, name, writes=writes) if found is None else found


def overlap(one: Operand, other: Operand) -> bool:
    """Tell whether two operands share memory."""
    if isinstance(one, View) and isinstance(other, View):
        return bool(one.count) and np.may_share_memory(one.buffer, other.buffer)
    if isinstance(one, DeviceView) and isinstance(other, DeviceView):
        begins_before = one.pointer < other.pointer + other.nbytes
        return begins_before and other.pointer < one.pointer + one.nbytes
    return False


def view(x: Any, name: str, *, writes: bool) -> View:
    """See any array as a contiguous typed buffer.

    Args:
        x: NumPy array, torch CPU tensor, DLPack exporter on the CPU, or buffer.
        name: What to call it in errors.
        writes: The operation writes it: it must be writable, and a packed copy is written back.

    Raises:
        InvalidArgument: No array, a masked one, a dtype that cannot be sent, or read-only where it
            is written.
        DeviceError: It lives on a device.
    """
    seen = _view(x, name, writes=writes)
    if seen.memory is not None:
        np.copyto(seen.buffer, seen.memory)
        seen.unpack = _unpacker(seen.memory, seen.buffer) if writes else None
    return seen


def _view(x: Any, name: str, *, writes: bool) -> View:
    array, code = _as_numpy(x, name)
    if writes and not array.flags.writeable:
        raise InvalidArgument(f"{name} is read-only, but the operation writes it")
    if array.flags.c_contiguous:
        return View(array, code, array.shape)
    if writes and array.size and lies_upon_itself(array):
        raise InvalidArgument(
            f"{name} has elements that share memory, as a broadcast array has, but the operation "
            "writes it; give a copy"
        )
    return View(np.empty(array.shape, array.dtype), code, array.shape, memory=array)


def as_ids(x: Any, name: str = "ids") -> Array:
    """See whole numbers as row ids: uint64 of any shape, contiguous.

    Args:
        x: int64 or uint64, taken as they are, bits and all; other integers are widened first.
        name: What to call it in errors.

    Raises:
        InvalidArgument: It holds no whole numbers.
        DeviceError: It lives on a device.
    """
    if isinstance(x, (str, bytes, bytearray)):
        raise InvalidArgument(f"{name} is {type(x).__name__}; gr.ps.ids_of makes ids of strings")
    if isinstance(x, (list, tuple, range, int)):
        x = _listed_ids(x, name)
    _require_no_mask(x, name)
    array = x if isinstance(x, np.ndarray) else _plain(x, name)
    if array.dtype.kind not in "iu":
        how = ": gr.ps.ids_of makes them of strings" if array.dtype.kind in "USTO" else ""
        raise InvalidArgument(f"{name} has dtype {array.dtype}; ids are int64 or uint64{how}")
    if array.dtype.kind == "i":
        array = array.astype(np.int64, copy=False).view(np.uint64)
    # Not ascontiguousarray: that makes a number an array of one.
    return np.asarray(array, np.uint64, order="C")


def _require_no_mask(x: Any, name: str) -> None:
    if isinstance(x, np.ma.MaskedArray):
        raise InvalidArgument(f"{name} is a masked array, and masks are not sent; give what counts")


def _listed_ids(x: Any, name: str) -> Array:
    try:
        listed = np.asarray(x)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{name} is a {type(x).__name__} that makes no array: {error}") from (
            error
        )
    if listed.size == 0:
        return np.empty(listed.shape, np.int64)
    if listed.dtype.kind in "iu":
        return listed
    # Numbers beyond int64 beside smaller ones make NumPy choose floats.
    whole = np.asarray(x, object)
    if not all(_is_whole(one) for one in whole.flat):
        return listed
    if all(0 <= one < 1 << 64 for one in whole.flat):
        return whole.astype(np.uint64)
    lowest, highest = min(whole.flat), max(whole.flat)
    raise InvalidArgument(f"{name} go from {lowest} to {highest}; ids are int64 or uint64")


def _is_whole(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def as_float32(x: Any, name: str) -> Array:
    """See floating-point numbers as float32, contiguous; float16, bfloat16 and float64 are copied.

    Raises:
        InvalidArgument: It holds no floating-point numbers.
        DeviceError: It lives on a device.
    """
    if isinstance(x, (list, tuple)):
        listed = as_reals(x, name)
        if listed.dtype.kind not in "fiu":
            raise InvalidArgument(f"{name} is a {type(x).__name__} of {listed.dtype}; use numbers")
        return np.asarray(listed, np.float32)
    if isinstance(x, np.ndarray) and code_of(x.dtype) is None:
        _refuse_as_float32(x.dtype, name)
    array, code = _as_numpy(x, name)
    if code == BFLOAT16:
        return _widened(array)
    if array.dtype.kind != "f":
        _refuse_as_float32(array.dtype, name)
    # Not ascontiguousarray: that makes a number an array of one.
    return np.asarray(array, np.float32, order="C")


def _refuse_as_float32(dtype: np.dtype[Any], name: str) -> NoReturn:
    raise InvalidArgument(f"{name} has dtype {dtype}; use float32, float16, bfloat16 or float64")


def as_reals(x: Any, name: str) -> Array:
    """See numbers as a NumPy array of their own dtype; a tensor of bfloat16 as float32, a copy.

    Of which numbers NumPy's array is, the caller looks.

    Raises:
        InvalidArgument: It makes no array, has a mask, or is a tensor that is not dense or real.
        DeviceError: It is a tensor on a device.
    """
    if type(x) is np.ndarray:
        return x
    _require_no_mask(x, name)
    if is_torch(x):
        array, code = _from_torch(x, name)
        return _widened(array) if code == BFLOAT16 else array
    try:
        return np.asarray(x)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{name} makes no array: {error}") from error


def _widened(bfloat16: Array) -> Array:
    widened: Array = np.asarray(bfloat16, np.uint32, order="C")  # A copy: of another dtype.
    np.left_shift(widened, np.uint32(16), out=widened)
    return widened.view(np.float32)


def new_float32(like: Any, shape: tuple[int, ...]) -> Any:
    """Allocate float32 of the library of ``like``: a torch tensor or a NumPy array."""
    if is_torch(like):
        import torch

        return torch.empty(shape, dtype=torch.float32)
    return np.empty(shape, np.float32)


def _plain(x: Any, name: str) -> Array:
    if is_torch(x):
        _require_cpu(x, name)
        kind = str(x.dtype).removeprefix("torch.")
        if not kind.removeprefix("u").startswith("int"):
            raise InvalidArgument(f"{name} has dtype {kind}; ids are int64 or uint64")
        return _tensor_memory(x, name, np.dtype(kind))
    if hasattr(x, "__dlpack__"):
        return _dlpack_memory(x, name)
    return _buffer_memory(x, name, "of ids")


def empty_like(x: Any, shape: tuple[int, ...]) -> Any:
    """Allocate an array of the library and dtype of ``x``; contents undefined.

    Raises:
        InvalidArgument: No host has memory for so much.
    """
    if math.prod(shape) > LARGEST_BYTES:
        raise InvalidArgument(f"no array has shape {shape}")
    if is_torch(x):
        return x.new_empty(shape)
    if isinstance(x, np.ndarray):
        return np.empty(shape, dtype=x.dtype)
    if hasattr(x, "__cuda_array_interface__") or device_arrays.is_on_cuda(x):
        return device_arrays.empty_like(x, shape)
    return np.empty(shape, dtype=_as_numpy(x, "x")[0].dtype)


def shape_of(x: Any, name: str) -> tuple[int, ...]:
    """Return the shape of any supported array.

    Raises:
        InvalidArgument: It is none.
        DeviceError: It has no ``shape`` and lives on a device.
    """
    return tuple(x.shape) if hasattr(x, "shape") else _as_numpy(x, name)[0].shape


def _unpacker(target: Array, packed: Array) -> Callable[[], None]:
    def unpack() -> None:
        np.copyto(target, packed)

    return unpack


def _as_numpy(x: Any, name: str) -> tuple[Array, int]:
    if isinstance(x, np.ndarray):
        if type(x) is not np.ndarray:
            _require_no_mask(x, name)
            x = x.view(np.ndarray)  # Of a subclass, such as a matrix, also a view has its ways.
        return _coded(x, name)
    if is_torch(x):
        return _from_torch(x, name)
    if hasattr(x, "__dlpack__"):
        return _coded(_dlpack_memory(x, name), name)
    return _coded(_buffer_memory(x, name), name)


def _buffer_memory(x: Any, name: str, what: str = "") -> Array:
    try:
        return np.asarray(memoryview(x))
    except TypeError:
        wanted = f"an array {what}".rstrip()
        raise InvalidArgument(
            f"{name} is a {type(x).__name__}; pass {wanted}: NumPy, torch, DLPack or a buffer"
        ) from None


def _coded(array: Array, name: str) -> tuple[Array, int]:
    code = code_of(array.dtype)
    if code is None:
        known = ", ".join(DTYPE_CODES)
        raise InvalidArgument(f"{name} has dtype {array.dtype}, which cannot be sent; use {known}")
    if code == BFLOAT16:
        return array.view(np.uint16), code
    return array, code


def _from_torch(x: Any, name: str) -> tuple[Array, int]:
    _require_cpu(x, name)
    if not _torch_codes:
        _learn_torch()
    code = _torch_codes.get(x.dtype)
    if code is None:
        known, kind = ", ".join(DTYPE_CODES), str(x.dtype).removeprefix("torch.")
        raise InvalidArgument(f"{name} has dtype {kind}, which cannot be sent; use {known}")
    device_arrays.require_own_signs(x, name)
    return _tensor_memory(x, name, stored_as(code)), code


def _learn_torch() -> None:
    # Not before there is a tensor, so that nobody has to import torch. From then on plain calls see
    # tensors without coming here.
    import torch

    codes = {getattr(torch, name): code for name, code in DTYPE_CODES.items()}
    _core.learn_torch([torch.Tensor, torch.nn.Parameter], list(codes), list(codes.values()))
    _torch_codes.update(codes)  # At once: other threads look whether there is anything.


def _require_cpu(x: Any, name: str) -> None:
    device_arrays.require_dense(x, name)
    if x.device.type != "cpu":
        raise DeviceError(
            f"{name} is on {x.device}, but this call takes arrays on the CPU; call .cpu() first"
        )


def _tensor_memory(x: Any, name: str, stored: np.dtype[Any]) -> Array:
    if x.numel() == 0:
        return np.empty(tuple(x.shape), stored)
    device_arrays.require_memory(x, name)
    return np.asarray(_TorchMemory(x, stored))


class _TorchMemory:
    """A tensor's memory, for NumPy to view; not by ``Tensor.numpy()``.

    That would forbid for good to resize the tensor's storage, which FSDP does.
    """

    def __init__(self, tensor: Any, stored: np.dtype[Any]) -> None:
        self._tensor = tensor  # Lives as long as the view.
        item = stored.itemsize
        self.__array_interface__ = {
            "version": 3,
            "typestr": stored.str,
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * item for stride in tensor.stride()),
            "data": (tensor.data_ptr(), False),
        }


def _dlpack_memory(x: Any, name: str) -> Array:
    device = x.__dlpack_device__()[0] if hasattr(x, "__dlpack_device__") else dlpack.CPU
    if int(device) not in dlpack.HOST_DEVICES:
        raise DeviceError(
            f"{name} is on a device (DLPack type {int(device)}), but this call takes arrays on the "
            "CPU; copy it there first"
        )
    device_arrays.require_own_signs(x, name)
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError) as error:
        raise InvalidArgument(f"{name} cannot be read through DLPack: {error}") from error
