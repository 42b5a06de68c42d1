"""A table's settings as the compiled core takes them: plain dictionaries of plain values.

Pure. What the core can check better (a rule's numbers, say) is left to it.
"""

from __future__ import annotations

from typing import Any

from gradring.errors import InvalidArgument
from gradring.initial import Constant, Initializer, Normal, Uniform
from gradring.ps.entries import Count, Entry, Probability, Slots

Spec = dict[str, Any]

# As wire::RowCodec.
CODECS = {None: 0, "bf16": 1, "fp16": 2, "int8": 3}

_NO_SLOTS = 64
_U32 = 1 << 32


def rule_spec(optimizer: Any) -> Spec:
    """Return an update rule as the core takes it.

    Args:
        optimizer: A rule of `gradring.optim`.

    Raises:
        InvalidArgument: It is something else.
    """
    if not hasattr(optimizer, "to_core"):
        raise InvalidArgument(
            f"optimizer is a {type(optimizer).__name__}; use a rule of gradring.optim, such as "
            "gr.optim.Adagrad(lr=0.05)"
        )
    return dict(optimizer.to_core())


def initializer_spec(init: Initializer | float | None) -> tuple[int, float, float]:
    """Return an initializer's kind and its two numbers, as ps::Initializer has them.

    Args:
        init: A number stands for `Constant`; ``None`` for zero.

    Raises:
        InvalidArgument: It is no initializer.
    """
    match init:
        case None:
            return 0, 0.0, 0.0
        case int() | float():
            return 0, Constant(init).value, 0.0
        case Constant(value):
            return 0, value, 0.0
        case Uniform():
            return (1, *init.bounds)
        case Normal(mean, std):
            return 2, mean, std
    raise InvalidArgument(
        f"init is a {type(init).__name__}; use gr.init.Uniform, gr.init.Normal or gr.init.Constant"
    )


def entry_spec(entry: Entry | None) -> tuple[int, float]:
    """Return an entry rule's count and probability, as ps::Entry has them."""
    match entry:
        case None:
            return 0, 1.0
        case Count(pushes):
            return pushes, 1.0
        case Probability(p):
            return 0, p
    raise InvalidArgument(
        f"entry is a {type(entry).__name__}; use gr.ps.Count or gr.ps.Probability"
    )


def sparse_extras(
    entry: Entry | None, expire_after: int | None, score_decay: float, slots: Slots | None
) -> Spec:
    """Return what only sparse tables have.

    Raises:
        InvalidArgument: A value is out of range.
    """
    ticks = 0 if expire_after is None else expire_after
    if not 0 <= ticks < _U32:
        raise InvalidArgument(f"expire_after is a number of ticks: {expire_after}")
    if not 0 <= score_decay <= 1:
        raise InvalidArgument(f"score_decay is between 0 and 1, got {score_decay}")
    settings = {} if slots is None else slots.settings
    return {
        "entry": entry_spec(entry),
        "unseen_ticks": ticks,
        "score_decay": score_decay,
        "slot_shift": _NO_SLOTS if slots is None else slots.shift,
        "slots": [
            {
                "slot": slot,
                "lr_scale": settings[slot].lr_scale,
                "entry": entry_spec(settings[slot].entry),
                "unseen_ticks": settings[slot].expire_after,
            }
            for slot in sorted(settings)
        ],
    }


def codec_number(codec: str | None) -> int:
    """Return a codec's number on the wire.

    Raises:
        InvalidArgument: There is no such codec.
    """
    if codec not in CODECS:
        known = ", ".join(repr(name) for name in CODECS)
        raise InvalidArgument(f"codec {codec!r} is none of {known}")
    return CODECS[codec]
