"""The document as a table: coloured and boxed on a terminal, aligned plain text anywhere else."""

from __future__ import annotations

import math
import shutil
import sys
from typing import Any, TextIO

from gradring.bench.report import Document, footer_lines, header_lines
from gradring.machine import host_facts

_OURS = "gradring"
_GAP = 2  # Between two columns.


def show(document: Document, stream: TextIO | None = None) -> None:
    """Print the whole report."""
    stream = sys.stdout if stream is None else stream
    for line in header_lines(document):
        print(f"# {line}", file=stream)
    for operation in document["operations"]:
        print(file=stream)
        show_rows(operation["op"], *columns_and_cells(operation), stream)
    print(file=stream)
    for line in footer_lines(document):
        print(f"# {line}", file=stream)


def show_rows(title: str, columns: list[str], cells: list[list[str]], stream: TextIO) -> None:
    """Print one table with its title; on a terminal that it is too wide for, in parts."""
    is_terminal = stream.isatty()
    if is_terminal and host_facts.has_package("rich"):
        _show_rich(title, columns, cells, stream)
        return
    print(f"# {title}", file=stream)
    width = shutil.get_terminal_size().columns if is_terminal else None
    print("\n\n".join(plain(*part) for part in _parts(columns, cells, width)), file=stream)


def columns_and_cells(operation: Document) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows' texts."""
    peers: list[str] = []
    for row in operation["rows"]:
        for name in (*row["results"], *row["unsupported"]):
            if name != _OURS and name not in peers:
                peers.append(name)
    columns = [
        "size", "count", "us", "p50 us", "p99 us", "algbw", "busbw", "CPU s/GB", "bound us",
        "link GB/s", "algorithm", "wrong",
    ]  # fmt: skip
    for name in peers:
        columns += [f"{name} us", "x"]
    return columns, [_cells(row, peers) for row in operation["rows"]]


def plain(columns: list[str], cells: list[list[str]]) -> str:
    """Align columns to the right."""
    widths = _widths(columns, cells)
    lines = [
        (" " * _GAP).join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in (columns, *cells)
    ]
    return "\n".join(lines)


def _widths(columns: list[str], cells: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(columns, *cells, strict=True)]


def _parts(
    columns: list[str], cells: list[list[str]], width: int | None
) -> list[tuple[list[str], list[list[str]]]]:
    """Cut a table into some that are as wide at most, each beginning with the first column."""
    widths = _widths(columns, cells)
    parts = [[0]]
    for place in range(1, len(columns)):
        wide = sum(widths[each] + _GAP for each in (*parts[-1], place)) - _GAP
        if width is not None and wide > width and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(place)
    return [([columns[i] for i in part], [[line[i] for i in part] for line in cells])
            for part in parts]  # fmt: skip


def size_text(nbytes: int) -> str:
    """Write a size as short as it goes: 4, 1K, 64M."""
    for suffix, unit in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit}{suffix}"
    return str(nbytes)


def number(value: float | None) -> str:
    """Write a figure with three digits that count, or with two below 1."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    places = 2 if value >= 0.1 or value <= 0 else min(1 - math.floor(math.log10(value)), 9)
    return f"{value:.{places}f}"


def _cells(row: dict[str, Any], peers: list[str]) -> list[str]:
    ours = row["results"][_OURS]
    cells = [
        size_text(row["bytes"]),
        str(row["count"]),
        *(number(ours[key]) for key in ("time_us", "p50_us", "p99_us")),
        *(number(ours[key]) for key in ("algbw_gbs", "busbw_gbs", "cpu_s_per_gb")),
        number(row["bound_us"]),
        number(row["link_gbs"]),
        row["algorithm"] or "-",
        str(ours["wrong"]),
    ]
    for name in peers:
        result, ratio = row["results"].get(name), row["ratios"].get(name)
        if result is None or ratio is None:
            cells += ["-", "-"]
            continue
        wrong = f" ({result['wrong']} wrong)" if result["wrong"] else ""
        spread = f"{number(ratio['low'])}, {number(ratio['high'])}"
        cells += [number(result["time_us"]) + wrong, f"{number(ratio['median'])} ({spread})"]
    return cells


def _show_rich(title: str, columns: list[str], cells: list[list[str]], stream: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(file=stream, width=shutil.get_terminal_size().columns)
    for heads, lines in _parts(columns, cells, console.width):
        table = Table(
            title=title or None, box=box.SIMPLE_HEAD, title_justify="left", show_edge=False,
            pad_edge=False, padding=(0, _GAP - 1, 0, 0),
        )  # fmt: skip
        for head in heads:
            table.add_column(head, justify="right", no_wrap=True)
        for line in lines:
            table.add_row(*(_coloured(head, text) for head, text in zip(heads, line, strict=True)))
        if not title:
            console.print()
        console.print(table)
        title = ""


def _coloured(column: str, text: str) -> str:
    if column == "wrong" and text != "0":
        return f"[bold red]{text}[/]"
    if column == "x" and text != "-":
        return f"[{'green' if float(text.partition(' ')[0]) >= 1 else 'red'}]{text}[/]"
    return text
