"""Finds out whether all ranks hold the same list of arrays, before a byte of them is sent.

Optimizers call it once at the start: models that differ between ranks become an error that names
the first difference, on every rank alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gradring.communicator import Communicator
from gradring.dtypes import DTYPE_CODES
from gradring.errors import InvalidArgument, Mismatch

_DIMS_MAX = 14
_COLUMNS = _DIMS_MAX + 2  # Dtype, number of dimensions, dimensions.
_DTYPE_NAMES = (*DTYPE_CODES, "complex64", "complex128")


def require_same_shapes(
    comm: Communicator,
    what: str,
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
) -> None:
    """Compare names' shapes and dtypes with those of all other ranks; a collective call.

    Args:
        comm: Between which ranks.
        what: What the arrays are, in the plural, for the message.
        names: How to call each array in the message.
        shapes: Of each array.
        dtypes: Name of each array's dtype.

    Raises:
        InvalidArgument: An array cannot be sent; nothing was.
        Mismatch: The lists differ; raised on every rank, and ``comm`` stays usable.
    """
    mine = np.zeros((len(names), _COLUMNS), np.int64)
    for row, name, shape, dtype in zip(mine, names, shapes, dtypes, strict=True):
        if dtype not in _DTYPE_NAMES or len(shape) > _DIMS_MAX:
            raise InvalidArgument(
                f"{name} ({_describe(shape, dtype)}) cannot be sent; dtypes are "
                f"{', '.join(_DTYPE_NAMES)}, with at most {_DIMS_MAX} dimensions"
            )
        row[0] = _DTYPE_NAMES.index(dtype)
        row[1] = len(shape)
        row[2 : 2 + len(shape)] = shape
    counts = comm.all_gather(np.array([len(names)], np.int64)).ravel()
    other = _first_different(counts)
    if other is not None:
        raise Mismatch(
            f"the ranks have different models: rank 0 has {counts[0]} {what}, "
            f"rank {other} has {counts[other]}"
        )
    rows = comm.all_gather(mine)
    for index, name in enumerate(names):
        other = _first_different(rows[:, index])
        if other is not None:
            raise Mismatch(
                f"the ranks have different models: {name} is {_decoded(rows[0, index])} on rank 0, "
                f"{_decoded(rows[other, index])} on rank {other}"
            )


def _first_different(values: npt.NDArray[np.int64]) -> int | None:
    differs = (values != values[0]).reshape(len(values), -1).any(axis=1)
    return int(differs.argmax()) if differs.any() else None


def _decoded(row: npt.NDArray[np.int64]) -> str:
    shape = tuple(int(size) for size in row[2 : 2 + int(row[1])])
    return _describe(shape, _DTYPE_NAMES[int(row[0])])


def _describe(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}{list(shape)}"
