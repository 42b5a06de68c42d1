"""From torch's store and options to a `ProcessGroup`."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

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


def timeout_of_default_group() -> float:
    """Return how long calls beside torch's default group may take without progress, in seconds.

    As long as its own, where it is one of ours; of the others nobody is told.
    """
    default = dist.group.WORLD
    if isinstance(default, ProcessGroup):
        return default.timeout
    return timeout_in_force(dist.constants.default_pg_timeout)
