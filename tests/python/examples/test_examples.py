"""The examples run alone and on several ranks, and give the same results either way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from source_tree import ROOT

EXAMPLES = ROOT / "examples"
RANKS = ("-m", "gradring", "run", "--no-prefix", "-n")


def run_example(name: str, *arguments: str, ranks: int | None = None) -> tuple[str, str]:
    """Run an example alone, or on some ranks; its two streams."""
    launcher = () if ranks is None else (*RANKS, str(ranks))
    environ = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, *launcher, str(EXAMPLES / name), *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=110, check=False, env=environ
    )
    assert result.returncode == 0, result
    return result.stdout, result.stderr


def test_hello_sends_round_the_ring_and_sums() -> None:
    assert "rank 0 of 1: hello from rank 0" in run_example("hello.py")[0]
    lines = run_example("hello.py", ranks=3)[0].splitlines()
    expected = [f"rank {rank} of 3: hello from rank {(rank - 1) % 3}" for rank in range(3)]
    expected += [f"rank {rank}: 1 + ... + 3 = 6" for rank in range(3)]
    assert sorted(lines) == sorted(expected)


def test_the_distributed_script_prints_what_the_single_machine_script_prints() -> None:
    alone, _ = run_example("linear_regression.py")
    assert alone.count("epoch") == 5
    assert run_example("linear_regression_distributed.py")[0] == alone
    assert run_example("linear_regression_distributed.py", ranks=2)[0] == alone


def test_the_distributed_script_differs_in_about_ten_lines() -> None:
    def code(name: str) -> list[str]:
        return (EXAMPLES / name).read_text().splitlines()[1:]

    alone, distributed = code("linear_regression.py"), code("linear_regression_distributed.py")
    added = [line for line in distributed if line.strip() and line not in alone]
    assert len(added) <= 10
    page = (EXAMPLES / "README.md").read_text()
    shown = re.findall(r"^\+ *(\S.*)$", page, flags=re.MULTILINE)
    assert shown
    assert all(any(line in real for real in distributed) for line in shown)


@pytest.mark.parametrize("ranks", [None, 2, 3])
def test_digits_are_recognised_on_any_number_of_ranks(ranks: int | None) -> None:
    out, _ = run_example("digits_numpy.py", ranks=ranks)
    found = re.fullmatch(r"(\d) ranks: test accuracy (\S+)\n", out)
    assert found is not None
    assert int(found[1]) == (ranks or 1)
    assert float(found[2]) >= 0.95


@pytest.mark.parametrize("arguments", [(None,), (2,), (2, "--compress", "int8")])
def test_digits_are_recognised_by_jax_alone_and_together(arguments: tuple[Any, ...]) -> None:
    pytest.importorskip("jax", reason="jax (gradring[jax]) is not installed")
    ranks, *options = arguments
    out, _ = run_example("digits_jax.py", "--epochs", "8", *options, ranks=ranks)
    found = re.fullmatch(r"(\d) ranks: test accuracy (\S+)\n", out)
    assert found is not None
    assert int(found[1]) == (ranks or 1)
    assert float(found[2]) >= 0.95


def test_a_global_batch_that_ranks_cannot_share_is_refused() -> None:
    command = [sys.executable, *RANKS, "2", str(EXAMPLES / "digits_numpy.py")]
    done = subprocess.run(
        [*command, "--global-batch", "7"], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 1
    assert "--global-batch must be a multiple of the 2 ranks" in done.stderr
    assert done.stdout == ""


def test_help_says_what_an_example_does() -> None:
    assert "A small network in NumPy" in run_example("digits_numpy.py", "--help")[0]


def test_every_option_of_an_example_says_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from options import Parser

    parser = Parser("As it\nis written.")
    parser.add_argument("--epochs", default=3)
    parser.add_argument("--lr", default=0.5, help="of the network")
    parser.add_argument("--out", help="a file")
    said = parser.format_help()
    assert "As it\nis written." in said
    assert re.search(r"--epochs EPOCHS +\(default: 3\)\n", said)
    assert re.search(r"--lr LR +of the network \(default: 0.5\)\n", said)
    assert re.search(r"--out OUT +a file\n", said)
    texts = {path.name: path.read_text() for path in EXAMPLES.glob("*.py")}
    assert [name for name in texts if "ArgumentParser(" in texts[name]] == ["curves.py"]


def test_who_lacks_scikit_learn_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import datasets

    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(SystemExit, match=r"pip install 'gradring\[examples\]'"):
        datasets.load_digits()


def test_digits_stand_in_where_one_of_the_four_files_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import fashion_lenet

    monkeypatch.setenv("GRADRING_DATA", str(tmp_path))
    (tmp_path / "fashion-mnist").mkdir()
    for name in (*fashion_lenet.names("train"), fashion_lenet.names("t10k")[0]):
        (tmp_path / "fashion-mnist" / name).touch()
    assert fashion_lenet.load(is_talking=True)[2] == "digits"
    assert "no Fashion-MNIST, all four files, in " in capsys.readouterr().out


def test_lenet_has_the_same_loss_curve_on_one_two_and_four_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from torch_ranks import script_on_our_ranks

    monkeypatch.setenv("GRADRING_DATA", str(tmp_path / "none"))
    curves = []
    for ranks in (1, 2, 4):
        path = tmp_path / f"{ranks}.json"
        arguments = ["--epochs", "2", "--global-batch", "32", "--baseline-seconds", "0.2"]
        arguments += ["--json", str(path)]
        out, err = script_on_our_ranks(ranks, EXAMPLES / "fashion_lenet.py", *arguments)[0]
        facts = json.loads(path.read_text())
        curves.append(facts["losses"])
        assert facts["workers"] == ranks
        assert facts["accuracies"][-1] > 0.8
        assert "epoch 2: test accuracy" in out
        assert "examples/s" in err
        assert ("speed-up" in out) == (ranks > 1)
        if facts["data"] == "digits":
            assert "using scikit-learn's digits" in out
    alone = curves[0]
    assert alone[-1] < alone[0] / 2
    for curve in curves[1:]:
        assert curve == pytest.approx(alone, abs=1e-5)
