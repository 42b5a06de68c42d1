"""What communicators of this process tell metrics; read by a scrape, from a thread of its own."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from gradring import _core
from gradring.prometheus import sources
from gradring.prometheus.sources import Reading

if TYPE_CHECKING:
    from gradring.collectives.communicator import Communicator

# Which one of those with its rank and id each is, since it was first told.
_numbers: weakref.WeakKeyDictionary[Communicator, int] = weakref.WeakKeyDictionary()


def begin(communicators: weakref.WeakSet[Communicator]) -> None:
    """Have these read, those that are open then."""
    sources.add("communicators", lambda: _readings(communicators))


def _readings(communicators: weakref.WeakSet[Communicator]) -> Iterator[Reading]:
    sent, received = _core.tcp_traffic()
    yield Reading("gradring_sent_bytes_total", ("tcp",), sent)
    yield Reading("gradring_received_bytes_total", ("tcp",), received)
    for operation, ended, called_bytes, nanos in _core.operation_tallies():
        yield Reading("gradring_operations_total", (operation,), ended)
        yield Reading("gradring_operation_bytes_total", (operation,), called_bytes)
        yield Reading("gradring_operation_seconds_total", (operation,), nanos / 1e9)
    for communicator, name, activity in _named(sources.members(communicators)):
        _, collectives, messages, under_way_nanos = activity
        labels = (str(communicator.rank), name)
        yield Reading("gradring_communicator_ranks", labels, communicator.world_size)
        yield Reading("gradring_collectives_total", labels, collectives)
        yield Reading("gradring_messages_total", labels, messages)
        yield Reading("gradring_collective_under_way_seconds", labels, under_way_nanos / 1e9)


def _named(
    communicators: list[Communicator],
) -> Iterator[tuple[Communicator, str, tuple[str, int, int, int]]]:
    """Yield those that are open, their names and activities; no two have one rank and name.

    Worlds that a process joins beside each other, as torch's groups under another default group,
    begin with the same id. The first that was told keeps it as its name.
    """
    here = [(each, each.activity()) for each in communicators if not each.is_closed]
    here.sort(key=lambda each: _numbers.get(each[0], sys.maxsize))
    taken: set[tuple[int, str, int]] = set()
    for each, activity in here:
        number = _numbers.get(each)
        if number is None:
            number = next(n for n in count(1) if (each.rank, activity[0], n) not in taken)
            _numbers[each] = number
        taken.add((each.rank, activity[0], number))
        yield each, activity[0] if number == 1 else f"{activity[0]}@{number}", activity
