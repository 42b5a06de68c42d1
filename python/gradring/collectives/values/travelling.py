"""Values of one rank, or of each, to all ranks: every rank gets all of it, or an error.

First each sender gives a record of one size, in which a short value is whole. Only longer ones go
on: what is left in one piece, large arrays from their own memory into their own. What cannot be
sent is told in the record, and what a rank has no room for before anything comes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradring.collectives.exchanges import Exchanges
from gradring.collectives.values.agreement import agreed, named, said, tried
from gradring.collectives.values.written import Bytes, Reader, Writer
from gradring.errors import InvalidArgument, Mismatch

_RECORD_BYTES = 1024
# The call, what follows, bytes of the text, bytes with small arrays behind it.
_HEAD = struct.Struct("<iiqq")
_CALLS = ("broadcast_value", "all_gather_values", "all_gather_rows", "all_to_all_rows")
_IN_RECORD, _LONGER, _ERROR = range(3)
_SMALL_BYTES = 1 << 16  # Of an array that is copied, so that many of them go at once.

_NOTHING = np.empty(0, np.uint8)


@dataclass
class _Parcel:
    """What a rank sends.

    Attributes:
        record: What goes first.
        front: The text, and small arrays behind it; empty where the record has them.
        large: Other arrays.
    """

    record: Bytes = field(default_factory=lambda: np.zeros(_RECORD_BYTES, np.uint8))
    front: Bytes = field(default_factory=lambda: _NOTHING)
    large: list[Bytes] = field(default_factory=list)


class _Arrival:
    """What came from another rank: room for its large arrays, and then its value."""

    def __init__(self, front: Bytes, text_size: int) -> None:
        self._reader = Reader(front[:text_size].tobytes().decode())
        self.large = [each for each in self._reader.targets if each.size > _SMALL_BYTES]
        begin = text_size
        for target in self._reader.targets:
            if target.size <= _SMALL_BYTES:
                target[:] = front[begin : begin + target.size]
                begin += target.size

    def value(self) -> Any:
        return self._reader.value()


class Exchange:
    """One call in which one rank, or each, gives a value and all get what was given."""

    def __init__(
        self, comm: Exchanges, call: str, *, root: int | None = None, timeout: float | None
    ) -> None:
        """Send nothing yet.

        Args:
            comm: The ranks.
            call: What the user called, for errors.
            root: The only rank that gives one; ``None``: all do.
            timeout: As for `Communicator.all_reduce`.
        """
        self._comm, self._call, self._root, self._timeout = comm, call, root, timeout
        self._senders = range(comm.world_size) if root is None else range(root, root + 1)

    def values(self, find: Callable[[], Any]) -> list[Any]:
        """Return the value of each sender, in rank order; a collective call.

        Args:
            find: Returns this rank's value, or raises; talks to nobody. Only senders are asked.

        Returns:
            Of this rank's own the object itself.

        Raises:
            InvalidArgument: A sender cannot send what it has, or its ``find`` raised something:
                names the rank, on all others. What this rank raised is raised here.
            Mismatch: A rank could not take the values; names it. What that rank raised is raised
                there. Or ranks are in different calls. ``comm`` stays usable.
            PeerLost: As `Communicator.all_reduce`, and so for its other errors.
        """
        mine, parcel, error = None, _Parcel(), None
        if self._comm.rank in self._senders:
            made, error = tried(lambda: _made(find, self._call))
            mine, parcel = (None, _refusal(said(error), self._call)) if made is None else made[0]
        with named(self._call):
            found = self._swap(parcel, error)
        return [mine if rank == self._comm.rank else found[rank] for rank in self._senders]

    def _swap(self, parcel: _Parcel, error: Exception | None) -> dict[int, Any]:
        records = self._of_each(parcel.record, [_RECORD_BYTES] * len(self._senders))
        if error is not None:
            raise error
        calls, *others = zip(*(_HEAD.unpack_from(record.data) for record in records), strict=True)
        self._require_one(calls)
        heads = list(zip(*others, strict=True))
        bodies = [record[_HEAD.size :] for record in records]
        for rank, (kind, size, _), body in zip(self._senders, heads, bodies, strict=True):
            if kind == _ERROR:
                text = body[:size].tobytes().decode(errors="ignore")
                raise InvalidArgument(f"{self._call}: {self._comm.describe(rank)} says: {text}")
        if self._comm.world_size == 1:
            return {}
        if all(kind == _IN_RECORD for kind, _, _ in heads):
            return {rank: each.value() for rank, each in self._arrivals(heads, bodies).items()}
        sizes = [size if kind == _LONGER else 0 for kind, _, size in heads]
        room = self._agreed("make room for the values", lambda: np.empty(sum(sizes), np.uint8))
        fronts = self._of_each(parcel.front, sizes, room)
        fronts = [
            body if kind == _IN_RECORD else front
            for (kind, _, _), body, front in zip(heads, bodies, fronts, strict=True)
        ]
        arrivals = self._agreed("make room for the values", lambda: self._arrivals(heads, fronts))
        for rank in self._senders:
            is_mine = rank == self._comm.rank
            for array in parcel.large if is_mine else arrivals[rank].large:
                self._comm.broadcast(array, rank, timeout=self._timeout)
        found: dict[int, Any] = self._agreed(
            "take the values", lambda: {rank: each.value() for rank, each in arrivals.items()}
        )
        return found

    def _require_one(self, calls: Sequence[int]) -> None:
        # The records of all calls are alike, so the core takes one for another.
        for rank, number in zip(self._senders, calls, strict=True):
            if number != calls[0]:
                first, other = (_CALLS[each] for each in (calls[0], number))
                raise Mismatch(
                    f"{self._call}: {self._comm.describe(self._senders[0])} called {first}, and "
                    f"{self._comm.describe(rank)} called {other}; all ranks must make the same "
                    "calls in the same order"
                )

    def _of_each(self, mine: Bytes, sizes: Sequence[int], room: Bytes | None = None) -> list[Bytes]:
        """Return what each sender gives, of which all know the sizes."""
        if self._root is None:
            every = self._comm.all_gather(mine, out=room, counts=sizes, timeout=self._timeout)
        else:
            every = mine if room is None or self._comm.rank == self._root else room
            self._comm.broadcast(every, self._root, timeout=self._timeout)
        ends = list(itertools.accumulate(sizes, initial=0))
        return [every[begin:end] for begin, end in itertools.pairwise(ends)]

    def _arrivals(
        self, heads: Sequence[tuple[int, int, int]], fronts: Sequence[Bytes]
    ) -> dict[int, _Arrival]:
        return {
            rank: _Arrival(front, size)
            for rank, (_, size, _), front in zip(self._senders, heads, fronts, strict=True)
            if rank != self._comm.rank
        }

    def _agreed(self, doing: str, do: Callable[[], Any]) -> Any:
        return agreed(self._comm, self._call, doing, do, self._timeout)


def _made(find: Callable[[], Any], call: str) -> tuple[Any, _Parcel]:
    value = find()
    writer = Writer()
    text = writer.text(value, "value").encode()
    small = [each for each in writer.sources if each.size <= _SMALL_BYTES]
    large = [each for each in writer.sources if each.size > _SMALL_BYTES]
    front = np.concatenate([np.frombuffer(text, np.uint8), *small])
    if not large and front.size <= _RECORD_BYTES - _HEAD.size:
        return value, _Parcel(_record(call, (_IN_RECORD, len(text), front.size), front))
    record = _record(call, (_LONGER, len(text), front.size), _NOTHING)
    return value, _Parcel(record, front, large)


def _refusal(text: str, call: str) -> _Parcel:
    told = np.frombuffer(text.encode(), np.uint8)[: _RECORD_BYTES - _HEAD.size]
    return _Parcel(_record(call, (_ERROR, told.size, 0), told))


def _record(call: str, head: tuple[int, int, int], body: Bytes) -> Bytes:
    data = np.zeros(_RECORD_BYTES, np.uint8)
    data[: _HEAD.size] = np.frombuffer(_HEAD.pack(_CALLS.index(call), *head), np.uint8)
    data[_HEAD.size : _HEAD.size + body.size] = body
    return data
