"""`Ranks`: those whose batches are normalised together, and how much each counts.

The layers of a model share a communicator that carries nothing else: they call it in the same order
on every rank, on whatever thread backward runs, while gradients travel on another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch.distributed as dist

from gradring.collectives.communicator import Communicator
from gradring.collectives.joining import current, current_if_any

_NAME = "gradring/batch norm"


class Groups:
    """A communicator for batch norm alone, and those of some of its ranks.

    Attributes:
        comm: Of all.
    """

    def __init__(self, comm: Communicator) -> None:
        """Take it."""
        self.comm = comm
        self._parts: dict[tuple[int, ...], Communicator] = {}

    def of(self, ranks: tuple[int, ...]) -> Communicator:
        """Return the communicator of some of the ranks, this one among them; nothing is sent."""
        if ranks not in self._parts:
            self._parts[ranks] = self.comm.subgroup(ranks, f"ranks {ranks}")
        return self._parts[ranks]


# Of layers that were made one by one: what was split off from a communicator, or met beside a
# default group of torch.distributed.
_shared: weakref.WeakKeyDictionary[Any, Groups] = weakref.WeakKeyDictionary()


class Weights(Protocol):
    """What knows how many examples stand behind this rank's gradients."""

    @property
    def weight_in_backward(self) -> float:
        """The weight of the step for which a backward pass runs."""


class Ranks:
    """The ranks of a model's layers.

    Attributes:
        weights: Of the optimizer that averages the model's gradients; ``None``: each rank counts
            as 1.
    """

    def __init__(self, comm: Communicator | None = None, *, is_shared: bool = True) -> None:
        """Ask nobody yet.

        Args:
            comm: To split one off; ``None``: what `init` made, else the ranks of
                torch.distributed's default group, else what `init` makes now.
            is_shared: With the other layers over ``comm`` that say so.
        """
        self._given = comm
        self._is_shared = is_shared
        self._groups: Groups | None = None
        self._present: tuple[int, ...] | None = None  # None: all.
        self.weights: Weights | None = None

    def __deepcopy__(self, _: Any) -> Ranks:
        """Return itself: a copy of a layer is normalised with the same ranks."""
        return self

    def __reduce__(self) -> Any:
        """Leave the communicator: a layer that is loaded finds one of its own."""
        return Ranks, ()

    @property
    def comm(self) -> Communicator:
        """The communicator; a collective call where it is not there yet."""
        return self._found().comm

    def take_turn(self, present: Sequence[int] | None) -> None:
        """Normalise with some of the ranks from now on: those that have a batch; ``None``: all."""
        self._present = None if present is None else tuple(present)

    @property
    def group(self) -> Communicator | None:
        """Those who normalise now; ``None``: this rank is none of them."""
        groups = self._found()
        if self._present is None or len(self._present) == groups.comm.world_size:
            return groups.comm
        return groups.of(self._present) if groups.comm.rank in self._present else None

    @property
    def weight(self) -> float:
        """Number of examples behind this rank's gradients; asked in backward."""
        return 1.0 if self.weights is None else self.weights.weight_in_backward

    def _found(self) -> Groups:
        if self._groups is None:
            whole, make = self._whole()
            found = _shared.get(whole) if self._is_shared else None
            if found is None or found.comm.is_closed:  # By the failure of other layers.
                found = Groups(make())
                if self._is_shared:
                    _shared[whole] = found
            self._groups, self._given = found, None
        return self._groups

    def _whole(self) -> tuple[Any, Callable[[], Communicator]]:
        """Return those of whom this is a part, and what makes it."""
        comm = current_if_any() if self._given is None else self._given
        if comm is None and dist.is_available() and dist.is_initialized():
            return dist.group.WORLD, _beside_default_group
        whole = current() if comm is None else comm
        return whole, lambda: _split_off(whole)


def _split_off(comm: Communicator) -> Communicator:
    part = comm.split(0)
    assert part is not None
    return part


def _beside_default_group() -> Communicator:
    from gradring.torch.c10d.creation import meet_beside_default_group

    return meet_beside_default_group(_NAME)
