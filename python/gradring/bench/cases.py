"""Which sizes an operation is measured on, and what its figures are compared with.

The factors from message size to bus bandwidth are those of nccl-tests (doc/PERFORMANCE.md), so that
figures can be read side by side. Pure: nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradring.bench.peers.pattern import Case
from gradring.dtypes import DTYPE_CODES
from gradring.errors import InvalidArgument

OPERATIONS = (
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter",
    "all_to_all", "sendrecv", "barrier",
)  # fmt: skip
DTYPES = tuple(DTYPE_CODES)
_ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int16": 2, "int32": 4,
    "int64": 8, "uint8": 1, "bool": 1,
}  # fmt: skip
_CUT_EVENLY = frozenset({"reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"})
_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Link:
    """What the plain link was measured to carry.

    Attributes:
        alone: Bytes per second between two ranks when nobody else sends.
        together: Bytes per second of each rank when all ranks send and receive at once.
        half_trip: Shortest seconds that a few bytes took one way; 0 where that was not measured.
        cpu: Processor seconds of sender and receiver for a byte of TCP streams; 0 elsewhere.
    """

    alone: float
    together: float
    half_trip: float = 0.0
    cpu: float = 0.0


# More than any machine has; the core counts in 64 bits.
_MOST_BYTES = 1 << 50


def parse_size(text: str) -> int:
    """Read a number of bytes: ``4``, ``64K``, ``1M``.

    Raises:
        InvalidArgument: It is none.
    """
    digits = text.strip().upper().removesuffix("B").removesuffix("I")
    suffix = digits[-1:] if digits[-1:] in _SUFFIXES else ""
    number = digits.removesuffix(suffix) if suffix else digits
    is_number = number.isascii() and number.isdigit() and len(number) < 16
    size = int(number) * _SUFFIXES[suffix] if is_number else 0
    if not 0 < size <= _MOST_BYTES:
        raise InvalidArgument(f"{text[:40]!r} is no size: write 4, 64K, 1M or 1G bytes")
    return size


def sweep_sizes(begin: int, end: int, factor: int) -> list[int]:
    """Return begin, begin*factor, ... up to end.

    Raises:
        InvalidArgument: They are no range.
    """
    if factor < 2 or begin > end:
        raise InvalidArgument(f"--begin {begin} --end {end} --factor {factor}: no sizes in between")
    sizes = [begin]
    while sizes[-1] * factor <= end:
        sizes.append(sizes[-1] * factor)
    return sizes


def make_cases(
    op: str, sizes: Sequence[int], dtype: str, reduce_op: str, world_size: int
) -> list[Case]:
    """Return a case for every size that gives another number of elements.

    Operations that cut the message have it rounded up to one or more whole elements a rank, so that
    every library can do them.
    """
    if op == "barrier":
        return [Case(op, 0, dtype, reduce_op)]
    grain = world_size if op in _CUT_EVENLY else 1
    counts = []
    for size in sizes:
        count = math.ceil(max(1, size // _ITEM_BYTES[dtype]) / grain) * grain
        if count not in counts:
            counts.append(count)
    return [Case(op, count, dtype, reduce_op) for count in counts]


def message_bytes(case: Case) -> int:
    """Return the size that the bandwidths refer to: of the whole message."""
    return case.count * _ITEM_BYTES[case.dtype]


def bus_factor(op: str, world_size: int) -> float:
    """Return bus bandwidth over algorithm bandwidth: what a rank must send or receive at least."""
    share = (world_size - 1) / world_size
    factors = {"all_reduce": 2 * share, "barrier": 0.0}
    factors.update(dict.fromkeys(_CUT_EVENLY, share))
    factors.update(dict.fromkeys(("broadcast", "reduce", "sendrecv"), 1.0))
    return factors[op] if world_size > 1 else 0.0


def total_factor(op: str, world_size: int) -> float:
    """Return the bytes that must move between all ranks together, over the message's."""
    others = float(world_size - 1)
    if op in ("gather", "scatter"):
        return others / world_size
    if op == "sendrecv":
        return float(world_size) if world_size > 1 else 0.0
    return {"all_reduce": 2 * others, "barrier": 0.0}.get(op, others)


def link_cpu_per_gb(op: str, world_size: int, link: Link) -> float | None:
    """Return the CPU s/GB of plain streams of the bytes that the operation must move.

    ``None`` where the link is no TCP, or nothing moves.
    """
    spent = total_factor(op, world_size) * link.cpu * 1e9
    return spent or None


def lower_bound(case: Case, world_size: int, link: Link) -> float:
    """Return the seconds that no algorithm can beat on the link as it was measured.

    Three things take at least that long: a rank's own bytes at the rate of two ranks alone;
    everybody's bytes at the rate of all ranks together, which on one host share cores and memory;
    and as many one-way trips as it takes for a rank to depend on all others.
    """
    if world_size == 1:
        return 0.0
    size = message_bytes(case)
    own = bus_factor(case.op, world_size) * size / link.alone
    everybody = total_factor(case.op, world_size) * size / (link.together * world_size)
    steps = 1 if case.op == "sendrecv" else math.ceil(math.log2(world_size))
    return max(own, everybody, steps * link.half_trip)
