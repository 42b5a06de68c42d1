"""From all workers' figures to one document, a table and a picture."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from gradring.bench.report import Document, machine_facts
from gradring.bench.rows.options import Options
from gradring.bench.table import number, plain

SCHEMA = 1
_MILLION = 1e6


def make_document(
    options: Options, argv: Sequence[str], bounds: Document, workers: Sequence[Document]
) -> Document:
    """Return everything that was measured.

    Args:
        options: What was asked for.
        argv: As it was asked for.
        bounds: From `gradring.bench.rows.bounds`.
        workers: What each worker found.
    """
    return {
        "schema": SCHEMA,
        "command": shlex.join(["gradring", "bench", *argv]),
        "machine": machine_facts(),
        "workers": options.workers,
        "servers": options.servers,
        "threads": options.threads,
        "ids": options.ids,
        "rows": options.rows,
        "dim": options.dim,
        "zipf": options.zipf,
        "optimizer": options.optimizer,
        "codec": options.codec,
        "transport": options.transport,
        "distinct": options.distinct,
        "bounds": bounds,
        # All look at the same rows: one who finds more has found what others did not.
        "wrong": max(worker["wrong"] for worker in workers),
        "operations": [_operation(name, options, bounds, workers) for name in options.operations],
    }


def _operation(
    name: str, options: Options, bounds: Document, workers: Sequence[Document]
) -> Document:
    figures = [worker["figures"][name] for worker in workers]
    # A round lasts as long as its slowest worker. What is pulled and pushed counts once.
    times = np.max([one["rounds"] for one in figures], axis=0)
    ids = sum(one["calls"] for one in figures) * options.ids
    rates = ids / times
    latencies = np.concatenate([one["latencies"] for one in figures])
    bytes_a_call = float(np.mean([one["bytes_a_call"] for one in figures]))
    rate = float(np.median(rates))
    moved = rate / options.ids * bytes_a_call / 1e9
    distinct = bounds["distinct"]
    alone = {
        "pull": bounds["gather"], "push": bounds["apply"],
        "train": 1 / (1 / bounds["gather"] + 1 / bounds["apply"]),
    }[name]  # fmt: skip
    return {
        "op": name,
        "rows_per_s": rate,
        "low": float(rates.min()),
        "high": float(rates.max()),
        "p50_us": float(np.median(latencies)) * 1e6,
        "p99_us": float(np.percentile(latencies, 99)) * 1e6,
        "calls": int(latencies.size),
        "bytes_a_call": bytes_a_call,
        "gbs": moved,
        "cpu_s_per_million": sum(one["cpu_seconds"] for one in figures)
        / (latencies.size * options.ids / _MILLION),
        "share_of_table": rate * distinct / alone,
        "share_of_link": moved / bounds["link_gbs"],
        "staleness": figures[0]["staleness"],
    }


def show(document: Document, stream: TextIO | None = None) -> None:
    """Print the report."""
    stream = sys.stdout if stream is None else stream
    for line in _header(document):
        print(f"# {line}", file=stream)
    columns = [
        "op", "M rows/s", "low", "high", "p50 us", "p99 us", "MB a call", "GB/s", "CPU s/M rows",
        "of table", "of link",
    ]  # fmt: skip
    print(plain(columns, [_cells(row) for row in document["operations"]]), file=stream)
    for row in document["operations"]:
        counts = np.array(row["staleness"], np.float64)
        if counts.sum() > 0:
            mean = float((counts * np.arange(counts.size)).sum() / counts.sum())
            words = f"mean {mean:.2f}, most {counts.size - 1}"
            print(f"# staleness of the pushes of {row['op']}: {words}", file=stream)
    print(f"# wrong: {document['wrong']}", file=stream)


def _header(document: Document) -> list[str]:
    machine, bounds = document["machine"], document["bounds"]
    where = f"{machine['cpu']}, {machine['cpus']['usable']} cores, load {machine['load']}"
    who = (
        f"{document['workers']} workers, {document['servers']} servers x {document['threads']} "
        f"threads, {document['transport']}"
    )
    what = (
        f"{document['ids']} ids a call of {document['rows']} (zipf {document['zipf']}, "
        f"{bounds['distinct']:.1%} distinct), dim {document['dim']}, {document['optimizer']}, "
        f"{document['codec']}{', distinct ids only' if document['distinct'] else ''}"
    )
    alone = (
        f"one thread on a table in its own memory: gather {bounds['gather'] / _MILLION:.1f}, "
        f"apply {bounds['apply'] / _MILLION:.1f} M distinct rows/s; plain link "
        f"{bounds['link_gbs']:.2f} GB/s"
    )
    return [document["command"], f"{where}, {machine['date']}", who, what, alone]


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["op"],
        *(number(row[key] / _MILLION) for key in ("rows_per_s", "low", "high")),
        number(row["p50_us"]),
        number(row["p99_us"]),
        number(row["bytes_a_call"] / 1e6),
        number(row["gbs"]),
        number(row["cpu_s_per_million"]),
        f"{row['share_of_table']:.0%}",
        f"{row['share_of_link']:.0%}",
    ]


def draw(document: Document, path: Path) -> None:
    """Write a picture: rows per second of every operation, with the rounds' spread."""
    from matplotlib import pyplot as plt

    rows = document["operations"]
    figure, axes = plt.subplots(figsize=(1.6 + 1.6 * len(rows), 4.2), layout="constrained")
    rates = [row["rows_per_s"] / _MILLION for row in rows]
    spread = [
        [(row["rows_per_s"] - row["low"]) / _MILLION for row in rows],
        [(row["high"] - row["rows_per_s"]) / _MILLION for row in rows],
    ]
    axes.bar([row["op"] for row in rows], rates, yerr=spread, capsize=4, color="#0072b2")
    axes.set_ylabel("million rows per second")
    axes.set_title(
        f"{document['workers']} workers, {document['servers']} servers, {document['transport']}, "
        f"dim {document['dim']}, {document['optimizer']}",
        fontsize=9,
    )
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)
