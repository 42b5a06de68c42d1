"""The measurement of kernels as one document, and the document as a table."""

from __future__ import annotations

import importlib.metadata
import shlex
from collections.abc import Sequence
from typing import Any

from gradring.bench import table
from gradring.bench.kernels.options import Options
from gradring.bench.report import machine_facts
from gradring.gpu.runtime import build, device_facts, is_emulated

Document = dict[str, Any]

_PACKAGES = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x")
EMULATED = "EMULATED on the host: these times say nothing about any GPU"


def start_document(options: Options, argv: Sequence[str]) -> Document:
    """Return the document before anything is measured."""
    return {
        "schema": 1,
        "command": shlex.join(["gradring", "bench", "kernels", *argv]),
        "machine": machine_facts(),
        "emulated": is_emulated(),
        "plugin": build(),
        "device": dict(device_facts(options.device)),
        "packages": {name: _version(name) for name in _PACKAGES if _version(name)},
        "elements": options.elements,
        "rounds": options.rounds,
        "copy_gbs": None,
        "staging_gbs": {},
        "missing": [],
        "kernels": [],
    }


def kernel_row(name: str, floor_bytes: int, seconds: float, copy_rate: float) -> Document:
    """Return one kernel's figures; its peers come later."""
    return {
        "name": name,
        "floor_bytes": floor_bytes,
        "us": round(seconds * 1e6, 3),
        "gbs": round(floor_bytes / seconds / 1e9, 2),
        "fraction_of_copy": round(floor_bytes / seconds / copy_rate, 4),
        "peers": {},
    }


def show(document: Document) -> None:
    """Print it."""
    facts = document["device"]
    label = f"{facts['name']}, {document['plugin']}"
    for line in (
        *([EMULATED] if document["emulated"] else []),
        label,
        *(f"{name} {version}" for name, version in document["packages"].items()),
        f"copy within the device: {document['copy_gbs']} GB/s, read and written",
        *(f"missing: {text}" for text in document["missing"]),
    ):
        print(f"# {line}")
    for name, rate in document["staging_gbs"].items():
        print(f"# pinned memory, {name}: {rate} GB/s")
    print()
    columns = ["kernel", "us", "floor MB", "GB/s", "of copy", "peer", "peer us", "x"]
    print(table.plain(columns, _cells(document)))
    print()
    print(
        "# of copy: floor bytes / time / the device's copy bandwidth of this run; x: peer / ours."
    )


def _cells(document: Document) -> list[list[str]]:
    cells = []
    for row in document["kernels"]:
        if "failed" in row:
            cells.append([row["name"], row["failed"], *[""] * 6])
            continue
        cells.append(
            [
                row["name"], f"{row['us']:.1f}", f"{row['floor_bytes'] / 1e6:.1f}",
                f"{row['gbs']:.1f}", f"{row['fraction_of_copy']:.2f}", "", "", "",
            ]
        )  # fmt: skip
        for name, us in row["peers"].items():
            is_time = isinstance(us, float)
            figures = [f"{us:.1f}", f"{us / row['us']:.2f}"] if is_time else [str(us), ""]
            cells.append(["", "", "", "", "", name, *figures])
    return cells


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
