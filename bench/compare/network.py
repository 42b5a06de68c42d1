"""all_reduce between hosts behind a slow switch: all alike, one slower than the others, or all far.

Hosts are network namespaces (`namespaces`), ranks one a host; launchers of MPI reach a host through
a script of ours in place of ssh. What no algorithm can beat: every rank must send and receive
2 (n - 1) / n of the message where all are alike, and a slow one its own data once. Gradring is told
the rates (GRADRING_LINK_MBIT), as its users would; peers have nothing to tell that to.
"""

from __future__ import annotations

import argparse
import dataclasses
import secrets
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compare import namespaces, records
from compare.collectives import Settings, World
from compare.environments import Environment
from compare.namespaces import NETWORK, Hosts
from compare.plan import Job, words
from gradring.bench import options as bench_options
from gradring.bench import report
from gradring.bench.starts import Start
from gradring.errors import InvalidArgument

_PORT = 29555
_SIZES = {"quick": [1 << 20, 16 << 20], "default": [1 << 20, 4 << 20, 16 << 20, 64 << 20]}
_ROW_SECONDS = 2.0  # Of each library on a size.
_FAR_ROW_SECONDS = 10.0  # After the others' turns a connection needs some round trips to be fast.
_AGENT = """#!/bin/sh
# Stands in for ssh: options, a host's address, then what to run there.
while [ "${1#-}" != "$1" ]; do
  case "$1" in -l | -o | -p) shift ;; esac
  shift
done
number=$((${1##*.} - 1))
shift
exec ip netns exec PREFIX-$number unshare --uts sh -c "hostname PREFIX-$number; $*"
"""


def estimate(_what: str, options: argparse.Namespace) -> float:
    """Return about how many seconds it takes.

    Raises:
        InvalidArgument: More hosts, or fewer, than there are addresses for, a delay or a rate that
            no link has.
    """
    if not 0 <= options.delay_ms <= 1000:
        raise InvalidArgument(f"network: --delay-ms {options.delay_ms:g} is not from 0 to 1000")
    if not 2 <= options.hosts <= 8:
        raise InvalidArgument(f"network: --hosts {options.hosts} is not from 2 to 8")
    for name, rate in (("--mbit", options.mbit), ("--slow-mbit", options.slow_mbit)):
        if not rate > 0:
            raise InvalidArgument(f"network: {name} {rate:g} is no rate above 0")
    sizes = _SIZES["quick" if options.extent == "quick" else "default"]
    libraries = 1 + len(options.peers.split(","))
    rounds = options.rounds or 5
    total = 0.0
    networks = (options.mbit,) if options.delay_ms > 0 else (options.mbit, options.slow_mbit)
    for mbit in networks:
        for size in sizes:
            call = 2 * size * 8 / (mbit * 1e6) + 2 * options.hosts * options.delay_ms / 1e3
            total += libraries * (rounds * max(_seconds(options) / rounds, 2 * call) + 3 * call)
    return total + len(networks) * libraries * 6


def run(_what: str, options: argparse.Namespace, found: dict[str, Environment]) -> bool:
    """Measure both networks; returns whether ours ran through with right results."""
    fast = [options.mbit] * options.hosts
    alike = f"{options.hosts} hosts at {options.mbit:g} Mbit/s"
    slow = [*fast[:-1], options.slow_mbit]
    cases: tuple[tuple[str, str, list[float]], ...] = (
        (f"network-{options.hosts}", f"Network: {alike}", fast),
        (f"network-{options.hosts}-slow", f"Network: {alike}, the last at {options.slow_mbit:g}",
         slow),
    )  # fmt: skip
    if options.delay_ms > 0:
        cases = (
            (f"network-{options.hosts}-far", f"Network: {alike}, {options.delay_ms:g} ms apart",
             fast),
        )  # fmt: skip
    is_right = True
    for name, title, mbit in cases:
        is_right &= _measure((name, title), mbit, options, found)
    return is_right


def _seconds(options: argparse.Namespace) -> float:
    return _FAR_ROW_SECONDS if options.delay_ms > 0 else _ROW_SECONDS


