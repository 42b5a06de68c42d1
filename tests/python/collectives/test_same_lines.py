"""What ranks were told is compared: exactly, for as many ranks as there can be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from gradring.collectives import same_lines
from gradring.collectives.same_lines import Mark

MOST_RANKS = 1 << 14


def added_in_pairs(number: float, count: int) -> float:
    sums = np.full(count, number)
    while len(sums) > 1:
        rest = sums[len(sums) // 2 * 2 :]
        sums = np.append(sums[0 : len(sums) - len(rest) : 2] + sums[1::2], rest)
    return float(sums[0])


def test_the_largest_marks_of_the_most_ranks_add_up_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(same_lines, "digest_of", lambda _: -1)
    mark = Mark(["lr=1.0"])
    for count in (MOST_RANKS, MOST_RANKS - 1, MOST_RANKS // 2 + 1):
        comm: Any = SimpleNamespace(world_size=count)
        mark.require_everybodys([added_in_pairs(each, count) for each in mark.columns], comm, "")
        in_turn = [float(np.full(count, each).cumsum()[-1]) for each in mark.columns]
        mark.require_everybodys(in_turn, comm, "")


def test_marks_that_differ_where_no_line_does_are_told_as_that(world: GetWorld) -> None:
    def compare(comm: Any) -> None:
        with pytest.raises(gr.Mismatch, match=r"told the same: a, lr=1\.0; run one version of"):
            Mark(["a", "lr=1.0"]).require_everybodys([3.0, 5.0], comm, "")

    world(2, "shm").run(compare)
