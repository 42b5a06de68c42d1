"""Which hosts take part in a job, and which ranks and servers each of them runs."""

from __future__ import annotations

import os
import pwd
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from gradring.core_arguments import MOST_RANKS
from gradring.errors import InvalidArgument
from gradring.settings.address import is_loopback
from gradring.settings.config import MOST_LINK_MBIT

_MOST = {"slots": 10**9, "mbit": MOST_LINK_MBIT}  # What a line may say, and how much.


@dataclass(frozen=True)
class Line:
    """A line of a hosts file.

    Attributes:
        name: As ssh is given it: ``host`` or ``user@host``.
        slots: Ranks that fit.
        mbit: What the host's link may send, in Mbit/s; 0: not said.
    """

    name: str
    slots: int = 1
    mbit: int = 0


@dataclass(frozen=True)
class HostPlan:
    """One host's part of the job: ranks, and parameter servers by index.

    ``name`` and ``mbit`` are those of its `Line`.
    """

    name: str
    ranks: tuple[int, ...]
    is_here: bool
    servers: tuple[int, ...] = ()
    mbit: int = 0

    @property
    def address(self) -> str:
        """Where its processes are reached: the name without a user."""
        return _split(self.name)[1]

    @property
    def machine(self) -> str:
        """The same for names of one machine, as far as names tell; empty: this one."""
        return "" if _is_this_machine(self.address) else self.address

    @property
    def environ(self) -> dict[str, str]:
        """Variables of this host alone."""
        return {"GRADRING_LINK_MBIT": str(self.mbit)} if self.mbit else {}


def read_hosts(path: Path) -> list[Line]:
    """Read a hosts file: a host a line, optionally ``slots=N``, ``mbit=M``; # starts a comment.

    Raises:
        InvalidArgument: The file cannot be read, a line is not understood, or no host is left.
    """
    try:
        # Editors on Windows put a byte order mark in front.
        texts = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"--hosts {path}: no such file; a hosts file has a line for each host, as "
            "`node1 slots=2`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--hosts {path}: {error}") from error
    lines: list[Line] = []
    for number, text in enumerate(texts, start=1):
        words = text.partition("#")[0].split()
        if not words:
            continue
        line = _line(words)
        if line is None:
            raise InvalidArgument(
                f"{path}:{number}: {text.strip()!r} is not `[user@]host [slots=N] [mbit=M]`"
            )
        lines.append(line)
    if not lines:
        raise InvalidArgument(f"--hosts {path}: no host in it")
    return lines


def _line(words: list[str]) -> Line | None:
    name, *rest = words
    numbers: dict[str, int] = {}
    for word in rest:
        key, _, value = word.partition("=")
        is_number = value.isascii() and value.isdigit() and len(value) < 10
        if key in numbers or not is_number or not 0 < int(value) <= _MOST.get(key, 0):
            return None
        numbers[key] = int(value)
    # A name that starts with a dash would be an option to ssh.
    is_name = name.isprintable() and not name.startswith(("-", "@")) and not name.endswith("@")
    return Line(_without_brackets(name), **numbers) if is_name else None


def place(lines: list[Line], count: int | None) -> tuple[HostPlan, ...]:
    """Give ranks to hosts, in order and in blocks, so that neighbours in rank share a host.

    Raises:
        InvalidArgument: There are fewer slots than ranks, no rank at all, or too many; or only some
            hosts have a rate, or one has two.
    """
    merged = _merged(lines)
    total = sum(line.slots for line in merged)
    count = total if count is None else count
    if count > MOST_RANKS:
        raise InvalidArgument(f"-n {count}: a job has at most {MOST_RANKS} ranks")
    if not 1 <= count <= total:
        raise InvalidArgument(
            f"-n {count}: the hosts file has {total} slots (say more with `host slots=N`)"
            if count > total
            else f"-n {count}: a job has at least one rank"
        )
    hosts: list[HostPlan] = []
    first = 0
    for line in merged:
        ranks = tuple(range(first, min(first + line.slots, count)))
        if ranks:
            hosts.append(HostPlan(line.name, ranks, is_here(line.name), mbit=line.mbit))
        first += len(ranks)
    unsaid = [host.name for host in hosts if not host.mbit]
    if 0 < len(unsaid) < len(hosts):
        # The core would leave all links alike, without a word.
        raise InvalidArgument(
            f"the hosts file has no mbit= for {', '.join(unsaid)}: say it for every host, or for "
            "none"
        )
    return tuple(hosts)


def _merged(lines: list[Line]) -> list[Line]:
    merged: dict[str, Line] = {}
    for line in lines:
        before = merged.get(line.name, replace(line, slots=0))
        mbit = before.mbit or line.mbit
        if line.mbit not in (0, mbit):
            raise InvalidArgument(
                f"the hosts file has mbit={mbit} and mbit={line.mbit} for {line.name}"
            )
        merged[line.name] = Line(line.name, before.slots + line.slots, mbit)
    return list(merged.values())


def deal_servers(hosts: tuple[HostPlan, ...], count: int) -> tuple[HostPlan, ...]:
    """Give servers to hosts in turn: all hosts serve alike, whoever runs the ranks."""
    return tuple(
        replace(host, servers=tuple(range(place, count, len(hosts))))
        for place, host in enumerate(hosts)
    )


def is_here(name: str) -> bool:
    """Tell whether the name means this machine and this user, so that no ssh is needed."""
    user, host = _split(name)
    is_ours = not user or user == _own_user()
    return is_ours and _is_this_machine(host)


def _is_this_machine(host: str) -> bool:
    return is_loopback(host) or host == socket.gethostname()


def _split(name: str) -> tuple[str, str]:
    user, _, host = name.rpartition("@")
    return user, host


def _without_brackets(name: str) -> str:
    # As an address is written in front of a port; ssh does not know it.
    user, host = _split(name)
    if not (host.startswith("[") and host.endswith("]") and ":" in host):
        return name
    return f"{user}@{host[1:-1]}" if user else host[1:-1]


def _own_user() -> str | None:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # As in a container that is started with a number.
        return None
