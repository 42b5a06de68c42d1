"""What communicators of this process tell metrics; read by a scrape, from a thread of its own."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradring import _core
from gradring.prometheus import sources
from gradring.prometheus.sources import Reading

if TYPE_CHECKING:
    from gradring.collectives.communicator import Communicator


def begin(communicators: weakref.WeakSet[Communicator]) -> None:
    """Have these read, those that are open then."""
    sources.add("communicators", lambda: _readings(communicators))


def _readings(communicators: weakref.WeakSet[Communicator]) -> Iterator[Reading]:
    sent, received = _core.tcp_traffic()
    yield Reading("gradring_sent_bytes_total", ("tcp",), sent)
    yield Reading("gradring_received_bytes_total", ("tcp",), received)
    for communicator in sources.members(communicators):
        if communicator.is_closed:
            continue
        name, collectives, messages, under_way_nanos = communicator.activity()
        labels = (str(communicator.rank), name)
        yield Reading("gradring_communicator_ranks", labels, communicator.world_size)
        yield Reading("gradring_collectives_total", labels, collectives)
        yield Reading("gradring_messages_total", labels, messages)
        yield Reading("gradring_collective_under_way_seconds", labels, under_way_nanos / 1e9)
