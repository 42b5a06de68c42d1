"""`connect()`: from the launcher's variables and the arguments to a parameter server."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from gradring import _core
from gradring.core_arguments import require_secret, secret_bytes
from gradring.errors import Error, InvalidArgument
from gradring.launchers import our_launcher, roles
from gradring.launchers.job_secret import HOW_TO_MAKE_ONE
from gradring.launchers.roles import Role
from gradring.ps import measured
from gradring.ps.arguments.checks import whole
from gradring.ps.calls import Calls
from gradring.ps.client import ParameterServer
from gradring.ps.serving import Serving
from gradring.settings import config, port_range, server_addresses
from gradring.settings.address import own_loopback
from gradring.timeouts import milliseconds

# Numbers from here on are no worker's: they take part in no round and no bound on staleness.
FIRST_STRANGER = 1 << 31

_AT_EXIT_SECONDS = 5.0

_connected: list[ParameterServer] = []
measured.begin_clients(lambda: list(_connected))
_of_parent: list[ParameterServer] = []  # Of the process that this one was forked from; not ours.
_opening: list[int] = []  # Numbers of those that are being made.


class _Locks:
    """Of this process: a child may be forked while a thread of its parent holds them.

    They are reentrant: a signal handler may connect, too.
    """

    def __init__(self) -> None:
        self.lists = threading.RLock()  # The lists above; held for moments only.
        self.current = threading.RLock()  # While `current` makes a connection.


_locks = _Locks()


def connect(
    servers: str | Sequence[str] | None = None,
    *,
    secret: str | bytes | None = None,
    client: int | None = None,
    transport: str | None = None,
    tls: str | None = None,
    timeout: float | None = None,
) -> ParameterServer:
    """Connect to the parameter servers of the job.

    They are found in ``GRADRING_SERVERS``, which ``gradring run --servers`` sets. A program started
    alone gets a server inside its own process, which ends when this connection is closed.

    Args:
        servers: ``host:port,host:port`` or a list, in the servers' order.
        secret: What the servers know too; see `GRADRING_SECRET`.
        client: This worker's number; by default its rank. A number is one client's at a time:
            another one with the same number takes its place. A process that is no rank of a job,
            and all connections of a process but the first, get random ones from 2^31.
        transport: ``auto`` (shared memory on one host, TCP between hosts), ``shm`` or ``tcp``.
        tls: What is encrypted, as for `gradring.init`.
        timeout: Seconds to wait for the servers here, and later the longest time without progress
            in any call.

    Raises:
        InvalidArgument: There are several ranks but no servers, or an argument makes no sense, such
            as a secret that is empty or blank.
        AuthError: The secrets differ, or the servers want to be encrypted and this is off here.
        ProtocolError: A server's build of Gradring and this one do not understand each other.
        Mismatch: The servers are others than were named, or began with different checkpoints; says
            which with which.
        PeerLost: A server could not be reached in time; names its address.

    Example:
        >>> import numpy as np, gradring as gr
        >>> with gr.ps.connect() as ps:  # Alone: with a server inside this process.
        ...     users = ps.sparse_table("user", 2, gr.optim.SGD(lr=0.5))
        ...     _ = users.push([7, 2**60], np.ones((2, 2), np.float32))
        ...     users.pull([7]).tolist()
        [[-0.5, -0.5]]
    """
    settings = config.Settings.from_environ(
        os.environ, transport=transport, tls=tls, timeout=timeout
    )
    role = roles.discover(os.environ)
    found = (
        server_addresses.find(os.environ)
        if servers is None
        else server_addresses.parse(servers, "servers")
    )
    if client is not None:
        client = whole("client", client)
    if secret is not None:
        require_secret(secret, "connect: secret")
    if found is None:
        return _embedded(role, settings, client)
    known = secret or os.environ.get("GRADRING_SECRET")
    if not known:
        raise InvalidArgument(
            f"the secret of the parameter servers at {','.join(found)} is not known; give them and "
            f"their clients the same: {HOW_TO_MAKE_ONE}"
        )
    require_secret(known, "GRADRING_SECRET")
    with _numbered(role, client) as number:
        connection = _open(found, known, number, settings)
    if role is not None:
        our_launcher.tell(role.rank, role.world_size, "")
    return connection


def current() -> ParameterServer:
    """Return the connection that `connect` made in this process, or make it.

    Threads that ask at once get one connection; one that `connect` is still making counts for
    nobody.

    Raises:
        InvalidArgument: There are several; say which one is meant.
    """
    with _locks.current:
        with _locks.lists:
            open_ones = [server for server in _connected if not server.is_closed]
        if len(open_ones) > 1:
            raise InvalidArgument(
                f"this process has {len(open_ones)} connections to parameter servers; say which one"
            )
        return open_ones[0] if open_ones else connect()


def _embedded(role: Role | None, settings: config.Settings, client: int | None) -> ParameterServer:
    if role is not None and role.world_size > 1:
        raise InvalidArgument(
            f"rank {role.rank} of {role.world_size} ({role.source}): GRADRING_SERVERS is not "
            "set; start servers with `gradring run --servers S`, or `gradring serve` and set it to "
            "their addresses"
        )
    secret = secrets.token_bytes(32)
    serving = Serving(
        _core.PsServer(
            host=own_loopback(),
            port=0,
            listen_fd=-1,
            threads=1,
            index=0,
            servers=1,
            secret=secret_bytes(secret),
            tls=settings.tls,
            transport=settings.transport,
            log_directory="",
            fsync="none",
            ports=port_range.ends(settings.ports),
        )
    )
    try:
        with _numbered(role, client or 0) as number:
            return _open((serving.address,), secret, number, settings, serving.stop)
    except BaseException:
        serving.stop()
        raise


def _open(
    servers: tuple[str, ...],
    secret: str | bytes,
    client: int,
    settings: config.Settings,
    when_closed: Callable[[], None] | None = None,
) -> ParameterServer:
    core = _core.PsClient(
        servers=list(servers),
        secret=secret_bytes(secret),
        tls=settings.tls,
        client=client,
        transport=settings.transport,
        timeout_ms=milliseconds(settings.timeout),
    )
    connected = ParameterServer(Calls(core, settings.timeout), servers, client, when_closed)
    with _locks.lists:
        _connected[:] = [other for other in _connected if not other.is_closed]
        _connected.append(connected)
    return connected


@contextlib.contextmanager
def _numbered(role: Role | None, client: int | None) -> Iterator[int]:
    """Choose a number that nobody else gets while a connection with it is being made."""
    with _locks.lists:
        number = _client_number(role) if client is None else client
        _opening.append(number)
    try:
        yield number
    finally:
        with _locks.lists:
            _opening.remove(number)


def _client_number(role: Role | None) -> int:
    are_others = _of_parent or _opening or any(not server.is_closed for server in _connected)
    if role is not None and not are_others:
        return role.rank
    return FIRST_STRANGER + secrets.randbelow(FIRST_STRANGER)


@atexit.register
def _close_all() -> None:
    for server in _connected:
        try:
            server.close(timeout=_AT_EXIT_SECONDS)
        except Error as error:  # The program is at its end: nobody can catch it.
            where = ",".join(server.servers)
            print(
                f"gradring: closing the connection to the parameter servers at {where}, which was "
                f"left open: {error}; call its close() to have that as an exception",
                file=sys.stderr,
            )


def _disown() -> None:
    # Dropping them would end what the parent's threads still use. What these were opening stays in
    # `_opening`: the rank's number is the parent's.
    _of_parent.extend(_connected)
    _connected.clear()
    _locks.lists, _locks.current = threading.RLock(), threading.RLock()


os.register_at_fork(after_in_child=_disown)
