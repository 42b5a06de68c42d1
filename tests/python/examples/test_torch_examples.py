"""The torch.distributed examples, in a small setting; one of them under torchrun itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import ROOT
from torch_ranks import script_on_ranks

pytestmark = [pytest.mark.timeout(180)]

EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def _on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADRING_DATA", str(tmp_path))


def run(name: str, *arguments: str, ranks: int) -> str:
    """Run an example on digits; what its ranks print."""
    return "".join(script_on_ranks(ranks, EXAMPLES / name, *arguments))


def test_ddp_learns_and_prints_one_accuracy() -> None:
    result = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            str(EXAMPLES / "torch_ddp.py"), "--epochs", "4",
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=160, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result
    assert result.stdout.count("epoch") == 4
    assert result.stdout.count("using scikit-learn's digits") == 1
    match = re.search(r"2 ranks: test accuracy (0\.\d+)", result.stdout)
    assert match
    assert float(match.group(1)) > 0.8


def test_fsdp2_holds_a_share_of_the_weights_on_each_rank() -> None:
    text = run("torch_fsdp2.py", "--steps", "30", ranks=2)
    match = re.search(r"last loss (\d\.\d+); each of 2 ranks holds (\d+) of (\d+) weights", text)
    assert match
    assert float(match.group(1)) < 2
    assert abs(int(match.group(2)) - int(match.group(3)) / 2) < 0.1 * int(match.group(3))


def test_the_pipeline_learns() -> None:
    text = run("torch_pipeline.py", "--steps", "41", ranks=2)
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", text)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.5


def test_micro_batches_of_different_sizes_count_by_their_examples() -> None:
    options = ("--steps", "2", "--batch", "10", "--images", "100", "--micro-batches")
    assert run("torch_pipeline.py", *options, "4", ranks=2) == run(
        "torch_pipeline.py", *options, "1", ranks=2
    )


def test_metrics_do_not_depend_on_the_number_of_ranks() -> None:
    alone = run("torch_evaluate.py", "--steps", "40", ranks=1)
    together = run("torch_evaluate.py", "--steps", "40", ranks=2)
    assert "[199, 198]" in together
    assert together.splitlines()[-1] == alone.splitlines()[-1]
    assert re.fullmatch(r"accuracy 0\.\d+, macro F1 0\.\d+, n 397", alone.splitlines()[-1])


def test_ranks_that_would_each_be_alone_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradring", "run", "-n", "2", str(EXAMPLES / "torch_evaluate.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=160, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "start this with torchrun" in done.stderr
    assert "Traceback" not in done.stderr
