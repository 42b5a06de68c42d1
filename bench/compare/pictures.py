"""Draws the JSON files: curves for each world, all_reduce of all worlds, scaling, and training.

The heat map is `heat_map`'s. White backgrounds, so that they can be read on dark pages too, and few
colours, so that files stay small.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from compare import cells, heat_map, records
from compare.cells import OURS
from compare.records import Document
from gradring.bench import plot
from gradring.bench.cases import bus_factor
from gradring.bench.plot import COLOURS
from gradring.bench.table import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS_IN_FILE = 64
_SCALING_SIZES = (64 << 10, 1 << 20, 16 << 20)


def draw_all(folder: Path) -> list[Path]:
    """Draw what a folder's files have figures for; returns the pictures."""
    plot.require()
    documents = cells.documents(folder, "shm", "tcp")
    drawn = []
    for document in documents:
        path = folder / f"{document['name']}.png"
        plot.draw(document, path)
        drawn.append(_smaller(path))
    for name, figure in (
        ("heat-map", heat_map.draw(documents)),
        ("all-reduce", _all_reduce(documents)),
        ("scaling", _scaling(documents)),
        ("training", _training(folder)),
    ):
        if figure is not None:
            drawn.append(_save(figure, folder / f"{name}.png"))
    return drawn


def _save(figure: Figure, path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=110, facecolor="white")
    plt.close(figure)
    return _smaller(path)


