"""Tables of the benches on a terminal."""

from __future__ import annotations

import io
import re

import pytest

from gradring.bench import table
from gradring.machine import host_facts

COLUMNS = ["size", "count", "us", "p50 us", "algbw", "link GB/s", "algorithm", "wrong", "gloo us"]
CELLS = [
    ["4", "1", "0.70", "0.98", "0.0057", "70.4", "flat", "0", "1483"],
    ["64K", "16384", "3.90", "4.12", "16.8", "52.8", "hierarchical", "0", "40040 (1 wrong)"],
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    table.show_rows("all_reduce", COLUMNS, CELLS, stream)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


@pytest.mark.parametrize("has_rich", [True, False])
@pytest.mark.parametrize("width", [200, 80, 50, 30])
def test_a_terminal_of_any_width_shows_every_figure(
    width: int, has_rich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_rich:
        pytest.importorskip("rich")
    monkeypatch.setattr(host_facts, "has_package", lambda _: has_rich)
    lines = shown(width, monkeypatch)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for each in (*COLUMNS, *CELLS[0], *CELLS[1]):
        assert each in text
    heads = [line for line in lines if line.lstrip().startswith("size ")]
    assert len(heads) == {200: 1, 80: 2, 50: 2, 30: 4}[width]
    assert text.count("all_reduce") == 1
    assert text.count("64K ") == len(heads)  # Every part says which row is which.
