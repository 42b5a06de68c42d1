"""Benches that are scripts, and pictures: each runs in a small setting and says what it found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from source_tree import ROOT

BENCH = ROOT / "bench"
PNG = b"\x89PNG"

pytestmark = [pytest.mark.timeout(180)]


def run(*command: str | Path) -> str:
    """Run a script to its end; what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=150,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def on_two_ranks(name: str, *arguments: str | Path, **settings: str) -> str:
    """Run a bench as two ranks; what rank 0 prints, the other being silent."""
    pytest.importorskip("torch")
    from torch_ranks import script_on_our_ranks

    (first, _), (second, _) = script_on_our_ranks(2, BENCH / name, *map(str, arguments), **settings)
    assert not second
    return first


def test_a_checkpoint_is_measured_beside_training(tmp_path: Path) -> None:
    small = ("--rows", "2000", "--dim", "4", "--batch", "64", "--times", "1", "--seconds", "0.2")
    found = json.loads(run(BENCH / "checkpoint.py", *small, "--to", tmp_path / "to"))
    assert (found["rows"], found["dim"]) == (2000, 4)
    saves = found["quiet"] + found["computing"]["saves"] + found["without a pause"]["saves"]
    assert len(saves) == 3
    for save in saves:
        assert save["MB"] > 2000 * 2 * 4 * 4 / 1e6, "weights and squares of every row"
        assert save["MB/s"] == pytest.approx(save["MB"] / save["seconds"])
    for way in ("computing", "without a pause"):
        assert found[way]["median"]["steps/s usual"] > 0
    assert found["load"]["MB/s"] > 0
    assert found["incremental"]["MB"] > 0


def test_compression_trains_with_every_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADRING_DATA", str(tmp_path))  # The digits stand in.
    out = tmp_path / "found.json"
    text = on_two_ranks("compression.py", "--global-batch", "128", "--json", out)
    rows = {row["codec"]: row for row in json.loads(out.read_text())["rows"]}
    assert [f"| {codec} |" in text for codec in rows] == [True] * 6
    assert {row["steps"] for row in rows.values()} == {rows["none"]["steps"]} != {0}
    saved = {codec: row["saved"] for codec, row in rows.items()}
    assert saved["none"] == 1
    assert saved["bf16"] == saved["fp16"] == pytest.approx(2, rel=0.01)
    assert 3 < saved["int8"] < saved["TopK(0.1)"] < saved["TopK(0.01)"]


def test_copies_are_timed_beside_reductions(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    text = on_two_ranks("copies.py", "--mib", "1,2", "--rounds", "2", "--json", out)
    found = json.loads(out.read_text())
    assert found["ranks"] == 2
    assert [result["bytes"] for result in found["results"]] == [1 << 20, 2 << 20]
    for result, line in zip(found["results"], text.splitlines(), strict=True):
        assert {kind: len(times) for kind, times in result["us"].items()} == {
            "memcpy": 2, "private": 2, "shared": 2,
        }  # fmt: skip
        assert all(time > 0 for times in result["us"].values() for time in times)
        assert re.match(rf" *{result['bytes'] >> 20} MiB  memcpy \d+ us \(1\.00x;", line)


def test_training_steps_are_counted_beside_ddp(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "found.json"
    options = ("--only", "cnn-1M", "--rounds", "2", "--seconds", "0.01", "--json", out)
    text = on_two_ranks("torch_steps.py", *options)
    (result,) = json.loads(out.read_text())["results"]
    assert (result["case"], result["ranks"]) == ("cnn-1M", 2)
    assert f"| cnn-1M | {result['parameters'] / 1e6:.1f} M |" in text
    ratios = [ddp / ours for ddp, ours in zip(result["ddp_s"], result["gradring_s"], strict=True)]
    assert len(ratios) == 2
    assert result["ratios"] == ratios


def test_a_case_of_steps_that_there_is_not_is_refused() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, BENCH / "torch_steps.py", "--only", "none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 2
    assert "invalid choice: 'none'" in done.stderr


def test_one_step_is_drawn_with_its_operations(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture, records = tmp_path / "overlap.png", tmp_path / "records"
    on_two_ranks("overlap.py", picture, GRADRING_RECORD=str(records))
    assert picture.read_bytes().startswith(PNG)
    assert (records / "rank-0.json").exists()


def test_a_drawing_that_has_nothing_to_go_by_says_how_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv("GRADRING_RECORD", raising=False)
    command = [sys.executable, BENCH / "overlap.py", "overlap.png"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 1
    assert "GRADRING_RECORD=/tmp/overlap gradring run -n 2 bench/overlap.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_was_simulated_is_written_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run(BENCH / "scale.py", BENCH / "results" / "scale.json", "--to", tmp_path)
    committed = (BENCH / "results" / "scale.md").read_text()
    assert (tmp_path / "scale.md").read_text() == committed
    assert (tmp_path / "scale.png").read_bytes().startswith(PNG)


def test_a_trace_is_drawn_as_a_whole_and_in_part(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    times: dict[str, Any] = {"ph": "X", "ts": 1000, "dur": 500}
    events = [{"ph": "M", "name": "process_name", "pid": rank} for rank in range(2)]
    for rank in range(2):
        events.append({"name": "all_reduce", "cat": "collective", "pid": rank, **times})
        events.append({"name": "batch", "cat": "span", "pid": rank, **times, "dur": 3000})
    trace = tmp_path / "merged.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    pictures = [tmp_path / "whole.png", tmp_path / "part.png"]
    for picture, part in zip(pictures, ((), ("0.5", "1.2")), strict=True):
        run(ROOT / "tools" / "trace_picture.py", trace, picture, *part)
        assert picture.read_bytes().startswith(PNG)
    assert pictures[0].read_bytes() != pictures[1].read_bytes()


def test_embeddings_are_measured_one_by_one_together_and_packed() -> None:
    pytest.importorskip("torch")
    small = ("--tables", "3", "--ids", "4", "--rows", "50", "--dim", "2", "--rounds", "1")
    lines = run(BENCH / "embeddings.py", *small).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"{name}, {what}"
        for name in ("one by one", "collection", "one table")
        for what in ("forward", "step")
    ]
