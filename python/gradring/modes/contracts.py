"""The modes as values: plain, frozen, compared by content. What each promises is in its docstring.

Nothing here talks to anybody; `gradring.modes.factory` and `gradring.torch` read them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

from gradring.errors import InvalidArgument


def _set_whole(mode: Any, field_name: str, least: int) -> None:
    # Also NumPy's, which becomes Python's.
    value = getattr(mode, field_name)
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidArgument(
            f"{type(mode).__name__}: {field_name} is a whole number of at least {least}, "
            f"got {value!r}"
        )
    object.__setattr__(mode, field_name, int(value))


@dataclass(frozen=True)
class Sync:
    """Every step uses the gradient averaged over all workers.

    Training then takes the path that one process takes on the batches of all workers put together,
    whatever the optimizer: after every step all workers hold the same parameters, bit for bit.
    Everybody waits for the slowest. A worker that is lost fails the step of the others by name.

    Attributes:
        via: ``"all_reduce"``: workers add gradients among themselves, each does the same update.
            ``"ps"``: pushes are contributions to a round; servers average them in the order of
            ranks, by numbers of examples, and do one update. Rows that only some workers have
            touched count as zero on the others.
    """

    via: Literal["all_reduce", "ps"] = "all_reduce"

    def __post_init__(self) -> None:
        """Refuse another way."""
        if self.via not in ("all_reduce", "ps"):
            raise InvalidArgument(f"Sync: via is 'all_reduce' or 'ps', got {self.via!r}")


@dataclass(frozen=True)
class BoundedStaleness:
    """No worker runs more than ``staleness`` steps ahead of the slowest living one.

    Each push is one update of its own. What a worker pulls before its step c (from 0) holds every
    update of every living worker's steps before c - staleness, and maybe later ones (stale
    synchronous parallel, Ho et al. 2013). With 0 nobody begins a step before all have pushed the
    one before. How far the slowest was behind at each step is reported, and is never more.

    Attributes:
        staleness: Steps.
    """

    staleness: int

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _set_whole(self, "staleness", 0)


@dataclass(frozen=True)
class Async:
    """Nobody waits for another worker.

    Each push is one update of its own, never a sum of several steps, so that the effective step
    does not depend on load. Gradients are sent and dense parameters fetched in the background; new
    values appear between two steps, never within one, and the servers' version of each part is
    reported. How many updates came between the pull that a gradient was computed on and its own
    update is measured for every push and reported. Nothing bounds it.

    Attributes:
        queue: Steps whose gradients may wait to be sent; then `step` waits (back-pressure).
    """

    queue: int = 4

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _set_whole(self, "queue", 1)


@dataclass(frozen=True)
class Sum:
    """Servers add every worker's progress as it is: nothing stays behind."""


@dataclass(frozen=True)
class Mean:
    """Servers add 1/N of a worker's progress, N being the workers alive (Paddle's GEO).

    The rest stays with the worker, is offered again whenever the row is touched, and is pushed
    whole by `flush`; its norm is reported.
    """


@dataclass(frozen=True)
class Nesterov:
    """One outer step of SGD with Nesterov momentum on the mean of all workers' progress.

    DiLoCo (Douillard et al. 2023, arXiv:2311.08105). All workers exchange in the same step, wait
    for each other there, and go on from the same values, bit for bit. With ``lr=1, momentum=0``
    these are the mean of all replicas: local SGD, as of PyTorch's PostLocalSGDOptimizer.

    Attributes:
        lr: Outer learning rate.
        momentum: Outer momentum, from 0 (none) to less than 1.
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        given: tuple[Any, Any] = (self.lr, self.momentum)
        are_numbers = all(isinstance(each, Real) and not isinstance(each, bool) for each in given)
        if not (are_numbers and 0 < self.lr < math.inf and 0 <= self.momentum < 1):
            raise InvalidArgument(
                "Nesterov: lr must be positive and momentum from 0 to less than 1, "
                f"got {self.lr!r} and {self.momentum!r}"
            )


Outer: TypeAlias = Sum | Mean | Nesterov


@dataclass(frozen=True)
class Geo:
    """Workers train on replicas of their own and exchange progress every ``k_steps`` steps.

    The local optimizer is any. What is exchanged is how far the parameters moved: the dense ones
    whole, of sparse tables the touched rows; rows that others changed come back. With `Sum` and
    `Mean` both happen in the background, and no update is lost or done twice: at a `flush` (end of
    an epoch, before a checkpoint, when leaving) all replicas become equal, bit for bit, with
    everybody's progress in them. Workers may join and leave. Divergence (how far the replica was
    from the servers' values) and what is held back are reported.

    Attributes:
        k_steps: Local steps between two exchanges; ``"auto"`` follows the measured time of an
            exchange and the divergence.
        outer: What servers make of the progress.
        rare_every: A touched row of a sparse table waits for its turn, which comes once in so many
            exchanges, unless as many steps have touched it since it was offered. Rare rows are most
            of what there is to send, and what others miss of them is least. With 1 every exchange
            has all touched rows.
    """

    k_steps: int | Literal["auto"] = 100
    outer: Outer = field(default_factory=Sum)
    rare_every: int = 1

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.k_steps == "auto":
            if isinstance(self.outer, Nesterov):
                raise InvalidArgument(
                    "Geo: with outer=Nesterov all workers exchange in the same step, so k_steps "
                    "is a number, not 'auto'"
                )
        else:
            _set_whole(self, "k_steps", 1)
        if not isinstance(self.outer, (Sum, Mean, Nesterov)):
            raise InvalidArgument(f"Geo: outer is Sum, Mean or Nesterov, got {self.outer!r}")
        _set_whole(self, "rare_every", 1)
        if self.rare_every > 1 and isinstance(self.outer, Nesterov):
            raise InvalidArgument(
                "Geo: with outer=Nesterov every exchange makes all replicas equal, so no row can "
                f"wait for its turn: rare_every is 1, got {self.rare_every}"
            )


@dataclass(frozen=True)
class Hybrid:
    """Dense parameters in one mode, the rows of sparse tables in another.

    Attributes:
        dense: For dense parameters.
        sparse: For rows; any mode that goes through servers.
    """

    dense: Sync | BoundedStaleness | Async | Geo = field(default_factory=Sync)
    sparse: Sync | BoundedStaleness | Async | Geo = field(default_factory=Async)

    def __post_init__(self) -> None:
        """Refuse rows without servers, and what is no mode of one part."""
        for name, mode in (("dense", self.dense), ("sparse", self.sparse)):
            if not isinstance(mode, (Sync, BoundedStaleness, Async, Geo)):
                raise InvalidArgument(
                    f"Hybrid: {name} is Sync, BoundedStaleness, Async or Geo, got {mode!r}"
                )
        if self.sparse == Sync():
            raise InvalidArgument("Hybrid: rows live on servers; use sparse=gr.Sync(via='ps')")


Mode: TypeAlias = Sync | BoundedStaleness | Async | Geo | Hybrid


def is_in_step(mode: Mode) -> bool:
    """Tell whether a mode's workers do equally many steps."""
    if isinstance(mode, Hybrid):
        return is_in_step(mode.dense) or is_in_step(mode.sparse)
    return isinstance(mode, BoundedStaleness) or begins_together(mode)


def begins_together(mode: Mode) -> bool:
    """Tell whether a mode's workers are there from the start: none joins later, or comes back."""
    if isinstance(mode, Hybrid):
        return begins_together(mode.dense) or begins_together(mode.sparse)
    return isinstance(mode, Sync) or (isinstance(mode, Geo) and isinstance(mode.outer, Nesterov))
