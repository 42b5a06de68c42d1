"""Which algorithm the planner takes for a size, and by which figures; nothing is measured or sent.

For `gradring doctor --size` and for the crossovers that `gradring tune` shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradring import _core, operations
from gradring.core_arguments import MOST_RANKS, whole_number
from gradring.dtypes import DTYPE_CODES
from gradring.errors import InvalidArgument
from gradring.settings.cost_profile import LINK_TRANSPORTS, Costs

OPERATIONS = {
    "all_reduce": operations.ALL_REDUCE, "reduce_scatter": operations.REDUCE_SCATTER,
    "all_gather": operations.ALL_GATHER, "broadcast": operations.BROADCAST,
    "reduce": operations.REDUCE, "gather": operations.GATHER, "scatter": operations.SCATTER,
    "all_to_all": operations.ALL_TO_ALL, "barrier": operations.BARRIER,
}  # fmt: skip
_ONE_PART = frozenset({"gather", "scatter"})  # Their requests count one rank's elements.
_ITEM_BYTES = 4


@dataclass(frozen=True)
class Question:
    """What is asked: an operation on float32 between so many ranks.

    Attributes:
        op: One of `OPERATIONS`.
        ranks: From 1.
        transport: ``shm``: all on one host. ``tcp``: through sockets, on hosts of their own.
    """

    op: str
    ranks: int
    transport: str

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.op not in OPERATIONS:
            raise InvalidArgument(f"operation '{self.op}' is none of {', '.join(OPERATIONS)}")
        whole_number(self.ranks, "ranks", 1, MOST_RANKS)
        if self.transport not in LINK_TRANSPORTS:
            raise InvalidArgument(f"'{self.transport}' is none of {', '.join(LINK_TRANSPORTS)}")


@dataclass(frozen=True)
class Choice:
    """The answer for one size.

    Attributes:
        nbytes: Of the whole message.
        algorithm: As in `Communicator.all_reduce`.
        estimate_us: What the model expects, in microseconds; ``None`` for ``flat``, which it does
            not cover: where all ranks share memory there is nothing to choose from.
    """

    nbytes: int
    algorithm: str
    estimate_us: float | None


def default_costs(path_us: float = 0.0) -> dict[str, Costs]:
    """Return what the planner goes by without a profile, by transport.

    Args:
        path_us: Microseconds one way between the hosts that are farthest apart.
    """
    return {name: Costs(*figures) for name, figures in _core.default_costs(path_us).items()}


def costs_in_force(
    profile: Mapping[str, Costs], path_us: float = 0.0
) -> dict[str, tuple[Costs, str]]:
    """Return each transport's costs and whether they are of the ``profile`` or the ``defaults``.

    Args:
        profile: What it has, by transport.
        path_us: As for `default_costs`.
    """
    return {
        name: (profile[name], "profile") if name in profile else (costs, "defaults")
        for name, costs in default_costs(path_us).items()
    }


def choose(question: Question, nbytes: int, costs: Costs) -> Choice:
    """Ask the planner, and its model how long that takes."""
    core = (OPERATIONS[question.op], DTYPE_CODES["float32"], _count(question, nbytes))
    shares_memory = question.transport == "shm"
    algorithm = _core.choose(*core, question.ranks, shares_memory, costs.as_tuple())
    estimates = _core.estimates(*core, question.ranks, costs.as_tuple())
    return Choice(nbytes, algorithm, estimates.get(algorithm))


def estimates(
    question: Question, nbytes: int, costs: Sequence[float], *, any_order: bool = False
) -> dict[str, float]:
    """Return the microseconds that the model expects of each algorithm that sends over links.

    Args:
        question: Operation and ranks; the transport does not matter.
        nbytes: Of the whole message.
        costs: The four figures of `Costs`, in order; here any number is allowed.
        any_order: Also algorithms that add in another order than is settled for this size, and so
            are never chosen for it.
    """
    op, dtype = OPERATIONS[question.op], DTYPE_CODES["float32"]
    count = _count(question, nbytes)
    return _core.estimates(op, dtype, count, question.ranks, costs, any_order)


def ranges(question: Question, sizes: Sequence[int], costs: Costs) -> list[tuple[int, str]]:
    """Return the first of the sizes, in order, that each algorithm is taken from on."""
    found: list[tuple[int, str]] = []
    for nbytes in sizes:
        algorithm = choose(question, nbytes, costs).algorithm
        if not found or found[-1][1] != algorithm:
            found.append((nbytes, algorithm))
    return found


def _count(question: Question, nbytes: int) -> int:
    if question.op == "barrier":
        return 0
    count = math.ceil(nbytes / _ITEM_BYTES)
    return math.ceil(count / question.ranks) if question.op in _ONE_PART else count
