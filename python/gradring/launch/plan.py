"""What a job will look like before anything is started: ranks, hosts and variables.

Pure: options and a hosts file in, a `Plan` out; the launcher then carries it out. Command-line
text becomes errors here, so that a wrong option never leaves half a job behind.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradring.address import format_address, is_loopback, parse_address
from gradring.config import Settings
from gradring.errors import InvalidArgument
from gradring.launchers import LOOPBACK

# Keeps a broken network from looking like a quiet job.
DEFAULT_SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3"


@dataclass(frozen=True)
class Options:
    """The options of `gradring run`; the command line's help says the same.

    Attributes:
        command: Program and arguments; a program that ends in .py is run with ``python``.
        count: Number of ranks; ``None`` fills the hosts file.
        hosts_file: Lines ``host [slots=N]``; ``None`` is this machine alone.
        transport: As GRADRING_TRANSPORT, or ``None`` to leave it alone.
        timeout: As GRADRING_TIMEOUT.
        interface: As GRADRING_INTERFACE.
        rendezvous: host:port where rank 0 is reached; port 0 picks one. ``None``: the first host.
        ssh: The command that starts a program on another host.
        python: The interpreter, here and on every host.
        forward: Names of variables that other hosts get too.
        grace: Seconds between asking a process to end and killing it.
        start_timeout: Seconds a host may take to answer.
        prefix: Whether output lines start with the rank.
        quiet: Whether to leave out the status line.
        verbose: Whether to tell what was started.
        keep_going: Whether the other ranks go on when one fails.
        bind: Whether each rank of a host gets cores of its own, where there are enough.
        servers: Number of parameter servers, dealt to the hosts in turn.
        server_log: Folder for the servers' logs, on the host of each.
        restart_servers: Whether a server that ends early is started again from its log.
        server_options: More options for `gradring serve`, as one would type them.
    """

    command: tuple[str, ...]
    count: int | None = None
    hosts_file: Path | None = None
    transport: str | None = None
    timeout: float | None = None
    interface: str | None = None
    rendezvous: str | None = None
    ssh: str = DEFAULT_SSH
    python: str = sys.executable
    forward: tuple[str, ...] = ()
    grace: float = 5.0
    start_timeout: float = 30.0
    prefix: bool = True
    quiet: bool = False
    verbose: bool = False
    keep_going: bool = False
    bind: bool = True
    servers: int = 0
    server_log: Path | None = None
    restart_servers: bool = False
    server_options: str = ""


@dataclass(frozen=True)
class HostPlan:
    """One host's part of the job: ranks, and parameter servers by index."""

    name: str
    ranks: tuple[int, ...]
    is_here: bool
    servers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A whole job.

    Attributes:
        hosts: Those that run at least one rank; the first one runs rank 0.
        argv: What every rank runs.
        environ: What every rank gets on top of its host's environment; the agent adds rank and
            local rank.
        listen_host: Address rank 0's socket is bound to; empty for all of them.
        listen_port: Its port; 0 picks one.
        rendezvous_host: The name under which the ranks reach it.
        server_argv: What every server runs; the agent adds which one it is, and its socket.
    """

    hosts: tuple[HostPlan, ...]
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)  # The secret is in it.
    listen_host: str
    listen_port: int
    rendezvous_host: str
    server_argv: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def servers(self) -> int:
        """Number of parameter servers."""
        return sum(len(host.servers) for host in self.hosts)

    def server_listen_host(self, host: HostPlan) -> str:
        """Return the address that servers of a host are bound to; empty for all of them."""
        return _listen_host(self._server_host(host), is_said=False)

    def environ_at(self, port: int, server_ports: Mapping[int, int]) -> dict[str, str]:
        """Return the variables for ranks that meet at ``port``; servers are told by index."""
        environ = {
            **self.environ,
            "GRADRING_WORLD_SIZE": str(self.world_size),
            "GRADRING_RENDEZVOUS": format_address(self.rendezvous_host, port),
        }
        if server_ports:
            hosts = {index: host for host in self.hosts for index in host.servers}
            environ["GRADRING_SERVERS"] = ",".join(
                format_address(self._server_host(hosts[index]), server_ports[index])
                for index in sorted(server_ports)
            )
        return environ

    def _server_host(self, host: HostPlan) -> str:
        # Where the ranks meet is a name that every host knows the first one by.
        return self.rendezvous_host if host is self.hosts[0] else host.name


def make_plan(options: Options, environ: Mapping[str, str]) -> Plan:
    """Lay out the job.

    Args:
        options: From the command line.
        environ: The launcher's own environment.

    Raises:
        InvalidArgument: An option, the hosts file or the command makes no sense; nothing was
            started.
    """
    if options.hosts_file is None:
        if options.count is None:
            raise InvalidArgument("say how many ranks to start: -n N (or --hosts FILE)")
        slots = [("localhost", options.count)]
    else:
        slots = read_hosts(options.hosts_file)
    hosts = deal_servers(place(slots, options.count), options.servers)
    is_all_here = all(host.is_here for host in hosts)
    host, port = _meeting_point(options, hosts, is_all_here)
    for other in hosts[1:]:
        if other.servers and is_loopback(other.name) and not is_all_here:
            raise InvalidArgument(_no_way_to(other.name))
    return Plan(
        hosts=hosts,
        argv=_argv(options, is_all_here),
        environ=_environ(options, environ, is_all_here),
        listen_host=_listen_host(host, options.rendezvous is not None),
        listen_port=port,
        rendezvous_host=host,
        server_argv=_server_argv(options),
    )


def read_hosts(path: Path) -> list[tuple[str, int]]:
    """Read a hosts file: a host a line, optionally ``slots=N``; # starts a comment.

    Raises:
        InvalidArgument: The file cannot be read, a line is not understood, or no host is left.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise InvalidArgument(f"--hosts {path}: {error}") from error
    slots: list[tuple[str, int]] = []
    for number, line in enumerate(lines, start=1):
        name, *rest = line.partition("#")[0].split() or [""]
        if not name:
            continue
        key, _, value = rest[0].partition("=") if rest else ("slots", "", "1")
        is_count = value.isascii() and value.isdigit() and int(value) > 0
        # A name that starts with a dash would be an option to ssh.
        if len(rest) > 1 or key != "slots" or not is_count or name.startswith("-"):
            raise InvalidArgument(f"{path}:{number}: {line.strip()!r} is not `host [slots=N]`")
        slots.append((name, int(value)))
    if not slots:
        raise InvalidArgument(f"--hosts {path}: no host in it")
    return slots


