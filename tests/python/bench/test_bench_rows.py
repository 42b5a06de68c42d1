"""`gradring bench pull|push|train`: short real runs, what they say, and that they check rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradring.bench.rows import rules
from gradring.bench.rows.options import Options, parse
from gradring.bench.rows.rules import EXACT, Pushed, count_wrong, pushed_of
from gradring.collectives.texts import gather_texts
from thread_ranks import ThreadWorld

SHORT = ("--ids", "500", "--rows", "3000", "--dim", "8", "--seconds", "0.02")

# Has `gradring bench` start lying.py as its workers.
WITH_LYING_WORKERS = """
import sys
from gradring.bench.rows import command

honest = command.module_command

def lying(module, *arguments):
    if module != "gradring.bench.rows.worker":
        return honest(module, *arguments)
    return (sys.executable, "lying.py", *arguments)

command.module_command = lying
sys.exit(command.run(sys.argv[1:]))
"""

# Rank 1 lies about what it has pushed, or about what it has found.
LYING_WORKER = """
import sys
from gradring.bench.rows import worker
from gradring.collectives.texts import gather_texts

class Lying(worker.Worker):
    def wrong(self):
        if {lies_of_pushes} and self._comm.rank == 1:
            self._pushed[0] += 1
        found = super().wrong()
        return found + 7 * (not {lies_of_pushes} and self._comm.rank == 1)

worker.Worker = Lying
sys.exit(worker.main(sys.argv[1:]))
"""


def measured(operations: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gradring", "bench", *operations.split(), *SHORT]
    command += [*arguments, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def options_of(*arguments: str) -> Options:
    return parse(["push", *arguments])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_each_operation_says_rates_latencies_bytes_and_shares(transport: str) -> None:
    document = measured("pull push train", "-n", "2", "--transport", transport)
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
        if one["op"] == "pull":
            assert one["staleness"] == []
        else:
            assert sum(one["staleness"]) >= one["calls"]
            assert all(count >= 0 for count in one["staleness"])
            assert one["staleness"][-1] > 0
    assert document["wrong"] == 0


def test_rules_that_are_not_linear_are_checked_by_their_pushes() -> None:
    document = measured("train", "--optimizer", "adagrad", "--distinct")
    assert document["wrong"] == 0


def test_pushes_are_counted_where_each_goes_to_few_of_the_shards() -> None:
    options = ("--ids", "1", "--servers", "2", "--threads", "2", "--optimizer", "adagrad")
    assert measured("push", *options)["wrong"] == 0
    assert measured("train", *options, "--no-fill", "--codec", "int8", "-n", "2")["wrong"] == 0


@pytest.mark.parametrize(
    ("arguments", "lies_of_pushes"),
    [((), True), (("--optimizer", "adagrad"), True), ((), False)],
    ids=["rows", "counts", "found-by-one-worker"],
)
def test_wrong_rows_fail_the_run(
    tmp_path: Path, arguments: tuple[str, ...], lies_of_pushes: bool
) -> None:
    (tmp_path / "main.py").write_text(WITH_LYING_WORKERS)
    (tmp_path / "lying.py").write_text(LYING_WORKER.format(lies_of_pushes=lies_of_pushes))
    command = [sys.executable, "main.py", "push", "-n", "2", *SHORT, *arguments]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert ended.returncode == 1, ended.stderr
    assert "values are WRONG" in ended.stderr
    (said,) = [line for line in ended.stdout.splitlines() if line.startswith("# wrong: ")]
    assert said != "# wrong: 0"
    assert lies_of_pushes or said == "# wrong: 7"


def test_calls_that_take_next_to_no_time_are_limited_in_number() -> None:
    document = measured("pull", "--ids", "1", "--seconds", "1", "--rounds", "5")
    assert 0 < document["operations"][0]["calls"] <= 5 * 2000


def test_texts_of_any_length_are_gathered(fresh_world: Callable[..., ThreadWorld]) -> None:
    world = fresh_world(3, "shm")
    texts = [b"", b"short", b"long" * (1 << 19)]
    for found in world.run(lambda comm: gather_texts(comm, texts[comm.rank])):
        assert found == texts


def test_pushes_are_added_up_by_id() -> None:
    batches = [np.array(ids, np.uint64) for ids in ([7, 5, 7], [5], [9, 9, 9])]
    pushed = pushed_of(batches, np.array([10, 1, 0]))
    assert pushed.ids.tolist() == [5, 7, 9]
    assert pushed.times.tolist() == [11, 20, 0]
    assert pushed.pushes.tolist() == [11, 10, 0]
    assert pushed.most.tolist() == [1, 2, 3]


def after_pushes(pushed: Pushed, step: float) -> Any:
    """Add up as servers do: in float32, a push after another, all alike."""
    rows = np.zeros((pushed.ids.size, 1), np.float32)
    for nth, (pushes, most) in enumerate(zip(pushed.pushes, pushed.most, strict=True)):
        for _ in range(pushes):
            rows[nth] += np.float32(most * step)
    return rows


def every_push_alike(pushes: list[int], most: list[int]) -> Pushed:
    made = [np.array(values, np.int64) for values in (pushes, most)]
    return Pushed(np.arange(len(pushes), dtype=np.uint64), made[0] * made[1], *made)


@pytest.mark.parametrize(("rule", "step"), [("sum", 2.0**-10), ("sgd", -(2.0**-14))])
def test_a_row_may_be_rounded_once_float32_cannot_hold_its_sum(rule: str, step: float) -> None:
    options = options_of("--optimizer", rule)
    pushed = every_push_alike([4500, 4800, 300, 1000, 0], [4039, 4041, 65535, 16, 3])
    rows = after_pushes(pushed, step)
    exact = (pushed.times * step)[:, None]
    assert pushed.times[0] > EXACT
    assert (rows[:3] != exact[:3]).all(), "they must have been rounded"
    assert count_wrong(options, pushed, rows) == 0

    for which, most in enumerate(pushed.most):
        for pushes in (-1, 1):  # Lost, or done twice.
            changed = rows.copy()
            changed[which] += np.float32(pushes * most * step)
            assert count_wrong(options, pushed, changed) == 1


def test_a_row_that_float32_can_hold_is_compared_bit_for_bit() -> None:
    options = options_of("--optimizer", "sum", "--dim", "2")
    pushed = every_push_alike([4096, 5], [4096, 1])
    assert pushed.times[0] == EXACT
    rows = np.repeat((pushed.times * rules.GRADIENT).astype(np.float32)[:, None], 2, axis=1)
    assert count_wrong(options, pushed, rows) == 0
    for row in (0, 1):
        changed = rows.copy()
        changed[row, 1] = np.nextafter(changed[row, 1], np.float32(0))
        assert count_wrong(options, pushed, changed) == 1
    rows[1] = np.nan
    assert count_wrong(options, pushed, rows) == 2


def test_ranks_of_a_launcher_do_not_measure_jobs_of_their_own_beside_each_other() -> None:
    said = {"RANK": "1", "WORLD_SIZE": "2", "RENDEZVOUS": "127.0.0.1:4000", "SECRET": "s" * 32}
    ended = subprocess.run(
        [sys.executable, "-m", "gradring", "bench", "pull", *SHORT],
        capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, **{f"GRADRING_{name}": value for name, value in said.items()}},
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == "", "refused before anything is measured"
    assert "gradring bench pull starts its workers and servers itself" in ended.stderr
    assert "not as ranks of a launcher" in ended.stderr
