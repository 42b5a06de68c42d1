"""Runs `gradring bench kernels` from its command line to its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gradring.bench.kernels import codecs, cupy_peers, report, rows, streaming, torch_peers
from gradring.bench.kernels.measure import Bench, Case
from gradring.bench.kernels.options import Options, parse
from gradring.commands.output_files import require_writable, write_json
from gradring.errors import DeviceError

_GROUPS: tuple[Callable[[Bench, Options], list[Case]], ...] = (
    streaming.cases,
    codecs.cases,
    rows.cases,
)


def run(argv: Sequence[str]) -> int:
    """Measure and report.

    Returns:
        0; 1 where there is no GPU, or a kernel failed.

    Raises:
        InvalidArgument: The command line makes no sense.
    """
    options = parse(argv)
    require_writable(options.json, "--json", is_replaced=True)
    try:
        document = _measure(options, argv)
    except DeviceError as error:
        print(f"gradring bench kernels: {error}", file=sys.stderr)
        return 1
    if options.json == "-":
        print(json.dumps(document, indent=1))
    else:
        report.show(document)
    if options.json not in (None, "-"):
        write_json(str(options.json), document)
    return 1 if any("failed" in row for row in document["kernels"]) else 0


def _measure(options: Options, argv: Sequence[str]) -> dict[str, Any]:
    bench = Bench(options.device, options.rounds)
    document = report.start_document(options, argv)
    copy_rate = bench.copy_bandwidth()
    document["copy_gbs"] = round(copy_rate / 1e9, 1)
    rates = bench.staging_rates()
    document["staging_gbs"] = {name: round(rate / 1e9, 2) for name, rate in rates.items()}
    for make in _GROUPS:
        try:
            cases = make(bench, options)
        except DeviceError as error:  # A plugin without these kernels.
            document["kernels"].append({"name": make.__module__, "failed": str(error)})
            continue
        if options.has_peers:
            for peers in (torch_peers, cupy_peers):
                missing = peers.add_to(cases, bench, options)
                if missing is not None and missing not in document["missing"]:
                    document["missing"].append(missing)
        for case in cases:
            if not options.only or any(name in case.name for name in options.only):
                document["kernels"].append(_row(bench, case, copy_rate))
    return document


def _row(bench: Bench, case: Case, copy_rate: float) -> dict[str, Any]:
    try:
        seconds = bench.seconds(case.launch, case.sets)
    except DeviceError as error:
        return {"name": case.name, "failed": str(error)}
    row = report.kernel_row(case.name, case.floor_bytes, seconds, copy_rate)
    for name, peer in case.peers.items():
        if isinstance(peer, str):
            row["peers"][name] = peer
            continue
        try:
            row["peers"][name] = round(bench.seconds(peer, 1) * 1e6, 3)
        except Exception as error:  # noqa: BLE001 - another library's failure is a word in the table
            row["peers"][name] = f"failed: {type(error).__name__}"
    return row
