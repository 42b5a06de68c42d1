"""Who am I: finds this process's rank, world and meeting point in the variables that launchers set.

`init()` asks here once; `gradring doctor` prints the answer. Launchers are tried in a fixed order
(see `gradring.launchers.known`) and the first one whose variables are present decides. Part of a
set is an error, never a guess. Reads the mapping it is given, so every launcher is tested with a
plain dict. docs/launchers.md says the same in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradring.core_arguments import MOST_RANKS
from gradring.errors import InvalidArgument
from gradring.launchers import known, our_launcher, slurm
from gradring.launchers.known import LOOPBACK, Launcher, Variables
from gradring.settings.address import format_address, is_loopback, parse_address


@dataclass(frozen=True)
class Role:
    """What one process is in its job.

    Attributes:
        rank: From 0.
        world_size: Number of ranks.
        local_rank: Rank among those of this host; ``None`` where the launcher does not say.
        local_world_size: Ranks on this host; ``None`` where the launcher does not say.
        rendezvous_host: Where rank 0 listens. A world of one needs none and says the loopback
            address.
        rendezvous_port: Its port; 0 in a world of one.
        source: Whose variables decided: ``gradring``, ``torchrun``, ``torch variables``, ``Open
            MPI``, ``PMI``, ``Slurm``, ``TF_CONFIG`` or ``Paddle``.
        variables: The names that were read.
        job: Names the job where the launcher does; tells apart the jobs of one user.
        listen_fd: Rank 0 under our launcher: an inherited socket that listens at the rendezvous.
        secret: ``GRADRING_SECRET``; see `gradring.launchers.job_secret.secret_for` for jobs without
            one.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    rendezvous_host: str
    rendezvous_port: int
    source: str
    variables: tuple[str, ...] = ()
    job: str = ""
    listen_fd: int | None = None
    secret: str | None = field(default=None, repr=False)

    @property
    def is_single_host(self) -> bool:
        """Whether all ranks are known to be on this host."""
        return self.local_world_size == self.world_size

    @property
    def rendezvous(self) -> str:
        """The meeting point as host:port."""
        return format_address(self.rendezvous_host, self.rendezvous_port)


