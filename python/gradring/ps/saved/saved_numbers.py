"""Numbers that a saved table has for each row, checked: steps, versions, ticks and scores. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.errors import InvalidArgument
from gradring.ps.arguments.checks import U32

Array = npt.NDArray[Any]


def counts(name: str, given: Any, shape: tuple[int, ...]) -> Array:
    """Return whole numbers from 0 that fit into 32 bits.

    Args:
        name: What to call them in errors.
        given: One number, or an array of ``shape``; floats too, as torch counts steps.
        shape: Of what they belong to.

    Raises:
        InvalidArgument: They are none, or of another shape.
    """
    numbers = _numbers(name, given, shape)
    if not ((numbers >= 0) & (numbers <= U32) & (numbers == np.floor(numbers))).all():
        raise InvalidArgument(f"{name} is whole numbers from 0 to {U32}, got {given!r}")
    return numbers.astype(np.uint32)


def scores(given: Any, shape: tuple[int, ...]) -> Array:
    """Return scores as float32; the arguments are those of `counts`.

    Raises:
        InvalidArgument: They are no numbers from 0, or of another shape.
    """
    numbers = _numbers("score", given, shape)
    if not (numbers >= 0).all():
        raise InvalidArgument(f"score is numbers from 0, got {given!r}")
    return numbers.astype(np.float32)


def _numbers(name: str, given: Any, shape: tuple[int, ...]) -> Array:
    try:
        numbers = np.asarray(given)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # A tensor on a device, or lists of different lengths.
        numbers = np.asarray(None)
    if numbers.dtype.kind not in "iuf":
        raise InvalidArgument(f"{name} is numbers, got {given!r}")
    if numbers.shape not in ((), shape):
        wanted = f"one number, or shape {shape}" if shape else "one number"
        raise InvalidArgument(f"{name} has shape {numbers.shape}; it is {wanted}")
    return numbers
