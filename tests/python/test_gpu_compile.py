"""The GPU kernels compile for every architecture, without spills and with few registers.

Only nvcc is needed, no GPU. A spill, or one register too many, costs a memory-bound kernel the
warps that hide its latency, and no other test would see it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = ("80", "90", "100")
KERNELS = ("pack", "reduce", "check", "step", "quantise", "sparsify", "unique", "rows", "apply")
REGISTERS = 80  # csrc/cuda/stream.cuh's kBlocks: three blocks of 256 threads at once.
REGISTERS_OF_WIDE = 128  # Two blocks: csrc/cuda/fold.cuh's kBlocksOf.
WIDE = re.compile("Float64|Lj4E")  # In a mangled name: float64, or four sources at once.
FLAGS = ("-std=c++20", "--fmad=false", "-Xptxas", "-v", "-Werror", "all-warnings", "-cubin")


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of one kernel."""

    name: str
    spilled_bytes: int
    registers: int


def kernels_in(log: str) -> list[Kernel]:
    """Reads ptxas's -v output."""
    kernels = []
    for part in log.split("Compiling entry function '")[1:]:
        spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", part)
        registers = re.search(r"Used (\d+) registers", part)
        assert len(spills) == 2, part
        assert registers is not None, part
        name = part.split("'")[0]
        kernels.append(Kernel(name, sum(map(int, spills)), int(registers[1])))
    return kernels


def complaints(kernels: list[Kernel]) -> list[str]:
    """Kernels that spill or take too many registers."""
    found = []
    for kernel in kernels:
        most = REGISTERS_OF_WIDE if WIDE.search(kernel.name) else REGISTERS
        if kernel.spilled_bytes > 0:
            found.append(f"{kernel.name} spills {kernel.spilled_bytes} bytes")
        if kernel.registers > most:
            found.append(f"{kernel.name} takes {kernel.registers} registers of {most}")
    return found


def find_nvcc() -> str:
    """Where nvcc is; skips the test where there is none."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    if nvcc is None:
        pytest.skip("nvcc was found neither on PATH nor in $CUDA_HOME or /usr/local/cuda")
    return nvcc


def check(source: str, architecture: str, folder: Path) -> None:
    target = f"arch=compute_{architecture},code=sm_{architecture}"
    place = (f"-I{ROOT}/csrc", f"{ROOT}/csrc/cuda/{source}.cu", "-o", str(folder / "cubin"))
    done = subprocess.run(
        [find_nvcc(), *FLAGS, "-gencode", target, *place],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    kernels = kernels_in(log)
    assert kernels
    assert not complaints(kernels)


def test_a_spill_and_a_register_too_many_are_found() -> None:
    log = (
        "ptxas info    : Compiling entry function '_Z1f' for 'sm_90'\n"
        "    0 bytes stack frame, {spill} bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used {registers} registers, used 0 barriers\n"
    )
    assert not complaints(kernels_in(log.format(spill=0, registers=80)))
    assert complaints(kernels_in(log.format(spill=4, registers=80)))
    assert complaints(kernels_in(log.format(spill=0, registers=81)))


# The one that needs most registers; ten seconds of ptxas. The slow test looks at all of them.
def test_reductions_keep_everything_in_registers(tmp_path: Path) -> None:
    check("reduce", "90", tmp_path)


@pytest.mark.slow  # Three minutes of ptxas.
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", KERNELS)
def test_kernels_keep_everything_in_registers_on_every_architecture(
    source: str, architecture: str, tmp_path: Path
) -> None:
    check(source, architecture, tmp_path)
