"""GRADRING_PORTS: the free ports that a firewall lets through, and how one of them is taken.

For listeners that Python makes; the compiled core takes its own the same way
(csrc/transport/joining/free_port.cc). Agents import this: standard library only.
"""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Callable
from typing import TypeVar

from gradring.errors import InvalidArgument

Listener = TypeVar("Listener")

# As the core takes it: any port that the kernel gives.
ANY = (0, 0)

_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


def checked(text: object, source: str) -> str:
    """Return a range as it is written, FIRST-LAST, without spaces around.

    Raises:
        InvalidArgument: It is not written that way, one end is no port from 1 to 65535, or the
            last comes before the first; names ``source``.
    """
    match = _RANGE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise InvalidArgument(
            f"{source}={text!r} is no range of ports: write FIRST-LAST, as 20000-20099"
        )
    first, last = int(match[1]), int(match[2])
    if not 1 <= first <= 65535 or not 1 <= last <= 65535:
        raise InvalidArgument(f"{source}={text!r}: a port is a number from 1 to 65535")
    if last < first:
        raise InvalidArgument(f"{source}={text!r}: its last port is below its first")
    return f"{first}-{last}"


def ends(text: str | None) -> tuple[int, int]:
    """Return both ends of a range that was `checked`, or `ANY` of none."""
    if text is None:
        return ANY
    first, _, last = text.partition("-")
    return int(first), int(last)


def listen_at_free_port(host: str, text: str | None, listen: Callable[[int], Listener]) -> Listener:
    """Listen at a free port of a range.

    Args:
        host: What is listened at, for the message.
        text: The range, `checked`; ``None``: whatever port the kernel gives.
        listen: Listens at the port that it is given, 0 for any; raises OSError.

    Raises:
        InvalidArgument: All ports of the range are taken; names it.
        OSError: ``listen`` has failed for another reason.
    """
    if text is None:
        return listen(0)
    first, last = ends(text)
    count = last - first + 1
    # Processes that start at once begin at places of their own, or all would try the same ports.
    # Not by `random` itself: a program's seed would take all to one place, and what it draws next
    # would be another number here than on ranks that listen at nothing.
    start = random.SystemRandom().randrange(count)
    for step in range(count):
        try:
            return listen(first + (start + step) % count)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise InvalidArgument(
        f"cannot listen on {host}: all {count} ports of GRADRING_PORTS={text} are taken; end what "
        "listens there, or give a longer range: each rank and each server of a host needs a port"
    )
