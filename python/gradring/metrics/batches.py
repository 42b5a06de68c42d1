"""What a batch may be, and which ranks a value is computed over."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradring.collectives import joining
from gradring.errors import InvalidArgument

Floats = NDArray[np.float64]


def numbers(values: Any, source: str) -> Floats:
    """Return a batch's numbers, flat, as float64.

    Args:
        values: Numbers of any real dtype and shape: NumPy, a list, or a tensor on any device.
        source: What the error calls it.

    Raises:
        InvalidArgument: They are no real numbers, or one is not finite.
    """
    try:
        if hasattr(values, "detach"):  # A tensor of PyTorch.
            values = values.detach().cpu()
            values = values.double() if values.is_floating_point() else values
        found = np.asarray(values)
        # What float64 holds is real too: bfloat16 and others that are no dtypes of NumPy's own.
        if found.dtype.kind not in "biuf" and not _held_by_float64(found.dtype):
            raise TypeError(f"they are {found.dtype}")
        with np.errstate(over="ignore"):  # A long double may become infinite, which is refused.
            found = found.astype(np.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"{source}: real numbers are wanted: {error}") from None
    if not np.isfinite(found).all():
        raise InvalidArgument(f"{source}: one of them is NaN or infinite")
    return found


def _held_by_float64(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "V" and np.can_cast(dtype, np.float64)


def batch(*named: tuple[str, Any], weights: Any = None) -> list[Floats]:
    """Return arrays of a batch, and behind them the weights of its examples, 1 each if not given.

    Raises:
        InvalidArgument: As `numbers`; or they differ in size, or a weight is negative.
    """
    found = [numbers(values, name) for name, values in named]
    size = found[0].size
    found.append(np.ones(size) if weights is None else numbers(weights, "weights"))
    for (name, _), values in zip((*named, ("weights", None)), found, strict=True):
        if values.size != size:
            raise InvalidArgument(f"{name}: {values.size} of them, but {size} {named[0][0]}")
    if (found[-1] < 0).any():
        raise InvalidArgument("weights: one of them is negative")
    return found


def labels_of_two_classes(labels: Floats) -> Floats:
    """Return labels that are all 0 or 1.

    Raises:
        InvalidArgument: One is neither.
    """
    if not ((labels == 0) | (labels == 1)).all():
        raise InvalidArgument("labels: one of them is neither 0 nor 1")
    return labels


def ranks_of(comm: Any) -> Any:
    """Return the communicator to compute over: the one given, or that of this process, if any.

    Raises:
        InvalidArgument: ``comm`` is none; this process has several and none is named.
    """
    joining.require_ranks(comm)
    return joining.current_if_any() if comm is None else comm
