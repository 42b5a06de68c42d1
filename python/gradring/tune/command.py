"""Runs `gradring tune` from its command line to its exit code."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import gradring as gr
from gradring.bench import libraries
from gradring.bench.groups import Group, GroupFailed, JoinedGroup, LaunchedGroup, folder_for_sockets
from gradring.bench.starts import role_in_group
from gradring.commands.output_files import require_writable, writing
from gradring.errors import InvalidArgument
from gradring.settings import cost_profile
from gradring.settings.cost_profile import Measured
from gradring.tune import choices, fit, report, schedule
from gradring.tune.fit import Times
from gradring.tune.options import MIN_RANKS, Options, parse
from gradring.tune.report import Found


def run(argv: Sequence[str]) -> int:
    """Measure, report and write the profile.

    Returns:
        0; 1 where the ranks failed.

    Raises:
        InvalidArgument: The command line makes no sense.
        CannotWrite: The profile could not be written after all.
    """
    role = role_in_group(os.environ)
    options = parse(argv, is_launched=role is not None)
    if role is None or role.rank == 0:  # Who writes it.
        require_writable(options.out, "--out", is_replaced=True)
    try:
        if role is None:
            return _finish(_tune_here(options), options)
        return _take_part(options)
    except GroupFailed as failure:
        print(f"gradring tune: {failure}", file=sys.stderr)
        return 1


def _tune_here(options: Options) -> list[Found]:
    found = []
    assert options.ranks is not None
    with folder_for_sockets("gradring-tune-") as folder:
        for transport in options.transports:
            path = Path(folder) / f"{transport}.sock"
            start = libraries.start_ranks(
                "gradring.tune.worker", options.ranks, transport, (str(path),)
            )
            group = LaunchedGroup(start, options.ranks, path)
            try:
                found.append(_measure(group, transport, options))
            finally:
                group.close()
    return found


def _take_part(options: Options) -> int:
    from gradring.tune.worker import NO_PROFILE, program

    transport = options.transports[0] if options.transports else None
    with gr.init(transport=transport, profile=NO_PROFILE) as comm:
        if comm.world_size < MIN_RANKS:
            raise InvalidArgument(f"a job of {comm.world_size} rank has no links to measure")
        group = JoinedGroup(comm, program(comm))
        if comm.rank != 0:
            group.follow()
            return 0
        try:
            found = [_measure(group, transport, options)]
        finally:
            group.close()
    return _finish(found, options)


def _measure(group: Group, asked: str | None, options: Options) -> Found:
    """Measure one transport; ``asked`` says which one the ranks were told to use, if any."""
    pace = schedule.QUICK if options.is_quick else schedule.FULL
    places = group.ask(do="place")
    transport = asked or os.environ.get("GRADRING_TRANSPORT") or "auto"
    if transport == "auto":
        transport = "shm" if places[0]["is_one_host"] else "tcp"
    hosts = sum(place["is_first"] for place in places)
    streams = places[0]["streams"] if hosts > 1 else 1
    cases = schedule.make_cases(pace, group.size, has_flat=transport == "shm")
    command = {"do": "measure", "cases": [dataclasses.astuple(case) for case in cases]}
    # The first calls open connections and touch memory; the next ones say how long one takes.
    once = [group.ask(**command, calls=[1] * len(cases)) for _ in range(1 + schedule.WARM_ROUNDS)]
    calls = schedule.calls_of(fit.typical_of(once[1:]), pace)
    rounds = []
    for number in range(pace.rounds):
        _say(f"{transport}: round {number + 1} of {pace.rounds}")
        rounds.append(group.ask(**command, calls=calls))
    additions = group.ask(do="additions", repeats=pace.additions)
    _say("")
    rate = statistics.median(each["nbytes"] / each["seconds"] for each in additions) / 1e9
    times = Times(dict(zip(cases, fit.typical_of(rounds), strict=True)), group.size)
    costs = fit.fit(times, rate)
    quality = fit.quality_of(times, costs)
    return Found(
        transport,
        Measured(costs, group.size, hosts, quality.error, streams),
        quality,
        fit.quality_of(times, choices.default_costs()[transport]),
        *fit.flat_wins(times),
    )


def _finish(found: list[Found], options: Options) -> int:
    if options.as_json:
        print(json.dumps(report.document_of(found), indent=1))
    else:
        report.show(found)
    if options.out is not None:
        with writing(options.out) as file:
            cost_profile.save(report.profile_of(found), file)
        if not options.as_json:
            print(f"# written: {options.out}; use it with GRADRING_PROFILE={options.out}")
    return 0


def _say(text: str) -> None:
    """Show what is being done, where somebody may be looking."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
