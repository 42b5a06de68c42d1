"""Gradients as the user gives them, checked before anything is sent or stepped. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.arrays import buffers
from gradring.errors import InvalidArgument

Array = npt.NDArray[Any]


def fitting_gradients(
    grads: Sequence[Any], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]
) -> list[Array | None]:
    """Return the gradients as arrays, the user's own where they are; ``None`` stays.

    Args:
        grads: One for each parameter; ``None`` where there is none.
        shapes: The parameters'.
        dtypes: The parameters'.

    Raises:
        InvalidArgument: Their number, a shape or a dtype does not fit, or one is no array of real
            numbers without a mask.
        DeviceError: One lives on a device.
    """
    try:
        count = len(grads)
    except TypeError:
        raise InvalidArgument(
            f"grads is a {type(grads).__name__}; give a list with one gradient for each parameter, "
            "None where there is none"
        ) from None
    if count != len(shapes):
        raise InvalidArgument(
            f"{count} gradients for {len(shapes)} parameters; use None where there is none"
        )
    return [
        None if grad is None else _fitting(index, grad, shape, dtype)
        for index, (grad, shape, dtype) in enumerate(zip(grads, shapes, dtypes, strict=True))
    ]


def require_numpy(param: Any, name: str) -> None:
    """Check that a parameter is a NumPy array, which training writes in place.

    Raises:
        InvalidArgument: It is something else, such as a tensor of PyTorch.
    """
    if isinstance(param, np.ndarray):
        return
    package = type(param).__module__.partition(".")[0]
    text = f"{name} is a {type(param).__name__}; give NumPy arrays"
    if package == "torch":
        text += ": what trains PyTorch's parameters is gradring.torch.distributed(optimizer, ...)"
    raise InvalidArgument(text)


def is_finite(values: Array) -> bool:
    """Tell whether there is no NaN and no infinity; cheaper than by `numpy.isfinite` alone.

    Args:
        values: Floats, contiguous.
    """
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.dot(flat, flat)  # May overflow where no number is infinite.
    return math.isfinite(squares) or bool(np.isfinite(flat).all())


def _fitting(index: int, grad: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    array = buffers.as_reals(grad, f"gradient {index}")
    if array.shape != shape:
        raise InvalidArgument(f"gradient {index} has shape {array.shape}, its parameter {shape}")
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise InvalidArgument(
            f"gradient {index} is {array.dtype}, its parameter {dtype}; convert it first"
        )
    return array
