"""Compiles the fake NCCL (tests/fake_nccl), and calls NCCL's operations on NumPy arrays with it.

Imported by tests, and by the ranks that they start: there `Ranks` stands for what device arrays
will be given to.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring import _core
from gradring.arrays.buffers import DTYPE_CODES
from source_tree import ROOT

OPS = ("barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather",
       "scatter", "all_to_all", "send", "recv")  # fmt: skip
REDUCE_OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor")
DEFAULT_STREAM = 1
PATIENCE_MS = 60_000


def compile_library(folder: Path) -> Path:
    """Compile the fake, which is a GPU plugin as well, unless it is there; returns its path."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the fake NCCL with")
    folder.mkdir(exist_ok=True)
    library = folder / "libnccl.so.2"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(compiler, library)
    return library


def _compile(compiler: str, library: Path) -> None:
    unfinished = library.with_suffix(".part")  # Nobody takes half of one for it.
    sources = [str(path) for path in sorted((ROOT / "tests" / "fake_nccl").glob("*.cc"))]
    command = [
        compiler, "-std=c++20", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden",
        "-ffp-contract=off",  # As all that it is compared with (cmake/flags.cmake).
        "-shared", "-fPIC", "-pthread", "-Wl,-soname,libnccl.so.2",
        f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests'}",
        "-o", str(unfinished), *sources,
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=300)
    unfinished.rename(library)


class Ranks:
    """A communicator's ranks, through NCCL, with arrays for device memory."""

    def __init__(self, ranks: gr.Communicator | Any, timeout_ms: int = -1) -> None:
        is_core = isinstance(ranks, _core.NcclRanks)
        self.core = ranks if is_core else _core.NcclRanks.join(ranks._core, 0, timeout_ms)

    def submit(
        self,
        op: str,
        source: np.ndarray | None,
        target: np.ndarray | None,
        *,
        reduce_op: str = "sum",
        count: int | None = None,
        dtype: str | None = None,
        **more: Any,
    ) -> Any:
        """Start an operation; 16-bit floats come as uint16 with their `dtype` said."""
        array = source if source is not None else target
        assert array is not None
        return self.core.submit(
            OPS.index(op),
            0 if source is None else source.ctypes.data,
            0 if target is None else target.ctypes.data,
            DTYPE_CODES[dtype or array.dtype.name],
            array.size if count is None else count,
            DEFAULT_STREAM,
            reduce_op=REDUCE_OPS.index(reduce_op),
            **more,
        )

    def run(self, op: str, source: Any, target: Any, **more: Any) -> None:
        """The same to its end."""
        self.submit(op, source, target, **more).wait(PATIENCE_MS)
