"""`gradring bench kernels` and `--device cuda` over the emulated GPU, and what they say of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from emulated import emulated_plugin
from gradring.bench.kernels import options, report
from gradring.bench.kernels.streaming import tensor_counts
from gradring.errors import InvalidArgument
from gradring.gpu import kernels


def bench(*arguments: str, plugin: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "GRADRING_GPU_PLUGIN": plugin, "GRADRING_EMULATED_SEED": "3"}
    return subprocess.run(
        [sys.executable, "-m", "gradring", "bench", *arguments],
        env=environ, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def plugin() -> str:
    return str(emulated_plugin())


def test_kernels_are_measured_and_the_emulation_is_named(plugin: str, tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    done = bench(
        "kernels", "--size", "16K", "--tensors", "5", "--rows", "64", "--dim", "4", "--rounds", "5",
        "--json", str(file), plugin=plugin,
    )  # fmt: skip
    assert report.EMULATED in done.stdout, done.stdout + done.stderr
    document = json.loads(file.read_text())
    assert document["emulated"] is True
    failed = [row["failed"] for row in document["kernels"] if "failed" in row]
    assert all("the GPU plugin has no kernel" in text for text in failed), failed
    assert done.returncode == bool(failed)
    for row in document["kernels"]:
        if "failed" not in row:
            assert row["us"] > 0
            assert row["floor_bytes"] > 0
            assert 0 <= row["fraction_of_copy"] < 1  # Emulated, it may round to 0.
    assert set(document["staging_gbs"]) == {"down", "up", "both"}


def test_any_device_can_be_measured(plugin: str) -> None:
    done = bench(
        "kernels", "--device", "1", "--size", "16K", "--tensors", "2", "--rows", "64", "--dim", "4",
        "--rounds", "5", plugin=plugin,
    )  # fmt: skip
    assert report.EMULATED in done.stdout, done.stdout + done.stderr


def test_a_device_that_is_not_here_is_told_in_one_line(tmp_path: Path) -> None:
    none = str(tmp_path / "none.so")
    done = bench("all_reduce", "--device", "cuda", "-n", "2", plugin=none)
    assert done.stderr.startswith("gradring bench: ")
    assert none in done.stderr
    assert (done.stderr.count("\n"), done.stdout, done.returncode) == (1, "", 1)


def test_ranks_with_device_arrays_are_measured_and_checked(plugin: str, tmp_path: Path) -> None:
    file = tmp_path / "all_reduce.json"
    done = bench(
        "all_reduce", "scatter", "--device", "cuda", "-n", "2", "--sizes", "4K", "--rounds", "5",
        "--seconds", "0.05", "--json", str(file), plugin=plugin,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(file.read_text())
    assert "emulated" in document["device"]
    assert [entry["op"] for entry in document["operations"]] == ["all_reduce", "scatter"]
    for entry in document["operations"]:
        assert entry["rows"][0]["results"]["gradring"]["wrong"] == 0
    assert document["operations"][0]["rows"][0]["staging"]["overlap"] > 0
    assert "staging" not in document["operations"][1]["rows"][0]
    assert "overlap" in done.stdout


def test_without_a_gpu_the_reason_is_said(tmp_path: Path) -> None:
    done = bench("kernels", "--size", "16K", "--tensors", "2", plugin=str(tmp_path / "none.so"))
    assert done.returncode == 1
    assert "none.so" in done.stderr


def test_options_that_make_no_sense_are_refused() -> None:
    for argv, text in (
        (["--rounds", "1"], "fewer than"),
        (["--sources", "33"], "1 to 32"),
        (["--rows", "0"], "must be positive"),
        (["--size", "4", "--tensors", "2"], "less than an element"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            options.parse(argv)


def test_tensors_of_a_bucket_have_all_its_elements() -> None:
    for tensors, elements in ((1, 1), (7, 100), (1000, 1 << 20)):
        counts = tensor_counts(tensors, elements)
        assert (len(counts), sum(counts)) == (tensors, elements)
        assert min(counts) >= 1


def test_pieces_cover_every_element_once() -> None:
    pieces = kernels._pieces(0x1000, 50, 20_000, 2)
    assert pieces["count"].tolist() == [8192, 8192, 20_000 - 2 * 8192]
    assert pieces["tensor"].tolist() == [0x1000, 0x1000 + 2 * 8192, 0x1000 + 4 * 8192]
    assert pieces["place"].tolist() == [50, 50 + 8192, 50 + 2 * 8192]
    assert pieces.dtype.itemsize == 24
    assert len(kernels._pieces(0, 0, 0, 4)) == 0
    assert np.dtype("<u8").itemsize * 3 == pieces.dtype.itemsize
