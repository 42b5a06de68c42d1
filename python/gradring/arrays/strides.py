"""What an array's strides say about it."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt


def lies_upon_itself(array: npt.NDArray[Any]) -> bool:
    """Tell whether two places of an array may be one, as where a row is broadcast.

    Certain where an axis has stride 0. Else axes are taken to lie within each other, the shorter
    stride in the longer one, as those of slices and transposes do.
    """
    reach = array.itemsize  # Of all axes with shorter strides together.
    axes = sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True))
    for step, size in axes:
        if size > 1:
            if step < reach:
                return True
            reach += step * (size - 1)
    return False
