"""The command line: reads what is wanted, says how long it takes, measures, writes and draws."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from compare import environments, markdown, namespaces, network, plan, rows, training
from compare.collectives import Settings, measure, peers_of
from compare.environments import PACKAGES, Environment
from gradring.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ("collectives", "rows", "word2vec", "ctr", "network")
OTHERS = ("install", "table", "plot")
_MPIS = ("gloo", "openmpi", "mpich", "intelmpi", "oneccl")


def main(argv: Sequence[str]) -> int:
    """Run; returns 1 where ours failed or a result was wrong."""
    try:
        options = _parse(argv)
        return _run(options)
    except InvalidArgument as error:
        print(f"bench/compare: {error}", file=sys.stderr)
        return 2


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python bench/compare",
        description="Measures Gradring and its peers in turn on this machine, with results "
        "checked, and writes JSON, a table and pictures. bench/README.md says how.",
    )
    add = parser.add_argument
    add("what", nargs="*", metavar="WHAT",
        help=f"of {', '.join((*MEASURED, *OTHERS))} (everything that is measured; network if root)")
    add("--rounds", type=int, help="A B C A B C: how often (5; training 3)")
    add("--ranks", default="2,4", metavar="LIST", help="collectives (2,4)")
    add("--transport", default="shm,tcp", metavar="LIST", help="collectives (shm,tcp)")
    add("--operations", default=",".join(plan.OPERATIONS), metavar="LIST", help="collectives")
    add("--sizes", metavar="LIST", help="collectives: sizes by themselves, as 4,1K,64M")
    add("--congestion", default="system", metavar="LIST",
        help="collectives over TCP: system, or what all libraries' sockets start with, in a network "
        "namespace (root), as reno,bbr (system)")
    add("--rows", action="append", default=[], metavar="OP:TRANSPORT:RANKS:SIZE",
        help="collectives: measure these rows again and keep the others; may be repeated")
    add("--resume", action="store_true", help="leave rows as they are that the JSON has")
    add("--peers", default=",".join(_MPIS), metavar="LIST", help="collectives, network (all)")
    add("--bind", default="auto", choices=("auto", "none", "core"),
        help="every rank on one core; auto: if there are as many cores as ranks (auto)")
    add("--hosts", type=int, default=4, help="network: hosts, 4 to 8 (4)")
    add("--mbit", type=float, default=1000, help="network: what a host may send a second (1000)")
    add("--slow-mbit", type=float, default=250, help="network: of the slow host (250)")
    add("--workers", type=int, default=2, help="training: workers beside one server (2)")
    add("--examples", type=int, help="training: pairs and examples; rows: calls of a round")
    add("--compact", action="store_true",
        help="rows: peers know every row's place beforehand, and need no index")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", dest="extent", action="store_const", const="quick")
    extent.add_argument("--full", dest="extent", action="store_const", const="full",
                        help="fewer or more sizes, rounds and examples")  # fmt: skip
    add("--deadline", type=float, help="seconds after which a peer is ended (60; training 300)")
    add("--environments", type=Path, default=ROOT / "build" / "peers", metavar="DIR",
        help="where peers are or get installed (build/peers)")
    add("--json", type=Path, default=ROOT / "bench" / "results", metavar="DIR",
        help="where JSON, table and pictures go (bench/results)")
    add("--estimate", action="store_true", help="only say how long it would take")
    options = parser.parse_args(argv)
    options.extent = options.extent or "default"
    options.rounds = options.rounds or None
    if not options.what:
        network_too = () if namespaces.complaint() else ("network",)
        options.what = ["collectives"] if options.rows else [*MEASURED[:-1], *network_too]
    plan.words(",".join(options.what), (*MEASURED, *OTHERS))
    return options


def _run(options: argparse.Namespace) -> int:
    with contextlib.suppress(PermissionError):
        os.nice(-20)  # On a machine that does other things as well, figures are of the machine.
    measured = [what for what in options.what if what in MEASURED]
    jobs = plan.jobs_of(options) if "collectives" in measured else []
    total = _estimate(options, measured, jobs)
    if measured:
        print(f"bench/compare: about {total / 60:.0f} minutes after installing", file=sys.stderr)
    if options.estimate:
        return 0
    began = time.monotonic()
    found = _environments(options, measured)
    is_right = True
    for what in measured:
        if what == "collectives":
            is_right &= _collectives(options, jobs, found)
        else:
            work = {"network": network.run, "rows": rows.run}.get(what, training.run)
            is_right &= work(what, options, found)
        _write(options, table=True, pictures=False)
    if measured:
        print(f"bench/compare: {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
    if options.what != ["install"]:
        wants = bool(measured)
        _write(options, table=wants or "table" in options.what,
               pictures=wants or "plot" in options.what)  # fmt: skip
    return 0 if is_right else 1


def _estimate(options: argparse.Namespace, measured: list[str], jobs: list[plan.Job]) -> float:
    settings = _settings(options, {})
    total = 0.0
    for job in jobs:
        libraries = 1 + len(peers_of(job.transport, settings.peers))
        total += plan.estimate(job, libraries, settings.rounds, settings.seconds)
    modules = {"network": network, "rows": rows, "word2vec": training, "ctr": training}
    return total + sum(modules[what].estimate(what, options) for what in measured if what in modules)


def _environments(options: argparse.Namespace, measured: list[str]) -> dict[str, Environment]:
    needed: list[str] = []
    if {"collectives", "network"} & {*measured}:
        needed += plan.words(options.peers, _MPIS)
    needed += ["gloo", "ps-lite"] if "rows" in measured else []
    needed += [name for what in measured for name in training.NEEDED.get(what, ())]
    if "install" in options.what:
        needed += PACKAGES
    folder = options.environments.resolve()

    def say(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    return environments.prepare(dict.fromkeys(needed), folder, say)


def _settings(options: argparse.Namespace, found: dict[str, Environment]) -> Settings:
    return Settings(
        folder=options.json,
        rounds=options.rounds or {"full": 7}.get(options.extent, 5),
        seconds=plan.SECONDS[options.extent],
        bind=options.bind,
        peers=tuple(plan.words(options.peers, _MPIS)),
        deadline=options.deadline or 60.0,
        resume=options.resume,
        environments=found,
    )


def _collectives(
    options: argparse.Namespace, jobs: list[plan.Job], found: dict[str, Environment]
) -> bool:
    settings = _settings(options, found)
    cores = len(os.sched_getaffinity(0))
    is_right = True
    for job in jobs:
        if not job.congestion:
            is_right &= measure(job, settings, cores)
            continue
        reason = namespaces.complaint()
        if reason:
            print(f"{job.name}: left out, {reason}", file=sys.stderr)
            continue
        with namespaces.with_congestion(job.congestion) as place:
            placed = Settings(**{**vars(settings), "place": place})
            is_right &= measure(job, placed, cores)
    return is_right


def _write(options: argparse.Namespace, *, table: bool, pictures: bool) -> None:
    if table:
        (options.json / "table.md").write_text(markdown.whole(options.json))
    if pictures:
        try:
            from compare import pictures as drawn
        except ImportError as error:
            print(f"no pictures: {error} (pip install gradring[bench])", file=sys.stderr)
            return
        drawn.draw_all(options.json)
