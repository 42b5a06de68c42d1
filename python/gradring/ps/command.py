"""`gradring serve`: one process of a parameter server.

Started by hand, each with its own ``--index``, or by `gradring run --servers`. It holds tables
until it gets SIGTERM or SIGINT, and then ends in good order.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gradring.core_arguments import MOST_SHARDS, plain_text, secret_bytes
from gradring.errors import Error, InvalidArgument
from gradring.launchers.job_secret import HOW_TO_MAKE_ONE
from gradring.ps.saved.load_note import LoadNote
from gradring.ps.saved.log_shards import require_shards
from gradring.settings import config, port_range
from gradring.settings.address import metrics_address, parse_address
from gradring.timeouts import is_timeout

if TYPE_CHECKING:
    from gradring import _core

_LOOK_SECONDS = 1.0
_INTERVAL = re.compile(r"([0-9]{1,7}) *(ms)?")  # "50" and "50 ms".
_LONGEST_INTERVAL_MS = 3_600_000


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal says that it is enough.

    Args:
        argv: Arguments after ``gradring serve``.

    Returns:
        0 after a signal; 1 if the server failed, as when its log cannot be written.

    Raises:
        InvalidArgument: An option or GRADRING_SECRET makes no sense.
    """
    options = _parser().parse_args(argv)
    settings = config.Settings.from_environ(
        os.environ, transport=options.transport, ports=options.ports
    )
    _check(options)
    note = _load_note(options)
    is_to_load = options.load is not None and (note is None or not note.has_loaded(options.load))
    if options.load is None and note is not None:
        note.require_whole()
    if options.log is not None and not is_to_load:
        require_shards(options.log, options.index, options.servers, options.threads)
    secret = _secret(os.environ)
    signals = _Signals()  # Before anything takes time: a launcher that gives up at once is heard.

    from gradring import _core
    from gradring.ps.serving import Serving

    try:
        if is_to_load and note is not None:
            note.begin(options.load)
        core = _core.PsServer(
            host=options.host,
            port=options.port,
            listen_fd=options.listen_fd,
            threads=options.threads,
            index=options.index,
            servers=options.servers,
            secret=secret_bytes(secret),
            tls=settings.tls,
            transport=settings.transport,
            log_directory="" if options.log is None else str(options.log),
            fsync=options.fsync,
            waits_to_open=True,
            ports=port_range.ends(settings.ports),
        )
        with Serving(core) as serving, _metrics_of(core, options, settings) as metrics:
            if is_to_load:
                from gradring.ps import checkpoint

                shards = options.servers * options.threads
                with signals.raised():
                    loaded = checkpoint.load_server(
                        core, options.load, shards, options.load_timeout
                    )
                if note is not None:
                    note.end(loaded.cut)
            elif note is not None and (beginning := note.beginning()) is not None:
                core.tell_beginning(*beginning)
            core.open()  # Clients that came meanwhile find what was loaded.
            print(_greeting(options, serving.address) + metrics, flush=True)
            while not signals.came_within(_LOOK_SECONDS):
                serving.require_well()
    except _Ended:
        return 0
    except InvalidArgument:
        raise
    except Error as error:
        print(f"gradring: server {options.index}: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _metrics_of(
    core: _core.PsServer, options: argparse.Namespace, settings: config.Settings
) -> Iterator[str]:
    """Answer Prometheus, where that is asked for, and yield what the greeting says of it."""
    if options.metrics is None:
        yield ""
        return
    from gradring.prometheus import endpoint
    from gradring.ps import measured

    measured.begin_server(core, options.index)
    host, port = parse_address(options.metrics, "serve: --metrics", any_port=True)
    try:
        with endpoint.serve(port, host=host, ports=settings.ports) as served:
            yield f", metrics at {served.url}"
    finally:
        measured.end_server()


class _Ended(BaseException):
    """A signal came while a checkpoint was being loaded."""


