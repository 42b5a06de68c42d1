"""The command line of `gradring bench kernels`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from gradring.bench.cases import parse_size
from gradring.errors import InvalidArgument

MIN_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    """What to measure; the help says what each is.

    Attributes:
        nbytes: Of one float32 vector.
        only: Names of kernels; empty: all.
        json: File; ``-`` is standard output.
    """

    nbytes: int
    tensors: int
    rows: int
    dim: int
    sources: int
    rounds: int
    device: int
    only: tuple[str, ...]
    has_peers: bool
    json: str | None

    @property
    def elements(self) -> int:
        """Of one vector."""
        return self.nbytes // 4


def parse(argv: Sequence[str]) -> Options:
    """Read the command line.

    Args:
        argv: Arguments after ``bench kernels``.

    Raises:
        InvalidArgument: The options make no sense together.
    """
    parser = argparse.ArgumentParser(
        prog="gradring bench kernels",
        description="Measures each GPU kernel: its time, the least bytes it has to move, how much "
        "of the device's copy bandwidth that is, and what else does the same.",
        epilog="docs/gpu.md says how the figures come about.",
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="KERNEL", help="only these (all)")
    add("--size", default="64M", metavar="SIZE", help="of one float32 vector (64M)")
    add("--tensors", type=int, default=1000, metavar="N", help="in a bucket (1000)")
    add("--rows", type=int, default=1 << 16, metavar="N", help="of a batch (65536)")
    add("--dim", type=int, default=128, metavar="N", help="floats a row (128)")
    add("--sources", type=int, default=4, metavar="N", help="vectors that are added up (4)")
    add("--rounds", type=int, default=20, metavar="N", help="times that are taken (20)")
    add("--device", type=int, default=0, metavar="N", help="number of the GPU (0)")
    add("--no-peers", dest="has_peers", action="store_false", help="leave torch and CuPy out")
    add("--json", nargs="?", const="-", metavar="FILE", help="write JSON, without FILE to stdout")
    given = parser.parse_args(argv)
    if given.rounds < MIN_ROUNDS:
        raise InvalidArgument(f"--rounds {given.rounds}: fewer than {MIN_ROUNDS} say little")
    if not 1 <= given.sources <= 32:
        raise InvalidArgument(f"--sources {given.sources}: a kernel adds up 1 to 32")
    if min(given.tensors, given.rows, given.dim) < 1:
        raise InvalidArgument("--tensors, --rows and --dim must be positive")
    nbytes = parse_size(given.size)
    if nbytes < 4 * given.tensors:
        raise InvalidArgument(f"--size {given.size}: less than an element for each tensor")
    return Options(
        nbytes=nbytes,
        tensors=given.tensors,
        rows=given.rows,
        dim=given.dim,
        sources=given.sources,
        rounds=given.rounds,
        device=given.device,
        only=tuple(given.names),
        has_peers=given.has_peers,
        json=given.json,
    )