def discover(
    environ: Mapping[str, str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    rendezvous: str | None = None,
    ports: str | None = None,
) -> Role | None:
    """Find this process's role.

    Args:
        environ: The environment, normally ``os.environ``.
        rank: Wins over every variable; ``world_size`` and ``rendezvous`` then belong with it. What
            our launcher says of the rank that it gave is left out where these make it another.
        world_size: As ``rank``.
        rendezvous: As ``rank``; host:port.
        ports: In the place of GRADRING_PORTS, checked: where a meeting point has no port of its
            own, one of these stands for the job.

    Returns:
        The role, or ``None`` where no launcher's variables are set: a world of one.

    Raises:
        InvalidArgument: A set is incomplete, or a value makes no sense; the message names the
            variables.
    """
    explicit = {
        "GRADRING_RANK": ("rank", rank),
        "GRADRING_WORLD_SIZE": ("world_size", world_size),
        "GRADRING_RENDEZVOUS": ("rendezvous", rendezvous),
        "GRADRING_PORTS": ("ports", ports),
    }
    for argument, value in (("rank", rank), ("world_size", world_size)):
        if value is None:
            continue
        if not (str(value).isascii() and str(value).isdigit()):
            raise InvalidArgument(f"{argument}={value!r}: not a whole number of at least 0")
        _check_size(argument, int(value))
    if rendezvous and world_size != 1:
        parse_address(str(rendezvous), "rendezvous")
    given = {name: pair for name, pair in explicit.items() if pair[1] is not None}
    has_rank = bool(environ.get("GRADRING_RANK")) or rank is not None
    if our_launcher.is_newcomer(environ) and not has_rank:
        # Started by hand: where it will join, it has no rank yet.
        environ = {name: text for name, text in environ.items() if name != "GRADRING_RENDEZVOUS"}
    variables = Variables(_without_replaced(environ, given), given)
    launcher = known.find(variables)
    return None if launcher is None else _role(launcher, variables)


def _without_replaced(
    environ: Mapping[str, str], given: Mapping[str, tuple[str, Any]]
) -> Mapping[str, str]:
    # What `gradring run` says besides belongs to the rank and the meeting point that it gave.
    others = {name for name, (_, value) in given.items() if _is_other(name, environ, str(value))}
    left_out: set[str] = set()
    if others & {"GRADRING_RANK", "GRADRING_WORLD_SIZE"}:
        left_out |= {"GRADRING_LOCAL_RANK", "GRADRING_LOCAL_WORLD_SIZE"}
    if others & {"GRADRING_RANK", "GRADRING_RENDEZVOUS"}:
        left_out.add("GRADRING_LISTEN_FD")
    return {name: value for name, value in environ.items() if name not in left_out}


def _is_other(name: str, environ: Mapping[str, str], argument: str) -> bool:
    variable = environ.get(name, "").strip()
    if name == "GRADRING_RENDEZVOUS":  # One host has several names, and a port one socket.
        variable, argument = variable.rpartition(":")[2], argument.rpartition(":")[2]
    return variable not in ("", argument)


def _role(launcher: Launcher, variables: Variables) -> Role:
    is_alone = variables.number(launcher.world_size) == 1
    needs = () if is_alone or variables.has(*launcher.unless) else launcher.needs
    besides = (launcher.local_rank, launcher.local_world_size, "GRADRING_LISTEN_FD")
    variables.require(launcher.source, (launcher.rank, launcher.world_size, *needs), besides)
    rank = variables.number(launcher.rank) or 0
    world_size = variables.number(launcher.world_size) or 0
    size_source = variables.source(launcher.world_size)
    if world_size == 0:
        raise InvalidArgument(f"{size_source}=0: a world has at least one rank")
    _check_size(size_source, world_size)
    _check_below(variables.source(launcher.rank), rank, size_source, world_size)
    local_rank, local_world_size = _local(launcher, variables, world_size)

    host, port = LOOPBACK, 0
    if not is_alone:
        host, port = _rendezvous(launcher, variables, local_world_size == world_size)
    if is_loopback(host):  # Then there is only one host.
        local_rank = rank if local_rank is None else local_rank
        local_world_size = world_size if local_world_size is None else local_world_size
    return Role(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        rendezvous_host=host,
        rendezvous_port=port,
        source=launcher.source,
        job=known.job_name(variables, launcher.job),
        listen_fd=_listen_fd(variables, rank) if launcher is known.OWN else None,
        secret=variables.get("GRADRING_SECRET"),
        variables=tuple(variables.read),
    )


def _local(
    launcher: Launcher, variables: Variables, world_size: int
) -> tuple[int | None, int | None]:
    local_rank = variables.number(launcher.local_rank)
    if launcher is known.SLURM:
        local_world_size = slurm.local_tasks(variables.values)
    else:
        local_world_size = variables.number(launcher.local_world_size)
    if local_world_size is not None and not 1 <= local_world_size <= world_size:
        raise InvalidArgument(
            f"{launcher.local_world_size}={local_world_size} does not fit "
            f"{variables.source(launcher.world_size)}={world_size}"
        )
    if local_rank is not None and local_world_size is not None:
        _check_below(launcher.local_rank, local_rank, launcher.local_world_size, local_world_size)
    elif local_rank is not None:
        size_source = variables.source(launcher.world_size)
        _check_below(launcher.local_rank, local_rank, size_source, world_size)
    return local_rank, local_world_size


def _rendezvous(launcher: Launcher, variables: Variables, is_single_host: bool) -> tuple[str, int]:
    own = variables.get("GRADRING_RENDEZVOUS")
    if own is not None or launcher.find_rendezvous is None:
        return parse_address(own or "", "GRADRING_RENDEZVOUS")
    return launcher.find_rendezvous(variables, is_single_host)


def _listen_fd(variables: Variables, rank: int) -> int | None:
    descriptor = variables.number("GRADRING_LISTEN_FD")
    if descriptor is not None and rank != 0:
        raise InvalidArgument(
            f"GRADRING_LISTEN_FD={descriptor} is set for {variables.source('GRADRING_RANK')}="
            f"{rank}; only rank 0 listens at the rendezvous"
        )
    return descriptor


def _check_size(source: str, number: int) -> None:
    if number > MOST_RANKS:
        raise InvalidArgument(f"{source}={number}: a job has at most {MOST_RANKS} ranks")


def _check_below(name: str, value: int, bound_name: str, bound: int) -> None:
    if value >= bound:
        raise InvalidArgument(f"{name}={value} is not below {bound_name}={bound}")
