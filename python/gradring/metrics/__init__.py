"""How good predictions are, over the data of all ranks: as if one process had seen all of it.

Each metric is fed batch by batch, and `compute` adds up what all ranks have. What is counted or
averaged is summed without rounding, so a value depends neither on how the data was cut into batches
nor on the number of ranks (docs/evaluation.md).
"""

from gradring.metrics.area import AUC
from gradring.metrics.averages import (
    Accuracy,
    Calibration,
    LogLoss,
    MeanAbsoluteError,
    MeanSquaredError,
    RootMeanSquaredError,
)
from gradring.metrics.groups import GroupAUC, PairCounts, PairOrder

__all__ = [
    "AUC",
    "Accuracy",
    "Calibration",
    "GroupAUC",
    "LogLoss",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "PairCounts",
    "PairOrder",
    "RootMeanSquaredError",
]
