"""Which ranks are on one host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gradring.collectives.communicator import Communicator


def host_number(comm: Communicator, timeout: float | None) -> int:
    """Return a number that the ranks of this host have in common, from 0; a collective call.

    The core tells a rank how many members of a group are on its host, and not which. So each host
    is known by its first rank, and the others find that one's number bit by bit: for each bit there
    is a group in which they are with the first ranks of those hosts whose number has it.

    Args:
        comm: The ranks.
        timeout: As for `Communicator.all_reduce`.
    """
    ranks = comm.all_gather(np.array([comm.local_rank], np.int64), timeout=timeout)
    firsts = np.flatnonzero(ranks.ravel() == 0).tolist()
    if len(firsts) == comm.world_size:
        return comm.rank
    is_first = comm.local_rank == 0
    number = firsts.index(comm.rank) if is_first else 0
    for bit in range((len(firsts) - 1).bit_length()):
        group = comm.split(None if is_first and not number >> bit & 1 else 0, timeout=timeout)
        if group is None:
            continue
        if group.local_world_size == comm.local_world_size:
            number |= 1 << bit
        group.close()
    return number
