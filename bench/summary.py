"""Writes what `gradring bench --json` measured as Markdown: summary.py FILE.json... > table.md.

Each figure is a time with the ratios to the peers beside it, so that nobody has to divide.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gradring.bench.report import header_lines
from gradring.bench.table import number, size_text

OURS = "gradring"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default="", help="what was measured")
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    print("# Side by side\n")
    print(f"Commit {given.commit or 'unknown'}. Times are microseconds a call. In brackets, how")
    print("many times as long the peer took: the median of the rounds, lowest and highest.\n")
    losses: list[str] = []
    for path in sorted(given.files):
        document = json.loads(path.read_text())
        where = f"{document['world_size']} ranks, {document['transport']}"
        print(f"## {where}\n")
        print(f"`{document['command']}`\n")
        for line in header_lines(document):
            print(f"- {line}")
        for operation in document["operations"]:
            print(f"\n### {operation['op']}, {where}\n")
            print(table(operation))
            losses += losses_of(document, operation)
        print()
    print("## Where a peer was faster in most rounds\n")
    print("\n".join(f"- {loss}" for loss in losses) if losses else "Nowhere.")


def table(operation: dict[str, Any]) -> str:
    """The rows as a Markdown table."""
    rows = operation["rows"]
    peers = [name for name in rows[0]["results"] if name != OURS]
    heads = ["size", OURS, "busbw GB/s", "CPU s/GB", "bound", "algorithm", *peers]
    lines = [heads, ["---:"] * len(heads)]
    for row in rows:
        ours = row["results"][OURS]
        figures = (ours["time_us"], ours["busbw_gbs"], ours["cpu_s_per_gb"], row["bound_us"])
        cells = [size_text(row["bytes"]), *map(number, figures), row["algorithm"]]
        lines.append([*cells, *(peer_cell(row, name) for name in peers)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def peer_cell(row: dict[str, Any], name: str) -> str:
    """A peer's time, and the ratio to ours with its spread."""
    if name not in row["ratios"]:
        return "-"
    ratio = row["ratios"][name]
    spread = f"{number(ratio['low'])} to {number(ratio['high'])}"
    text = f"{number(row['results'][name]['time_us'])} ({number(ratio['median'])}x; {spread})"
    return f"**{text}**" if ratio["median"] < 1 else text


def losses_of(document: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    """One line for each size at which a peer won more than half of the rounds."""
    return [
        f"{operation['op']}, {document['world_size']} ranks, {document['transport']}, "
        f"{size_text(row['bytes'])}: {name} {number(ratio['median'])}x "
        f"({number(ratio['low'])} to {number(ratio['high'])}), we won {ratio['won']:.0%} of rounds"
        for row in operation["rows"]
        for name, ratio in row["ratios"].items()
        if ratio["won"] < 0.5
    ]


if __name__ == "__main__":
    main()
