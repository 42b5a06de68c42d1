"""A table's settings as the compiled core takes them: plain dictionaries of plain values.

Pure. What the core can check better (a rule's numbers, say) is left to it.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

from gradring.errors import InvalidArgument
from gradring.initial import Constant, Initializer, Normal, Uniform
from gradring.ps.arguments.checks import U64, real, shape, table_name, whole
from gradring.ps.arguments.entries import Count, Entry, Probability, Slots, require_entry

Spec = dict[str, Any]

# As wire::RowCodec.
CODECS = {None: 0, "bf16": 1, "fp16": 2, "int8": 3}

_NO_SLOTS = 64
_MOST_DIM = 1 << 16  # The core's own limit.


def sparse_spec(  # noqa: PLR0913 - a table's settings
    name: Any,
    dim: Any,
    optimizer: Any,
    *,
    init: Initializer | float | None,
    seed: int,
    entry: Entry | None,
    expire_after: int | None,
    score_decay: float,
    slots: Slots | None,
) -> Spec:
    """Return a sparse table's settings; the arguments are those of `ParameterServer.sparse_table`.

    Raises:
        InvalidArgument: A setting makes no sense.
    """
    named = table_name(name)
    rule = rule_spec(optimizer)
    extras = sparse_extras(entry, expire_after, score_decay, slots)
    scaled = [each["slot"] for each in extras["slots"] if each["lr_scale"] != 1]
    if scaled and "lr" not in rule:
        raise InvalidArgument(
            f"table {named!r}: slot {scaled[0]} scales the learning rate, and {optimizer} has none"
        )
    return {
        "name": named,
        "kind": "sparse",
        "dim": whole(f"table {named!r}: dim", dim, 1, _MOST_DIM),
        "rule": rule,
        "init": initializer_spec(init),
        "seed": whole(f"table {named!r}: seed", seed, 0, U64),
        **extras,
    }


def dense_spec(
    name: Any,
    sizes: Any,
    optimizer: Any,
    *,
    init: Initializer | float | None = None,
    seed: int = 0,
) -> tuple[tuple[int, ...], Spec]:
    """Return a dense table's shape and settings; see `ParameterServer.dense_table`.

    Raises:
        InvalidArgument: A setting makes no sense.
    """
    named = table_name(name)
    found = shape(named, sizes)
    return found, {
        "name": named,
        "kind": "dense",
        "count": math.prod(found),
        "rule": rule_spec(optimizer),
        "init": initializer_spec(init),
        "seed": whole(f"table {named!r}: seed", seed, 0, U64),
    }


def rule_spec(optimizer: Any) -> Spec:
    """Return an update rule as the core takes it.

    Args:
        optimizer: A rule of `gradring.optim`.

    Raises:
        InvalidArgument: It is something else.
    """
    if isinstance(optimizer, type) or not hasattr(optimizer, "to_core"):
        what = "class" if isinstance(optimizer, type) else type(optimizer).__name__
        raise InvalidArgument(
            f"optimizer is a {what}; use a rule of gradring.optim, such as "
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
        case numbers.Real():  # NumPy's too.
            return 0, Constant(real("init", init)).value, 0.0
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
    """Return an entry rule's count and probability, as ps::Entry has them.

    Raises:
        InvalidArgument: It is no entry rule.
    """
    require_entry(entry)
    match entry:
        case Count(pushes):
            return int(pushes), 1.0
        case Probability(p):
            return 0, float(p)
    return 0, 1.0


def sparse_extras(
    entry: Entry | None, expire_after: int | None, score_decay: float, slots: Slots | None
) -> Spec:
    """Return what only sparse tables have.

    Raises:
        InvalidArgument: A value is out of range.
    """
    ticks = 0 if expire_after is None else whole("expire_after, in ticks,", expire_after)
    decay = real("score_decay", score_decay)
    if not 0 <= decay <= 1:
        raise InvalidArgument(f"score_decay is between 0 and 1, got {score_decay}")
    if slots is not None and not isinstance(slots, Slots):
        raise InvalidArgument(
            f"slots is a {type(slots).__name__}; use gr.ps.Slots, such as "
            "gr.ps.Slots(48, {7: gr.ps.Slot(lr_scale=0.1)})"
        )
    settings = {} if slots is None else slots.settings
    return {
        "entry": entry_spec(entry),
        "unseen_ticks": ticks,
        "score_decay": decay,
        "slot_shift": _NO_SLOTS if slots is None else int(slots.shift),
        "slots": [
            {
                "slot": int(slot),
                "lr_scale": float(settings[slot].lr_scale),
                "entry": entry_spec(settings[slot].entry),
                "unseen_ticks": int(settings[slot].expire_after),
            }
            for slot in sorted(settings)
        ],
    }


def codec_number(codec: str | None) -> int:
    """Return a codec's number on the wire.

    Raises:
        InvalidArgument: There is no such codec.
    """
    try:
        return CODECS[codec]
    except (KeyError, TypeError):
        known = ", ".join(repr(name) for name in CODECS)
        raise InvalidArgument(f"codec {codec!r} is none of {known}") from None
