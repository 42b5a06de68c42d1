"""When an id becomes a row, and what is different for the ids of one feature. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gradring.errors import InvalidArgument

_U32 = 1 << 32


@dataclass(frozen=True)
class Count:
    """An id becomes a row at its n-th push; the gradients of those before are only counted.

    Attributes:
        pushes: From 1.
    """

    pushes: int

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if not 1 <= self.pushes < _U32:
            raise InvalidArgument(f"Count: pushes is a number from 1, got {self.pushes}")


@dataclass(frozen=True)
class Probability:
    """Each push of an id that is no row makes it one with this probability.

    The decision is a function of seed, table, id and how often the id was pushed: the same on any
    number of servers.

    Attributes:
        p: Above 0, at most 1.
    """

    p: float

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if not 0 < self.p <= 1:
            raise InvalidArgument(f"Probability: p is above 0 and at most 1, got {self.p}")


Entry: TypeAlias = Count | Probability


@dataclass(frozen=True)
class Slot:
    """What is different for one feature's ids.

    Attributes:
        lr_scale: Multiplies the rule's learning rate.
        entry: As for the table; not the table's where it is ``None``, but the first push.
        expire_after: As for the table; 0: never.
    """

    lr_scale: float = 1.0
    entry: Entry | None = None
    expire_after: int = 0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if not self.lr_scale >= 0:
            raise InvalidArgument(f"Slot: lr_scale must not be negative, got {self.lr_scale}")
        if not 0 <= self.expire_after < _U32:
            raise InvalidArgument(f"Slot: expire_after is a number of ticks: {self.expire_after}")


@dataclass(frozen=True)
class Slots:
    """Features told apart by the upper bits of their ids.

    Attributes:
        shift: An id belongs to slot ``id >> shift``; from 1 to 63.
        settings: By slot. Slots that are not in it have the table's settings.
    """

    shift: int
    settings: Mapping[int, Slot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if not 1 <= self.shift <= 63:
            raise InvalidArgument(f"Slots: shift is a number of bits from 1 to 63: {self.shift}")
        for slot in self.settings:
            if not 0 <= slot < 1 << (64 - self.shift):
                raise InvalidArgument(f"Slots: no id has {slot} above its lower {self.shift} bits")
