"""Runs `gradring bench` from its command line to its exit code."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import gradring as gr
from gradring.bench import libraries, plot, report, table
from gradring.bench.cases import make_cases, message_bytes
from gradring.bench.groups import (
    Group,
    GroupFailed,
    JoinedGroup,
    LaunchedGroup,
    folder_for_sockets,
)
from gradring.bench.options import Options, parse
from gradring.bench.report import Document
from gradring.bench.starts import Missing, role_in_group
from gradring.bench.sweep import Sweep
from gradring.commands.output_files import require_writable, write_json, writing

_CLEAR_LINE = "\r\x1b[K"


def run(argv: Sequence[str]) -> int:
    """Measure and report.

    Returns:
        0; 1 where a result was wrong, our own ranks failed, or a device was asked for that is not
        here.

    Raises:
        InvalidArgument: The command line makes no sense.
    """
    role = role_in_group(os.environ)
    options = parse(argv, is_launched=role is not None)
    if role is None or role.rank == 0:  # Who writes them.
        require_writable(options.json, "--json", is_replaced=True)
        require_writable(options.plot, "--plot")
    if options.plot is not None:
        plot.require(options.plot)
    try:
        if role is None:
            return _measure_here(options, argv)
        return _take_part(options, argv)
    except (GroupFailed, gr.DeviceError) as failure:
        print(f"gradring bench: {failure}", file=sys.stderr)
        return 1


def _measure_here(options: Options, argv: Sequence[str]) -> int:
    from gradring.bench.peers import ours

    if options.device == "cuda":
        ours.cuda_devices()  # Each rank would say it for itself.
    ranks = options.ranks or 2
    with folder_for_sockets("gradring-bench-") as folder, _closing() as groups:
        sockets = Path(folder)
        _say("", f"starting {ranks} ranks")
        own = libraries.start_ours(
            ranks,
            options.transport,
            options.algorithm,
            sockets / "gradring.sock",
            options.device,
        )
        groups.append(LaunchedGroup(own, ranks, sockets / "gradring.sock"))
        missing: dict[str, str] = {}
        for name in options.compare:
            _say("", f"starting {ranks} ranks of {name}")
            path = sockets / f"{name}.sock"
            try:
                start = libraries.start_peer(name, ranks, options.peer_python, path, options.device)
                groups.append(LaunchedGroup(start, ranks, path))
            except (Missing, GroupFailed) as failure:
                missing[name] = str(failure)
        document = _measure(groups, options, argv, missing)
    return _finish(document, options)


def _take_part(options: Options, argv: Sequence[str]) -> int:
    from gradring.bench.peers import ours

    with gr.init(transport=options.transport) as comm:
        group = JoinedGroup(comm, ours.program(comm, options.algorithm, options.device))
        if comm.rank != 0:
            group.follow()
            return 0
        try:
            document = _measure([group], options, argv, {})
        finally:
            group.close()
    return _finish(document, options)


def _measure(
    groups: Sequence[Group], options: Options, argv: Sequence[str], missing: dict[str, str]
) -> Document:
    ours, *peers = groups
    if options.is_bound:
        for group in groups:
            group.ask(do="bind")
    about = ours.ask(do="about")
    transport = _transport(options, is_one_host=all(answer["is_one_host"] for answer in about))
    document = report.start_document(options, argv, ours.size, transport)
    document["missing"] = missing
    document["device"] = about[0]["device"]
    sweep = Sweep(ours, peers, options, is_tcp=transport.startswith("tcp"))
    for op in options.operations:
        rows: list[Document] = []
        document["operations"].append({"op": op, "rows": rows})
        for case in make_cases(op, options.sizes, options.dtype, options.reduce_op, ours.size):
            what = f"{op} {table.size_text(message_bytes(case))}"
            say = functools.partial(_say, f"{what}: ")
            rows.append(report.row_of(sweep.measure(case, say)))
            if options.device == "cuda" and op == "all_reduce":
                count = max(1, message_bytes(case) // 4)
                rows[-1]["staging"] = report.staging(count, ours.ask(do="staging", count=count))
    # Last, because some libraries open their connections when they first need them.
    for group in groups:
        if group.name not in sweep.dropped:
            document["libraries"][group.name] = report.describe_library(group.ask(do="about"))
    missing.update(sweep.dropped)
    _say("", "")
    return document


def _finish(document: Document, options: Options) -> int:
    if options.json == "-":
        print(json.dumps(document, indent=1))
    else:
        table.show(document)
    if options.json not in (None, "-"):
        write_json(str(options.json), document)
    if options.plot is not None:
        with writing(options.plot) as file:
            plot.draw(document, file)
    wrong = report.count_wrong(document)
    for name, count in wrong.items():
        print(f"gradring bench: {name}: {count} elements of results are WRONG", file=sys.stderr)
    return 1 if wrong else 0


def _transport(options: Options, *, is_one_host: bool) -> str:
    chosen = options.transport or os.environ.get("GRADRING_TRANSPORT") or "auto"
    if chosen != "auto":
        return chosen
    return "shm" if is_one_host else "tcp between hosts, shm inside"


@contextlib.contextmanager
def _closing() -> Iterator[list[Group]]:
    groups: list[Group] = []
    try:
        yield groups
    finally:
        for group in groups:
            group.close()


def _say(what: str, text: str) -> None:
    """Show what is being done, where somebody may be looking."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{_CLEAR_LINE}{what}{text}")
        sys.stderr.flush()
