"""The loss that a closure returns, averaged over ranks so that all search along a line alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gradring.collectives.communicator import Communicator

# None: a number of Python's.
_DTYPES = (None, torch.float64, torch.float32, torch.float16, torch.bfloat16)


def average_loss(comm: Communicator, loss: Any, weight: float) -> Any:
    """Average what the ranks' closures have returned; a collective call.

    Args:
        comm: The ranks.
        loss: A tensor of one element, a number, or ``None`` on a rank without a batch, whose weight
            is then of no account.
        weight: Number of examples behind it.

    Returns:
        The average as ``loss`` is one: a number, or a tensor on the CPU. Where that is ``None``, as
        other ranks have it, with the same bits; ``None`` if no rank has a loss that counts.
    """
    sums = np.zeros(2 + len(_DTYPES))
    dtype = loss.dtype if torch.is_tensor(loss) else None
    if loss is not None:
        value = loss.item() if torch.is_tensor(loss) else float(loss)
        sums[:2] = value * weight if weight else 0.0, weight
        if dtype in _DTYPES:
            sums[2 + _DTYPES.index(dtype)] = 1
    comm.all_reduce(sums)
    if sums[1] == 0:
        return None
    mean = float(sums[0] / sums[1])
    if loss is None:
        dtype = _DTYPES[int(np.argmax(sums[2:]))]
    return mean if dtype is None else torch.as_tensor(mean, dtype=dtype)
