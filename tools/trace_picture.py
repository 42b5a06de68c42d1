"""Draws a merged trace: a row a rank, a bar an operation or a span. For docs/flight_recorder.md.

Usage: tools/trace_picture.py MERGED.json PICTURE.png [FROM_MS TO_MS]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

COLOURS = {"collective": "#2c6fbb", "span": "#d9d2c5"}


def draw(events: list[dict[str, Any]], picture: Path, begin: float, end: float) -> None:
    """Draw what lies between two times, in milliseconds."""
    shown = [
        event
        for event in events
        if event["ph"] == "X" and begin <= event["ts"] / 1e3 and event["ts"] / 1e3 <= end
    ]
    ranks = sorted({event["pid"] for event in shown})
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.7 * len(ranks)), dpi=110)
    for event in shown:
        row = ranks.index(event["pid"])
        is_span = event["cat"] == "span"
        left, width = event["ts"] / 1e3, max(event["dur"] / 1e3, 0.01)
        bottom = row + (0.0 if is_span else 0.42)
        axes.broken_barh(
            [(left, width)], (bottom, 0.38), facecolors=COLOURS[event["cat"]],
            edgecolors="white", linewidth=0.5,
        )  # fmt: skip
        if width > (end - begin) / 14:
            axes.text(
                left + width / 2, bottom + 0.19, event["name"], ha="center", va="center",
                fontsize=7, color="black" if is_span else "white", clip_on=True,
            )  # fmt: skip
    axes.set_yticks([row + 0.4 for row in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    axes.set_xlim(begin, end)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.tight_layout()
    figure.savefig(picture)


def main() -> None:
    """Read the arguments and draw."""
    mpl.use("Agg")
    events = json.loads(Path(sys.argv[1]).read_text())["traceEvents"]
    last = max(event["ts"] + event.get("dur", 0) for event in events if "ts" in event) / 1e3
    begin, end = map(float, sys.argv[3:5]) if len(sys.argv) > 4 else (0.0, last)
    draw(events, Path(sys.argv[2]), begin, end)


if __name__ == "__main__":
    main()
