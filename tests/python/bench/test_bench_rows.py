"""`gradring bench pull|push|train`: short real runs, what they say, and that they check rows."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def measured(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gradring", "bench", *arguments]
    command += ["--ids", "500", "--rows", "3000", "--dim", "8", "--seconds", "0.02", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_each_operation_says_rates_latencies_bytes_and_shares(transport: str) -> None:
    document = measured("pull", "push", "train", "-n", "2", "--transport", transport)
    bounds = document["bounds"]
    alone = {"pull": bounds["gather"], "push": bounds["apply"]}
    alone["train"] = 1 / (1 / alone["pull"] + 1 / alone["push"])
    assert [one["op"] for one in document["operations"]] == ["pull", "push", "train"]
    for one in document["operations"]:
        assert one["rows_per_s"] > 0
        assert 0 < one["p50_us"] <= one["p99_us"]
        # Rows travel one way and ids the other, or both with them.
        assert one["bytes_a_call"] > 0
        # Distinct rows of what a thread does on a table in its own memory; two workers ask one
        # thread, so it is more than that at most by what two measurements differ.
        share = one["rows_per_s"] * bounds["distinct"] / alone[one["op"]]
        assert one["share_of_table"] == pytest.approx(share)
        assert 0 < one["share_of_table"] < 2
        moved = one["rows_per_s"] / document["ids"] * one["bytes_a_call"] / 1e9
        assert one["share_of_link"] == pytest.approx(moved / bounds["link_gbs"])
        assert 0 < one["share_of_link"] < 2
    # Every push, also those of the warm-up, came after some number of the other worker's.
    calls = sum(one["calls"] for one in document["operations"] if one["op"] != "pull")
    assert sum(document["staleness"]) >= calls
    assert all(count >= 0 for count in document["staleness"])
    assert document["staleness"][-1] > 0
    assert document["wrong"] == 0


def test_rules_that_are_not_linear_are_checked_by_their_pushes() -> None:
    document = measured("train", "--optimizer", "adagrad", "--distinct")
    assert document["wrong"] == 0
