"""The options of `gradring run`, and which values of them make sense."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from gradring.core_arguments import MOST_SHARDS, plain_text
from gradring.errors import InvalidArgument

# Keeps a broken network from looking like a quiet job.
DEFAULT_SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3"


# Options of `gradring serve` that each server gets from the launcher: a user's would not count.
_OURS = ("--index", "--servers", "--host", "--port", "--ports", "--listen-fd", "--metrics")

# A selector cannot wait for longer than three weeks.
MOST_SECONDS = 1e6


@dataclass(frozen=True)
class Options:
    """The options of `gradring run`; the command line's help says the same.

    Attributes:
        command: Program and arguments; a program that ends in .py is run with ``python``.
        count: Number of ranks; ``None`` fills the hosts file.
        hosts_file: Lines ``[user@]host [slots=N] [mbit=M]``; ``None`` is this machine alone.
        transport: As GRADRING_TRANSPORT, or ``None`` to leave it alone.
        timeout: As GRADRING_TIMEOUT.
        interface: As GRADRING_INTERFACE.
        ports: As GRADRING_PORTS.
        metrics: ``[host:]port`` where rank 0 answers Prometheus; the other ranks, and then the
            servers, have the ports behind it. As GRADRING_METRICS.
        rendezvous: host:port where rank 0 is reached; port 0 picks one. ``None``: the first host.
        ssh: The command that starts a program on another host.
        python: The interpreter, here and on every host.
        forward: Names of variables that other hosts get too.
        grace: Seconds between asking a process to end and killing it.
        start_timeout: Seconds a host may take to answer.
        prefix: Whether output lines start with the rank.
        quiet: Whether to leave out the status line.
        verbose: Whether to tell what was started.
        keep_going: Whether the other ranks go on when one fails, or a host is lost.
        restart_ranks: Whether a rank that fails, or a host that is lost, is started again, to join
            the others.
        bind: Whether each rank of a host gets cores of its own, where there are enough.
        servers: Number of parameter servers, dealt to the hosts in turn.
        server_log: Folder for the servers' logs, on the host of each.
        restart_servers: Whether a server that ends early is started again from its log.
        server_options: More options for `gradring serve`, as one would type them; not those
            that say which server it is and where it listens.
    """

    command: tuple[str, ...]
    count: int | None = None
    hosts_file: Path | None = None
    transport: str | None = None
    timeout: float | None = None
    interface: str | None = None
    ports: str | None = None
    metrics: str | None = None
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
    restart_ranks: bool = False
    bind: bool = True
    servers: int = 0
    server_log: Path | None = None
    restart_servers: bool = False
    server_options: str = ""

    def check(self) -> None:
        """Look at each option for itself.

        Raises:
            InvalidArgument: One makes no sense; names it.
        """
        if not 0 <= self.grace <= MOST_SECONDS:
            raise InvalidArgument(
                f"--grace {self.grace:g}: not a number of seconds from 0 to {MOST_SECONDS:g}"
            )
        if not 0 < self.start_timeout <= MOST_SECONDS:
            raise InvalidArgument(
                f"--start-timeout {self.start_timeout:g}: not a positive number of seconds, at "
                f"most {MOST_SECONDS:g}"
            )
        if not 0 <= self.servers <= MOST_SHARDS:
            raise InvalidArgument(
                f"--servers {self.servers}: not a number of servers from 0 to {MOST_SHARDS}"
            )
        for name in self.forward:
            if "=" in name or not name:
                raise InvalidArgument(
                    f"--env {name}: say the name of a variable only; its value is what it is here"
                )
        if not self.ssh_words():
            raise InvalidArgument("--ssh: no command in it")
        self._check_servers()

    def ssh_words(self) -> list[str]:
        """Return the words of ``ssh``.

        Raises:
            InvalidArgument: A quote in it has no end.
        """
        return _words(self.ssh, "--ssh")

    def server_words(self) -> list[str]:
        """Return the words of ``server_options``.

        Raises:
            InvalidArgument: A quote in it has no end.
        """
        return _words(self.server_options, "--server-options")

    def _check_servers(self) -> None:
        needing = {
            "--server-log": self.server_log is not None,
            "--restart-servers": self.restart_servers,
            "--server-options": bool(self.server_words()),
        }
        for name, is_given in needing.items():
            if is_given and not self.servers:
                raise InvalidArgument(f"{name} without --servers S: there is no server it is for")
        if self.server_log is not None:
            plain_text(str(self.server_log), "--server-log")
        if self.restart_servers and self.server_log is None:
            raise InvalidArgument(
                "--restart-servers needs --server-log DIR: without a log a server that is started "
                "again has lost its rows"
            )
        ours = [*_OURS, *(["--log"] if self.server_log is not None else [])]
        for word in self.server_words():
            if word.partition("=")[0] in ours:
                raise InvalidArgument(
                    f"--server-options: {word} is this launcher's to say, which gives each server "
                    "its number, its address and, with --server-log, its log; to choose an address "
                    "start `gradring serve` by hand and set GRADRING_SERVERS"
                )


def _words(text: str, option: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidArgument(f"{option} {text!r}: {error}") from None
