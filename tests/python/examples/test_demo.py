"""gradring demo: it keeps its promises on real jobs, and fails when one is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradring import demo
from gradring.demo import Outcome, clicks
from gradring.demo.clicks import ClickOutcome
from gradring.demo.digits import Network
from gradring.demo.worker import mean_of_parts


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradring", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def test_two_workers_equal_one_process_bit_for_bit_and_recognise_digits(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = run_demo("--epochs", "8", "--json", str(path))
    assert result.returncode == 0, result
    facts = json.loads(path.read_text())
    assert facts["holds"] == [True] * 4
    assert facts["difference_to_parts"] == 0
    assert facts["difference_to_whole"] < 1e-10
    assert facts["together"]["accuracy"] >= 0.95
    assert facts["together"]["losses"][-1] < facts["together"]["losses"][0] / 4
    assert facts["clicks"]["holds"] is True
    assert facts["clicks"]["best_auc"] - 0.03 <= facts["clicks"]["auc"] <= 1
    assert facts["clicks"]["staleness"] >= 1  # The next rows were fetched before the push.
    for text in ("1 process, whole batches", "2 workers", "speed-up of 2 workers", "bit for bit"):
        assert text in result.stdout
    assert "96/96" in result.stderr
    assert "\r" not in result.stderr + result.stdout


def test_three_workers_with_an_uneven_tail_equal_one_process_up_to_rounding(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    arguments = ["--workers", "3", "--global-batch", "204", "--epochs", "8", "--seed", "5"]
    result = run_demo(*arguments, "--json", str(path))
    assert result.returncode == 0, result
    assert json.loads(path.read_text())["difference_to_whole"] < 1e-10


def test_the_result_may_go_into_a_pipe() -> None:
    result = run_demo("--epochs", "1", "--json", "/dev/stdout")
    facts = json.loads(result.stdout[result.stdout.index("{\n") :])
    assert len(facts["holds"]) == 4
    assert facts["clicks"]["holds"] is True


def test_options_that_make_no_sense_are_refused_before_anything_starts() -> None:
    for arguments in (
        ["--global-batch", "33"], ["--workers", "0"], ["--epochs", "0"], ["--json", "-"],
    ):  # fmt: skip
        result = run_demo(*arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert "gradring: demo:" in result.stderr


def outcome(*params: list[float], accuracy: float = 0.97) -> Outcome:
    return Outcome([np.array(values) for values in params], accuracy, 1000.0, [0.1])


A, B, NEAR, FAR = [1.0, 2.0], [1.0, 2.0], [1.0, 2.0 + 1e-9], [1.0, 2.1]


@pytest.mark.parametrize(
    ("whole", "parts", "workers", "holds"),
    [
        (outcome(A), outcome(A), outcome(A, B), [True] * 4),
        (outcome(NEAR), outcome(A), outcome(A, B), [True] * 4),
        (outcome(A), outcome(A), outcome(A, B, accuracy=0.9), [False, True, True, True]),
        (outcome(A), outcome(A), outcome(A, NEAR), [True, False, True, True]),
        (outcome(A), outcome(NEAR), outcome(A, B), [True, True, False, True]),
        (outcome(FAR), outcome(A), outcome(A, B), [True, True, True, False]),
    ],
)
def test_each_promise_decides_the_exit_code(
    whole: Outcome, parts: Outcome, workers: Outcome, holds: list[bool]
) -> None:
    code, facts = demo._report(2, whole=whole, parts=parts, workers=workers)
    assert code == (0 if all(holds) else 1)
    assert facts["holds"] == holds


@pytest.mark.parametrize(("auc", "code"), [(0.83, 0), (0.81, 1)])
def test_clicks_foretold_too_badly_are_an_exit_code(
    auc: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found, facts = demo._report_clicks(ClickOutcome(auc, 0.85, 1e5, 10, 1))
    assert found == code
    assert facts["holds"] == (code == 0)
    assert ("NO " if code else "yes") in capsys.readouterr().out


def test_the_auc_is_that_of_every_pair() -> None:
    random = np.random.default_rng(0)
    scores, clicked = random.integers(0, 20, 300), random.random(300) < 0.3
    above = scores[clicked][:, None] - scores[~clicked][None]
    assert clicks.auc(scores, clicked) == pytest.approx(((above > 0) + (above == 0) / 2).mean())


def test_the_click_networks_gradients_are_those_of_finite_differences() -> None:
    random = np.random.default_rng(0)
    network = clicks.Network()
    flat = random.normal(0, 0.3, network.count)
    rows = random.normal(0, 1, (5, clicks.FEATURES, clicks.DIM))
    clicked = random.random(5) < 0.5

    def loss() -> float:
        p = 1 / (1 + np.exp(-network.scores(flat, rows)[2]))
        return float(-np.log(np.where(clicked, p, 1 - p)).mean())

    by_layers, by_rows = network.gradients(flat, rows, clicked)
    for array, gradient in ((flat, by_layers), (rows, by_rows)):
        for _ in range(20):
            place = tuple(random.integers(0, size) for size in array.shape)
            array[place] += 1e-6
            above = loss()
            array[place] -= 2e-6
            below = loss()
            array[place] += 1e-6
            assert gradient[place] == pytest.approx((above - below) / 2e-6, rel=1e-3, abs=1e-7)


def test_the_networks_gradients_are_those_of_finite_differences() -> None:
    random = np.random.default_rng(0)
    network, x, y = Network(seed=1), random.random((5, 64)), random.integers(0, 10, 5)
    _, gradients = network.loss_and_gradients(x, y)
    for param, gradient in zip(network.params, gradients, strict=True):
        place = tuple(random.integers(0, size) for size in param.shape)
        param[place] += 1e-6
        above, _ = network.loss_and_gradients(x, y)
        param[place] -= 2e-6
        below, _ = network.loss_and_gradients(x, y)
        param[place] += 1e-6
        assert gradient[place] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-8)


def test_parts_average_with_their_weights() -> None:
    parts = [(3, [np.array([1.0, 4.0])]), (1, [np.array([5.0, 0.0])])]
    assert mean_of_parts(parts)[0].tolist() == [2, 3]
