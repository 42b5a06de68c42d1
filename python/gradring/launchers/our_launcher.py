"""A rank's line to `gradring run --restart-ranks`: says where the job is found, and hears it.

An inherited socket of whole messages. GRADRING_LAUNCHER names it by its number and its inode: a
child process may have the variable without the socket, and something else under that number.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import stat
from collections.abc import Mapping

_MESSAGE_BYTES_MAX = 4096


def is_newcomer(environ: Mapping[str, str]) -> bool:
    """Tell whether this process is to come into a job that runs already.

    Args:
        environ: Normally ``os.environ``; GRADRING_NEWCOMER says so.
    """
    return environ.get("GRADRING_NEWCOMER", "").strip() not in ("", "0")


def role_given(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the meeting point and the rank that the launcher gave; -1 where it gave none."""
    rank = environ.get("GRADRING_RANK", "")
    return environ.get("GRADRING_RENDEZVOUS", ""), int(rank) if rank.isdecimal() else -1


def is_led(environ: Mapping[str, str]) -> bool:
    """Tell whether this process is one that the launcher has started again, and tells of places."""
    return is_newcomer(environ) and _line() is not None


def tell(rank: int, world_size: int, meeting_point: str) -> None:
    """Say which rank this process is now, and where newcomers find the job from now on."""
    line = _line()
    if line is None:
        return
    message = {"rank": rank, "world_size": world_size, "place": meeting_point}
    with contextlib.suppress(OSError):  # Who started us is gone, and ends us.
        os.write(line, json.dumps(message).encode())


def heard_place() -> str | None:
    """Return where the launcher has last said the job is; ``None``: nothing new since."""
    line, place = _line(), None
    if line is None:
        return None
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while poll.poll(0):
        try:
            message = os.read(line, _MESSAGE_BYTES_MAX)
        except OSError:
            break
        if not message:
            break
        place = message.decode()
    return place


@functools.cache
def _line() -> int | None:
    number, _, inode = os.environ.get("GRADRING_LAUNCHER", "").partition(":")
    if not (number.isdecimal() and inode.isdecimal()):
        return None
    try:
        found = os.fstat(int(number))
        if not stat.S_ISSOCK(found.st_mode) or found.st_ino != int(inode):
            return None
        os.set_inheritable(int(number), False)
    except (OSError, OverflowError):
        return None
    return int(number)
