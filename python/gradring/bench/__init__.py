"""`gradring bench`: how fast an operation is, beside its lower bound and other libraries.

The way of a figure: `options` (what to measure) -> `cases` (sizes, factors, bounds) -> `sweep`
(rounds over all `groups` of ranks) -> `statistics` -> `report` (one document) -> `table`, `plot` or
JSON. The ranks themselves run `peers`. Pulls and pushes of the parameter server are measured by
`rows`, kernels of GPUs by `kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run `gradring bench` with these arguments; returns the exit code."""
    from gradring.bench.rows.options import OPERATIONS

    if argv and argv[0] in OPERATIONS:
        from gradring.bench.rows import command as rows_command

        return rows_command.run(argv)
    if argv and argv[0] == "kernels":
        from gradring.bench.kernels import command as kernels_command

        return kernels_command.run(argv[1:])
    from gradring.bench import command

    return command.run(argv)
