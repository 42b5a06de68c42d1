"""What a job will look like before anything is started: ranks, hosts and variables.

Pure: options and a hosts file in, a `Plan` out; the launcher then carries it out. Command-line
text becomes errors here, so that a wrong option never leaves half a job behind.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gradring.commands.own_modules import module_command
from gradring.errors import InvalidArgument
from gradring.launch.children import search_path
from gradring.launch.hosts import HostPlan, Line, deal_servers, place, read_hosts
from gradring.launch.numbers import server_number
from gradring.launch.options import Options
from gradring.launchers.known import LOOPBACK
from gradring.settings.address import format_address, is_loopback, own_loopback, parse_address
from gradring.settings.config import Settings, absolute_path


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
        metrics: host:port of rank 0's metrics for Prometheus; ``None``: none are asked for.
        ports: What free ports are taken from, as GRADRING_PORTS; ``None``: each host's own say.
        server_argv: What every server runs; the agent adds which one it is, and its socket.
        programs: Folder of the interpreter on this machine, for the ranks' PATH; empty: unknown.
    """

    hosts: tuple[HostPlan, ...]
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)  # The secret is in it.
    listen_host: str
    listen_port: int
    rendezvous_host: str
    ports: str | None = None
    metrics: str | None = None
    server_argv: tuple[str, ...] = ()
    programs: str = ""

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

    def start_of(self, host: HostPlan, environ: Mapping[str, str]) -> dict[str, object]:
        """Return what an agent is told to start; ``environ`` as from `environ_at`."""
        return {
            "ranks": host.ranks,
            "share": self._share_of(host),
            "servers": [server_number(index) for index in host.servers],
            "argv": self.argv,
            "server_argv": self.server_argv,
            "metrics": self._server_metrics(host),
            "cwd": str(Path.cwd()),
            # Elsewhere the agent runs in that interpreter, and knows better where it is.
            "programs": self.programs if host.is_here else "",
            "environ": {**environ, **host.environ},
        }

    def _server_metrics(self, host: HostPlan) -> dict[int, str]:
        """Return where servers of a host answer Prometheus, by their numbers: behind all ranks."""
        if self.metrics is None:
            return {}
        address, port = parse_address(self.metrics, "--metrics", any_port=True)
        first = port + self.world_size
        return {
            server_number(index): format_address(address, first + index if port else 0)
            for index in host.servers
        }

    def _share_of(self, host: HostPlan) -> tuple[int, int]:
        """Return how many ranks of its machine come before those of a host, and how many it has.

        A hosts file may name a machine twice, and each name has an agent of its own.
        """
        beside = [other for other in self.hosts if other.machine == host.machine]
        before = sum(len(other.ranks) for other in beside[: beside.index(host)])
        return before, sum(len(other.ranks) for other in beside)

    def _server_host(self, host: HostPlan) -> str:
        # Where the ranks meet is a name that every host knows the first one by.
        return self.rendezvous_host if host is self.hosts[0] else host.address


def make_plan(options: Options, environ: Mapping[str, str]) -> Plan:
    """Lay out the job.

    Args:
        options: From the command line.
        environ: The launcher's own environment.

    Raises:
        InvalidArgument: An option, the hosts file or the command makes no sense; nothing was
            started.
    """
    options.check()
    absolute_path(Path())  # The ranks start in it.
    if options.hosts_file is None:
        if options.count is None:
            raise InvalidArgument("say how many ranks to start: -n N (or --hosts FILE)")
        lines = [Line("localhost", options.count)]
    else:
        lines = read_hosts(options.hosts_file)
    hosts = deal_servers(place(lines, options.count), options.servers)
    if options.restart_ranks and sum(len(host.ranks) for host in hosts) == 1:
        raise InvalidArgument(
            "--restart-ranks with one rank: nobody would be left for it to join; save checkpoints, "
            "and start the job again"
        )
    is_all_here = all(host.is_here for host in hosts)
    host, port = _meeting_point(options, hosts, is_all_here)
    settings = _settings(options, environ)
    for other in hosts[1:]:
        if other.servers and is_loopback(other.address) and not is_all_here:
            raise InvalidArgument(_no_way_to(other.address))
    plan = Plan(
        hosts=hosts,
        argv=_argv(options, is_all_here),
        environ=_environ(options, environ, is_all_here),
        listen_host=_listen_host(host, options.rendezvous is not None),
        listen_port=port,
        rendezvous_host=host,
        ports=settings.ports,
        metrics=settings.metrics,
        server_argv=_server_argv(options),
        programs=_programs(options),
    )
    _require_ports_for_metrics(plan)
    return plan


def _require_ports_for_metrics(plan: Plan) -> None:
    if plan.metrics is None:
        return
    _, port = parse_address(plan.metrics, "--metrics", any_port=True)
    last = port + plan.world_size + plan.servers - 1
    if port and last > 65535:
        raise InvalidArgument(
            f"--metrics {plan.metrics}: the last of {plan.world_size} ranks and {plan.servers} "
            f"servers would answer at port {last}, which is none; name a lower one"
        )


