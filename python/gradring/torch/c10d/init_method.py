"""``init_method="gradring://"``: torch's ranks meet as those of `gradring.init` do.

torch's own ways need torchrun's variables, or an address and a rank from the script. This one finds
what `gradring.init` finds: ``gradring run``, Open MPI, MPICH, Intel MPI, Slurm and so on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np
import torch.distributed as dist
from torch.distributed import constants

from gradring.collectives import joining
from gradring.errors import DeviceError, InvalidArgument
from gradring.settings import config, port_range
from gradring.settings.address import parse_address
from gradring.torch.c10d.rendezvous import listening, timeout_in_force

SCHEME = "gradring"

_torch: Any = dist  # It has stores for all to use, and does not say so to type checkers.


def meet(
    url: str, timeout: timedelta = constants.default_pg_timeout, **_: Any
) -> Iterator[tuple[Any, int, int]]:
    """Yield torch's store, this rank and the number of ranks; torch calls it.

    The store listens on rank 0, at a free port that the others hear of through the communicator of
    this process, which is made where there is none.

    Args:
        url: ``gradring://``; torch adds ``rank`` and ``world_size`` where it was given them.
        timeout: Of the store, and of waiting for rank 0 where the communicator is there already.

    Raises:
        InvalidArgument: What torch was given is not what the launcher says; as `gradring.init`.
        DeviceError: Rank 0 cannot listen.
        Error: As `gradring.init`.
    """
    comm = joining.current()
    for name, here in (("rank", comm.rank), ("world_size", comm.world_size)):
        (given,) = parse_qs(urlparse(url).query).get(name, [str(here)])
        if given != str(here):
            raise InvalidArgument(
                f"init_process_group({name}={given}) with init_method='{SCHEME}://': the launcher "
                f"says {here}; leave rank and world_size out"
            )
    if comm.world_size == 1:
        yield _torch.HashStore(), 0, 1
    else:
        host = parse_address(comm.meeting_point, "the job's meeting point")[0]
        yield _shared(comm, host, timeout), comm.rank, comm.world_size
    raise RuntimeError(f"the ranks of {SCHEME}:// have met; they do not meet again")


def _shared(comm: Any, host: str, timeout: timedelta) -> Any:
    store, problem = None, None
    if comm.rank == 0:
        settings = config.Settings.from_environ(os.environ)
        try:
            store = port_range.listen_at_free_port(
                host, settings.ports, lambda port: _store_at(host, port, timeout)
            )
        except (OSError, InvalidArgument, dist.DistError) as error:
            problem = error
    told = np.array([0 if store is None else store.port])
    port = int(comm.broadcast(told, timeout=timeout_in_force(timeout))[0])
    if problem is not None:
        raise DeviceError(f"rank 0 has no port for torch's store: {problem}") from problem
    if port == 0:
        raise DeviceError("rank 0 has no port for torch's store: its error says why")
    if store is None:
        store = _torch.TCPStore(host, port, is_master=False, timeout=timeout)
    return store


def _store_at(host: str, port: int, timeout: timedelta) -> Any:
    # Not by torch itself: where a port is taken for IPv6 it listens for IPv4 alone.
    with listening("", port) as server:
        port = server.getsockname()[1]
        return _torch.TCPStore(
            host, port, is_master=True, timeout=timeout, wait_for_workers=False,
            master_listen_fd=server.detach(),
        )  # fmt: skip
