"""Which collectives are measured where, and about how long that takes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

from gradring.bench.cases import make_cases, message_bytes, parse_size
from gradring.errors import InvalidArgument

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
SIZES = {
    "quick": "4,1K,16K,64K,1M,16M,64M",
    "default": "4,1K,16K,64K,256K,1M,4M,16M,64M",
    "full": "4,16,64,256,1K,4K,16K,64K,256K,1M,4M,16M,64M,256M",
}
SECONDS = {"quick": 0.15, "default": 0.3, "full": 0.4}  # On a size, for each library.
PEERS = {
    "shm": ("gloo", "openmpi", "mpich", "intelmpi", "oneccl"),
    "tcp": ("gloo", "openmpi-tcp", "mpich-tcp", "intelmpi-tcp", "oneccl-tcp"),
}
_START_SECONDS = 4.0  # A library's ranks, to come and to go.
_CHECK_SECONDS = 0.03  # A batch's bookkeeping.
_BYTES_A_SECOND = 1.5e9  # Of all ranks' messages, to be filled and compared.
_SLOW_BYTES_A_SECOND = 1e9  # Of all ranks' messages, through a slow library.


@dataclass
class Job:
    """One world: measured by one set of ranks of each library, into one file.

    Attributes:
        transport: shm or tcp.
        ranks: Of each library.
        congestion: Of the network namespace that all run in; empty: the system's own.
        sizes: Bytes by operation.
    """

    transport: str
    ranks: int
    congestion: str
    sizes: dict[str, list[int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file's, without its ending."""
        parts = [self.transport, str(self.ranks), *filter(None, [self.congestion])]
        return "-".join(parts)


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """Read the options.

    Raises:
        InvalidArgument: They name a transport, an operation or a size that does not exist.
    """
    if options.rows:
        return _named(options.rows)
    sizes = [parse_size(text) for text in (options.sizes or SIZES[options.extent]).split(",")]
    operations = words(options.operations, OPERATIONS)
    jobs = []
    for transport in words(options.transport, tuple(PEERS)):
        for ranks in options.ranks.split(","):
            for control in options.congestion.split(",") if transport == "tcp" else [""]:
                job = Job(transport, _number(ranks), control.replace("system", ""))
                job.sizes = {op: _exact(op, sizes, job.ranks) for op in operations}
                jobs.append(job)
    return jobs


def words(text: str, known: tuple[str, ...]) -> list[str]:
    """Read a list of names.

    Raises:
        InvalidArgument: One is not known.
    """
    found = [word.strip() for word in text.split(",") if word.strip()]
    for word in found:
        if word not in known:
            raise InvalidArgument(f"{word!r} is not one of {', '.join(known)}")
    return found


def _number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 2:
        raise InvalidArgument(f"{text!r} is no number of ranks from 2")
    return int(text)


def _named(rows: list[str]) -> list[Job]:
    jobs: dict[str, Job] = {}
    for text in rows:
        parts = text.split(":")
        if len(parts) not in (4, 5):
            raise InvalidArgument(f"--rows {text}: write operation:transport:ranks:size[:control]")
        op, transport, ranks, size = parts[:4]
        words(op, OPERATIONS)
        words(transport, tuple(PEERS))
        new = Job(transport, _number(ranks), parts[4] if len(parts) == 5 else "")
        job = jobs.setdefault(new.name, new)
        job.sizes.setdefault(op, []).extend(_exact(op, [parse_size(size)], job.ranks))
    return list(jobs.values())


def _exact(op: str, sizes: list[int], ranks: int) -> list[int]:
    return [message_bytes(case) for case in make_cases(op, sizes, "float32", "sum", ranks)]


def estimate(job: Job, libraries: int, rounds: int, seconds: float) -> float:
    """Return about how many seconds a job takes."""
    total = libraries * _START_SECONDS
    for sizes in job.sizes.values():
        for size in sizes:
            check = _CHECK_SECONDS + size * job.ranks / _BYTES_A_SECOND
            call = size * job.ranks / _SLOW_BYTES_A_SECOND
            batch = max(seconds / rounds, call) + check
            total += libraries * (rounds * batch + 3 * call + check) + rounds * 0.1
    return total
