"""What training runs have written, as a table and a picture: `python examples/curves.py RUN...`.

A run is a file of JSON lines: first what it was, then points (seconds, examples, and a measure such
as loss or auc), last its outcome. word2vec.py and ctr.py write them with --out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


class Recorder:
    """Writes a run; does nothing without a path."""

    def __init__(self, path: Path | None, **what: Any) -> None:
        self._file = None if path is None else path.open("w")
        self._write(what)

    def point(self, seconds: float, examples: int, **measures: float | None) -> None:
        self._write({"seconds": round(seconds, 3), "examples": examples, **measures})

    def end(self, **outcome: Any) -> None:
        self._write(outcome)
        if self._file is not None:
            self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """What a run was, its points, and its outcome; ValueError where it has no outcome."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if len(lines) < 2 or lines[-1].keys() <= {"seconds", "examples", "loss", "auc"}:
        raise ValueError("the run has not ended, or it is none")
    return lines[0], lines[1:-1], lines[-1]


def label(what: dict[str, Any]) -> str:
    workers = what["workers"]
    return f"{what['mode']}, {workers} worker{'s' if workers > 1 else ''}"


def table(runs: list[tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]]) -> str:
    """The outcomes in Markdown, a row for each run."""
    columns = list(dict.fromkeys(name for _, _, last in runs for name in last))
    lines = [" | ".join(["mode", *columns]), "|".join(["---", *["---:"] * len(columns)])]
    for what, _, last in runs:
        lines.append(" | ".join([label(what), *[text(last.get(name)) for name in columns]]))
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)


def text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def draw(runs: list[tuple[dict[str, Any], list[dict[str, Any]], Any]], out: Path) -> None:
    """The measure over time and over examples, a line for each run."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    measure = next(name for name in runs[0][1][0] if name not in ("seconds", "examples"))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for axis, (x, unit) in zip(axes, (("seconds", "seconds"), ("examples", "")), strict=True):
        for what, points, _ in runs:
            known = [point for point in points if point.get(measure) is not None]
            axis.plot([p[x] for p in known], [p[measure] for p in known], label=label(what), lw=1.5)
        axis.set_xlabel(unit or f"{runs[0][0].get('unit', 'examples')} of all workers")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(measure)
    axes[1].legend(frameon=False)
    figure.suptitle(runs[0][0].get("title", ""))
    figure.savefig(out, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare training runs.")
    parser.add_argument("runs", nargs="+", type=Path, help="files written with --out")
    parser.add_argument("--png", type=Path, help="draw them there")
    options = parser.parse_args()
    runs = []
    for path in options.runs:
        try:
            runs.append(read(path))
        except (OSError, ValueError) as error:
            parser.error(f"{path}: {error}")
    for path, (what, _, _) in zip(options.runs, runs, strict=True):
        for key in ("title", "unit"):
            if what.get(key) != runs[0][0].get(key):
                parser.error(
                    f"{path}: its {key} is {what.get(key)}, and that of {options.runs[0]} is "
                    f"{runs[0][0].get(key)}: they are no runs of the same training"
                )
    print(table(runs))
    if options.png is not None:
        for path, (_, points, _) in zip(options.runs, runs, strict=True):
            if not points:
                parser.error(f"{path} has no points to draw")
        try:
            draw(runs, options.png)
        except ModuleNotFoundError:
            parser.error("--png needs matplotlib: pip install 'gradring[examples]'")
        except (OSError, ValueError) as error:
            parser.error(f"--png {options.png}: {error}")


if __name__ == "__main__":
    main()
