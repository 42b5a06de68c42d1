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
    assert [one["op"] for one in document["operations"]] == ["pull", "push", "train"]
    for one in document["operations"]:
        assert one["rows_per_s"] > 0
        assert 0 < one["p50_us"] <= one["p99_us"]
        # Rows travel one way and ids the other, or both with them.
        assert one["bytes_a_call"] > 0
    assert document["wrong"] == 0


def test_rules_that_are_not_linear_are_checked_by_their_pushes() -> None:
    document = measured("train", "--optimizer", "adagrad", "--distinct")
    assert document["wrong"] == 0
