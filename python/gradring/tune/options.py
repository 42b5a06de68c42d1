"""The command line of `gradring tune`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from gradring.core_arguments import MOST_RANKS, whole_number
from gradring.errors import InvalidArgument
from gradring.settings.cost_profile import LINK_TRANSPORTS

MIN_RANKS = 2
DEFAULT_RANKS = 4


@dataclass(frozen=True)
class Options:
    """What to measure and where to write it; the help says what each is.

    Attributes:
        ranks: Number to start; ``None`` where a launcher has started them.
        transports: To measure in turn; empty where a launcher has started the ranks and they are to
            talk as they would.
        out: The profile's file; ``None`` writes none.
    """

    ranks: int | None
    transports: tuple[str, ...]
    out: str | None
    is_quick: bool
    as_json: bool


def parse(argv: Sequence[str], *, is_launched: bool) -> Options:
    """Read the command line.

    Args:
        argv: Arguments after ``tune``.
        is_launched: Whether a launcher has started this process as one of several ranks.

    Raises:
        InvalidArgument: The options make no sense together.
    """
    given = _parser().parse_args(argv)
    if is_launched and given.ranks is not None:
        raise InvalidArgument("a launcher has started this rank: leave out -n")
    asked = DEFAULT_RANKS if given.ranks is None else given.ranks
    ranks = None if is_launched else asked
    if ranks is not None and ranks < MIN_RANKS:
        raise InvalidArgument(f"-n {ranks}: it takes {MIN_RANKS} ranks to have a link")
    whole_number(asked, "-n", MIN_RANKS, MOST_RANKS)
    if given.out == "-":
        raise InvalidArgument("--out -: a profile is a file; ./- is one of that name")
    transports: tuple[str, ...] = () if is_launched else LINK_TRANSPORTS
    if given.transport is not None:
        transports = (given.transport,)
    return Options(ranks, transports, given.out, given.quick, given.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradring tune",
        description="Measures what links between ranks cost and fits the planner's cost model to "
        "it. Starts the ranks itself, or takes part as a rank where `gradring run` or another "
        "launcher started it: there it measures the hosts' own network.",
        epilog="Use the file with GRADRING_PROFILE=FILE; docs/tuning.md.",
    )
    add = parser.add_argument
    add(
        "-n",
        dest="ranks",
        type=int,
        metavar="N",
        help=f"ranks to start on this machine, best as many as jobs have ({DEFAULT_RANKS})",
    )
    add(
        "--transport",
        choices=LINK_TRANSPORTS,
        help="measure this one only (default: both; under a launcher, what the ranks use)",
    )
    add("--out", metavar="FILE", help="write the profile here")
    add("--quick", action="store_true", help="fewer sizes and rounds: a rough figure in a second")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    return parser
