"""Modes: when the ranks of a training job talk, and what they agree on.

A mode is one argument of `gradring.torch.distributed`; everything else of a script stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sync:
    """Every step uses the gradient averaged over all ranks.

    Training then takes the path that one process takes on the batches of all ranks put together,
    whatever the optimizer: after every step all ranks hold the same parameters, bit for bit.
    """