class _Signals:
    """SIGTERM and SIGINT, which end a server."""

    def __init__(self) -> None:
        self._read, written = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._are_raised = False
        signal.set_wakeup_fd(written)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def _hear(self, *_: object) -> None:
        if self._are_raised:
            raise _Ended

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Let a signal end what takes long, also one that came before."""
        self._are_raised = True
        try:
            if self.came_within(0):
                raise _Ended
            yield
        finally:
            self._are_raised = False

    def came_within(self, seconds: float) -> bool:
        """Wait for one."""
        return bool(self._poll.poll(seconds * 1000))


def _greeting(options: argparse.Namespace, address: str) -> str:
    threads = f"{options.threads} thread{'s' if options.threads > 1 else ''}"
    log = "no log" if options.log is None else f"log in {options.log} (fsync {options.fsync})"
    return f"gradring: server {options.index} of {options.servers} at {address}, {threads}, {log}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,  # The launcher looks for whole names in what users give servers.
        prog="gradring serve",
        description="Holds tables of a parameter server. Its clients need GRADRING_SERVERS with "
        "the addresses of all servers, in the order of --index, and the same GRADRING_SECRET.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    add("--port", type=int, default=0, help="(default: a free one)")
    add(
        "--ports",
        metavar="FIRST-LAST",
        help="range that a free port is taken from (default: GRADRING_PORTS, or any)",
    )
    add("--listen-fd", type=int, default=-1, metavar="FD", help="inherited socket that listens")
    add(
        "--metrics",
        metavar="[HOST:]PORT",
        help="answer Prometheus there (default: not; without a host on loopback)",
    )
    add("--index", type=int, default=0, metavar="I", help="which server this is (default: 0)")
    add("--servers", type=int, default=1, metavar="S", help="how many there are (default: 1)")
    add(
        "--threads",
        type=int,
        default=1,
        metavar="T",
        help="shards of this server, the same for all (default: 1)",
    )
    add(
        "--log",
        type=config.folder,
        metavar="DIR",
        help="keep a log there; found again, it is replayed",
    )
    add(
        "--fsync",
        metavar="none|MS|always",
        help="when the log is forced to disk: by the kernel (survives kill -9), every MS "
        "milliseconds, or before each acknowledgement (survives the host) (default: none)",
    )
    add("--transport", choices=config.TRANSPORTS, help="how clients may talk")
    add(
        "--load",
        metavar="URL",
        help="begin with this checkpoint, whatever number of servers it is of; when started again "
        "from a log that began with it, go on from there",
    )
    add(
        "--load-timeout",
        type=float,
        metavar="S",
        help="end with an error when reading it takes longer (default: 3600 seconds)",
    )
    return parser


def _check(options: argparse.Namespace) -> None:
    if options.servers < 1 or not 0 <= options.index < options.servers:
        raise InvalidArgument(
            f"serve: --index {options.index} is not below --servers {options.servers}"
        )
    if options.threads < 1:
        raise InvalidArgument(f"serve: --threads {options.threads}: a server has at least one")
    if options.servers * options.threads > MOST_SHARDS:
        raise InvalidArgument(
            f"serve: --servers {options.servers} with --threads {options.threads}: together they "
            f"have more than {MOST_SHARDS} shards"
        )
    plain_text(options.host, "serve: --host")
    if options.metrics is not None:
        options.metrics = metrics_address(options.metrics, "serve: --metrics")
        from gradring.prometheus import endpoint

        endpoint.require_client()
    if options.log is not None:
        options.log = config.absolute_path(options.log)
        plain_text(str(options.log), "serve: --log")  # What fails there is told by name.
    if options.listen_fd != -1:
        _require_listener(options.listen_fd)
    options.fsync = options.fsync or "none"
    interval = _INTERVAL.fullmatch(options.fsync)
    is_interval = interval is not None and 1 <= int(interval[1]) <= _LONGEST_INTERVAL_MS
    if options.fsync not in ("none", "always") and not is_interval:
        raise InvalidArgument(
            f"serve: --fsync {options.fsync!r} is not none, always or a number of milliseconds "
            f"from 1 to {_LONGEST_INTERVAL_MS}"
        )
    if options.fsync != "none" and options.log is None:
        raise InvalidArgument(
            f"serve: --fsync {options.fsync} without --log: there is nothing to sync, and what was "
            "acknowledged dies with the server"
        )
    if options.load_timeout is not None and not is_timeout(options.load_timeout):
        raise InvalidArgument(
            f"serve: --load-timeout {options.load_timeout:g}: not a positive number of seconds"
        )
    if options.load_timeout is not None and options.load is None:
        raise InvalidArgument("serve: --load-timeout without --load: there is nothing to load")
    if not 0 <= options.port <= 65535:
        raise InvalidArgument(f"serve: --port {options.port} is not a port")


def _require_listener(descriptor: int) -> None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as inherited:
            listens = inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except (OSError, OverflowError):
        listens = 0
    if not listens:
        raise InvalidArgument(f"serve: --listen-fd {descriptor} is not a socket that listens")


def _load_note(options: argparse.Namespace) -> LoadNote | None:
    if options.log is None:
        return None
    return LoadNote(options.log, options.index, options.servers, options.threads)


def _secret(environ: Mapping[str, str]) -> str:
    secret = environ.get("GRADRING_SECRET")
    if not secret or not secret.strip():
        raise InvalidArgument(
            f"serve: GRADRING_SECRET is not set; servers and clients need the same: "
            f"{HOW_TO_MAKE_ONE}"
        )
    return secret