def _measure(
    names: tuple[str, str], mbit: Sequence[float], options: argparse.Namespace,
    found: dict[str, Environment],
) -> bool:  # fmt: skip
    name, title = names
    path = options.json / f"{name}.json"
    rounds = options.rounds or 5
    sizes = _SIZES["quick" if options.extent == "quick" else "default"]
    argv = ["all_reduce", "-n", str(len(mbit)), "--transport", "tcp", "--rounds", str(rounds),
            "--seconds", str(_seconds(options)), "--warmup", "1"]  # fmt: skip
    measured = bench_options.parse(argv, is_launched=False)
    document = report.start_document(measured, argv, len(mbit), "tcp")
    document |= {
        "title": title, "mbit": list(mbit), "bound": _bound_text(mbit, options.delay_ms),
        "delay_ms": options.delay_ms,
        "command": records.asked_command(),
    }  # fmt: skip
    job = Job("tcp", len(mbit), "", {"all_reduce": sizes})
    with (
        namespaces.hosts(mbit, delay_seconds=options.delay_ms / 1e3) as made,
        tempfile.TemporaryDirectory() as folder,
    ):
        agent = Path(folder) / "agent.sh"
        agent.write_text(_AGENT.replace("PREFIX", made.prefix))
        agent.chmod(0o755)
        settings = Settings(
            folder=options.json, rounds=rounds, seconds=_seconds(options), bind="none",
            peers=tuple(words(options.peers, ("gloo", "openmpi", "mpich", "intelmpi", "oneccl"))),
            deadline=options.deadline or 60.0, resume=False, environments=found,
            until=options.until,
            place=lambda start: placed(start, made, agent),
        )  # fmt: skip
        world = World(job, settings, Path(folder))
        try:
            is_right = world.start_all(document["missing"], False) and world.measure(
                measured, job.sizes, document, path
            )
        finally:
            world.close()
    for row in records.rows_of(document, "all_reduce"):
        row["least_ms"] = round(options.delay_ms + 1e3 * least_seconds(row["bytes"], mbit), 3)
    records.save(path, document)
    return is_right


def least_seconds(size: int, mbit: Sequence[float]) -> float:
    """Return what no all_reduce can beat on these links.

    Every host sends at least its own data once. All together send 2 (n - 1) messages' worth.
    """
    rates = [rate * 1e6 / 8 for rate in mbit]
    alone = size / min(rates)
    together = 2 * (len(rates) - 1) * size / sum(rates)
    return max(alone, together)


def _bound_text(mbit: Sequence[float], delay_ms: float) -> str:
    slow = "the slow host's own data once" if min(mbit) < max(mbit) else "2 (n - 1) / n of it"
    text = f"what each link must carry at least ({slow}), at its whole rate"
    return text + (f", and {delay_ms:g} ms for the way once" if delay_ms > 0 else "")


def placed(start: Start, made: Hosts, agent: Path) -> Start:
    """Change what starts a library's ranks so that each is on a host of its own."""
    addresses = made.addresses()
    if start.name in {"gradring", "gloo"}:
        return _one_by_one(start, made)
    launcher, *rest = start.argv
    hosts = ",".join(addresses)
    if start.name.startswith("openmpi"):
        slots = ",".join(f"{address}:1" for address in addresses)
        inside = f"{NETWORK}.0/24"
        more = ["--host", slots, "--map-by", "node", "--prtemca", "plm_ssh_agent", str(agent),
                "--mca", "btl_tcp_if_include", inside, "--prtemca", "prte_if_include",
                inside]  # fmt: skip
    else:
        more = ["-hosts", hosts, "-launcher", "ssh", "-launcher-exec", str(agent)]
        if start.name.startswith(("intelmpi", "oneccl")):
            more = ["-hosts", hosts, "-bootstrap", "ssh", "-bootstrap-exec", str(agent)]
        more += ["-ppn", "1", "-iface", "eth0"]
    argv = (*made.inside(0), launcher, *more, *rest)
    environ = {**start.environ, "FI_TCP_IFACE": "eth0"}
    return dataclasses.replace(start, argv=argv, environ=environ)


def _one_by_one(start: Start, made: Hosts) -> Start:
    """Start ranks that `gradring run` would have started, a process on each host."""
    # What follows the launcher's own options is the program that each rank runs.
    words_ = list(start.argv)
    is_ours = start.name == "gradring"
    first = words_.index(sys.executable, 1) if is_ours else words_.index("sh")
    program = words_[first:]
    number = len(made.mbit)
    lines = []
    for rank in range(number):
        variables = {
            "GRADRING_RANK": rank, "GRADRING_WORLD_SIZE": number,
            "GRADRING_RENDEZVOUS": f"{NETWORK}.1:{_PORT}", "GRADRING_TRANSPORT": "tcp",
            "GRADRING_LINK_MBIT": round(made.mbit[rank]),
        }  # fmt: skip
        pairs = [f"{key}={value}" for key, value in variables.items()]
        lines.append(shlex.join([*made.inside(rank), "env", *pairs, *program]) + " &")
    script = "\n".join([*lines, "wait"])
    environ = {
        **start.environ, "GRADRING_SECRET": secrets.token_hex(32), "GLOO_SOCKET_IFNAME": "eth0"
    }  # fmt: skip
    return dataclasses.replace(start, argv=("sh", "-c", script), environ=environ)
