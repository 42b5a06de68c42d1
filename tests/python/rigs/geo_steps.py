"""GEO optimizers whose steps are what a test says, for tests of what is exchanged."""

from __future__ import annotations

from typing import Any

import numpy as np

import gradring as gr
from mode_servers import Servers

Array = np.ndarray[Any, Any]

IDENTITY = gr.optim.SGD(lr=1.0)  # A gradient of -u moves a parameter by u.


def geo(params: list[Array], store: Any, workers: int, **options: Any) -> gr.GeoOptimizer:
    return gr.GeoOptimizer(params, IDENTITY, store, workers=workers, **{"k_steps": 1, **options})


def exchange(optimizer: gr.GeoOptimizer, progress: float) -> None:
    """One local step that moves every parameter by ``progress``, exchanged at once."""
    optimizer.step([np.full_like(param, -progress) for param in optimizer.params])
    optimizer.replicas.settle()


def held(servers: Servers, *shape: int) -> Array:
    """What the servers have for the one dense parameter."""
    return np.asarray(servers.dense("model/0", shape, gr.optim.Sum()))
