"""The command line of `gradring bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gradring.bench import cases, libraries
from gradring.core_arguments import MOST_RANKS, whole_number
from gradring.errors import InvalidArgument
from gradring.settings.config import TRANSPORTS, absolute_program
from gradring.timeouts import is_timeout

REDUCE_OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor")
_BIT_OPS = ("band", "bor", "bxor")
ALGORITHMS = ("auto", "ring", "doubling", "halving", "direct", "gather", "flat", "hierarchical")
_WITH_ALGORITHMS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
MIN_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    """What to measure; the help says what each is.

    Attributes:
        operations: One or more of `cases.OPERATIONS`.
        ranks: Number to start; ``None`` where a launcher has started them.
        compare: Names from `libraries`, without our own.
        json: File; ``-`` is standard output.
    """

    operations: tuple[str, ...]
    ranks: int | None
    sizes: tuple[int, ...]
    dtype: str
    reduce_op: str
    transport: str | None
    algorithm: str
    rounds: int
    warmup: int
    seconds: float
    is_checked: bool
    json: str | None
    plot: str | None
    compare: tuple[str, ...]
    is_bound: bool
    peer_python: str
    device: str


def parse(argv: Sequence[str], *, is_launched: bool) -> Options:
    """Read the command line.

    Args:
        argv: Arguments after ``bench``.
        is_launched: Whether a launcher has started this process as one of several ranks.

    Raises:
        InvalidArgument: The options make no sense together.
    """
    given = _parser().parse_args(argv)
    _check(given, is_launched)
    if given.sizes:
        sizes = [cases.parse_size(text) for text in given.sizes.split(",")]
    else:
        bounds = cases.parse_size(given.begin), cases.parse_size(given.end)
        sizes = cases.sweep_sizes(*bounds, given.factor)
    return Options(
        operations=tuple(dict.fromkeys(given.operations)),
        ranks=None if is_launched else 2 if given.ranks is None else given.ranks,
        sizes=tuple(sizes),
        dtype=given.dtype,
        reduce_op=given.op,
        transport=given.transport,
        algorithm=given.algorithm,
        rounds=given.rounds,
        warmup=given.warmup,
        seconds=given.seconds,
        is_checked=given.check,
        json=given.json,
        plot=given.plot,
        compare=_names(given.compare),
        is_bound=given.bind == "core",
        peer_python=absolute_program(given.peer_python),  # Peers start elsewhere.
        device=given.device,
    )


def _check(given: argparse.Namespace, is_launched: bool) -> None:
    if given.rounds < MIN_ROUNDS:
        raise InvalidArgument(f"--rounds {given.rounds}: fewer than {MIN_ROUNDS} say little")
    if given.warmup < 1 or not is_timeout(given.seconds):
        raise InvalidArgument("--warmup and --seconds must be positive, and no more than 1e9")
    if given.ranks is not None:
        whole_number(given.ranks, "-n", 1, MOST_RANKS)
    if given.plot is not None and set(given.operations) == {"barrier"}:
        raise InvalidArgument("--plot: a barrier has no sizes to draw over")
    is_float = given.dtype.startswith(("float", "bfloat"))
    if (given.op in _BIT_OPS and is_float) or (given.op, given.dtype) == ("avg", "bool"):
        raise InvalidArgument(f"--op {given.op} is not defined for {given.dtype}")
    fixed = [op for op in given.operations if op not in _WITH_ALGORITHMS]
    if given.algorithm != "auto" and fixed:
        raise InvalidArgument(
            f"--algorithm {given.algorithm}: {', '.join(fixed)} cannot be told which to take; only "
            f"{', '.join(_WITH_ALGORITHMS)} can"
        )
    if is_launched and (given.ranks is not None or given.compare):
        raise InvalidArgument(
            "a launcher has started this rank: leave out -n and --compare, or start "
            "`gradring bench` without a launcher"
        )


def _names(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in libraries.PEERS:
            raise InvalidArgument(f"--compare {name}: not one of {', '.join(libraries.PEERS)}")
    return tuple(dict.fromkeys(names))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradring bench",
        description="Measures operations between ranks and checks their results. Starts the ranks "
        "itself, or takes part as a rank where `gradring run` or another launcher started it.",
        epilog="`gradring bench pull|push|train` measures rows of a parameter server, "
        "`gradring bench kernels` a GPU's kernels; each has its own --help. "
        "bench/README.md says how the figures come about.",
    )
    add = parser.add_argument
    add(
        "operations",
        nargs="+",
        choices=cases.OPERATIONS,
        metavar="OP",
        help=", ".join(cases.OPERATIONS),
    )
    add("-n", dest="ranks", type=int, metavar="N", help="ranks to start on this machine (2)")
    add("--begin", default="4", metavar="SIZE", help="smallest message, as 4, 1K, 64M (4)")
    add("--end", default="64M", metavar="SIZE", help="largest message (64M)")
    add("--factor", type=int, default=4, metavar="F", help="from one size to the next (4)")
    add("--sizes", metavar="LIST", help="sizes by themselves, as 4,1K,1M")
    add("--dtype", default="float32", choices=cases.DTYPES, help="element type (float32)")
    add("--op", default="sum", choices=REDUCE_OPS, help="how to reduce (sum)")
    add(
        "--device",
        default="cpu",
        choices=("cpu", "cuda"),
        help="where gradring's and Gloo's arrays are; other peers' stay on the CPU (cpu)",
    )
    add("--transport", choices=TRANSPORTS, help="how ranks talk (default: what fits)")
    add("--algorithm", default="auto", choices=ALGORITHMS, help="instead of the one chosen by size")
    add("--rounds", type=int, default=7, metavar="N", help="batches of calls a size, 5 or more (7)")
    add("--warmup", type=int, default=3, metavar="N", help="calls before the first batch (3)")
    add("--seconds", type=float, default=0.4, metavar="S", help="to spend on a size (0.4)")
    add(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare every rank's result of every batch (on)",
    )
    add("--json", nargs="?", const="-", metavar="FILE", help="write JSON, without FILE to stdout")
    add("--plot", metavar="FILE.png", help="draw time and bandwidth over size")
    add(
        "--compare",
        default="",
        metavar="LIST",
        help=f"measure these in turn with gradring: {', '.join(libraries.PEERS)}",
    )
    add(
        "--bind",
        default="none",
        choices=("none", "core"),
        help="core: keep every rank on one core, also where ranks are more than cores (none: as "
        "they were started; our launcher gives ranks cores of their own where there are enough)",
    )
    add(
        "--peer-python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter that has torch and mpi4py (this one)",
    )
    return parser
