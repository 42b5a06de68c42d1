"""When an id becomes a row, and what is different for the ids of one feature. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gradring.errors import InvalidArgument
from gradring.ps.arguments.checks import real, whole

_SLOTS_MAX = 4096  # Servers hang up on who names more (csrc/ps/protocol/payloads.cc).


@dataclass(frozen=True)
class Count:
    """An id becomes a row at its n-th push; the gradients of those before are only counted.

    Attributes:
        pushes: From 1.
    """

    pushes: int

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        whole("Count: pushes", self.pushes, 1)


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
        if not 0 < real("Probability: p", self.p) <= 1:
            raise InvalidArgument(f"Probability: p is above 0 and at most 1, got {self.p}")


Entry: TypeAlias = Count | Probability


def require_entry(entry: object) -> None:
    """Refuse what is no entry rule; ``None`` stands for an id's first push.

    Raises:
        InvalidArgument: It is something else.
    """
    if entry is not None and not isinstance(entry, (Count, Probability)):
        raise InvalidArgument(
            f"entry is a {type(entry).__name__}; use gr.ps.Count or gr.ps.Probability"
        )


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
        if not real("Slot: lr_scale", self.lr_scale) >= 0:
            raise InvalidArgument(f"Slot: lr_scale must not be negative, got {self.lr_scale}")
        require_entry(self.entry)
        whole("Slot: expire_after", self.expire_after)


@dataclass(frozen=True)
class Slots:
    """Features told apart by the upper bits of their ids.

    Attributes:
        shift: An id belongs to slot ``id >> shift``; from 1 to 63.
        settings: By slot, of 4096 at most. Slots that are not in it have the table's settings.
    """

    shift: int
    settings: Mapping[int, Slot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        bits = whole("Slots: shift", self.shift, 1, 63)
        if not isinstance(self.settings, Mapping):
            raise InvalidArgument(
                f"Slots: settings is a {type(self.settings).__name__}; give a dictionary of "
                "gr.ps.Slot by slot"
            )
        if len(self.settings) > _SLOTS_MAX:
            raise InvalidArgument(
                f"Slots: settings for {len(self.settings)} slots; a table takes {_SLOTS_MAX}"
            )
        for slot, settings in self.settings.items():
            highest = (1 << (64 - bits)) - 1
            whole(f"Slots: what ids have above their lower {bits} bits", slot, 0, highest)
            if not isinstance(settings, Slot):
                raise InvalidArgument(
                    f"Slots: the settings of slot {slot} are a {type(settings).__name__}; use "
                    "gr.ps.Slot"
                )