def _smaller(path: Path) -> Path:
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(_COLOURS_IN_FILE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    return path


def _title(document: Document) -> str:
    return f"{document['transport']}, {document['world_size']} ranks" + (
        f", system's {cells.control(document)}" if document["transport"].startswith("tcp") else ""
    )


def _machine(documents: list[Document]) -> str:
    facts = documents[0]["machine"]
    return f"{facts['cpu']}, {facts['cpus']['usable']} cores, {facts['date'][:10]}"


def _all_reduce(documents: list[Document]) -> Figure | None:
    """Bus bandwidth over size in every world, with the link's limit."""
    from matplotlib import pyplot as plt

    known = [(one, rows) for one in documents if (rows := records.rows_of(one, "all_reduce"))]
    if not known:
        return None
    columns = min(2, len(known))
    height = -(-len(known) // columns)
    figure, panels = plt.subplots(
        height, columns, squeeze=False, figsize=(5 * columns, 3.6 * height), layout="constrained"
    )
    by_column = sorted(known, key=lambda one: (one[0]["world_size"], one[0]["transport"]))
    for axes, (document, rows) in zip(panels.flat, by_column, strict=False):
        for name in _names(rows):
            _curve(axes, rows, name, "busbw_gbs")
        factor = bus_factor("all_reduce", document["world_size"])
        limits = [(row["bytes"], factor * row["bytes"] / row["bound_us"] / 1e3)
                  for row in rows if row["bound_us"]]  # fmt: skip
        if limits:
            axes.plot(*zip(*limits, strict=True), "k--", lw=1, label="what the link can carry")
        _log_log(axes, [row["bytes"] for row in rows])
        axes.set_title(_title(document), fontsize=10)
    for axes in panels.flat[len(known) :]:
        axes.set_axis_off()
    panels[0][0].set_ylabel("bus bandwidth, GB/s")
    figure.suptitle(f"all_reduce of float32; {_machine(documents)}", fontsize=11)
    return figure


def _scaling(documents: list[Document]) -> Figure | None:
    """Time of all_reduce over the number of ranks."""
    from matplotlib import pyplot as plt

    transports = list(dict.fromkeys(one["transport"] for one in documents))
    if len({one["world_size"] for one in documents}) < 2:
        return None
    figure, panels = plt.subplots(
        len(transports), len(_SCALING_SIZES), squeeze=False, layout="constrained",
        figsize=(3.6 * len(_SCALING_SIZES), 3 * len(transports)),
    )  # fmt: skip
    for line, transport in zip(panels, transports, strict=True):
        worlds = [one for one in documents
                  if one["transport"] == transport and one["name"].count("-") == 1]  # fmt: skip
        for axes, size in zip(line, _SCALING_SIZES, strict=True):
            _times_over_ranks(axes, worlds, size)
            axes.set_title(f"{transport}, {size_text(size)}", fontsize=10)
        line[0].set_ylabel("time of an all_reduce, us")
    panels[0][0].legend(fontsize=7)
    figure.suptitle(f"all_reduce of float32 by ranks; {_machine(documents)}", fontsize=11)
    return figure


def _times_over_ranks(axes: Axes, worlds: list[Document], size: int) -> None:
    times: dict[str, list[tuple[int, float]]] = {}
    for document in worlds:
        for row in records.rows_of(document, "all_reduce"):
            if row["bytes"] == size:
                for name, result in cells.right_results(row).items():
                    times.setdefault(name, []).append((document["world_size"], result["time_us"]))
    for name, points in times.items():
        axes.plot(*zip(*points, strict=True), "o-", **_style(name))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ranks = sorted({document["world_size"] for document in worlds})
    axes.set_xticks(ranks, [str(number) for number in ranks])
    axes.set_xlabel("ranks")
    axes.grid(visible=True, alpha=0.3)


def _training(folder: Path) -> Figure | None:
    """Words or examples a second, a bar for each contender, with the spread of the rounds."""
    from matplotlib import pyplot as plt

    found = [records.load(folder / f"{name}.json") for name in ("word2vec", "ctr")]
    parts = [part for one in found if one for part in one["parts"] if any(part["runs"].values())]
    if not parts:
        return None
    heights = [2 + len([each for each in part["runs"].values() if each]) for part in parts]
    figure, panels = plt.subplots(
        len(parts), 1, squeeze=False, figsize=(8, 0.33 * sum(heights) + 0.5), layout="constrained",
        height_ratios=heights,
    )  # fmt: skip
    for axes, part in zip(panels.flat, parts, strict=True):
        _bars(axes, part)
    return figure


def _bars(axes: Axes, part: Document) -> None:
    runs = {name: each for name, each in part["runs"].items() if each}
    for place, (name, each) in enumerate(reversed(runs.items())):
        rates = sorted(run["rate"] / 1e3 for run in each)
        middle = rates[len(rates) // 2]
        spread = [[middle - rates[0]], [rates[-1] - middle]]
        colour = COLOURS[OURS] if name.startswith(OURS) else "#999999"
        axes.barh(place, middle, xerr=spread, color=colour, ecolor="black", capsize=2)
        quality = ", ".join(f"{key} {value:.3g}" for key, value in _qualities(each).items())
        axes.text(rates[-1], place, f"  {middle:,.0f} k  {quality}", va="center", fontsize=8)
    axes.set_yticks(range(len(runs)), [*reversed(runs)], fontsize=8)
    axes.set_xlim(0, 2.3 * max(run["rate"] / 1e3 for each in runs.values() for run in each))
    axes.set_title(part["title"], fontsize=10)
    axes.set_xlabel(f"thousand {part['unit']} a second", fontsize=8)


def _qualities(runs: list[Document]) -> dict[str, float]:
    """The median of what the runs say that their models are worth."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for key, value in run["quality"].items():
            if value is not None:
                found.setdefault(key, []).append(value)
    return {key: statistics.median(values) for key, values in found.items()}


def _names(rows: list[Document]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in cells.right_results(row)))


def _style(name: str) -> dict[str, Any]:
    is_ours = name == OURS
    base = name.removesuffix("-tcp")
    return {
        "label": base, "color": COLOURS.get(base), "markersize": 3, "zorder": 3 if is_ours else 2,
        "linewidth": 2.2 if is_ours else 1.3,
    }  # fmt: skip


def _curve(axes: Axes, rows: list[Document], name: str, key: str) -> None:
    points = [(row["bytes"], found[name][key]) for row in rows
              if name in (found := cells.right_results(row))]  # fmt: skip
    axes.plot(*zip(*points, strict=True), "o-", **_style(name))


def _log_log(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = sizes[:: max(1, len(sizes) // 5)]
    axes.set_xticks(shown, [size_text(size) for size in shown])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7)
