"""Finds out whether all ranks hold the same list of arrays, before a byte of them is sent.

Optimizers call it once at the start: models that differ between ranks become an error that names
the first difference, on every rank alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from gradring.collectives.communicator import Communicator
from gradring.collectives.texts import digest, gather_texts
from gradring.dtypes import DTYPE_CODES
from gradring.errors import InvalidArgument, Mismatch

_DIMS_MAX = 14
_COLUMNS = _DIMS_MAX + 3  # Dtype, number of dimensions, dimensions, digest of the label.
_DTYPE_NAMES = (*DTYPE_CODES, "complex64", "complex128")


def require_same_shapes(
    comm: Communicator,
    what: str,
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    *,
    labels: Sequence[str] | None = None,
) -> None:
    """Compare names' shapes and dtypes with those of all other ranks; a collective call.

    Args:
        comm: Between which ranks.
        what: What the arrays are, in the plural, for the message.
        names: How to call each array in the message.
        shapes: Of each array.
        dtypes: Name of each array's dtype.
        labels: What else is the same on all ranks, such as each array's name where ranks have it
            from the user; ``None``: nothing. Given on all ranks, or on none.

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
    for row, label in zip(mine, labels or (), strict=False):
        row[-1] = digest(label)
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
        if other is None:
            continue
        if labels is not None and _first_different(rows[:, index, -1]) is not None:
            _raise_for_labels(comm, what, index, labels[index], rows[:, index])
        raise Mismatch(
            f"the ranks have different models: {name} is {_decoded(rows[0, index])} on rank 0, "
            f"{_decoded(rows[other, index])} on rank {other}"
        )


def _raise_for_labels(
    comm: Communicator, what: str, index: int, label: str, rows: npt.NDArray[np.int64]
) -> NoReturn:
    # Every rank has found the same difference, so all of them are here to tell their labels.
    found = gather_texts(comm, label.encode())
    other = _first_different(rows[:, -1])
    assert other is not None
    first, second = (f"{found[rank].decode()}, {_decoded(rows[rank])}" for rank in (0, other))
    raise Mismatch(
        f"the ranks have different models: number {index} of the {what} is {first}, on rank 0 and "
        f"{second}, on rank {other}"
    )


def _first_different(values: npt.NDArray[np.int64]) -> int | None:
    differs = (values != values[0]).reshape(len(values), -1).any(axis=1)
    return int(differs.argmax()) if differs.any() else None


def _decoded(row: npt.NDArray[np.int64]) -> str:
    shape = tuple(int(size) for size in row[2 : 2 + int(row[1])])
    return _describe(shape, _DTYPE_NAMES[int(row[0])])


def _describe(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}{list(shape)}"
