"""The table that is measured: its rule, its gradients, and what its rows must be afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring import optim
from gradring.bench.rows.ids import Ids
from gradring.bench.rows.options import Options

# Powers of two: sums of up to EXACT of them are exact in float32, in any order.
GRADIENT = 2.0**-10
LR = 2.0**-4
EXACT = 1 << 24

_ROUNDING = 2.0**-24  # What one addition in float32 may be off, as a part of its result.


@dataclass(frozen=True)
class Pushed:
    """What all workers have pushed, by id. Arrays of one length.

    Attributes:
        ids: uint64, ascending, each once.
        times: How often it was pushed; an id that a push has twice counts twice.
        pushes: How many pushes had it.
        most: How often the push that had it most often had it.
    """

    ids: Ids
    times: npt.NDArray[np.int64]
    pushes: npt.NDArray[np.int64]
    most: npt.NDArray[np.int64]


def pushed_of(batches: Sequence[Ids], counts: npt.NDArray[np.int64]) -> Pushed:
    """Add up pushes.

    Args:
        batches: The ids of each batch; each batch may have an id several times.
        counts: How often each batch was pushed; int64, shape ``(len(batches),)``.
    """
    ids, which = np.unique(np.concatenate(batches), return_inverse=True)
    sizes = [batch.size for batch in batches]
    places = np.repeat(np.arange(len(batches)), sizes) * ids.size + which.reshape(-1)
    # A pair of a batch and an id, and how often the one has the other.
    pairs, repeats = np.unique(places, return_counts=True)
    of_id, pushes_of_pair = pairs % ids.size, counts[pairs // ids.size]
    pushed = Pushed(ids, *(np.zeros(ids.size, np.int64) for _ in range(3)))
    np.add.at(pushed.times, of_id, repeats * pushes_of_pair)
    np.add.at(pushed.pushes, of_id, pushes_of_pair)
    np.maximum.at(pushed.most, of_id, repeats)
    return pushed


def rule_of(options: Options) -> Any:
    """Return the update rule that the option names."""
    match options.optimizer:
        case "sum":
            return optim.Sum()
        case "sgd":
            return optim.SGD(lr=LR)
        case "adagrad":
            return optim.Adagrad(lr=LR)
    return optim.Adam(lr=LR)


def is_linear(options: Options) -> bool:
    """Tell whether a row depends on the sum of its gradients alone, and exactly."""
    return options.optimizer in ("sum", "sgd") and options.codec == "float32"


def count_wrong(options: Options, pushed: Pushed, rows: npt.NDArray[np.float32]) -> int:
    """Count floats that are not what all pushes together make of a row that started at zero.

    Up to EXACT times the gradient they are compared bit for bit. Beyond, each further push may
    have been rounded, and nobody knows in which order they came.

    Args:
        options: With a rule that `is_linear`.
        pushed: By all workers.
        rows: What the servers have of these ids; shape ``(ids, dim)``.
    """
    step = GRADIENT if options.optimizer == "sum" else -LR * GRADIENT
    expected = pushed.times * step
    surely_exact = EXACT // np.maximum(pushed.most, 1)
    rounded = np.where(pushed.times > EXACT, np.maximum(pushed.pushes - surely_exact, 0), 0)
    allowed = np.expm1(rounded * _ROUNDING) * np.abs(expected)
    off = np.abs(rows.astype(np.float64) - expected[:, None])
    return int(np.count_nonzero(~(off <= allowed[:, None])))  # So that NaN is wrong.
