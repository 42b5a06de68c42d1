"""`init()`: from the launcher's variables and the arguments to a communicator.

`init` also carries the initializers of tables, `gr.init.Uniform` and so on: users look for both
under that name.
"""

from __future__ import annotations

import errno
import os
import socket
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from gradring import _core, initial
from gradring.collectives.communicator import Communicator
from gradring.collectives.memberships import joined, keep, kept, note_joined
from gradring.core_arguments import (
    MOST_RANKS,
    path_bytes,
    plain_text,
    require_secret,
    secret_bytes,
    whole_number,
)
from gradring.errors import InvalidArgument
from gradring.launchers import job_secret, our_launcher, roles
from gradring.prometheus import endpoint
from gradring.settings import config, cost_profile, port_range
from gradring.timeouts import milliseconds

_P = ParamSpec("_P")
_R_co = TypeVar("_R_co", covariant=True)

_MOST_FD = (1 << 31) - 1

# Those of them that `current` has made, until an init() of the script returns them.
_implicit: weakref.WeakSet[Communicator] = weakref.WeakSet()


class WithInitializers(Protocol[_P, _R_co]):
    """A function that has the initializers of tables as attributes."""

    Constant: type[initial.Constant]
    Uniform: type[initial.Uniform]
    Normal: type[initial.Normal]

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co:
        """Call the function."""


def _with_initializers(function: Callable[_P, _R_co]) -> WithInitializers[_P, _R_co]:
    named = cast(WithInitializers[_P, _R_co], function)
    named.Constant = initial.Constant
    named.Uniform = initial.Uniform
    named.Normal = initial.Normal
    return named


@dataclass(frozen=True)
class Place:
    """Who a process is in its job, and what it has to know.

    Attributes:
        rank: From 0.
        world_size: Number of ranks.
        rendezvous: host:port where rank 0 listens; empty in a world of one.
        secret: The job's.
        number: Of the process among all of a program of which these ranks are some; ``None``: its
            rank.
    """

    rank: int
    world_size: int
    rendezvous: str
    secret: str | bytes = field(repr=False)
    number: int | None = None