def place(slots: list[tuple[str, int]], count: int | None) -> tuple[HostPlan, ...]:
    """Give ranks to hosts, in order and in blocks, so that neighbours in rank share a host.

    Raises:
        InvalidArgument: There are fewer slots than ranks, or no rank at all.
    """
    merged: dict[str, int] = {}
    for name, number in slots:
        merged[name] = merged.get(name, 0) + number
    total = sum(merged.values())
    count = total if count is None else count
    if not 1 <= count <= total:
        raise InvalidArgument(
            f"-n {count}: the hosts file has {total} slots (say more with `host slots=N`)"
            if count > total
            else f"-n {count}: a job has at least one rank"
        )
    hosts: list[HostPlan] = []
    first = 0
    for name, number in merged.items():
        ranks = tuple(range(first, min(first + number, count)))
        if ranks:
            hosts.append(HostPlan(name, ranks, is_here(name)))
        first += len(ranks)
    return tuple(hosts)


def deal_servers(hosts: tuple[HostPlan, ...], count: int) -> tuple[HostPlan, ...]:
    """Give servers to hosts in turn: all hosts serve alike, whoever runs the ranks.

    Raises:
        InvalidArgument: The number is negative.
    """
    if count < 0:
        raise InvalidArgument(f"--servers {count}: not a number of servers")
    return tuple(
        replace(host, servers=tuple(range(place, count, len(hosts))))
        for place, host in enumerate(hosts)
    )


