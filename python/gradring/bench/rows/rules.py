"""The table that is measured: its rule, its gradients, and what its rows must be afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradring import optim
from gradring.bench.rows.options import Options

# Powers of two: sums of some thousands of them are exact, in any order.
GRADIENT = 2.0**-10
LR = 2.0**-4


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


def count_wrong(options: Options, counts: Any, rows: npt.NDArray[np.float32]) -> int:
    """Count floats that are not what all pushes together make of a row that started at zero.

    Args:
        options: With a rule that `is_linear`.
        counts: How often each id was pushed, by all workers.
        rows: What the servers have of them; shape ``(counts.size, dim)``.
    """
    step = GRADIENT if options.optimizer == "sum" else -LR * GRADIENT
    expected = (np.asarray(counts, np.float64) * step).astype(np.float32)
    return int(np.count_nonzero(rows != expected[:, None]))
