"""`gradring bench`: how fast an operation is, beside its lower bound and other libraries.

The way of a figure: `options` (what to measure) -> `cases` (sizes, factors, bounds) -> `sweep`
(rounds over all `groups` of ranks) -> `statistics` -> `report` (one document) -> `table`, `plot` or
JSON. The ranks themselves run `peers`.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run `gradring bench` with these arguments; returns the exit code."""
    from gradring.bench import command

    return command.run(argv)
