"""Ending optimizers that step together: where one of them fails, the others end all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradring.errors import Error
from gradring.modes.stepping.optimizer import ModeOptimizer


def for_all(optimizers: Iterable[ModeOptimizer], act: Callable[[ModeOptimizer], None]) -> None:
    """Do something to each, in this order.

    Raises:
        Error: The first that one has raised, after all have had their turn.
    """
    failures = []
    for optimizer in optimizers:
        try:
            act(optimizer)
        except Error as error:
            failures.append(error)
    if failures:
        raise failures[0]
