"""The word2vec and click-rate examples learn, in every mode, and their arithmetic is right."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mode_servers import RealServers
from source_tree import ROOT

torch = pytest.importorskip("torch")

EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

import ctr  # noqa: E402
import curves  # noqa: E402
import fashion_lenet  # noqa: E402
import word2vec  # noqa: E402
from curves import read  # noqa: E402
from datasets import zipf_pairs  # noqa: E402
from skipgram import Batch, Stream, Windows, accuracy  # noqa: E402
from word2vec_modes import Rows, mode_of  # noqa: E402

import gradring as gr  # noqa: E402
from torch_ranks import script_on_our_ranks  # noqa: E402

MODES = ("sync", "sync-ps", "bounded", "async", "geo", "hybrid")


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADRING_DATA", str(tmp_path / "none"))


def run(name: str, *arguments: str, workers: int = 1, out: Path) -> tuple[Any, Any, Any]:
    """Run an example, several workers with servers; what it was, its points, its outcome."""
    with contextlib.ExitStack() as stack:
        servers = None
        if workers > 1:
            servers = stack.enter_context(contextlib.closing(RealServers("shm")))
        options = (*arguments, "--out", str(out))
        script_on_our_ranks(workers, EXAMPLES / name, *options, servers=servers)
    return read(out)


def test_windows_stay_in_their_line_and_have_the_right_gradient() -> None:
    random = np.random.default_rng(0)
    text = random.integers(0, 20, 60).astype(np.int32)
    windows = Windows(np.full(20, 60), window=2, block=8, blocks=2, shared=4, sample=1.0)
    count, batches = windows.epoch(text, np.repeat(np.arange(6, dtype=np.int32), 10), random)
    batch = next(batches)
    assert count == 60 // 16
    assert batch.pairs is not None
    # No word is its own neighbour, and none is a neighbour across lines.
    for block, word, other in batch.pairs.nonzero().tolist():
        at, neighbour = block * 8 + word, block * 8 + other - 2
        assert 0 < abs(at - neighbour) <= 2
        assert at // 10 == neighbour // 10
    torch.manual_seed(0)  # Of some draws the sums round by more than the comparison allows.
    inputs = torch.randn(16, 3, requires_grad=True)
    outputs = torch.randn(2 * (8 + 4 + 4), 3, requires_grad=True)
    scores = inputs.view(2, 8, 3) @ outputs.view(2, 16, 3).transpose(1, 2)
    log = torch.nn.functional.logsigmoid
    each = batch.pairs.sum(2, keepdim=True) * 5 / 4
    loss = -(batch.pairs * log(scores[:, :, :12])).sum() - (each * log(-scores[:, :, 12:])).sum()
    loss.backward()
    with torch.no_grad():
        *progress, mean = windows.progress(batch, inputs, outputs, with_loss=True)
    torch.testing.assert_close(progress[0], -inputs.grad)
    torch.testing.assert_close(progress[1], -outputs.grad)
    assert mean == pytest.approx((loss / batch.pairs.sum()).item())


def test_a_stream_of_pairs_has_the_right_gradient() -> None:
    stream = Stream(zipf_pairs(64, seed=0, rows=50), 32)
    count, batches = stream.epoch(0, 64)
    batch: Batch = next(batches)
    assert count == 2
    torch.manual_seed(0)
    inputs = torch.randn(32, 4, requires_grad=True)
    outputs = torch.randn(32 * 6, 4, requires_grad=True)
    scores = (outputs.view(32, 6, 4) * inputs[:, None]).sum(2)
    log = torch.nn.functional.logsigmoid
    loss = -log(scores[:, 0]).sum() - log(-scores[:, 1:]).sum()
    loss.backward()
    with torch.no_grad():
        *progress, mean = stream.progress(batch, inputs, outputs, with_loss=True)
    torch.testing.assert_close(progress[0], -inputs.grad)
    torch.testing.assert_close(progress[1], -outputs.grad)
    assert mean == pytest.approx(loss.item() / 32)


def test_an_analogy_is_right_when_the_nearest_other_word_is_the_answer() -> None:
    vectors = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [-1, 0, 0]])
    assert accuracy(vectors, np.array([[0, 1, 2, 3], [0, 1, 2, 4]])) == 0.5


WORD2VEC = ("--synthetic", "--epochs", "1", "--dim", "16", "--examples", "102400", "--batch", "256",
            "--lr", "0.05")  # fmt: skip
CTR = ("--examples", "10240", "--dim", "4", "--batch", "128", "--row-lr", "0.1")


def test_rows_are_trained_as_torch_trains_them() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(20, 3, generator=generator)
    options = argparse.Namespace(rule="adagrad", lr=0.1, dim=3)
    rows, expected = Rows(weights.clone(), options), weights.clone()
    optimizer = torch.optim.Adagrad([expected], lr=0.1)
    for _ in range(5):
        ids = torch.randint(0, 20, (30,), generator=generator)
        progress = torch.randn(30, 3, generator=generator)
        expected.grad = torch.zeros(20, 3).index_add_(0, ids, progress, alpha=-1)
        rows.add(ids, rows.scale * progress, 0.1)
        optimizer.step()
    torch.testing.assert_close(rows.weights, expected)


def test_word2vec_learns(tmp_path: Path) -> None:
    what, points, outcome = run("word2vec.py", *WORD2VEC, out=tmp_path / "run")
    assert what["mode"] == "local"
    assert points[0]["loss"] == pytest.approx(6 * np.log(2), abs=0.1)
    # Six times log 2 untrained; how much less depends on when exchanges fall.
    assert outcome["held-out loss"] < 4.08


def test_word2vec_learns_from_text(tmp_path: Path) -> None:
    _, points, _ = run("word2vec.py", "--epochs", "3", "--dim", "16", out=tmp_path / "run")
    assert points[-1]["loss"] < 3.3


@pytest.mark.parametrize("option", ["--batch", "--epochs", "--dim", "--k-steps", "--examples"])
@pytest.mark.parametrize("example", [word2vec, ctr])
@pytest.mark.parametrize("number", ["0", "-5"])
def test_numbers_that_make_no_sense_are_refused_by_name(
    example: Any, option: str, number: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["example", option, number])
    with pytest.raises(SystemExit):
        example.parse()
    assert f"argument {option}: it is at least 1, got {number}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("example", "option"), [(word2vec, "--out"), (ctr, "--out"), (fashion_lenet, "--json")]
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    example: Any, option: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    for place, why in (
        (tmp_path / "none" / "run", f"no folder {tmp_path}"),
        (tmp_path, "a folder"),
    ):
        monkeypatch.setattr(sys, "argv", ["example", option, str(place)])
        with pytest.raises(SystemExit):
            example.parse()
        said = capsys.readouterr().err
        assert f"argument {option}: " in said
        assert why in said
    monkeypatch.setattr(sys, "argv", ["example", option, str(tmp_path / "run")])
    example.parse()


def test_options_that_a_mode_does_not_use_do_not_stop_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["example", "--outer", "nesterov", "--rare-every", "4", "--mode"]
    monkeypatch.setattr(sys, "argv", [*options, "async"])
    assert mode_of(word2vec.parse()) == gr.Async()
    monkeypatch.setattr(sys, "argv", [*options, "geo"])
    with pytest.raises(SystemExit):
        word2vec.parse()
    assert "error: --outer nesterov" in capsys.readouterr().err


def test_a_run_says_what_it_trains_on_where_files_are_missing() -> None:
    options = ("--epochs", "1", "--dim", "4", "--words", "3000")
    ((said, _),) = script_on_our_ranks(1, EXAMPLES / "word2vec.py", *options)
    assert "text: Python's help texts, 3,000 words" in said
    assert "no analogies are asked: no questions-words.txt.gz in " in said
    options = ("--data", "flights", "--examples", "50", "--batch", "10", "--dim", "4")
    ((said, _),) = script_on_our_ranks(1, EXAMPLES / "ctr.py", *options)
    assert said.startswith("no flights (or not all of it) in ")


def test_a_short_run_ends_with_a_full_bar_and_plain_numbers() -> None:
    options = ["--synthetic", "--epochs", "1", "--dim", "4", "--examples", "102400"]
    ((said, progress),) = script_on_our_ranks(1, EXAMPLES / "word2vec.py", *options)
    assert "local, 1 worker: pairs 102,400, seconds " in said
    assert "200/200" in progress
    options = ["--examples", "50", "--batch", "10", "--dim", "4"]
    ((said, progress),) = script_on_our_ranks(1, EXAMPLES / "ctr.py", *options)
    assert "local, 1 worker: examples 50, seconds " in said
    assert "20/20" in progress


def test_examples_that_fill_no_batch_are_not_counted(tmp_path: Path) -> None:
    options = ("--examples", "100", "--batch", "30", "--dim", "4", "--epochs", "2")
    assert run("ctr.py", *options, out=tmp_path / "run")[2]["examples"] == 2 * 90


@pytest.mark.parametrize("name", ["ctr.py", "word2vec.py --synthetic"])
def test_fewer_examples_than_a_step_takes_are_refused(name: str) -> None:
    command = [sys.executable, *f"{EXAMPLES}/{name} --batch 512 --examples 500".split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 1
    assert done.stderr.endswith("nothing would be trained\n")


def test_workers_of_a_text_train_the_same_vectors_in_step(tmp_path: Path) -> None:
    # How many words a batch takes is drawn by each worker; the rate that falls is everybody's.
    options = ("--epochs", "2", "--dim", "8", "--words", "40000", "--mode", "sync")
    _, _, outcome = run("word2vec.py", *options, workers=2, out=tmp_path / "run")
    assert outcome["alike"]


@pytest.mark.parametrize("model", ["dnn", "deepfm"])
def test_click_rates_are_learnt(tmp_path: Path, model: str) -> None:
    _, points, outcome = run("ctr.py", *CTR, "--model", model, out=tmp_path / "run")
    assert [set(point) for point in points] == [{"seconds", "examples", "auc", "loss"}] * 20
    assert 0.62 < outcome["test AUC"] < outcome["best AUC"]


@pytest.mark.parametrize("examples", ["1", "5"])  # With no example to test, and with one.
def test_a_handful_of_examples_has_no_auc_and_says_so(examples: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, str(EXAMPLES / "ctr.py"), "--batch", "1", "--examples", examples]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert "no AUC: " in done.stdout
    for text in (done.stdout, done.stderr, out.read_text()):
        assert "nan" not in text.lower()
        assert "Warning" not in text
    assert read(out)[2]["test AUC"] is None


@pytest.mark.parametrize("mode", ["apart", *MODES])
def test_word2vec_learns_with_two_workers(tmp_path: Path, mode: str) -> None:
    options = (*WORD2VEC, "--mode", mode, "--k-steps", "5")  # Few: a worker may stall under load.
    what, points, outcome = run("word2vec.py", *options, workers=2, out=tmp_path / "run")
    assert (what["mode"], what["workers"]) == (mode, 2)
    assert 90_000 < points[-1]["examples"] <= 102_400
    assert outcome["alike"] == (mode != "apart")
    # Six times log 2 untrained, 4.02 apart. Where workers need not wait for each other, how much
    # less depends on when exchanges fall.
    assert outcome["held-out loss"] < (3.95 if mode.startswith("sync") else 4.08)


@pytest.mark.parametrize("mode", MODES)
def test_click_rates_are_learnt_by_two_workers(tmp_path: Path, mode: str) -> None:
    what, _, outcome = run("ctr.py", *CTR, "--mode", mode, workers=2, out=tmp_path / "run")
    assert (what["mode"], what["workers"]) == (mode, 2)
    assert outcome["alike"]
    assert 0.6 < outcome["test AUC"] < outcome["best AUC"]


def test_the_command_of_the_documentation_trains(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gradring", "run", "-n", "2", "--servers", "1"]
    command += [str(EXAMPLES / "ctr.py"), *CTR, "--mode", "async", "--out", str(tmp_path / "run")]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=110, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result
    what, _, outcome = read(tmp_path / "run")
    assert (what["mode"], what["workers"]) == ("async", 2)
    assert 0.6 < outcome["test AUC"] < outcome["best AUC"]


def test_runs_are_drawn_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for mode in ("local", "geo"):
        lines = [{"mode": mode, "workers": 2, "unit": "words"}]
        lines += [{"seconds": i, "examples": 10 * i, "loss": 4 - i} for i in range(3)]
        lines += [{"words/s": 1234.5}]
        (tmp_path / mode).write_text("\n".join(map(json.dumps, lines)) + "\n")
    files = [str(tmp_path / "local"), str(tmp_path / "geo")]
    picture = tmp_path / "both.png"
    shown = subprocess.run(
        [sys.executable, EXAMPLES / "curves.py", *files, "--png", picture],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "| geo, 2 workers | 1,234 |" in shown.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    lines = [{"mode": "geo", "workers": 1}, {"seconds": 1, "examples": 1, "loss": 1}, {"alike": 1}]
    run.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sys, "argv", ["curves.py", str(run), "--png", str(tmp_path / "png")])
    with pytest.raises(SystemExit):
        curves.main()
    assert "--png needs matplotlib: pip install 'gradring[examples]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", [None, "", "no JSON", '{"mode": "geo"}\n{"seconds": 1.5, "examples": 9, "loss": 1.0}\n']
)
def test_a_run_that_is_none_or_has_not_ended_is_named(tmp_path: Path, text: str | None) -> None:
    run = tmp_path / "run"
    if text is not None:
        run.write_text(text)
    command = [sys.executable, str(EXAMPLES / "curves.py"), str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert f"error: {run}: " in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("key", ["title", "unit"])
def test_runs_of_different_trainings_are_not_compared(tmp_path: Path, key: str) -> None:
    for name in ("one", "other"):
        what = {"mode": "geo", "workers": 1, "title": "t", "unit": "words", key: name}
        (tmp_path / name).write_text(json.dumps(what) + '\n{"words/s": 1.5}\n')
    command = [sys.executable, EXAMPLES / "curves.py", tmp_path / "one", tmp_path / "other"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert f"{tmp_path / 'other'}: its {key} is other, and that of {tmp_path / 'one'} is one" in (
        done.stderr
    )
    assert done.stdout == ""


def test_a_run_without_points_is_named_where_it_is_to_be_drawn(tmp_path: Path) -> None:
    run = tmp_path / "short"
    run.write_text('{"mode": "geo", "workers": 1}\n{"words/s": 1.5}\n')
    done = subprocess.run(
        [sys.executable, EXAMPLES / "curves.py", run, "--png", tmp_path / "none.png"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "| geo, 1 worker | 1.5 |" in done.stdout
    assert f"{run} has no points to draw" in done.stderr
    assert "Traceback" not in done.stderr
