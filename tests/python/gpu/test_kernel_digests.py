"""A GPU's kernels write the bits of the emulated ones, which have the CPU's (tests/cpp/gpu)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulated import emulated_plugin
from gpu_places import why_no_gpu

PROGRAM = Path(__file__).with_name("kernel_digests.py")


def digests(every: int = 1, **environ: str) -> dict[str, str]:
    """Return what every kernel has written, in a process of its own: one has one plugin."""
    kept = {name: value for name, value in os.environ.items() if name != "GRADRING_GPU_PLUGIN"}
    done = subprocess.run(
        [sys.executable, PROGRAM, str(every)], env=kept | environ, capture_output=True, text=True,
        check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    assert not [name for name, value in found.items() if "Error" in value], found
    return found


def test_kernels_write_the_same_however_late_their_streams_are() -> None:
    plugin = str(emulated_plugin())
    first, second = (
        digests(7, GRADRING_GPU_PLUGIN=plugin, GRADRING_EMULATED_SEED=seed) for seed in "12"
    )
    assert first == second


@pytest.mark.gpu
def test_a_gpu_writes_what_the_emulated_one_writes() -> None:
    reason = why_no_gpu()
    if reason is not None and "one plugin" not in reason:
        pytest.skip(reason)
    expected = digests(GRADRING_GPU_PLUGIN=str(emulated_plugin()))
    found = digests()
    assert {name: found[name] for name in expected if found[name] != expected[name]} == {}
