"""Running jobs, from outside: finds one, and gets its ranks' records.

For `gradring doctor --job`. A job is named by the address of a rank, by the process id of a rank on
this host or of what started it, or by the folder that a failure left records in. With an address
the job's secret is in GRADRING_SECRET; a process of the same user has it in its own environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradring.commands.input_files import cannot_read, files_in
from gradring.core_arguments import MOST_RANKS, plain_text, secret_bytes
from gradring.errors import AuthError, Error, InvalidArgument, PeerLost, TimedOut
from gradring.launchers import job_secret, roles
from gradring.settings.config import Settings

Record = dict[str, Any]

_ANSWER_TIME_MS = 3000
_ASKED_AT_ONCE = 32

_AGENT = b"gradring.launch.agent"  # In the command line of what a launcher starts ranks by.

_NUMBERS = ("rank", "world_size", "now", "wall")  # Fields of every record.


@dataclass(frozen=True)
class Report:
    """What is known of one rank.

    Attributes:
        rank: Of the job.
        record: Its record, or ``None``.
        problem: Why there is none.
        offset: Nanoseconds that its clock is ahead of the one all reports are compared on.
        error: How far off that may be.
    """

    rank: int
    record: Record | None = None
    problem: str = ""
    offset: int = 0
    error: int = 0


@dataclass(frozen=True)
class Job:
    """Where a rank of a job can be asked, what opens the door, and what of that is encrypted."""

    address: str
    secret: str = field(repr=False)
    tls: str = "auto"


def reports_of(job: str, environ: Mapping[str, str]) -> list[Report]:
    """Return what every rank says, by rank.

    Args:
        job: An address ``host:port``, a process id, or a folder.
        environ: Where GRADRING_SECRET is looked up.

    Raises:
        InvalidArgument: There is no such job or folder, no secret, or the secret is wrong.
    """
    if not job:
        raise InvalidArgument("--job is empty: say an address, a process id or a folder")
    if _is_folder(Path(job)):
        return read_folder(Path(job))
    return ask(_find(job, environ))


def read_folder(folder: Path) -> list[Report]:
    """Return the records that a failure left there; of several jobs, the last one's.

    Raises:
        InvalidArgument: There are none, or one cannot be read or is not ours.
    """
    records = [_parse(_read(path), str(path)) for path in files_in(folder, "rank-*.json")]
    if not records:
        raise InvalidArgument(f"{folder} holds no records (rank-0.json, ...)")
    newest = max(records, key=lambda record: int(record["wall"]))
    of_job = {record["rank"]: record for record in records if record["job"] == newest["job"]}
    # Steady clocks of different hosts have nothing in common; the wall clocks should agree.
    return [
        Report(rank, of_job[rank], offset=of_job[rank]["now"] - of_job[rank]["wall"])
        if rank in of_job
        else Report(rank, problem="left no record: it was killed, or cannot write here")
        for rank in range(newest["world_size"])
    ]


def ask(job: Job) -> list[Report]:
    """Ask every rank of a running job.

    Raises:
        InvalidArgument: Nobody answers, or the secret is wrong.
    """
    first, why = None, ""
    # Where the rank at the address is frozen or gone, another one of this host may know the others.
    for address in (job.address, *_doors_here()):
        try:
            first = _ask_one(job, address)[0]
            break
        except AuthError as error:
            why = why or f"{error}; set GRADRING_SECRET to the job's"
        except Error as error:
            why = why or f"{error}; ranks answer once all have joined, and until they end"
    if first is None:
        raise InvalidArgument(f"no rank of the job at {job.address} answers: {why}")
    addresses: Sequence[str] = first["addresses"]

    def report(rank: int) -> Report:
        try:
            record, offset, error = _ask_one(job, addresses[rank])
        except TimedOut:
            return Report(rank, problem="does not answer: frozen, or the network to it is down")
        except PeerLost:
            return Report(rank, problem="is gone: nobody listens at its address any more")
        except Error as error_:
            return Report(rank, problem=f"does not answer: {error_}")
        if record["rank"] != rank or record["job"] != first["job"]:
            return Report(rank, problem="is gone: another process listens at its address")
        return Report(rank, record, "", offset, error)

    with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(addresses))) as pool:
        return list(pool.map(report, range(len(addresses))))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # No path can be that long, or have such characters.
        return False


def _find(name: str, environ: Mapping[str, str]) -> Job:
    if not (name.isascii() and name.isdigit() and len(name) < 10):
        secret = environ.get("GRADRING_SECRET")
        if secret:
            return Job(plain_text(name, "--job"), secret, Settings.from_environ(environ).tls)
        raise InvalidArgument(
            f"--job {name}: no such folder; for an address set GRADRING_SECRET to the job's, "
            "or say the process id of `gradring run`, or of a rank on this host"
        )
    family = _with_descendants(int(name))
    agents = {pid for pid in family if _AGENT in _read_of_process(pid, "cmdline")}
    # What a launcher and its agent inherit is the job that they were started in: not the one that
    # they have started.
    no_ranks = agents | {family[pid] for pid in agents}
    for pid in family:
        found = None if pid in no_ranks else _job_of(_environment(pid))
        if found is not None:
            return found
    raise InvalidArgument(
        f"process {name} is no rank of a job and started none, is another user's, or joined by "
        "arguments of init(); say the address of its rank 0, with GRADRING_SECRET set"
    )


def _job_of(environ: Mapping[str, str]) -> Job | None:
    try:
        role = roles.discover(
            {name: value for name, value in environ.items() if name != "GRADRING_LISTEN_FD"}
        )
        if role is None or role.world_size == 1:
            return None
        secret = job_secret.secret_for(role, environ)
        return Job(role.rendezvous, secret, Settings.from_environ(environ).tls)
    except InvalidArgument:
        return None


def _with_descendants(pid: int) -> dict[int, int]:
    """Return a process and all below it, each with its parent; parents come first."""
    found = {pid: 0}
    parents = [pid]
    for parent in parents:  # It grows meanwhile.
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(child) for child in path.read_text().split()]
            except OSError:
                continue  # It has ended.
            found.update(dict.fromkeys(children, parent))
            parents += children
    return found


def _environment(pid: int) -> dict[str, str]:
    text = os.fsdecode(_read_of_process(pid, "environ"))
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def _read_of_process(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # Gone, or not ours to read.


def _doors_here() -> list[str]:
    try:
        # Any program of this host has its sockets there, by whatever bytes it calls them.
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    except OSError:
        return []
    names = {line.rpartition(" @")[2] for line in lines if " @gradring-" in line}
    return [f"unix:{name}" for name in sorted(names)]


def _ask_one(job: Job, address: str) -> tuple[Record, int, int]:
    from gradring import _core

    text, offset, error = _core.inspect(address, secret_bytes(job.secret), _ANSWER_TIME_MS, job.tls)
    return _parse(text, address), offset, error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from None


def _parse(text: bytes, source: str) -> Record:
    try:
        record: Record = json.loads(text)
        is_ours = record["format"] == "gradring-record" and record["version"] == 1
        is_ours = is_ours and all(isinstance(record[name], int) for name in _NUMBERS)
        is_ours = is_ours and 0 <= record["rank"] < record["world_size"] <= MOST_RANKS
        is_ours = is_ours and all(name in record for name in ("job", "communicators", "failure"))
    except (ValueError, KeyError, TypeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise InvalidArgument(f"{source} is no record of this version of gradring")
    return record
