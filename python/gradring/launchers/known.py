"""The launchers we know: which variables each one sets, and where its ranks can meet.

One table at the end, the rules it refers to above it. `gradring.launchers.roles` walks it;
others take single names from here. Adding a launcher is adding a row here, a test with its
variables as a dict, and a section in docs/launchers.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradring.errors import InvalidArgument
from gradring.launchers import endpoint_lists, mpich, slurm
from gradring.settings import port_range
from gradring.settings.address import own_loopback, parse_port

LOOPBACK = "127.0.0.1"

# Derived rendezvous ports lie here: below the range from which the kernel hands out ports of its
# own.
PORT_FIRST = 20000
PORT_COUNT = 10000


class Variables:
    """The environment, remembering which names were read. An empty value counts as unset."""

    def __init__(
        self, environ: Mapping[str, str], arguments: Mapping[str, tuple[str, Any]] | None = None
    ) -> None:
        """Copy what is set.

        Args:
            environ: The variables.
            arguments: By the variable that it takes the place of: an argument's name and value.
        """
        given = arguments or {}
        replaced = {**environ, **{name: str(value) for name, (_, value) in given.items()}}
        self.values: Mapping[str, str] = {k: v for k, v in replaced.items() if v.strip()}
        self.read: list[str] = []
        self._arguments = {name: argument for name, (argument, _) in given.items()}
        self._origins: dict[str, str] = {}

    def derive(self, origin: str, derived: Mapping[str, object]) -> None:
        """Add what was read out of the variable ``origin``, under names of our own."""
        self.values = {**self.values, **{name: str(value) for name, value in derived.items()}}
        self._origins |= dict.fromkeys(derived, origin)

    def source(self, name: str) -> str:
        """Return what the user has set: the variable, or the argument in its place."""
        return self._arguments.get(name, name)

    def get(self, name: str) -> str | None:
        """Return the value, or ``None`` where it is unset."""
        value = self.values.get(name)
        name = self._origins.get(name, name)
        if value is not None and name not in self.read:
            self.read.append(name)
        return value

    def has(self, *names: str) -> bool:
        """Tell whether any of the names is set."""
        return any(name in self.values for name in names)

    def number(self, name: str) -> int | None:
        """Return the value as a whole number from 0, or ``None`` where it is unset."""
        text = self.get(name)
        if text is None:
            return None
        digits = text.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise InvalidArgument(f"{name}={text!r} is not a whole number from 0 to {10**9 - 1}")
        return int(digits)

    def require(self, source: str, names: tuple[str, ...], besides: tuple[str, ...] = ()) -> None:
        """Refuse part of a set; the message lists what is there and what is not.

        Args:
            source: What it begins with.
            names: All of these have to be set.
            besides: Not needed, but listed where they are set: one alone makes a part of a set too.
        """
        missing = [name for name in names if name not in self.values]
        if not missing:
            return
        present = [
            f"{self.source(name)}={self.values[name]}"
            for name in (*names, *besides)
            if name in self.values
        ]
        raise InvalidArgument(
            f"{source}: the variables are incomplete: {', '.join(present)} set, "
            f"{', '.join(missing)} missing; set what is missing, or unset the others to run alone"
        )


@dataclass(frozen=True)
class Launcher:
    """One launcher's names.

    Attributes:
        source: What messages call it.
        rank: Variable of the rank; the next three likewise.
        needs: What more than one rank needs besides rank and world size.
        unless: Any of these makes ``needs`` unnecessary.
        find_rendezvous: Told whether all ranks are on one host, returns host and port. ``None``
            where only GRADRING_RENDEZVOUS says it.
        job: The first of these that is set tells the user's jobs apart.
    """

    source: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ("GRADRING_RENDEZVOUS",)
    find_rendezvous: Callable[[Variables, bool], tuple[str, int]] | None = None
    job: tuple[str, ...] = ()


def find(variables: Variables) -> Launcher | None:
    """Return the launcher whose variables are set, even if only in part.

    What TF_CONFIG and Paddle's list of addresses say is added to ``variables``.

    Raises:
        InvalidArgument: These make no sense, or say that this process is no rank.
    """
    own = (OWN.rank, OWN.world_size, OWN.local_rank, OWN.local_world_size, "GRADRING_LISTEN_FD")
    if variables.has(*own):
        return OWN
    if variables.has("RANK", "WORLD_SIZE"):
        return TORCHRUN if variables.has("TORCHELASTIC_RUN_ID") else TORCH_VARIABLES
    if variables.has(OPEN_MPI.rank, OPEN_MPI.world_size):
        return OPEN_MPI
    if variables.has(PMI.rank, PMI.world_size) and not slurm.speaks_pmi(variables.values):
        return PMI
    if slurm.is_task(variables.values):
        return SLURM
    if _reads_tf_config(variables):
        return TF_CONFIG
    if variables.has(PADDLE.rank, PADDLE.world_size):
        _read_paddle(variables)
        return PADDLE
    # A meeting point without anybody to meet is part of a set too.
    if variables.has("GRADRING_RENDEZVOUS"):
        return OWN
    if variables.has("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        return TORCH_VARIABLES
    return None


def _reads_tf_config(variables: Variables) -> bool:
    text = variables.values.get("TF_CONFIG")
    found = endpoint_lists.of_tf_config(text) if text else None
    if found is None:
        return False
    rank, addresses = found
    local = endpoint_lists.local_place(addresses, rank, "TF_CONFIG")
    derived = (rank, len(addresses), *local, ",".join(addresses))
    variables.derive("TF_CONFIG", dict(zip(_IN_TF_CONFIG, derived, strict=True)))
    return True


def _read_paddle(variables: Variables) -> None:
    rank = variables.number(PADDLE.rank)
    world_size = variables.number(PADDLE.world_size) or 0
    addresses = endpoint_lists.of_paddle(variables.values, world_size)
    if rank is None or rank >= len(addresses):
        return
    origin = endpoint_lists.PADDLE_ENDPOINTS
    local_rank, local_world_size = endpoint_lists.local_place(addresses, rank, origin)
    variables.derive(
        origin, {PADDLE.local_rank: local_rank, PADDLE.local_world_size: local_world_size}
    )


def _derived_ports(variables: Variables) -> tuple[int, int]:
    """Return the first of the ports that stand for jobs, and how many there are.

    Raises:
        InvalidArgument: GRADRING_PORTS is no range.
    """
    said = variables.get("GRADRING_PORTS")
    if said is None:
        return PORT_FIRST, PORT_COUNT
    first, last = port_range.ends(port_range.checked(said, variables.source("GRADRING_PORTS")))
    return first, last - first + 1


def _derived_port(variables: Variables, identity: str) -> int:
    """Return a port that stands for a job, most likely another one for another job."""
    first, count = _derived_ports(variables)
    digest = hashlib.sha256(identity.encode()).digest()
    return first + int.from_bytes(digest[:8], "big") % count


def _master(variables: Variables, _is_single_host: bool) -> tuple[str, int]:
    variables.require("rendezvous", ("MASTER_ADDR", "MASTER_PORT"))
    host, port = variables.get("MASTER_ADDR") or "", variables.get("MASTER_PORT") or ""
    return host.strip("[]"), parse_port(port, "MASTER_PORT")


def _torchrun(variables: Variables, is_single_host: bool) -> tuple[str, int]:
    # torchrun's own store listens on MASTER_PORT, so we meet next door.
    host, port = _master(variables, is_single_host)
    next_door = port + 1 if port < 65535 else port - 1
    return own_loopback() if is_single_host else host, next_door


def _mpi(variables: Variables, is_single_host: bool) -> tuple[str, int]:
    if variables.has("MASTER_ADDR", "MASTER_PORT"):
        return _master(variables, is_single_host)
    name = job_name(variables, (*OPEN_MPI.job, *PMI.job))
    if is_single_host:
        identity = name or mpich.launcher_identity()
        if identity:
            return own_loopback(), _derived_port(variables, identity)
    job = variables.get("SLURM_JOB_ID")
    # Of the job, not of a step: mpirun starts its daemons with an srun on all nodes but its own,
    # so on those the ranks see that step, and on the first node they see none.
    if job and variables.get("SLURM_JOB_NODELIST"):
        host = slurm.first_host(variables.values, ("SLURM_JOB_NODELIST",))
        return host, _derived_port(variables, f"{job} {name}")
    raise InvalidArgument(
        "this MPI launcher does not say where the ranks can meet; set "
        "GRADRING_RENDEZVOUS=HOST:PORT (or MASTER_ADDR and MASTER_PORT), a free port on rank 0's "
        "host and the same on every rank"
    )


def _slurm(variables: Variables, is_single_host: bool) -> tuple[str, int]:
    if variables.has("MASTER_ADDR", "MASTER_PORT"):
        return _master(variables, is_single_host)
    host, port = _slurm_nodes(variables)
    return own_loopback() if is_single_host else host, port


def _slurm_nodes(variables: Variables) -> tuple[str, int]:
    for name in slurm.MEETING_VARIABLES:
        variables.get(name)  # Remembered as read.
    first, count = _derived_ports(variables)
    offset = slurm.port_offset(variables.values, count)
    return slurm.first_host(variables.values), first + offset


def _tf_config(variables: Variables, is_single_host: bool) -> tuple[str, int]:
    return _beside(variables, _IN_TF_CONFIG[-1], "TF_CONFIG", is_single_host)


def _paddle(variables: Variables, is_single_host: bool) -> tuple[str, int]:
    name = endpoint_lists.PADDLE_ENDPOINTS
    return _beside(variables, name, name, is_single_host)


def _beside(variables: Variables, name: str, source: str, is_single_host: bool) -> tuple[str, int]:
    addresses = [address.strip() for address in (variables.get(name) or "").split(",")]
    host, port = endpoint_lists.meeting_point(addresses, source)
    return own_loopback() if is_single_host else host, port


def job_name(variables: Variables, names: tuple[str, ...]) -> str:
    """Return the value of the first of ``names`` that is set, or an empty text."""
    return next((value for name in names if (value := variables.get(name))), "")


OWN = Launcher(
    source="gradring",
    rank="GRADRING_RANK",
    world_size="GRADRING_WORLD_SIZE",
    local_rank="GRADRING_LOCAL_RANK",
    local_world_size="GRADRING_LOCAL_WORLD_SIZE",
    needs=("GRADRING_RENDEZVOUS",),
    unless=(),
)
TORCH_VARIABLES = Launcher(
    source="torch variables",
    rank="RANK",
    world_size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_world_size="LOCAL_WORLD_SIZE",
    needs=("MASTER_ADDR", "MASTER_PORT"),
    find_rendezvous=_master,
)
TORCHRUN = Launcher(
    source="torchrun",
    rank="RANK",
    world_size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_world_size="LOCAL_WORLD_SIZE",
    needs=("MASTER_ADDR", "MASTER_PORT"),
    find_rendezvous=_torchrun,
    job=("TORCHELASTIC_RUN_ID",),
)
OPEN_MPI = Launcher(
    source="Open MPI",
    rank="OMPI_COMM_WORLD_RANK",
    world_size="OMPI_COMM_WORLD_SIZE",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    find_rendezvous=_mpi,
    job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
)
PMI = Launcher(
    source="PMI",
    rank="PMI_RANK",
    world_size="PMI_SIZE",
    local_rank="MPI_LOCALRANKID",
    local_world_size="MPI_LOCALNRANKS",
    find_rendezvous=_mpi,
    job=("PMI_JOBID", "I_MPI_HYDRA_UUID"),
)
SLURM = Launcher(
    source="Slurm",
    rank="SLURM_PROCID",
    world_size="SLURM_NTASKS",
    local_rank="SLURM_LOCALID",
    local_world_size="SLURM_STEP_TASKS_PER_NODE",
    needs=("SLURM_JOB_NODELIST", "SLURM_JOB_ID"),
    unless=("GRADRING_RENDEZVOUS", "MASTER_ADDR", "MASTER_PORT"),
    find_rendezvous=_slurm,
    job=("SLURM_JOB_ID",),
)
# What TF_CONFIG says, as if each were a variable.
_IN_TF_CONFIG = (
    "TF_CONFIG rank",
    "TF_CONFIG world size",
    "TF_CONFIG local rank",
    "TF_CONFIG local world size",
    "TF_CONFIG addresses",
)
TF_CONFIG = Launcher("TF_CONFIG", *_IN_TF_CONFIG[:4], find_rendezvous=_tf_config)
PADDLE = Launcher(
    source="Paddle",
    rank="PADDLE_TRAINER_ID",
    world_size="PADDLE_TRAINERS_NUM",
    local_rank="Paddle's local rank",  # Read out of the addresses, as the next.
    local_world_size="Paddle's local world size",
    needs=(endpoint_lists.PADDLE_ENDPOINTS,),
    find_rendezvous=_paddle,
)
