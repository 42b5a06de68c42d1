"""Our own declarations of NCCL are those of a real nccl.h, wherever one can be found."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from source_tree import ROOT


def folders() -> list[Path]:
    """Where headers of NCCL and CUDA may be."""
    found = [Path(os.environ[name]) / "include" for name in ("NCCL_HOME", "CUDA_HOME")
             if name in os.environ]  # fmt: skip
    for package in ("nvidia.nccl", "nvidia.cuda_runtime", "nvidia.cu13"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        places = [] if spec is None else spec.submodule_search_locations or []
        found += [Path(place) / "include" for place in places]
    return [
        *found,
        Path("/usr/include"),
        Path("/usr/local/include"),
        Path("/usr/local/cuda/include"),
    ]


def test_our_declarations_are_those_of_nccl() -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    for header in ("nccl.h", "cuda_runtime.h"):
        if not any((folder / header).is_file() for folder in folders()):
            pytest.skip(f"no {header} on this machine; NCCL_HOME and CUDA_HOME can name theirs")
    options = [f"-I{folder}" for folder in folders() if folder.parent != Path("/usr")]
    source = ROOT / "tests" / "nccl_header" / "same_abi.cc"
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'csrc'}", *options, str(source)]
    subprocess.run(command, check=True, timeout=60)
