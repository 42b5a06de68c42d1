"""What the ranks of a communicator agree on before they train through servers.

Servers know a worker by its connection's number and its rounds by a name. A name of their own for
each time that the ranks come together keeps out what servers still have of an earlier one: a job
that was killed in the middle of a round, or an optimizer that some ranks have not closed yet.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from gradring.collectives.joining import current, current_if_any
from gradring.collectives.same_lines import digest_of, raise_difference
from gradring.errors import InvalidArgument
from gradring.modes.stores.served import number_of_workers
from gradring.modes.stores.strangers import why_no_worker

_NAME_BITS = 62  # What an int64 holds.


def agreed_name(comm: Any, number: int | None, name: str, mode: Any) -> str:
    """Return a name that no ranks had before, the same on all ranks; a collective call.

    Args:
        comm: The ranks.
        number: Of this worker's connection, if there is one.
        name: Of the optimizer, the same on all ranks.
        mode: The same on all ranks.

    Raises:
        InvalidArgument: A rank's number is not its rank; on every rank alike.
        Mismatch: Ranks have other names or modes; says which, on every rank.
        TimedOut: As `Communicator.all_gather`, and so for its other errors.
    """
    known = comm.rank if number is None else number
    told = [f"mode {mode}", f"the optimizer's name {name!r}"]
    own = np.array([secrets.randbits(_NAME_BITS), known, digest_of(told)], np.int64)
    every = own.reshape(1, 3)
    if comm.world_size > 1:
        every = np.asarray(comm.all_gather(own)).reshape(comm.world_size, 3)
    for rank, known in enumerate(every[:, 1].tolist()):
        _require_number(rank, known)
    if (every[:, 2] != every[0, 2]).any():
        raise_difference(comm, told, "give every rank the same name and mode")
    return f"{every[0, 0]:x}"


class Workers:
    """Who trains together, as ranks and as servers know them.

    Attributes:
        comm: The ranks; ``None``: nothing need be known of them.
        count: Their number.
    """

    def __init__(
        self, comm: Any, count: int | None, generation: str | None, *, begin: bool
    ) -> None:
        """Find out; joins the ranks where they have to come together and nobody is given.

        Args:
            comm: As given to the optimizer.
            count: The same; ``None``: of ranks.
            generation: What `agreed_name` has returned for these ranks, if they have asked.
            begin: Whether they begin together.
        """
        if comm is None and begin:  # Else one that is restarted while others go on could not join.
            comm = current() if count is None else ranks_of(count)
        if count is None:
            count = number_of_workers() if comm is None else int(comm.world_size)
        self.comm = comm
        self.count = count
        self._generation = generation
        self._begin = begin

    def domain_name(self, name: str, kind: str, number: int, mode: Any) -> str:
        """Return the name of their domain; those that begin together have one of their own.

        Args:
            name: Of the optimizer, the same on all of them.
            kind: What they come to.
            number: Of this worker's connection.
            mode: The same on all of them where they begin together.

        Raises:
            InvalidArgument: A rank's number is not its rank.
            Mismatch: As `agreed_name`.
        """
        domain = f"{name}/{kind}"
        if self.comm is None:
            return domain
        if not self._begin:
            _require_number(self.comm.rank, number)
            return domain
        if self._generation is None:
            self._generation = agreed_name(self.comm, number, name, mode)
        _require_number(self.comm.rank, number)
        return f"{domain}/{self._generation}"


def ranks_of(count: int) -> Any:
    """Return the communicator that there is, where it has so many ranks; else ``None``."""
    try:
        comm = current_if_any()
    except InvalidArgument:  # There are several.
        return None
    return comm if comm is not None and comm.world_size == count else None


def _require_number(rank: int, number: int) -> None:
    if number == rank:
        return
    if (why := why_no_worker(number)) is not None:
        raise InvalidArgument(f"rank {rank}: {why}")
    raise InvalidArgument(
        f"rank {rank} of this communicator is worker {number} to the servers, who count workers "
        "from 0 without gaps: after split() or shrink() close the connection (ps.close()) on every "
        "rank, call comm.barrier(), and give each rank ps=gr.ps.connect(client=comm.rank)"
    )