@_with_initializers
def init(  # noqa: PLR0913 - every argument has a variable and a default; none belongs together
    *,
    rank: int | None = None,
    world_size: int | None = None,
    rendezvous: str | None = None,
    secret: str | bytes | None = None,
    transport: str | None = None,
    tls: str | None = None,
    timeout: float | None = None,
    heartbeat_timeout: float | None = None,
    interface: str | None = None,
    ports: str | None = None,
    listen_fd: int | None = None,
    profile: str | os.PathLike[str] | None = None,
) -> Communicator:
    """Join the job and return the communicator of all its ranks.

    The role is found in the launcher's variables (``gradring run``, torchrun, Open MPI, MPICH,
    Intel MPI, Slurm, TF_CONFIG, Paddle: docs/launchers.md); alone it is a world of one. Explicit
    arguments win. Blocks until every rank has come. Several ranks may live in one process, each
    with a thread of its own. Where `gradring.distributed` or another call has joined the job by
    itself, the first ``init()`` without arguments returns that communicator.

    In a process with GRADRING_NEWCOMER, as `gradring run --restart-ranks` starts one for each rank
    that was lost, it is `gradring.join`: it waits until the others call `Communicator.grow`; under
    that launcher for as long as they run, whatever ``timeout`` is.

    Args:
        rank: This rank, from 0.
        world_size: Number of ranks.
        rendezvous: ``HOST:PORT`` where rank 0 listens. With it and a secret a world of one is open
            to newcomers too (`Communicator.grow`).
        secret: What every rank of the job knows; see `GRADRING_SECRET`.
        transport: ``auto`` (shared memory on one host, TCP between hosts), ``shm`` or ``tcp``.
        tls: What is encrypted (TLS 1.3, keyed by the secret): ``auto``, what goes between hosts;
            ``on``, all that goes over TCP; ``off``. The same on all hosts.
        timeout: Seconds to wait for the other ranks here, and later the longest time without
            progress in any call.
        heartbeat_timeout: Seconds of silence after which a rank counts as frozen.
        interface: ``NAME`` or ``CIDR`` of the interface that other ranks should reach this one by.
        ports: ``FIRST-LAST``: the range that the port this rank listens at is taken from, where
            nothing names one; see `GRADRING_PORTS`.
        listen_fd: Rank 0: a socket that already listens at ``rendezvous``; it now belongs to us.
        profile: Rank 0: a file that `gradring tune` wrote. All ranks choose algorithms by what rank
            0 has, which they hear when they join; the others' is not read.

    Raises:
        InvalidArgument: The role is incomplete or makes no sense; two processes have one rank; the
            secret is empty or blank; the profile is none; this process has joined the same job and
            not closed that communicator.
        AuthError: The secrets differ, or only some ranks encrypt.
        ProtocolError: Rank 0's build of Gradring and this one do not understand each other.
        TimedOut: Names the ranks that did not come.
        PeerLost: Rank 0 ended, or gave up, before everybody had come.
    """
    given = (
        rank, world_size, rendezvous, secret, transport, tls, timeout, heartbeat_timeout,
        interface, ports, listen_fd, profile,
    )  # fmt: skip
    settings = config.Settings.from_environ(
        os.environ,
        transport=transport,
        tls=tls,
        timeout=timeout,
        heartbeat_timeout=heartbeat_timeout,
        interface=interface,
        ports=ports,
        profile=profile,
    )
    is_placed = rank is not None or world_size is not None or rendezvous is not None
    if not is_placed and our_launcher.is_newcomer(os.environ):
        return _as_newcomer(
            secret=secret, tls=tls, timeout=timeout, interface=interface, ports=ports
        )
    role = roles.discover(
        os.environ, rank=rank, world_size=world_size, rendezvous=rendezvous, ports=settings.ports
    )
    if secret is None and role is not None and role.world_size == 1:
        secret = role.secret
        rendezvous = rendezvous if secret else None  # Nobody could come.
    if secret is None:
        secret = job_secret.secret_for(role, os.environ)
    else:
        require_secret(secret, "init: secret")
    place = Place(0, 1, "", secret)
    if role is not None:
        place = _place_of(role, rendezvous, secret)
    where = (place.rendezvous, place.rank)
    made = _take_implicit(where) if all(each is None for each in given) else None
    if made is not None:
        return made
    if place.world_size > 1:
        _require_left(where)
    if listen_fd is None and role is not None and role.listen_fd is not None:
        # The launcher's socket stays, for an init() after this communicator was closed.
        listen_fd = _copy_of_launchers(role.listen_fd)
    communicator = join(place, settings, listen_fd=listen_fd)
    keep(communicator)
    note_joined(communicator, where)
    return communicator


def _place_of(role: roles.Role, rendezvous: str | None, secret: str | bytes) -> Place:
    if role.world_size > 1:
        return Place(role.rank, role.world_size, role.rendezvous, secret)
    # Alone it needs neither, but is open to newcomers where it was given both.
    return Place(role.rank, 1, rendezvous or "", secret)


def _as_newcomer(**options: Any) -> Communicator:
    from gradring.collectives import newcomers  # Which joins by `join` below.

    where = our_launcher.role_given(os.environ)
    made = _take_implicit(where) if all(each is None for each in options.values()) else None
    if made is not None:
        return made
    _require_left(where)
    if our_launcher.is_led(os.environ):
        options["timeout"] = None  # It is for ranks that all start; the launcher ends this wait.
    return newcomers.join(**options)


def _take_implicit(where: tuple[str, int]) -> Communicator | None:
    # For the first init() of a script, where a call before it has made the communicator already.
    for communicator in kept:
        is_here = joined.get(communicator) == where
        if communicator in _implicit and is_here and not communicator.is_closed:
            _implicit.discard(communicator)
            return communicator
    return None


def _require_left(where: tuple[str, int]) -> None:
    # Two worlds with one rendezvous would take each other's connections.
    rendezvous, rank = where
    who = f"this process is {f'rank {rank}' if rank >= 0 else 'a newcomer'} at {rendezvous} already"
    for communicator, place in list(joined.items()):
        if place != where or communicator.is_closed:
            continue
        if communicator in _implicit:
            raise InvalidArgument(
                f"{who}: gr.distributed() or another call that needs the ranks has joined the job "
                "by itself; call init() with its arguments before it, and give it comm=..."
            )
        raise InvalidArgument(
            f"{who}: use the communicator that init() returned (split() makes further ones), or "
            "close it on all ranks first"
        )


