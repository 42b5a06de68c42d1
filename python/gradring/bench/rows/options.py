"""The command line of `gradring bench pull|push|train`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradring.commands.output_files import require_writable
from gradring.errors import InvalidArgument
from gradring.settings.config import TRANSPORTS
from gradring.timeouts import is_timeout

OPERATIONS = ("pull", "push", "train")
RULES = ("sum", "sgd", "adagrad", "adam")
CODECS = ("float32", "bf16", "fp16", "int8")
MIN_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    """What to measure; the help says what each is."""

    operations: tuple[str, ...]
    workers: int
    servers: int
    threads: int
    ids: int
    rows: int
    dim: int
    zipf: float
    optimizer: str
    codec: str
    transport: str
    distinct: bool
    fills: bool
    rounds: int
    warmup: int
    seconds: float
    json: str | None
    plot: str | None

    def to_text(self) -> str:
        """Return them as JSON, for the workers."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Options:
        """Read what `to_text` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "operations": tuple(fields["operations"])})


def parse(argv: Sequence[str]) -> Options:
    """Read the arguments after ``bench``.

    Raises:
        InvalidArgument: They make no sense.
    """
    given = _parser().parse_args(argv)
    counts = {
        "-n": given.workers, "--servers": given.servers, "--threads": given.threads,
        "--dim": given.dim, "--warmup": given.warmup,
    }  # fmt: skip
    for name, count in counts.items():
        if count < 1:
            raise InvalidArgument(f"{name} {count}: must be at least 1")
    if given.rounds < MIN_ROUNDS:
        raise InvalidArgument(f"--rounds {given.rounds}: fewer than {MIN_ROUNDS} say little")
    if not is_timeout(given.seconds) or not 0 <= given.zipf < math.inf:
        raise InvalidArgument("--seconds must be positive, --zipf not negative, both finite")
    require_writable(given.json, "--json", is_replaced=True)
    require_writable(given.plot, "--plot")
    return Options(
        operations=tuple(dict.fromkeys(given.operations)),
        workers=given.workers,
        servers=given.servers,
        threads=given.threads,
        ids=parse_count(given.ids, "--ids"),
        rows=parse_count(given.rows, "--rows"),
        dim=given.dim,
        zipf=given.zipf,
        optimizer=given.optimizer,
        codec=given.codec,
        transport=given.transport,
        distinct=given.distinct,
        fills=given.fills,
        rounds=given.rounds,
        warmup=given.warmup,
        seconds=given.seconds,
        json=given.json,
        plot=given.plot,
    )


def parse_count(text: str, option: str) -> int:
    """Read a count such as 65536, 64K or 10M (thousands and millions, not powers of two).

    Raises:
        InvalidArgument: It is none, or zero.
    """
    factor = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    digits = text[:-1] if factor > 1 else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 13 and int(digits) > 0):
        raise InvalidArgument(f"{option} {text}: not a count such as 65536, 64K or 10M")
    return int(digits) * factor


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradring bench",
        description="Measures pulls and pushes of sparse rows between workers and parameter "
        "servers that it starts on this machine, and checks what they did. train pulls, then "
        "pushes, as an asynchronous worker does whose own arithmetic costs nothing.",
        epilog="bench/README.md says how the figures come about.",
    )
    add = parser.add_argument
    add("operations", nargs="+", choices=OPERATIONS, metavar="OP", help=", ".join(OPERATIONS))
    add("-n", dest="workers", type=int, default=1, metavar="N", help="workers (1)")
    add("--servers", type=int, default=1, metavar="S", help="server processes (1)")
    add("--threads", type=int, default=1, metavar="T", help="shard threads a server (1)")
    add("--ids", default="65536", metavar="N", help="ids in a call (65536)")
    add("--rows", default="10M", metavar="N", help="different ids there are (10M)")
    add("--dim", type=int, default=64, metavar="D", help="floats a row (64)")
    add("--zipf", type=float, default=1.05, metavar="S", help="skew; 0: all alike (1.05)")
    add("--optimizer", default="sgd", choices=RULES, help="what the server does with it (sgd)")
    add("--codec", default="float32", choices=CODECS, help="how rows travel (float32)")
    add("--transport", default="auto", choices=TRANSPORTS, help="how workers talk to servers")
    add(
        "--distinct",
        action="store_true",
        help="find the distinct ids of a call beforehand, as some peers require; a call still "
        "counts --ids rows",
    )
    add(
        "--no-fill",
        dest="fills",
        action="store_false",
        help="do not make all rows first: then pulls bring initial values, and only what is pushed "
        "is in the tables",
    )
    add("--rounds", type=int, default=7, metavar="N", help="batches of calls (7)")
    add("--warmup", type=int, default=5, metavar="N", help="calls before the first batch (5)")
    add(
        "--seconds", type=float, default=1.0, metavar="S",
        help="to spend on a round (1), which has at most 2000 calls",
    )  # fmt: skip
    add("--json", nargs="?", const="-", metavar="FILE", help="write JSON, without FILE to stdout")
    add("--plot", metavar="FILE.png", help="draw rows per second beside their bounds")
    return parser
