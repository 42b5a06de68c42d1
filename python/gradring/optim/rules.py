"""The arithmetic of one parameter's step: SGD, Adam, AdamW.

The reference is `torch.optim` (its single-tensor path): same formulas, same order of operations,
same names of state. A compiled `torch` fuses some multiplications with the addition that follows
and so rounds once where NumPy rounds twice; beyond that the results agree. Rules hold no state;
they may be shared, and swapped between steps to follow a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gradring.errors import InvalidArgument

Array = npt.NDArray[Any]
State = dict[str, Any]  # Of one parameter: arrays of its shape and dtype, and the number of steps.


class Rule(Protocol):
    """What an optimizer asks of an update rule."""

    def update(self, param: Array, grad: Array, state: State) -> None:
        """Do one step.

        Args:
            param: Float32 or float64; written in place.
            grad: Shape and dtype of ``param``; not written.
            state: Empty before the first step; belongs to the rule.
        """


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, as `torch.optim.SGD`.

    Attributes:
        lr: Learning rate.
        momentum: Share of the last step's direction that is kept; 0 keeps no state.
        dampening: Share of the gradient that momentum leaves out.
        weight_decay: L2 penalty.
        nesterov: Look ahead along the momentum; needs momentum and no dampening.
    """

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _require_non_negative(
            "SGD", lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise InvalidArgument("SGD: nesterov needs a momentum and no dampening")

    def update(self, param: Array, grad: Array, state: State) -> None:
        """Do one step; see `Rule.update`."""
        if self.weight_decay != 0:
            grad = grad + self.weight_decay * param
        if self.momentum != 0:
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = state["momentum_buffer"] = grad.copy()
            else:
                buffer *= self.momentum
                buffer += (1 - self.dampening) * grad
            grad = grad + self.momentum * buffer if self.nesterov else buffer
        param += -self.lr * grad


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015), as `torch.optim.Adam`.

    Attributes:
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the denominator.
        weight_decay: L2 penalty, part of the gradient (for the decoupled one see `AdamW`).
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _require_non_negative(
            type(self).__name__, lr=self.lr, eps=self.eps, weight_decay=self.weight_decay
        )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidArgument(
                f"{type(self).__name__}: betas are two numbers in [0, 1), got {self.betas}"
            )

    def update(self, param: Array, grad: Array, state: State) -> None:
        """Do one step; see `Rule.update`."""
        if self.weight_decay != 0:
            grad = grad + self.weight_decay * param
        self._descend(param, grad, state)

    def _descend(self, param: Array, grad: Array, state: State) -> None:
        if not state:
            state.update(step=0, exp_avg=np.zeros_like(param), exp_avg_sq=np.zeros_like(param))
        state["step"] += 1
        beta1, beta2 = self.betas
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean += (1 - beta1) * (grad - mean)
        square *= beta2
        square += (1 - beta2) * grad * grad

        step_size = self.lr / (1 - beta1 ** state["step"])
        denominator = np.sqrt(square)
        denominator /= (1 - beta2 ** state["step"]) ** 0.5
        denominator += self.eps
        param += -step_size * mean / denominator


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as `torch.optim.AdamW`.

    Attributes:
        weight_decay: Share of the parameter, times the learning rate, that a step takes away.
    """

    weight_decay: float = 1e-2

    def update(self, param: Array, grad: Array, state: State) -> None:
        """Do one step; see `Rule.update`."""
        if self.weight_decay != 0:
            param *= 1 - self.lr * self.weight_decay
        self._descend(param, grad, state)


def _require_non_negative(rule: str, **values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise InvalidArgument(f"{rule}: {name} must not be negative, got {value}")