def _copy_of_launchers(listen_fd: int) -> int:
    try:
        os.set_inheritable(listen_fd, False)
        _require_listening(listen_fd)
        return os.dup(listen_fd)
    except OSError as error:
        raise InvalidArgument(
            f"GRADRING_LISTEN_FD={listen_fd} is no open socket: {error.strerror}; a child process "
            "of rank 0, whose job has begun, guards its script by `if __name__ == '__main__':`, or "
            "is started without the variables GRADRING_*"
        ) from None


def _require_listening(listen_fd: int) -> None:
    # Here, as the core would name the copy's number.
    try:
        with socket.socket(fileno=os.dup(listen_fd)) as copy:
            is_listening = bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError as error:
        if error.errno != errno.ENOTSOCK:
            raise
        is_listening = False
    if not is_listening:
        raise InvalidArgument(f"GRADRING_LISTEN_FD={listen_fd} is not a listening socket")


def join(place: Place, settings: config.Settings, *, listen_fd: int | None = None) -> Communicator:
    """Join a job whose place and settings are known; what `init` and torch's backend end in.

    The communicator is its caller's alone: `current` does not know it.

    Args:
        place: Who this process is; rank -1: a newcomer, which waits for the job there to grow.
        settings: How to talk.
        listen_fd: As for `init`.

    Raises:
        InvalidArgument: As `init`, and so for every other error.
    """
    if settings.metrics is not None and place.rank >= 0:
        # Groups of one host have a rank 0 each.
        number = place.rank if place.number is None else place.number
        endpoint.serve_job(settings.metrics, number, settings.ports)
    costs: dict[str, tuple[float, float, float, float]] = {}
    streams = settings.streams
    if settings.profile is not None and place.rank == 0:
        profile = cost_profile.load(settings.profile)
        costs, streams = profile.as_costs(), streams or profile.streams
    core = _core.join(
        rank=whole_number(place.rank, "rank", -1, MOST_RANKS - 1),
        world_size=whole_number(place.world_size, "world_size", 1, MOST_RANKS),
        rendezvous=plain_text(place.rendezvous, "rendezvous"),
        secret=secret_bytes(place.secret),
        tls=settings.tls,
        transport=settings.transport,
        timeout_ms=milliseconds(settings.timeout),
        heartbeat_timeout_ms=milliseconds(settings.heartbeat_timeout),
        interface=plain_text(settings.interface or "", "interface"),
        listen_fd=-1 if listen_fd is None else whole_number(listen_fd, "listen_fd", 0, _MOST_FD),
        record_operations=settings.record_operations,
        record_directory=settings.record,
        trace_directory=path_bytes(settings.trace or ""),
        costs=costs,
        link_mbit=settings.link_mbit,
        ports=port_range.ends(settings.ports),
        streams=streams or 1,
    )
    return Communicator(core)


def current() -> Communicator:
    """Return the communicator that `init` made in this process, or make it.

    After its `shrink` or `grow` that is what they returned.

    Raises:
        InvalidArgument: This process joined several times, so it must say which one is meant.
    """
    found = current_if_any()
    if found is None:
        found = init()
        _implicit.add(found)
    return found


def current_if_any() -> Communicator | None:
    """Return the communicator that `init` made in this process and that is open; else ``None``.

    Raises:
        InvalidArgument: As `current`.
    """
    open_ones = [communicator for communicator in kept if not communicator.is_closed]
    if len(open_ones) > 1:
        raise InvalidArgument(
            f"this process has {len(open_ones)} communicators from init(); say which one: comm=..."
        )
    return open_ones[0] if open_ones else None


def require_ranks(comm: object) -> None:
    """Refuse what an optimizer was given for ``comm`` and is none.

    Raises:
        InvalidArgument: It is neither a communicator nor ``None``.
    """
    if comm is not None and not hasattr(comm, "world_size"):
        raise InvalidArgument(
            f"comm is a {type(comm).__name__}; give the communicator that gr.init() returned, or "
            "None"
        )


def rank_and_world_size() -> tuple[int, int]:
    """Return what this process is in its job, without joining: a restarted one could not.

    Raises:
        InvalidArgument: As `current`; or the launcher's variables make no sense.
    """
    found = current_if_any()
    if found is not None:
        return found.rank, found.world_size
    role = roles.discover(os.environ)
    return (0, 1) if role is None else (role.rank, role.world_size)
