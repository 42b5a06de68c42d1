"""Rules that follow the gradient as it is: SGD, and the plain sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradring.errors import InvalidArgument
from gradring.optim.rules import CoreRule


@dataclass(frozen=True)
class SGD(CoreRule):
    """Stochastic gradient descent, as `torch.optim.SGD`.

    Momentum is Polyak's (1964), with `nesterov` that of Sutskever et al. (2013).

    Attributes:
        lr: Learning rate.
        momentum: Share of the last step's direction that is kept; 0 keeps no state.
        dampening: Share of the gradient that momentum leaves out, except in the first step.
        weight_decay: L2 penalty.
        nesterov: Look ahead along the momentum; needs momentum and no dampening.
        clip_value: Gradients are cut to between plus and minus this first.
        clip_norm: Gradients, one parameter's or one row's, are scaled down to this norm first.
    """

    _kind: ClassVar[str] = "sgd"
    counts_steps: ClassVar[bool] = False

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    clip_value: float | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        super().__post_init__()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise InvalidArgument("SGD: nesterov needs a momentum and no dampening")


@dataclass(frozen=True)
class Sum(CoreRule):
    """Adds what it is given: for counters, and for differences between copies of a table.

    Attributes:
        clip_value: What is added is cut to between plus and minus this first.
    """

    _kind: ClassVar[str] = "sum"
    counts_steps: ClassVar[bool] = False

    clip_value: float | None = None
