"""The document as a picture: time and bus bandwidth over size, a column of panels an operation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gradring.bench.cases import bus_factor
from gradring.bench.report import Document
from gradring.bench.table import size_text
from gradring.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {  # By library, over any transport.
    "gradring": "#0072b2", "gloo": "#d55e00", "openmpi": "#009e73", "mpich": "#cc79a7",
    "intelmpi": "#e69f00", "oneccl": "#56b4e9",
}  # fmt: skip
_PANEL_INCHES = 4.2


def require(path: str | None = None) -> None:
    """Fail before anything is measured where the picture could not be drawn.

    Args:
        path: The file, whose ending says what kind of picture it is.

    Raises:
        InvalidArgument: matplotlib is missing, or does not draw that kind.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InvalidArgument("--plot needs matplotlib: pip install gradring[bench]") from error
    mpl.use("Agg")
    from matplotlib.backend_bases import FigureCanvasBase

    kind = Path(path or "").suffix[1:].lower()
    if kind and kind not in FigureCanvasBase.get_supported_filetypes():
        raise InvalidArgument(f"--plot {path}: matplotlib draws no .{kind}; take .png or .svg")


def draw(document: Document, path: Path) -> None:
    """Write the picture; its type goes by the path's ending.

    Raises:
        InvalidArgument: As `require`.
    """
    require()
    from matplotlib import pyplot as plt

    operations = [
        operation for operation in document["operations"] if operation["rows"][0]["bytes"] > 0
    ]
    if not operations:
        raise InvalidArgument("--plot: a barrier has no sizes to draw over")
    figure, panels = plt.subplots(
        2, len(operations), squeeze=False, layout="constrained",
        figsize=(_PANEL_INCHES * max(1.3, len(operations)), 2 * _PANEL_INCHES),
    )  # fmt: skip
    for (top, bottom), operation in zip(panels.T, operations, strict=True):
        top.set_title(operation["op"])
        _draw_times(top, operation)
        _draw_bandwidth(bottom, operation, document["world_size"])
        for axes in (top, bottom):
            _finish(axes, operation)
    panels[0][0].set_ylabel("time of a call, us")
    panels[1][0].set_ylabel("bus bandwidth, GB/s")
    figure.suptitle(
        f"{document['world_size']} ranks, {document['transport']}, {document['dtype']}; "
        f"{document['machine']['cpu']}, {document['machine']['cpus']['usable']} cores"
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_times(axes: Axes, operation: Document) -> None:
    for name in _names(operation):
        _line(axes, operation, name, "time_us")
    bounds = [(row["bytes"], row["bound_us"]) for row in operation["rows"] if row["bound_us"]]
    if bounds:
        axes.plot(*zip(*bounds, strict=True), "k--", linewidth=1, label="lower bound")


def _draw_bandwidth(axes: Axes, operation: Document, world_size: int) -> None:
    for name in _names(operation):
        _line(axes, operation, name, "busbw_gbs")
    factor = bus_factor(operation["op"], world_size)
    bounds = [
        (row["bytes"], factor * row["bytes"] / row["bound_us"] / 1e3)
        for row in operation["rows"]
        if row["bound_us"] and factor
    ]
    if bounds:
        axes.plot(*zip(*bounds, strict=True), "k--", linewidth=1, label="bound")


def _line(axes: Axes, operation: Document, name: str, key: str) -> None:
    points = [
        (row["bytes"], row["results"][name][key])
        for row in operation["rows"]
        if name in row["results"]
    ]
    is_ours = name == "gradring"
    colour = COLOURS.get(name.removesuffix("-tcp"))
    axes.plot(
        *zip(*points, strict=True), "o-", label=name, color=colour, markersize=3,
        linewidth=2.2 if is_ours else 1.3, zorder=3 if is_ours else 2,
    )  # fmt: skip


def _finish(axes: Axes, operation: Document) -> None:
    sizes = [row["bytes"] for row in operation["rows"]]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = sizes[:: max(1, len(sizes) // 4)]
    axes.set_xticks(shown, [size_text(size) for size in shown])
    axes.minorticks_off()
    axes.set_xlabel("message")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)


def _names(operation: Document) -> list[str]:
    """Return who has figures in any row."""
    names = dict.fromkeys(name for row in operation["rows"] for name in row["results"])
    return list(names)
