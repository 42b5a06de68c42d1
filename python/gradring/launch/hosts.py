"""Which hosts take part in a job, and which ranks and servers each of them runs."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path

from gradring.core_arguments import MOST_RANKS
from gradring.errors import InvalidArgument
from gradring.settings.address import is_loopback


@dataclass(frozen=True)
class HostPlan:
    """One host's part of the job: ranks, and parameter servers by index."""

    name: str
    ranks: tuple[int, ...]
    is_here: bool
    servers: tuple[int, ...] = ()


def read_hosts(path: Path) -> list[tuple[str, int]]:
    """Read a hosts file: a host a line, optionally ``slots=N``; # starts a comment.

    Raises:
        InvalidArgument: The file cannot be read, a line is not understood, or no host is left.
    """
    try:
        # Editors on Windows put a byte order mark in front.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--hosts {path}: {error}") from error
    slots: list[tuple[str, int]] = []
    for number, line in enumerate(lines, start=1):
        name, *rest = line.partition("#")[0].split() or [""]
        if not name:
            continue
        key, _, value = rest[0].partition("=") if rest else ("slots", "", "1")
        is_count = value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0
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
        InvalidArgument: There are fewer slots than ranks, no rank at all, or too many.
    """
    merged: dict[str, int] = {}
    for name, number in slots:
        merged[name] = merged.get(name, 0) + number
    total = sum(merged.values())
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
    for name, number in merged.items():
        ranks = tuple(range(first, min(first + number, count)))
        if ranks:
            hosts.append(HostPlan(name, ranks, is_here(name)))
        first += len(ranks)
    return tuple(hosts)


def deal_servers(hosts: tuple[HostPlan, ...], count: int) -> tuple[HostPlan, ...]:
    """Give servers to hosts in turn: all hosts serve alike, whoever runs the ranks."""
    return tuple(
        replace(host, servers=tuple(range(place, count, len(hosts))))
        for place, host in enumerate(hosts)
    )


def is_here(host: str) -> bool:
    """Tell whether the name means this machine, so that no ssh is needed."""
    return is_loopback(host) or host == socket.gethostname()
