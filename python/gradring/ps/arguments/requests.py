"""Arguments of pulls and pushes, checked and as buffers, before anything is sent. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.arrays import buffers
from gradring.dtypes import DTYPE_CODES
from gradring.errors import InvalidArgument

Ids = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.float32]


@dataclass(slots=True)
class PullRequest:
    """One table's share of a pull.

    Attributes:
        ids: Flat.
        view: Where the rows go, as float32.
        result: What the user gets: that memory, in the library of the ids.
    """

    ids: Ids
    view: buffers.View
    result: Any

    def finish(self) -> Any:
        """Bring the rows to where the user wants them."""
        if self.view.unpack is not None:
            self.view.unpack()
        return self.result


def pull_request(name: str, dim: int, ids: Any, out: Any) -> PullRequest:
    """Check a pull.

    Args:
        name: The table's, for messages.
        dim: Floats a row.
        ids: Whole numbers of any shape.
        out: Float32 of shape ``ids.shape + (dim,)``, or ``None``.

    Raises:
        InvalidArgument: Shapes or dtypes do not fit.
        DeviceError: An array lives on a device.
    """
    shaped = buffers.as_ids(ids)
    shape = (*shaped.shape, dim)
    result = buffers.new_float32(ids, shape) if out is None else out
    view = buffers.view(result, "out", writes=True)
    if view.dtype != DTYPE_CODES["float32"]:
        raise InvalidArgument(f"pull from table {name!r}: out must be float32")
    if view.shape != shape:
        raise InvalidArgument(
            f"pull from table {name!r}: out has shape {view.shape}, ids of shape {shaped.shape} "
            f"need {shape}"
        )
    return PullRequest(shaped.reshape(-1), view, result)


def push_request(name: str, dim: int, ids: Any, gradients: Any) -> tuple[Ids, Rows]:
    """Check a push; return flat ids and a row of float32 for each.

    Raises:
        InvalidArgument: Shapes or dtypes do not fit.
        DeviceError: An array lives on a device.
    """
    return fitting_rows(f"push to table {name!r}", dim, ids, gradients)


def fitting_rows(what: str, dim: int, ids: Any, gradients: Any) -> tuple[Ids, Rows]:
    """Check that gradients are rows of these ids; return flat ids and a row of float32 for each.

    Args:
        what: Begins the message.
        dim: Floats a row.
        ids: Whole numbers of any shape.
        gradients: Of shape ``ids.shape + (dim,)`` or ``(ids.size, dim)``.

    Raises:
        InvalidArgument: Shapes or dtypes do not fit.
        DeviceError: An array lives on a device.
    """
    shaped = buffers.as_ids(ids)
    rows = buffers.as_float32(gradients, "grads")
    if rows.shape not in ((*shaped.shape, dim), (shaped.size, dim)):
        raise InvalidArgument(
            f"{what}: gradients have shape {rows.shape}, ids of shape "
            f"{shaped.shape} need {(*shaped.shape, dim)}"
        )
    return shaped.reshape(-1), rows.reshape(-1, dim)
