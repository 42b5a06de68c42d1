"""From torch's store and options to a `ProcessGroup`."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from gradring.collectives.communicator import Communicator
from gradring.errors import Error
from gradring.torch.c10d.calls.errors import for_torch
from gradring.torch.c10d.kept_handles import keep_join_handles
from gradring.torch.c10d.process_group import ProcessGroup
from gradring.torch.c10d.rendezvous import meet, timeout_in_force


def create(options: Any) -> ProcessGroup:
    """Make the process group that torch asks for; its members all do.

    A subgroup of a group of ours is made from its communicator, without talking; any other meets
    through torch's store.

    Args:
        options: ``torch.distributed._DistributedBackendOptions``.

    Raises:
        TimedOut: Not all ranks came.
        Closed: The default group has failed.
        InvalidArgument: The ranks do not agree about the secret, or a variable makes no sense.
        AuthError: As `gradring.init`.
        PeerLost: As `gradring.init`.
    """
    ranks = [int(rank) for rank in options.global_ranks_in_group]
    try:
        timeout = timeout_in_force(options.timeout)
        parent = _default_group() if ranks else None
        members = ranks or range(options.group_size)
        if parent is not None:
            comm = parent.subgroup(ranks, options.group_id)
        else:
            comm = meet(options.store, "gradring/group", members, options.group_rank, timeout)
    except Error as error:
        raise for_torch(error) from error.__cause__
    keep_join_handles()
    return ProcessGroup(comm, members, timeout)


def _default_group() -> ProcessGroup | None:
    if not dist.is_initialized():
        return None
    default = dist.group.WORLD
    return default if isinstance(default, ProcessGroup) else None


def meet_beside_default_group(name: str) -> Communicator:
    """Make a communicator of the ranks of torch's default group, whatever its backend.

    They meet through its store. A collective call; calls may take as long as the group's own, or
    under another backend as a group's with torch's default.

    Args:
        name: Of the meeting, alike on all ranks; may come again.

    Raises:
        TimedOut: Not all ranks came.
        InvalidArgument: As `create`, and so for AuthError and PeerLost.
    """
    store: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001
    members, seconds = range(dist.get_world_size()), _timeout_of_default_group()
    return meet(store, name, members, dist.get_rank(), seconds)


def _timeout_of_default_group() -> float:
    """Return how long calls beside torch's default group may take without progress, in seconds.

    As long as its own, where it is one of ours; of the others nobody is told.
    """
    default = dist.group.WORLD
    if isinstance(default, ProcessGroup):
        return default.timeout
    return timeout_in_force(dist.constants.default_pg_timeout)
