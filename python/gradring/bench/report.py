"""The measurement as one document: `--json` writes it, the table and the plot are made of it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradring.bench.cases import message_bytes
from gradring.bench.options import Options
from gradring.bench.peers.timing import Reply, python_version
from gradring.bench.statistics import Figures, Ratio
from gradring.bench.sweep import Row
from gradring.machine import host_facts

SCHEMA = 1

Document = dict[str, Any]


def machine_facts() -> Document:
    """Say what the figures were measured on."""
    return {
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text(), platform.machine()),
        "cpus": host_facts.cpus(),
        "load": round(os.getloadavg()[0], 2),
        "niceness": os.nice(0),
        "kernel": platform.release(),
        "python": python_version(),
        "numpy": np.__version__,
        "tcp_congestion_control": host_facts.setting("net.ipv4.tcp_congestion_control"),
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
    }


def start_document(
    options: Options, argv: Sequence[str], world_size: int, transport: str
) -> Document:
    """Return the document before anything is measured."""
    return {
        "schema": SCHEMA,
        "command": shlex.join(["gradring", "bench", *argv]),
        "machine": machine_facts(),
        "world_size": world_size,
        "dtype": options.dtype,
        "reduce_op": options.reduce_op,
        "transport": transport,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "checked": options.is_checked,
        "bound_to_cores": options.is_bound,
        "libraries": {},
        "missing": {},
        "operations": [],
    }


def describe_library(answers: Sequence[Reply]) -> Document:
    """Return what a library's ranks say about it, from rank 0 but for the sockets of all."""
    congestion: dict[str, int] = {}
    for answer in answers:
        for control, sockets in answer["congestion"].items():
            congestion[control] = congestion.get(control, 0) + sockets
    cores = max(answer["cores"] for answer in answers)
    return {"version": answers[0]["version"], "congestion": congestion, "cores_a_rank": cores}


def row_of(row: Row) -> Document:
    """Return one row; times in microseconds, bandwidths in GB/s."""
    return {
        "bytes": message_bytes(row.case),
        "count": row.case.count,
        "algorithm": row.algorithm,
        "bound_us": _us(row.bound),
        "link_gbs": None if row.link is None else round(row.link.together / 1e9, 9),
        "link_alone_gbs": None if row.link is None else round(row.link.alone / 1e9, 9),
        "link_cpu_s_per_gb": None if row.link_cpu is None else round(row.link_cpu, 4),
        "results": {name: _result(figures) for name, figures in row.figures.items()},
        "ratios": {name: _ratio(ratio) for name, ratio in row.ratios.items()},
        "unsupported": row.unsupported,
    }


def cpu_model(cpuinfo: str, machine: str) -> str:
    """Name the processor: as Linux does, or by the numbers that it gives on ARM."""
    # Of big and little cores the last kind; one is as good as another for telling machines apart.
    fields = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    if "model name" in fields:
        return fields["model name"]
    known = [
        f"{each[4:]} {fields[each]}" for each in ("CPU implementer", "CPU part") if each in fields
    ]
    return f"{machine} ({', '.join(known)})" if known else machine


def staging(count: int, answers: Sequence[Reply]) -> Document:
    """Return the stages of an all_reduce on devices: GB/s of the slowest rank, and the overlap."""
    seconds = {
        name: max(answer[f"{name}_s"] for answer in answers)
        for name in ("down", "network", "up", "whole")
    }
    rates = {f"{name}_gbs": _gbs(4 * count, each) for name, each in seconds.items()}
    stages = seconds["down"] + seconds["network"] + seconds["up"]
    overlap = stages / seconds["whole"] if seconds["whole"] > 0 else None
    return {**rates, "overlap": None if overlap is None else round(overlap, 3)}


