"""What `Communicator.empty` is given: a dtype of plain bytes, and a shape that arrays have."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gradring.collectives import calling
from gradring.errors import InvalidArgument


def plain_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a dtype of plain bytes.

    Raises:
        InvalidArgument: It is none, or holds Python objects.
    """
    try:
        wanted: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise InvalidArgument(f"empty: {error}") from error
    if wanted.hasobject:
        raise InvalidArgument(f"empty: {wanted} holds Python objects, which ranks cannot share")
    return wanted


def is_shape(sizes: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Tell whether NumPy has arrays of it: of so many axes, and of so long ones beside one of 0."""
    try:
        np.broadcast_to(np.empty((), dtype), sizes)
    except ValueError:
        return False
    return True


def sizes_of(shape: Any) -> tuple[int, ...]:
    """Return the length of each axis; a number alone is one axis.

    Raises:
        InvalidArgument: A length is no whole number.
    """
    try:
        return (operator.index(shape),)
    except TypeError:
        return tuple(calling.whole_numbers("empty: shape", shape))
