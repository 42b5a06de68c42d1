"""Reads DLPack capsules that hold device memory, which NumPy does not take.

The layout is DLPack's (dlpack.h 1.0, and what came before it). A capsule is only looked at, never
taken over: it keeps its name and, as long as it lives, the memory; whoever drops it frees that.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
HOST_DEVICES = frozenset((CPU, CUDA_HOST))  # Memory the CPU can address.
CUDA_DEVICES = frozenset((CUDA, CUDA_MANAGED))

_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_KINDS = {
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64", (1, 8): "uint8",
    (2, 16): "float16", (2, 32): "float32", (2, 64): "float64", (4, 16): "bfloat16",
    (6, 8): "bool",
}  # fmt: skip


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


@dataclass(frozen=True, slots=True)
class Capsule:
    """What a capsule says.

    Attributes:
        pointer: Of the first element.
        kind: Name of the dtype; ``None`` where it has none that NumPy or ml_dtypes know.
        shape: In elements.
        strides: In elements; ``None``: C-contiguous.
        device: Number of the device.
        is_read_only: Whether it may not be written.
    """

    pointer: int
    kind: str | None
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    device: int
    is_read_only: bool


def read_capsule(capsule: Any) -> Capsule:
    """Read a capsule of either generation, not yet taken over by anybody.

    Raises:
        BufferError: It is none, or of a later major version.
    """
    if _is_called(capsule, b"dltensor_versioned"):
        place = _pointer_of(capsule, b"dltensor_versioned")
        whole = ctypes.cast(place, ctypes.POINTER(_Versioned)).contents
        if whole.major != 1:
            raise BufferError(f"DLPack {whole.major}.{whole.minor} is not known; 1.x is")
        tensor, flags = whole.tensor, int(whole.flags)
    elif _is_called(capsule, b"dltensor"):
        place = _pointer_of(capsule, b"dltensor")
        tensor, flags = ctypes.cast(place, ctypes.POINTER(_Tensor)).contents, 0
    else:
        raise BufferError("no DLPack capsule, or one that somebody has taken over")
    return Capsule(
        pointer=(tensor.data or 0) + int(tensor.byte_offset),
        kind=_KINDS.get((tensor.dtype.code, tensor.dtype.bits))
        if tensor.dtype.lanes == 1
        else None,
        shape=tuple(int(tensor.shape[axis]) for axis in range(tensor.ndim)),
        strides=_strides(tensor),
        device=int(tensor.device.number),
        is_read_only=bool(flags & _READ_ONLY),
    )


def _strides(tensor: _Tensor) -> tuple[int, ...] | None:
    if not tensor.strides:
        return None
    return tuple(int(tensor.strides[axis]) for axis in range(tensor.ndim))


def _is_called(capsule: Any, name: bytes) -> bool:
    is_valid = ctypes.pythonapi.PyCapsule_IsValid
    is_valid.restype, is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    return bool(is_valid(capsule, name))


def _pointer_of(capsule: Any, name: bytes) -> ctypes.c_void_p:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return ctypes.c_void_p(get(capsule, name))
