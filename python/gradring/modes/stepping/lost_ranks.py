"""Closing the optimizer of rows beside ranks that have failed: rounds without an end are left."""

from __future__ import annotations

from typing import Any

from gradring.errors import Closed, Error
from gradring.modes.stepping.optimizer import ModeOptimizer


def close_beside(optimizer: ModeOptimizer, comm: Any) -> None:
    """Close; where ranks have failed and the optimizer's workers begin together, wait for nobody.

    Their rounds cannot end then: waiting for them would only say once more, and late, who was lost.

    Args:
        optimizer: Whose workers are the ranks.
        comm: The communicator that steps went through beside it.

    Raises:
        TimedOut: As `ModeOptimizer.close`, and so for its other errors.
    """
    if optimizer.is_closed or not (optimizer.begins_together and _has_failed(comm)):
        optimizer.close()
        return
    optimizer.require_open()  # Not in a forked child.
    optimizer.abandon()
    if optimizer.domain is not None:
        optimizer.store.leave(optimizer.domain)


def _has_failed(comm: Any) -> bool:
    """Whether it was a failure that has closed it, and not its user."""
    if comm.world_size == 1 or not comm.is_closed:
        return False
    try:
        comm.barrier()  # Closed, it only says why.
    except Closed as closed:
        return closed.__cause__ is not None
    except Error:
        return True
    return False