def _meeting_point(
    options: Options, hosts: tuple[HostPlan, ...], is_all_here: bool
) -> tuple[str, int]:
    if options.rendezvous is not None:
        host, port = parse_address(options.rendezvous, "--rendezvous", any_port=True)
        if is_all_here:  # Elsewhere names may mean something that they do not mean here.
            _require_name(host)
        return host, port
    if is_all_here:
        return own_loopback(), 0
    first = hosts[0].address
    if is_loopback(first):
        raise InvalidArgument(f"{_no_way_to(first)}, or give --rendezvous HOST:0")
    return first, 0


def _require_name(host: str) -> None:
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"--rendezvous: {host!r} means no address here: {error}") from None


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
    if rendezvous_host == "localhost":
        return LOOPBACK
    is_number = ":" in rendezvous_host or rendezvous_host.replace(".", "").isdigit()
    is_bound = is_said or is_loopback(rendezvous_host)
    return rendezvous_host if is_bound and is_number else ""


def _argv(options: Options, is_all_here: bool) -> tuple[str, ...]:
    if not options.command:
        raise InvalidArgument("say what to run: gradring run -n 2 train.py")
    program = options.command[0]
    if not program:
        raise InvalidArgument("what is to run has an empty name, as of a variable that is not set")
    if program.endswith(".py"):
        if is_all_here and not Path(program).is_file():
            what = "a folder, no file" if Path(program).is_dir() else "no such file"
            raise InvalidArgument(f"{program}: {what} (looked in {Path.cwd()})")
        return (options.python, *options.command)
    path = search_path(os.environ, _programs(options))
    if is_all_here and shutil.which(program, path=path) is None:
        raise InvalidArgument(f"{program}: {_why_no_command(Path(program))}")
    return options.command


def _programs(options: Options) -> str:
    found = shutil.which(options.python)
    return str(Path(found).parent) if found else ""


def _why_no_command(program: Path) -> str:
    if program.is_dir():
        return "a folder; a package is run by `python -m NAME`, a folder by `python FOLDER`"
    if program.is_file() and len(program.parts) > 1:
        return f"not executable; `chmod +x {program}`, or name what runs it"
    return "no such command"


def _server_argv(options: Options) -> tuple[str, ...]:
    arguments = ["serve", "--servers", str(options.servers)]
    if options.server_log is not None:
        arguments += ["--log", str(absolute_path(options.server_log))]
    return module_command("gradring", *arguments, *options.server_words(), python=options.python)


def _settings(options: Options, environ: Mapping[str, str]) -> Settings:
    """Check the values that the ranks would otherwise refuse one by one."""
    return Settings.from_environ(
        environ,
        transport=options.transport,
        timeout=options.timeout,
        interface=options.interface,
        ports=options.ports,
        metrics=options.metrics,
    )


def _environ(options: Options, environ: Mapping[str, str], is_all_here: bool) -> dict[str, str]:
    result: dict[str, str] = {}
    if not is_all_here:
        # Ranks here inherit ours; elsewhere only this goes along. A link's rate is one host's.
        own = {name for name in environ if name.startswith("GRADRING_")}
        names = sorted(own - {"GRADRING_LINK_MBIT"})
        for name in (*names, "PYTHONPATH", "OMP_NUM_THREADS", *options.forward):
            if name in environ:
                result[name] = environ[name]
    said = {
        "GRADRING_TRANSPORT": options.transport,
        "GRADRING_TIMEOUT": None if options.timeout is None else str(options.timeout),
        "GRADRING_INTERFACE": options.interface,
        "GRADRING_PORTS": options.ports,
        "GRADRING_METRICS": options.metrics,
    }
    result.update({name: value for name, value in said.items() if value is not None})
    # A rank's output is a pipe; without this Python would hold it back.
    result["PYTHONUNBUFFERED"] = environ.get("PYTHONUNBUFFERED") or "1"
    if sys.stderr.isatty() and "COLUMNS" not in environ:
        # A terminal that was never given a size, as many a container's, says 0.
        columns = os.get_terminal_size(2).columns or 80
        result["COLUMNS"] = str(max(20, columns - len("[999] ")))
    # Servers that somebody else has started know a secret already.
    is_theirs = bool(environ.get("GRADRING_SERVERS")) and not options.servers
    theirs = environ.get("GRADRING_SECRET", "")
    if is_theirs and not theirs.strip():
        raise InvalidArgument(
            "GRADRING_SERVERS is set, but not GRADRING_SECRET: set it to the secret of these "
            "servers, or leave out GRADRING_SERVERS and have --servers S start some"
        )
    result["GRADRING_SECRET"] = theirs if is_theirs else secrets.token_hex(32)
    return result
