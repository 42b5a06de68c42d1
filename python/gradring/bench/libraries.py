"""How each library's ranks are started on this machine, and how to get one that is missing.

Peers run in an interpreter that may lack gradring, so their programs are started in this folder, as
modules of the package `peers`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gradring

_HERE = Path(__file__).parent
_PROBE_SECONDS = 60.0
_TORCH = "pip install torch==2.13.0"
_OPEN_MPI = "apt install openmpi-bin libopenmpi3, pip install mpi4py"
_MPICH = "apt install mpich, pip install mpi4py"


@dataclass(frozen=True)
class Start:
    """What starts a library's ranks.

    Attributes:
        name: As on the command line.
        argv: One command for all ranks; they connect to the socket that it names.
        cwd: Where to run it.
        environ: On top of the bench's own.
    """

    name: str
    argv: tuple[str, ...]
    cwd: Path
    environ: dict[str, str] = field(default_factory=dict)


class Missing(Exception):  # noqa: N818 - the words of the message
    """A library is not here; the text says how to install it."""


def start_ours(
    ranks: int, transport: str | None, algorithm: str, socket: Path, device: str = "cpu"
) -> Start:
    """Return how to start gradring's own ranks."""
    chosen = ("--transport", transport) if transport is not None else ()
    program = (sys.executable, "-m", "gradring.bench.peers.ours", str(socket), algorithm, device)
    return Start("gradring", (*_run(ranks, *chosen), *program), Path.cwd(), _package_path())


def start_peer(name: str, ranks: int, python: str, socket: Path) -> Start:
    """Return how to start a peer's ranks.

    Raises:
        Missing: Its launcher or its Python package is not here.
    """
    return PEERS[name](ranks, python, socket)


def _gloo(ranks: int, python: str, socket: Path) -> Start:
    _require_module("gloo", python, "torch", _TORCH)
    store = socket.with_suffix(".store")
    # `gradring run` hands out the ranks; torch meets through the file.
    script = f'exec "$0" -m peers.gloo "$1" "$2" "$GRADRING_RANK" {ranks}'
    program = ("sh", "-c", script, python, str(socket), str(store))
    environ = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    return Start("gloo", (*_run(ranks), *program), _HERE, {**_package_path(), **environ})


def _open_mpi(name: str, *options: str) -> Callable[[int, str, Path], Start]:
    def start(ranks: int, python: str, socket: Path) -> Start:
        launcher = _require_program(name, ("mpiexec.openmpi", "mpiexec"), "Open MPI", _OPEN_MPI)
        _require_module(name, python, "mpi4py", _OPEN_MPI)
        argv = [launcher, "-n", str(ranks), "--oversubscribe", *options]
        if os.geteuid() == 0:
            argv.append("--allow-run-as-root")
        if ranks > len(os.sched_getaffinity(0)):
            argv += ["--mca", "mpi_yield_when_idle", "1"]
        argv += [python, "-m", "peers.mpi", str(socket)]
        return Start(name, tuple(argv), _HERE, {"MPI4PY_MPIABI": "openmpi"})

    return start


def _mpich(ranks: int, python: str, socket: Path) -> Start:
    launcher = _require_program("mpich", ("mpiexec.mpich", "mpiexec.hydra"), "HYDRA", _MPICH)
    _require_module("mpich", python, "mpi4py", _MPICH)
    argv = (launcher, "-n", str(ranks), python, "-m", "peers.mpi", str(socket))
    environ = {"MPI4PY_MPIABI": "mpich"}
    debian = _library_path("libmpich.so.12")
    if debian is not None:  # Where mpi4py looks for libmpi.so.12, as MPICH itself names it.
        folder = socket.with_suffix(".lib")
        folder.mkdir()
        (folder / "libmpi.so.12").symlink_to(debian)
        paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environ["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    return Start("mpich", argv, _HERE, environ)


PEERS: dict[str, Callable[[int, str, Path], Start]] = {
    "gloo": _gloo,
    "openmpi": _open_mpi("openmpi"),
    "openmpi-tcp": _open_mpi("openmpi-tcp", "--mca", "btl", "tcp,self", "--mca", "pml", "ob1"),
    "mpich": _mpich,
}


def _run(ranks: int, *options: str) -> tuple[str, ...]:
    quiet = ("--quiet", "--no-prefix")
    return (sys.executable, "-m", "gradring", "run", "-n", str(ranks), *quiet, *options)


def _package_path() -> dict[str, str]:
    """Let `python -m gradring` find this very package, wherever it is started."""
    folder = str(Path(gradring.__file__).resolve().parent.parent)
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{before}" if before else folder}


def _require_program(name: str, programs: tuple[str, ...], word: str, install: str) -> str:
    """Return the first program whose version text has the word in it: all are called mpiexec."""
    for program in programs:
        found = shutil.which(program)
        if found is None:
            continue
        asked = [found, "--version"]
        text = subprocess.run(
            asked, capture_output=True, text=True, check=False, timeout=_PROBE_SECONDS
        ).stdout
        if word in text or (word == "Open MPI" and "OpenRTE" in text):
            return found
    raise Missing(f"{name}: found no {' or '.join(programs)} of it; {install}")


def _require_module(name: str, python: str, module: str, install: str) -> None:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        ended = subprocess.run([python, "-c", code], check=False, timeout=_PROBE_SECONDS)
    except OSError as error:
        raise Missing(f"{name}: --peer-python {python}: {error}") from error
    if ended.returncode != 0:
        raise Missing(f"{name}: {python} has no {module}; {install} (or give --peer-python)")


def _library_path(name: str) -> str | None:
    """Return where the dynamic linker finds a library."""
    program = shutil.which("ldconfig", path=f"{os.defpath}:/sbin:/usr/sbin")
    if program is None:
        return None
    listed = subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        if line.strip().startswith(f"{name} "):
            return line.rpartition("=> ")[2]
    return None