def is_here(host: str) -> bool:
    """Tell whether the name means this machine, so that no ssh is needed."""
    return is_loopback(host) or host == socket.gethostname()


def _meeting_point(
    options: Options, hosts: tuple[HostPlan, ...], is_all_here: bool
) -> tuple[str, int]:
    if options.rendezvous is not None:
        return parse_address(options.rendezvous, "--rendezvous", any_port=True)
    if is_all_here:
        return LOOPBACK, 0
    if is_loopback(hosts[0].name):
        raise InvalidArgument(f"{_no_way_to(hosts[0].name)}, or give --rendezvous HOST:0")
    return hosts[0].name, 0


def _no_way_to(host: str) -> str:
    return (
        f"the other hosts cannot reach {host!r}; name this machine as they know it "
        "in the hosts file"
    )


def _listen_host(rendezvous_host: str, is_said: bool) -> str:
    """Loopback stays on loopback, and a number that was asked for is bound as it is.

    A name may mean another address on its own host (127.0.1.1 on Debian) than elsewhere: then all
    addresses.
    """
    if is_loopback(rendezvous_host):
        return "::1" if ":" in rendezvous_host else LOOPBACK
    is_number = ":" in rendezvous_host or rendezvous_host.replace(".", "").isdigit()
    return rendezvous_host if is_said and is_number else ""


def _argv(options: Options, is_all_here: bool) -> tuple[str, ...]:
    if not options.command:
        raise InvalidArgument("say what to run: gradring run -n 2 train.py")
    program = options.command[0]
    if program.endswith(".py"):
        if is_all_here and not Path(program).is_file():
            raise InvalidArgument(f"{program}: no such file (looked in {Path.cwd()})")
        return (options.python, *options.command)
    if is_all_here and shutil.which(program) is None:
        raise InvalidArgument(f"{program}: no such command")
    return options.command


def _server_argv(options: Options) -> tuple[str, ...]:
    if options.restart_servers and options.server_log is None:
        raise InvalidArgument(
            "--restart-servers needs --server-log DIR: without a log a server that is started "
            "again has lost its rows"
        )
    argv = [options.python, "-m", "gradring", "serve", "--servers", str(options.servers)]
    if options.server_log is not None:
        argv += ["--log", str(options.server_log.absolute())]
    return (*argv, *shlex.split(options.server_options))


def _environ(options: Options, environ: Mapping[str, str], is_all_here: bool) -> dict[str, str]:
    # Checks the values that the ranks would otherwise refuse one by one.
    Settings.from_environ(
        environ,
        transport=options.transport,
        timeout=options.timeout,
        interface=options.interface,
    )
    result: dict[str, str] = {}
    if not is_all_here:
        # Ranks here inherit ours; elsewhere only this goes along.
        names = [name for name in environ if name.startswith("GRADRING_")]
        for name in (*names, "PYTHONPATH", "OMP_NUM_THREADS", *options.forward):
            if name in environ:
                result[name] = environ[name]
    said = {
        "GRADRING_TRANSPORT": options.transport,
        "GRADRING_TIMEOUT": None if options.timeout is None else str(options.timeout),
        "GRADRING_INTERFACE": options.interface,
    }
    result.update({name: value for name, value in said.items() if value is not None})
    # A rank's output is a pipe; without this Python would hold it back.
    result["PYTHONUNBUFFERED"] = environ.get("PYTHONUNBUFFERED") or "1"
    if sys.stderr.isatty() and "COLUMNS" not in environ:
        result["COLUMNS"] = str(max(20, os.get_terminal_size(2).columns - len("[999] ")))
    # Servers that somebody else has started know a secret already.
    theirs = environ.get("GRADRING_SECRET") if environ.get("GRADRING_SERVERS") else None
    is_ours = options.servers > 0 or not theirs
    result["GRADRING_SECRET"] = secrets.token_hex(32) if is_ours else theirs or ""
    return result
