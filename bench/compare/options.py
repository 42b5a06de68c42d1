"""The command line of bench/compare."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare import namespaces, plan

MEASURED = ("collectives", "rows", "word2vec", "ctr", "network")
OTHERS = ("install", "table", "plot")
LIBRARIES = ("gloo", "openmpi", "mpich", "intelmpi", "oneccl")
_ROOT = Path(__file__).resolve().parents[2]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line.

    Raises:
        InvalidArgument: WHAT is not known.
    """
    parser = argparse.ArgumentParser(
        prog="python bench/compare",
        description="Measures Gradring and its peers in turn on this machine, with results "
        "checked, and writes JSON, a table and pictures. bench/README.md says how.",
    )
    add = parser.add_argument
    every = ", ".join((*MEASURED, *OTHERS))
    add("what", nargs="*", metavar="WHAT", help=f"of {every} (all that is measured)")
    add("--rounds", type=int, help="A B C A B C: how often (5)")
    extent = parser.add_mutually_exclusive_group()
    for name, text in (("quick", "fewer sizes and examples"), ("full", "more of both")):
        choice = extent.add_argument
        choice(f"--{name}", dest="extent", action="store_const", const=name, help=text)
    add("--deadline", type=float, help="seconds after which a peer is ended (60; training 300)")
    add("--environments", type=Path, default=_ROOT / "build" / "peers", metavar="DIR",
        help="where peers are or get installed (build/peers)")  # fmt: skip
    add("--json", type=Path, default=_ROOT / "bench" / "results", metavar="DIR",
        help="where JSON, table and pictures go (bench/results)")  # fmt: skip
    add("--minutes", type=float, default=float("inf"), help="begin nothing after that; --resume "
        "measures what is left of collectives")  # fmt: skip
    add("--estimate", action="store_true", help="only say how long it would take")
    add("--no-pictures", action="store_true", help="JSON and table only")
    _add_collectives(parser)
    group = parser.add_argument_group("rows, word2vec, ctr").add_argument
    group("--workers", type=int, default=2, help="of a training, beside one server (2)")
    group("--examples", type=int, help="pairs, words, examples; calls in a round of rows")
    group("--compact", action="store_true", help="rows: peers know every row's place beforehand")
    options = parser.parse_args(argv)
    options.extent = options.extent or "default"
    # What is asked for by name is done or refused; the rest is left out where it cannot be done.
    options.is_named = bool(options.what)
    if not options.what:
        network = () if namespaces.complaint() else ("network",)
        options.what = ["collectives"] if options.rows else [*MEASURED[:-1], *network]
    plan.words(",".join(options.what), (*MEASURED, *OTHERS))
    return options


def _add_collectives(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("collectives, network").add_argument
    add("--ranks", default="2,4", metavar="LIST", help="2,4")
    add("--transport", default="shm,tcp", metavar="LIST", help="shm,tcp")
    add("--operations", default=",".join(plan.OPERATIONS), metavar="LIST",
        help=",".join(plan.OPERATIONS))  # fmt: skip
    add("--sizes", metavar="LIST", help="sizes by themselves, as 4,1K,64M")
    add("--peers", default=",".join(LIBRARIES), metavar="LIST", help=",".join(LIBRARIES))
    add("--congestion", default="system", metavar="LIST",
        help="what sockets start with over TCP: system, or reno, bbr, ... in a network namespace "
        "(root); gradring's own choice stays (system)")  # fmt: skip
    add("--rows", action="append", default=[], metavar="OP:TRANSPORT:RANKS:SIZE",
        help="measure this row again and keep the others; may be repeated")  # fmt: skip
    add("--resume", action="store_true", help="leave rows as they are that the JSON has")
    add("--bind", default="core", choices=("none", "core"),
        help="core: every rank on one core, in turn, as some launchers do (core)")  # fmt: skip
    add("--hosts", type=int, default=4, help="network: 2 to 8 hosts (4)")
    add("--mbit", type=float, default=1000, help="network: what a host may send a second (1000)")
    add("--slow-mbit", type=float, default=250, help="network: of one slow host (250)")
    add(
        "--delay-ms",
        type=float,
        default=0,
        help="network: hosts that are far apart instead, so "
        "many milliseconds from each to each (0: near ones, all alike and with a slow one)",
    )
