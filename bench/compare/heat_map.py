"""Where we are ahead of the best peer and where behind: one coloured cell for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare import cells
from compare.records import Document
from gradring.bench.table import number, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST = 4.0  # The colours end here, and at one over it.
_LOUD = 2.3  # From here on the colour is too dark for black digits.

Cells = dict[tuple[str, int], float]


def draw(documents: list[Document]) -> Figure | None:
    """Draw a panel for each transport, a line for each operation and world."""
    from matplotlib import pyplot as plt

    groups: dict[str, list[Document]] = {}
    for document in documents:
        groups.setdefault(document["transport"], []).append(document)
    maps = {transport: _cells(group) for transport, group in groups.items()}
    maps = {transport: found for transport, found in maps.items() if found}
    if not maps:
        return None
    lines = [len({line for line, _ in found}) for found in maps.values()]
    figure, panels = plt.subplots(
        len(maps), 1, squeeze=False, figsize=(9.5, 1.6 + 0.42 * sum(lines)), layout="constrained",
        height_ratios=lines,
    )  # fmt: skip
    sizes = _places(maps)
    for axes, (transport, found) in zip(panels.flat, maps.items(), strict=True):
        _panel(axes, found, sizes)
        axes.set_title("shared memory" if transport == "shm" else transport.upper(), fontsize=11)
    facts = documents[0]["machine"]
    figure.suptitle(
        "Time of the best peer over ours: above 1 (blue) we are faster, below 1 (red) slower\n"
        f"{facts['cpu']}, {facts['cpus']['usable']} cores, {facts['date'][:10]}",
        fontsize=10,
    )
    return figure


def _cells(documents: list[Document]) -> Cells:
    """Ratios by line's label and place of the size; sizes within a power of two share a column."""
    found: Cells = {}
    for op in dict.fromkeys(each["op"] for one in documents for each in one["operations"]):
        for document in documents:
            label = f"{op}, {document['world_size']} ranks"
            if document["name"].count("-") > 1:
                label += f", {cells.control(document)}"
            rows = (each["rows"] for each in document["operations"] if each["op"] == op)
            for row in (row for some in rows for row in some):
                best = cells.best_peer(row)
                if best is not None and row["bytes"] > 0:
                    found[label, _column(row["bytes"])] = best[1]
    return found


def _column(size: int) -> int:
    # Operations that cut a message have it rounded up to an element a rank: 4 B become 8 or 16.
    return 4 if size <= 16 else size


def _places(maps: dict[str, Cells]) -> list[int]:
    return sorted({size for found in maps.values() for _, size in found})


def _panel(axes: Axes, found: Cells, sizes: list[int]) -> None:
    import numpy as np
    from matplotlib.colors import LogNorm

    labels = list(dict.fromkeys(label for label, _ in found))
    grid = np.full((len(labels), len(sizes)), np.nan)
    for (label, size), ratio in found.items():
        place = labels.index(label), sizes.index(size)
        grid[place] = ratio
        loud = ratio > _LOUD or ratio < 1 / _LOUD
        axes.text(
            place[1], place[0], number(ratio), ha="center", va="center", fontsize=8,
            color="white" if loud else "black", fontweight="bold" if ratio < 1 else "normal",
        )  # fmt: skip
    axes.imshow(grid, cmap="RdBu", norm=LogNorm(1 / _MOST, _MOST), aspect="auto")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_xticks(range(len(sizes)), [size_text(size) for size in sizes], fontsize=8)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
