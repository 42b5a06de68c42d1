"""Carries out the command line: says how long it takes, measures, writes and draws."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence

from compare import environments, markdown, namespaces, network, plan, rows, training
from compare.collectives import Settings, measure, peers_of
from compare.environments import PACKAGES, Environment
from compare.options import LIBRARIES, MEASURED, parse
from gradring.errors import InvalidArgument


def main(argv: Sequence[str]) -> int:
    """Run; returns 1 where ours failed or a result was wrong."""
    try:
        return _run(parse(argv))
    except InvalidArgument as error:
        print(f"bench/compare: {error}", file=sys.stderr)
        return 2


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
    _require_namespaces(options, measured, jobs)
    began = time.monotonic()
    options.until = began + 60 * options.minutes
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
               pictures=(wants and not options.no_pictures) or "plot" in options.what)  # fmt: skip
    return 0 if is_right else 1


def _require_namespaces(
    options: argparse.Namespace, measured: list[str], jobs: list[plan.Job]
) -> None:
    """Refuse, before anything is installed, what was asked for and cannot be done here.

    Raises:
        InvalidArgument: It needs network namespaces and there are none.
    """
    by_name = ["network"] if options.is_named and "network" in measured else []
    by_name += [job.name for job in jobs if job.congestion]
    reason = namespaces.complaint() if by_name else ""
    if reason:
        raise InvalidArgument(f"{', '.join(by_name)}: {reason}")


def _estimate(options: argparse.Namespace, measured: list[str], jobs: list[plan.Job]) -> float:
    settings = _settings(options, {})
    total = 0.0
    for job in jobs:
        libraries = 1 + len(peers_of(job.transport, settings.peers))
        total += plan.estimate(job, libraries, settings.rounds, settings.seconds)
    modules = {"network": network, "rows": rows, "word2vec": training, "ctr": training}
    return total + sum(
        modules[what].estimate(what, options) for what in measured if what in modules
    )


def _environments(options: argparse.Namespace, measured: list[str]) -> dict[str, Environment]:
    needed: list[str] = []
    if {"collectives", "network"} & {*measured}:
        needed += plan.words(options.peers, LIBRARIES)
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
        peers=tuple(plan.words(options.peers, LIBRARIES)),
        deadline=options.deadline or 60.0,
        resume=options.resume,
        environments=found,
        until=getattr(options, "until", float("inf")),
    )


def _collectives(
    options: argparse.Namespace, jobs: list[plan.Job], found: dict[str, Environment]
) -> bool:
    settings = _settings(options, found)
    is_right = True
    for job in jobs:
        if not job.congestion:
            is_right &= measure(job, settings)
            continue
        with namespaces.with_congestion(job.congestion) as place:
            placed = Settings(**{**vars(settings), "place": place})
            is_right &= measure(job, placed)
    return is_right


def _write(options: argparse.Namespace, *, table: bool, pictures: bool) -> None:
    if table:
        (options.json / "table.md").write_text(markdown.whole(options.json))
    if pictures:
        try:
            from compare import pictures as drawn
        except ImportError as error:
            print(f"no pictures: {error} (pip install gradring[bench])", file=sys.stderr)
        else:
            drawn.draw_all(options.json)
