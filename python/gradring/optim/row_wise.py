"""Rules with one step size a row, for embeddings: one float of second moment a row, not one each.

A row of an array is a run along its last axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradring.optim.rules import CoreRule


@dataclass(frozen=True)
class RowWiseAdagrad(CoreRule):
    """Adagrad with one sum a row: the mean of the squared gradient (Mudigere et al. 2022).

    FBGEMM and TorchRec call it exact row-wise Adagrad. State is one float for each row.

    Attributes:
        lr: Learning rate.
        weight_decay: L2 penalty.
        initial_accumulator_value: What the sum starts at.
        eps: Added to the denominator.
        clip_value: Gradients are cut to between plus and minus this first.
        clip_norm: A row's gradient is scaled down to this norm first.
    """

    _kind: ClassVar[str] = "row_wise_adagrad"
    counts_steps: ClassVar[bool] = False
    _is_row_wise: ClassVar[bool] = True

    lr: float = 1e-2
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-8
    clip_value: float | None = None
    clip_norm: float | None = None


@dataclass(frozen=True)
class RowWiseAdam(CoreRule):
    """Adam with one second moment a row: FBGEMM's partial row-wise Adam.

    State is a float for each element and one for each row. Steps are counted, and bias corrected,
    as in `Adam`; weight decay is decoupled, as in `AdamW`.

    Attributes:
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its mean square.
        eps: Added to the denominator.
        weight_decay: Share of the row, times the learning rate, that a step takes away.
        clip_value: Gradients are cut to between plus and minus this first.
        clip_norm: A row's gradient is scaled down to this norm first.
    """

    _kind: ClassVar[str] = "row_wise_adam"
    _is_row_wise: ClassVar[bool] = True

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_value: float | None = None
    clip_norm: float | None = None
