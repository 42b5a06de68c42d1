"""`gradring tune`: measures what links cost here and writes the profile that the planner uses.

The way of a figure: `options` -> `schedule` (which calls, how often) -> `worker` (each rank's part)
-> `fit` (the cost model's figures from the times) -> `report` (tables) and the profile's file.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run `gradring tune` with these arguments; returns the exit code."""
    from gradring.tune import command

    return command.run(argv)
