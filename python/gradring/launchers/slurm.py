"""What Slurm's variables mean: is this a task, how many share this node, which node is first.

Pure text and numbers; `gradring.launchers.known` and `roles` read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gradring.errors import InvalidArgument

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_TASK_COUNT = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")

# A list that stands for more nodes than this is taken for a typing error, before it takes the
# memory.
MAX_HOSTS = 1 << 16

# The step's own list comes first: a step can use fewer nodes than its job.
_NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")

# What `first_host` and `port_offset` read.
MEETING_VARIABLES = (*_NODE_LISTS, "SLURM_JOB_ID", "SLURM_STEP_ID")

# Slurm's numbers above this (SLURM_MAX_NORMAL_STEP_ID) are of no srun: the batch script, the shell
# of salloc, the daemon of a job's containers.
_LAST_STEP_ID = 0xFFFFFFF0


def is_task(environ: Mapping[str, str]) -> bool:
    """Tell whether srun started this process.

    A batch script carries SLURM_PROCID=0 too, and so does the shell of salloc, though nobody
    started the other tasks; they are no ranks.
    """
    step = environ.get("SLURM_STEP_ID", "")
    is_batch_script = environ.get("ENVIRONMENT") == "BATCH" and not step
    is_srun = not (step.isdigit() and int(step) > _LAST_STEP_ID)
    return "SLURM_PROCID" in environ and is_srun and not is_batch_script


def speaks_pmi(environ: Mapping[str, str]) -> bool:
    """Tell whether srun itself has set this task's PMI variables (``--mpi=pmi2``).

    Where MPICH's mpiexec runs inside a job, its proxies are srun's tasks, and what they start
    inherits their SLURM_PROCID; but that has MPI_LOCALRANKID too.
    """
    is_own = environ.get("PMI_RANK") == environ.get("SLURM_PROCID")
    is_whole = environ.get("PMI_SIZE") == environ.get("SLURM_NTASKS")
    return is_task(environ) and is_own and is_whole and "MPI_LOCALRANKID" not in environ


def local_tasks(environ: Mapping[str, str]) -> int | None:
    """Return how many tasks of the step run on this node; ``None`` where that is not said."""
    counts = task_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if not counts:
        counts = task_counts(environ.get("SLURM_NTASKS_PER_NODE", ""))
    if len(set(counts)) <= 1:
        return counts[0] if counts else None
    node = environ.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else None


def task_counts(text: str) -> list[int]:
    """Return the tasks on each node that ``text`` stands for.

    >>> task_counts("2(x3),1")
    [2, 2, 2, 1]

    Raises:
        InvalidArgument: It is not written that way.
    """
    counts: list[int] = []
    for item in filter(None, text.split(",")):
        match = _TASK_COUNT.fullmatch(item)
        repeat = int(match[2] or 1) if match else 0
        if match is None or len(counts) + repeat > MAX_HOSTS:
            raise InvalidArgument(f"Slurm tasks per node {text!r}: cannot read {item!r}")
        counts.extend([int(match[1])] * repeat)
    return counts


def first_host(environ: Mapping[str, str], names: Sequence[str] = _NODE_LISTS) -> str:
    """Return the name of the node that runs task 0.

    Args:
        environ: The environment.
        names: The variables with a list of nodes; the first that is set counts.

    Raises:
        InvalidArgument: The node list is empty or cannot be read.
    """
    text = next((environ[name] for name in names if name in environ), "")
    hosts = expand_hostlist(text)
    if not hosts:
        raise InvalidArgument(f"SLURM_JOB_NODELIST={text!r} names no host")
    return hosts[0]


def port_offset(environ: Mapping[str, str], count: int) -> int:
    """Return a number below ``count`` that stands for this job and step.

    Neighbouring job ids and the steps of one job get different numbers, since they are what runs
    side by side.

    Raises:
        InvalidArgument: SLURM_JOB_ID is not a number.
    """
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "0")
    if not job.isdigit():
        raise InvalidArgument(f"SLURM_JOB_ID={job!r} is not a number")
    return (int(job) + 997 * (int(step) if step.isdigit() else 0)) % count


def expand_hostlist(text: str) -> list[str]:
    """Return the single host names that Slurm's short form stands for, in order.

    >>> expand_hostlist("node[08-10,2],login")
    ['node08', 'node09', 'node10', 'node2', 'login']

    Raises:
        InvalidArgument: Brackets do not match, a range is not numbers or runs backwards, or the
            list is longer than `MAX_HOSTS`.
    """
    hosts: list[str] = []
    for part in _split(text):
        for host in _expand(part, text):
            if len(hosts) == MAX_HOSTS:
                raise InvalidArgument(f"host list {text!r} stands for more than {MAX_HOSTS} hosts")
            hosts.append(host)
    return hosts


def _split(text: str) -> Iterator[str]:
    depth = 0
    part = ""
    for char in text:
        depth += {"[": 1, "]": -1}.get(char, 0)
        if depth not in (0, 1):
            break
        if char == "," and depth == 0:
            yield part
            part = ""
        else:
            part += char
    if depth != 0:
        raise InvalidArgument(f"host list {text!r} has brackets that do not match")
    if part:
        yield part


def _expand(part: str, text: str) -> Iterator[str]:
    # One bracket at a time: "r[1-2]n[1-2]" is r1n1, r1n2, r2n1, r2n2.
    head, opening, rest = part.partition("[")
    if not opening:
        yield part
        return
    ranges, _, tail = rest.partition("]")
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise InvalidArgument(f"host list {text!r}: {item!r} is not a number or a range")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise InvalidArgument(f"host list {text!r}: the range {item!r} is empty")
        for number in range(int(first), int(last) + 1):
            for end in _expand(tail, text):
                yield f"{head}{number:0{len(first)}}{end}"
