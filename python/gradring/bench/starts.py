"""What starts a library's ranks, and how to find out that something for it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gradring
from gradring.commands.own_modules import module_command
from gradring.launchers.known import SLURM
from gradring.launchers.roles import Role, discover

HERE = Path(__file__).parent  # Peers' interpreters may lack gradring: there `peers` is a package.
_PROBE_SECONDS = 60.0


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


def role_in_group(environ: Mapping[str, str]) -> Role | None:
    """Return the role that a launcher gave this command; ``None`` where it starts ranks itself.

    A step of Slurm with one task, as `srun --pty bash` is, may be a shell that somebody works in.

    Raises:
        InvalidArgument: The launcher's variables are incomplete or make no sense.
    """
    role = discover(environ)
    if role is not None and role.world_size == 1 and role.source == SLURM.source:
        return None
    return role


def under_gradring_run(ranks: int, *options: str) -> tuple[str, ...]:
    """Return the start of a command line that runs a program as so many ranks."""
    quiet = ("--quiet", "--no-prefix")
    return module_command("gradring", "run", "-n", str(ranks), *quiet, *options)


def package_path() -> dict[str, str]:
    """Let `python -m gradring` find this very package, wherever it is started."""
    folder = str(Path(gradring.__file__).resolve().parent.parent)
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{before}" if before else folder}


def require_program(
    name: str, python: str, programs: tuple[str, ...], word: str, install: str
) -> Path:
    """Return the first program whose version text has the word in it: all are called mpiexec.

    Those beside the interpreter come first: there a wheel of an MPI puts them.

    Raises:
        Missing: There is none.
    """
    beside = str(Path(python).parent) if os.sep in python else os.defpath
    for folder in (beside, None):
        for program in programs:
            found = shutil.which(program, path=folder)
            if found is None:
                continue
            asked = [found, "--version"]
            text = subprocess.run(
                asked, capture_output=True, text=True, check=False, timeout=_PROBE_SECONDS
            ).stdout
            if word in text or (word == "Open MPI" and "OpenRTE" in text):
                return Path(found)
    raise Missing(f"{name}: found no {' or '.join(programs)} of it; {install}")


def require_module(name: str, python: str, module: str, install: str) -> None:
    """Check that an interpreter has a module.

    Raises:
        Missing: It has not, or does not run.
    """
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        ended = subprocess.run([python, "-c", code], check=False, timeout=_PROBE_SECONDS)
    except OSError as error:
        raise Missing(f"{name}: --peer-python {python}: {error}") from error
    if ended.returncode != 0:
        raise Missing(f"{name}: {python} has no {module}; {install} (or give --peer-python)")


def library_path(name: str) -> str | None:
    """Return where the dynamic linker finds a library."""
    program = shutil.which("ldconfig", path=f"{os.defpath}:/sbin:/usr/sbin")
    if program is None:
        return None
    listed = subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        if line.strip().startswith(f"{name} "):
            return line.rpartition("=> ")[2]
    return None
