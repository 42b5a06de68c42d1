"""Modes: when the workers of a training job talk, and what they promise each other.

A mode is one argument of `gradring.distributed` (NumPy) and `gradring.torch.distributed` (PyTorch);
everything else of a script stays as it is. This package holds the modes themselves (`contracts`),
which `factory` makes into optimizers, and what carries them out over a parameter server: `stores`
asks servers, `parameters` is what a worker holds of them, `stepping` what all modes do alike, `geo`
the replicas. docs/modes.md has the modes side by side.
"""

from gradring.modes.contracts import (
    Async,
    BoundedStaleness,
    Geo,
    Hybrid,
    Mean,
    Mode,
    Nesterov,
    Outer,
    Sum,
    Sync,
)

__all__ = [
    "Async",
    "BoundedStaleness",
    "Geo",
    "Hybrid",
    "Mean",
    "Mode",
    "Nesterov",
    "Outer",
    "Sum",
    "Sync",
]
