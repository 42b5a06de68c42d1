"""Where device arrays live in a test: on the emulated GPU, or on a real one (pytest -m gpu)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

# The second has tests only where there is a driver: a hundred skipped ones would say nothing.
PLACES: list[Any] = ["emulated"]
_HAS_DRIVER = Path("/dev/nvidiactl").exists()
if _HAS_DRIVER:
    PLACES.append(pytest.param("gpu", marks=pytest.mark.gpu))


def use_place(request: pytest.FixtureRequest) -> None:
    """Have this process's device arrays live in the fixture's place, or skip the test."""
    os.environ.setdefault("GRADRING_EMULATED_SEED", "1")
    if request.param == "emulated":
        request.getfixturevalue("emulated_gpu")
        if not _is_emulated():
            pytest.skip("a process has one plugin, and the real one is in")
        return
    reason = why_no_gpu()
    if reason is not None:
        pytest.skip(reason)


def why_no_gpu() -> str | None:
    """Return why there is no GPU for a test; ``None``: there is one."""
    from gradring import DeviceError, gpu

    if not _HAS_DRIVER:  # Asked otherwise, this process would be left with the real plugin.
        return "there is no driver of NVIDIA's"
    try:
        if gpu.device_count() == 0:
            return "no CUDA device"
        return "a process has one plugin, and the emulated one is in" if _is_emulated() else None
    except DeviceError as error:
        return str(error)


def _is_emulated() -> bool:
    from gradring.gpu import runtime

    return runtime.is_emulated()


def to_device(values: Any) -> Any:
    """Copy a NumPy array to the first device."""
    from gradring import gpu

    return gpu.from_numpy(values)
