"""Writes what `gradring_scale --json` found as Markdown and as a picture (`make scale`).

scale.py scale.json --to FOLDER makes FOLDER/scale.md and FOLDER/scale.png.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KIB = 1024
DRAWN = [("all_reduce", 4), ("all_reduce", 1 << 20), ("all_reduce", 16 << 20)]
DRAWN += [("broadcast", 4), ("all_gather", 1 << 20), ("reduce_scatter", 1 << 20)]
COLORS = {"ring": "C0", "doubling": "C1", "halving": "C2", "direct": "C3", "gather": "C4"}
BAD = 1.3  # A choice that takes this much longer than the best is listed.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    given = parser.parse_args()
    found = json.loads(given.file.read_text())
    (given.to / "scale.md").write_text("\n".join(text_of(found)) + "\n")
    draw(found, given.to / "scale.png")


def size_text(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def text_of(found: dict[str, Any]) -> Iterator[str]:
    """The lines of the Markdown file."""
    model = found["model"]
    yield "# Thousands of ranks, simulated\n"
    yield "`make scale`; [docs/scale.md](../../docs/scale.md) says what the columns mean."
    yield "Network: " + ", ".join(f"{name} {value:g}" for name, value in model.items()) + "."
    yield f"Results that were wrong where data was sent along: {found['wrong']}.\n"
    for op in dict.fromkeys(cell["op"] for cell in found["operations"]):
        yield f"## {op}\n"
        yield from operation_table([c for c in found["operations"] if c["op"] == op])
    yield "## Starting, watching, ending\n"
    yield from start_table(found["start_up"])
    yield "## Where the planner's choice took longer than the best\n"
    yield f"At least {BAD} times, among the algorithms that were played and give the same bits.\n"
    yield from regrets(found["operations"])


def row(*values: object) -> str:
    return "| " + " | ".join(str(value) for value in values) + " |"


def operation_table(cells: list[dict[str, Any]]) -> Iterator[str]:
    yield row("ranks", "size", "algorithm", "hops", "us", "first call us", "stragglers us",
              "bytes sent", "messages", "connections", "plan + scratch KiB")  # fmt: skip
    yield row(*["---:"] * 2, "---", *["---:"] * 8)
    for cell in cells:
        chosen = cell["chosen"]
        bound = [cell["bound_hops"], f"{cell['bound_us']:.0f}", "", "", cell["bound_sent_bytes"]]
        yield row(cell["ranks"], size_text(cell["bytes"]), "*bound*", *bound, "", "", "")
        for found in cell["algorithms"]:
            name = found["algorithm"] + ("" if found["allowed"] else " (other bits)")
            keys = ("us", "first_us", "straggled_us")
            times = [f"{found[key]:.0f}" if key in found else "" for key in keys]
            times = [str(found["hops"]), *times] if found["played"] else ["counted only", *times]
            yield row("", "", f"**{name}**" if found["algorithm"] == chosen else name, *times,
                      found["sent_bytes"], found["messages"], found["connections"],
                      round((found["plan_bytes"] + found["scratch_bytes"]) / KIB))  # fmt: skip
    yield ""


def start_table(worlds: list[dict[str, Any]]) -> Iterator[str]:
    yield row("ranks", "phase", "rank 0: messages", "bytes", "another rank: messages", "bytes")
    yield row("---:", "---", *["---:"] * 4)
    for world in worlds:
        for phase in world["phases"]:
            yield row(world["ranks"], phase["phase"], phase["messages"], phase["bytes"],
                      phase["follower_messages"], phase["follower_bytes"])  # fmt: skip
    yield ""


def regrets(cells: list[dict[str, Any]]) -> Iterator[str]:
    yield row("op", "ranks", "size", "chosen", "x", "with this network's costs", "x")
    yield row("---", "---:", "---:", "---", "---:", "---", "---:")
    for cell in cells:
        if max(cell["regret"], cell["tuned_regret"]) < BAD:
            continue
        choices = [cell["chosen"], f"{cell['regret']:.2f}"]
        choices += [cell["tuned"], f"{cell['tuned_regret']:.2f}"]
        yield row(cell["op"], cell["ranks"], size_text(cell["bytes"]), *choices)


def draw(found: dict[str, Any], path: Path) -> None:
    """Time over ranks, one panel for an operation and a size, with what nothing can beat."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 3, figsize=(12, 7), sharex=True)
    for panel, (op, size) in zip(panels.flat, DRAWN, strict=True):
        cells = [c for c in found["operations"] if c["op"] == op and c["bytes"] == size]
        times: dict[str, list[tuple[int, float]]] = {}
        for cell in cells:
            times.setdefault("bound", []).append((cell["ranks"], cell["bound_us"]))
            for one in cell["algorithms"]:
                if one["played"]:
                    times.setdefault(one["algorithm"], []).append((cell["ranks"], one["us"]))
        for name, points in times.items():
            look = {"color": COLORS.get(name, "black"), "marker": "."}
            look["linestyle"] = "-" if name in COLORS else "--"
            panel.loglog(*zip(*points, strict=True), label=name, **look)
        panel.set_title(f"{op}, {size_text(size)}")
        panel.set_xscale("log", base=2)
        panel.grid(visible=True, alpha=0.3)
        panel.legend(fontsize=7)
    for panel in panels[1]:
        panel.set_xlabel("ranks")
    for panel in panels[:, 0]:
        panel.set_ylabel("simulated us")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
