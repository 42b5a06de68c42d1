"""`BetweenSteps`: what loops call between steps where servers have the parameters.

Most of it is there so that a loop written for `DistributedOptimizer` runs in every mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from gradring.collectives.joining import current
from gradring.errors import InvalidArgument
from gradring.modes.rounds import RoundOptimizer
from gradring.modes.stepping.optimizer import ModeOptimizer
from gradring.torch.embeddings.rows import Rows
from gradring.torch.gradients import parameters


class BetweenSteps:
    """A part of `ServedOptimizer`, which joins and steps."""

    driver: ModeOptimizer
    rows: Rows | None = None
    _comm: Any
    _model: torch.nn.Module | None

    def _drivers(self) -> list[ModeOptimizer]:
        if self.rows is None or self.rows.driver is self.driver:
            return [self.driver]
        return [self.rows.driver, self.driver]

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do nothing: gradients add up on the worker until `step`, whatever backward brings."""
        yield

    def synchronize(self) -> None:
        """Do nothing: gradients are this worker's own, complete when backward returns.

        Raises:
            InvalidArgument: Several workers' are averaged, which only servers do in this mode.
        """
        if isinstance(self.driver, RoundOptimizer) and self.driver.workers > 1:
            raise InvalidArgument(
                "synchronize: the averaged gradients, which only servers have here, cannot be "
                "looked at before step(); leave it out, or use gradring.Sync()"
            )

    def refresh(self) -> None:
        """Do nothing: servers leave a parameter alone for which nobody has a gradient."""

    def share_buffers(self) -> None:
        """Give every worker worker 0's buffers; see `DistributedOptimizer.share_buffers`.

        A collective call of all workers that began together, such as after a `flush`.

        Raises:
            InvalidArgument: No ``model`` was given to `distributed`.
            PeerLost: A worker was lost, or has left.
        """
        comm = current() if self._comm is None else self._comm
        parameters.share_buffers(comm, self._model)

    def hand_out(self, name: str, count: int, *, ahead: bool = False) -> Iterator[int]:
        """Go through parts of the data; see `gradring.modes.stepping.optimizer`."""
        in_step = [driver for driver in self._drivers() if driver.is_in_step]
        return [*in_step, self.driver][0].hand_out(name, count, ahead=ahead)

    @property
    def is_in_step(self) -> bool:
        """Whether the mode's workers do equally many steps."""
        return any(driver.is_in_step for driver in self._drivers())
