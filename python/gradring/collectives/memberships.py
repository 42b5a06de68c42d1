"""The communicators by which this process is in its job: kept until closed, and told the launcher.

Callable from any thread: several ranks may be threads of one process.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING

from gradring.launchers import our_launcher

if TYPE_CHECKING:
    from gradring.collectives.communicator import Communicator

# Those of `init` and `join`, and what they shrank to or grew into. Kept until closed: to the other
# ranks, one that is garbage-collected would have left the job.
kept: list[Communicator] = []

# Where these met: rendezvous and rank that `init` was given.
joined: weakref.WeakKeyDictionary[Communicator, tuple[str, int]] = weakref.WeakKeyDictionary()


def keep(communicator: Communicator, before: Communicator | None = None) -> None:
    """Let one of this process's job live until closed, and be `current` in the place of before."""
    for other in kept[:]:
        if other.is_closed:
            let_go(other)
    kept.append(communicator)
    if before is not None and before in joined:
        note_joined(communicator, joined[before])


def note_joined(communicator: Communicator, where: tuple[str, int]) -> None:
    """Remember where one's ranks met, and tell the launcher where its job is found, if it is that.

    Args:
        communicator: Just made.
        where: Rendezvous and rank by which its ranks met at first.
    """
    joined[communicator] = where
    if where == our_launcher.role_given(os.environ):
        point = communicator.meeting_point
        our_launcher.tell(communicator.rank, communicator.world_size, point)


def is_kept(communicator: Communicator) -> bool:
    """Tell whether it is one of this process's job, and open."""
    return any(other is communicator for other in kept)


def let_go(communicator: Communicator) -> None:
    """Forget one that is closed."""
    # One step, as several ranks may be threads of this process.
    with contextlib.suppress(ValueError):
        kept.remove(communicator)
