"""How the ranks of a torch job find each other: through torch's store.

Rank 0 listens on a port of its own and leaves the address in the store, with a word about the
job's secret. The secret itself goes through the store only where nothing better is known
(docs/torch.md): whoever can read the store could then join the job.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gradring.collectives import joining
from gradring.collectives.communicator import Communicator
from gradring.errors import Error, InvalidArgument, TimedOut
from gradring.launchers import job_secret
from gradring.machine import host_facts
from gradring.settings import config, port_range
from gradring.settings.address import format_address, is_loopback, own_loopback

_BACKLOG = 1024

# Where the ranks have the secret from.
_VARIABLE = "GRADRING_SECRET"
_USER = "the user's own secret"
_STORE = "the store"


def meet(store: Any, name: str, members: Sequence[int], rank: int, timeout: float) -> Communicator:
    """Join the group's other ranks; blocks until all have come.

    Args:
        store: torch's. It may outlive groups: what these members left in it does not matter.
        name: Of the meeting, alike on all ranks; may come again in the same store.
        members: Ranks in the job of all ranks of the group.
        rank: In the group.
        timeout: Seconds; later also that of the communicator's calls.

    Raises:
        TimedOut: Not all ranks came.
        InvalidArgument: The ranks do not agree about the secret, or a variable makes no sense.
    """
    settings = config.Settings.from_environ(os.environ, timeout=timeout)
    world_size = len(members)
    if world_size == 1:
        place = joining.Place(0, 1, "", secrets.token_hex(16), members[rank])
        return joining.join(place, settings)
    # How often just these members have met here is what all of them know; a process's own count of
    # groups is not.
    name += f"/{hashlib.sha256(str(list(members)).encode()).hexdigest()[:16]}"
    count = f"{name}/met by {rank}"
    key = f"{name}/{store.add(count, 1)}"
    try:
        if rank == 0:
            return _host(store, key, members, settings)
        return _follow(store, key, rank, members, settings)
    except Error:
        # Who tries again meets ranks that have not tried yet, and where it listens then.
        with contextlib.suppress(dist.DistError):
            store.add(count, -1)
            if rank == 0:
                store.delete_key(key)
        raise


def timeout_in_force(asked: timedelta) -> float:
    """Return the seconds of a timeout that torch gives; of its default those of GRADRING_TIMEOUT.

    Raises:
        InvalidArgument: The variable makes no sense.
    """
    # torch always gives one. Its default is no wish of the user, the variable is.
    is_default = asked == dist.constants.default_pg_timeout
    if is_default and os.environ.get("GRADRING_TIMEOUT"):
        return config.timeout_in_force(os.environ)
    return asked.total_seconds()


def _follow(
    store: Any, key: str, rank: int, members: Sequence[int], settings: config.Settings
) -> Communicator:
    world_size = len(members)
    try:
        store.wait([key], timedelta(seconds=settings.timeout))
        told = json.loads(store.get(key))
    except dist.DistNetworkError:
        raise
    except RuntimeError as error:  # A DistStoreError from a TCPStore only.
        raise TimedOut(
            f"rank {rank} of {world_size}: rank 0 left no address in the store within "
            f"{settings.timeout:g} s; is it running? ({error})"
        ) from None
    secret = _secret(told["secret_from"], told["word"])
    place = joining.Place(rank, world_size, told["address"], secret, members[rank])
    return joining.join(place, settings)


def _host(store: Any, key: str, members: Sequence[int], settings: config.Settings) -> Communicator:
    world_size = len(members)
    host = _listen_host(store, settings.interface, world_size)
    with port_range.listen_at_free_port(
        host, settings.ports, lambda port: listening(host, port)
    ) as server:
        address = format_address(host, server.getsockname()[1])
        source = _secret_source(host)
        word = secrets.token_hex(32)
        secret = _secret(source, word)
        store.set(key, json.dumps({"address": address, "secret_from": source, "word": word}))
        place = joining.Place(0, world_size, address, secret, members[0])
        communicator = joining.join(place, settings, listen_fd=server.detach())
    store.delete_key(key)  # Everybody has read it.
    return communicator


def _secret_source(host: str) -> str:
    if os.environ.get(_VARIABLE):
        return _VARIABLE
    return _USER if is_loopback(host) else _STORE


def _secret(source: str, word: str) -> str:
    own = os.environ.get(_VARIABLE)
    if source == _VARIABLE:
        if not own:
            raise InvalidArgument("rank 0 has GRADRING_SECRET, this rank has not; set it on all")
        return own
    if own:
        raise InvalidArgument("this rank has GRADRING_SECRET, rank 0 has not; set it on all")
    if source == _USER:
        kept = job_secret.user_secret(job_secret.state_directory(os.environ))
        return hmac.new(kept.encode(), word.encode(), hashlib.sha256).hexdigest()
    return word


def _listen_host(store: Any, interface: str | None, world_size: int) -> str:
    if interface is not None:
        chosen = host_facts.chosen_interface(host_facts.interfaces(), interface, None)
        if chosen is None:
            raise InvalidArgument(f"no interface has the name or network '{interface}'")
        return str(chosen.ip)
    store_host = _store_host(store)
    if os.environ.get("LOCAL_WORLD_SIZE") == str(world_size) or store_host is None:
        return own_loopback()  # All ranks are on this host.
    if is_loopback(store_host):
        return own_loopback()
    here = host_facts.route_source(store_host, 1) or own_loopback()
    # The store is on this host, and its name means loopback here (127.0.1.1 on Debian). Elsewhere
    # it leads to this host.
    return store_host if is_loopback(here) else here


def listening(host: str, port: int) -> socket.socket:
    """Listen at a port: of an address, or for a name, empty too, of all addresses of this host.

    Raises:
        OSError: It is taken at one of them.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # A name: all addresses.
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        return socket.create_server(
            ("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual
        )
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _store_host(store: Any) -> str | None:
    """Return where the job's other ranks reach the store's host; ``None`` for a file."""
    while hasattr(store, "underlying_store"):  # A PrefixStore.
        store = store.underlying_store
    host = getattr(store, "host", None)
    return host if host is not None else os.environ.get("MASTER_ADDR")
