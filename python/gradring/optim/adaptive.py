"""Rules with a step size for every element: Adagrad, RMSprop, Adam and its kin, FTRL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradring.optim.rules import CoreRule


@dataclass(frozen=True)
class Adagrad(CoreRule):
    """Adagrad (Duchi, Hazan and Singer 2011), as `torch.optim.Adagrad`.

    Attributes:
        lr: Learning rate.
        lr_decay: It is divided by 1 + lr_decay * (steps before this one).
        weight_decay: L2 penalty.
        initial_accumulator_value: What the sums of squared gradients start at.
        eps: Added to the denominator.
        clip_value: Gradients are cut to between plus and minus this first.
        clip_norm: Gradients, one parameter's or one row's, are scaled down to this norm first.
    """

    _kind: ClassVar[str] = "adagrad"

    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    clip_value: float | None = None
    clip_norm: float | None = None


@dataclass(frozen=True)
class RMSprop(CoreRule):
    """RMSprop (Tieleman and Hinton 2012; centered: Graves 2013), as `torch.optim.RMSprop`.

    Attributes:
        lr: Learning rate.
        alpha: Decay of the running mean of the squared gradient.
        eps: Added to the denominator, after the root.
        weight_decay: L2 penalty.
        momentum: Share of the last step's direction that is kept.
        centered: Divide by the standard deviation of the gradient instead of its mean square.
        clip_value: Gradients are cut to between plus and minus this first.
        clip_norm: Gradients, one parameter's or one row's, are scaled down to this norm first.
    """

    _kind: ClassVar[str] = "rmsprop"

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    clip_value: float | None = None
    clip_norm: float | None = None


@dataclass(frozen=True)
class Adam(CoreRule):
    """Adam (Kingma and Ba 2015), as `torch.optim.Adam`.

    On a sparse table each row counts its own steps, as if it were a parameter that has no gradient
    in the steps that do not touch it.

    Attributes:
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the denominator.
        weight_decay: L2 penalty, part of the gradient (for the decoupled one see `AdamW`).
        clip_value: Gradients are cut to between plus and minus this first.
        clip_norm: Gradients, one parameter's or one row's, are scaled down to this norm first.
    """

    _kind: ClassVar[str] = "adam"

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_value: float | None = None
    clip_norm: float | None = None


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as `torch.optim.AdamW`.

    Attributes:
        weight_decay: Share of the parameter, times the learning rate, that a step takes away.
    """

    _kind: ClassVar[str] = "adamw"

    weight_decay: float = 1e-2


@dataclass(frozen=True)
class SparseAdam(CoreRule):
    """Adam that leaves untouched rows alone, as `torch.optim.SparseAdam`.

    The steps that it counts are the table's: a row that is touched seldom has its first moments
    corrected as if they were as old as the table.

    Attributes:
        lr: Learning rate; 0, where a schedule ends, moves nothing.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the denominator; positive.
        clip_value: Gradients are cut to between plus and minus this first.
        clip_norm: Gradients, one parameter's or one row's, are scaled down to this norm first.
    """

    _kind: ClassVar[str] = "sparse_adam"
    _positive: ClassVar[tuple[str, ...]] = ("eps",)

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_value: float | None = None
    clip_norm: float | None = None


@dataclass(frozen=True)
class FTRL(CoreRule):
    """FTRL-Proximal (McMahan et al. 2013): logistic regression with weights that stay zero.

    A weight is a function of what was added up so far. Where it started counts only until its
    first step: start at zero.

    Attributes:
        lr: Learning rate, the paper's alpha; positive.
        l1: Weights whose sum stays within plus and minus this are exactly zero.
        l2: L2 penalty.
        beta: Added to the root of the sum of squares; larger is slower in the beginning.
        initial_accumulator_value: What the sums of squared gradients start at.
        clip_value: Gradients are cut to between plus and minus this first.
        clip_norm: Gradients, one parameter's or one row's, are scaled down to this norm first.
    """

    _kind: ClassVar[str] = "ftrl"
    counts_steps: ClassVar[bool] = False
    _positive: ClassVar[tuple[str, ...]] = ("lr",)

    lr: float
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 1.0
    initial_accumulator_value: float = 0.0
    clip_value: float | None = None
    clip_norm: float | None = None