def staging_lines(document: Document) -> list[str]:
    """Say how well the stages of calls on devices overlap."""
    lines = []
    for operation in document["operations"]:
        for row in operation["rows"]:
            stages = row.get("staging")
            if stages is not None:
                lines.append(
                    f"staged {row['bytes']} B: down {stages['down_gbs']}, network "
                    f"{stages['network_gbs']}, up {stages['up_gbs']}, all at once "
                    f"{stages['whole_gbs']} GB/s; overlap {stages['overlap']} (sum of stages / all)"
                )
    return lines


def count_wrong(document: Document) -> dict[str, int]:
    """Return the wrong elements of each library, over all rows; only of those that have any."""
    wrong: dict[str, int] = {}
    for operation in document["operations"]:
        for row in operation["rows"]:
            for name, result in row["results"].items():
                if result["wrong"]:
                    wrong[name] = wrong.get(name, 0) + result["wrong"]
    return wrong


def header_lines(document: Document) -> list[str]:
    """Say in words what was measured on what."""
    facts = document["machine"]
    kind = f"{document['dtype']} {document['reduce_op']}"
    checked = "results checked" if document["checked"] else "results not checked"
    lines = [
        *machine_lines(facts),
        f"{document['world_size']} ranks, transport {document['transport']}, {kind}",
        f"{document['rounds']} rounds in turn, {checked}",
        f"congestion control: system {facts['tcp_congestion_control']}",
    ]
    device = document.get("device")
    if device is not None:
        lines.append(f"gradring's arrays are on {device}")
        if "emulated" in device:
            lines.append("EMULATED on the host: these times say nothing about any GPU")
    for name, library in document["libraries"].items():
        controls = [f"{control} on {n} sockets" for control, n in library["congestion"].items()]
        cores = "bound to a core each" if library["cores_a_rank"] == 1 else "not bound to cores"
        lines.append(f"{name}: {library['version']}, {cores}; {', '.join(controls) or 'no TCP'}")
    lines += [f"missing: {reason}" for reason in document["missing"].values()]
    return lines


def machine_lines(facts: Document) -> list[str]:
    """Say in words what `machine_facts` found."""
    cpus = facts["cpus"]
    return [
        f"{facts['cpu']}, {cpus['usable']} of {cpus['online']} cores, load {facts['load']}",
        f"Linux {facts['kernel']}, Python {facts['python']}, NumPy {facts['numpy']}",
    ]


def footer_lines(document: Document) -> list[str]:
    """Explain the columns."""
    is_tcp = document["transport"].startswith("tcp")
    link = "plain TCP streams in a ring" if is_tcp else "plain copies by all ranks at once"
    bound = "and one-way trips" if is_tcp else "and nothing for latency"
    lines = [
        "us: a batch's time / its calls, median over rounds; p50, p99: single calls, slowest rank.",
        "algbw: size / us; busbw: that times what each rank has to move; 10^9 bytes a second.",
        f"link GB/s: {link}; bound us: least time over that link, by bytes {bound}.",
    ]
    lines += staging_lines(document)
    if document["libraries"].keys() - {"gradring"}:
        lines.append("x: peer's time / ours, median over rounds (lowest, highest); > 1: faster.")
    return lines


def _result(figures: Figures) -> Document:
    cpu = figures.cpu_per_gb
    return {
        "time_us": _us(figures.time),
        "p50_us": _us(figures.p50),
        "p99_us": _us(figures.p99),
        "algbw_gbs": round(figures.algbw, 9),
        "busbw_gbs": round(figures.busbw, 9),
        "cpu_s_per_gb": None if cpu is None else round(cpu, 4),
        "wrong": figures.wrong,
        "calls": figures.calls,
        "rounds_us": [_us(seconds) for seconds in figures.rounds],
    }


def _ratio(ratio: Ratio) -> Document:
    return {name: round(value, 3) for name, value in dataclasses.asdict(ratio).items()}


def _gbs(nbytes: int, seconds: float) -> float | None:
    return round(nbytes / seconds / 1e9, 3) if seconds > 0 else None


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
