"""Gradring: data-parallel training on ordinary machines.

`init` joins the job and returns a `Communicator`. The compiled core is loaded when it is first
needed, so that the launcher and `gradring doctor` also run where it cannot be loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradring.errors import (
    AuthError,
    Closed,
    DeviceError,
    Error,
    InternalError,
    InvalidArgument,
    Mismatch,
    PeerLost,
    ProtocolError,
    TimedOut,
)

if TYPE_CHECKING:
    from gradring import metrics, optim, prometheus, ps, trace
    from gradring._core import version as __version__
    from gradring.collectives.communicator import Communicator
    from gradring.collectives.joining import init
    from gradring.collectives.newcomers import join
    from gradring.collectives.sampling import shard
    from gradring.collectives.work import Work
    from gradring.compression import TopK
    from gradring.machine.build import build_info
    from gradring.modes import (
        Async,
        BoundedStaleness,
        Geo,
        Hybrid,
        Mean,
        Nesterov,
        Sum,
        Sync,
    )
    from gradring.modes.asynchronous import AsyncOptimizer
    from gradring.modes.factory import distributed
    from gradring.modes.geo.optimizer import GeoOptimizer
    from gradring.optim.sync import SyncOptimizer

__all__ = [
    "Async",
    "AsyncOptimizer",
    "AuthError",
    "BoundedStaleness",
    "Closed",
    "Communicator",
    "DeviceError",
    "Error",
    "Geo",
    "GeoOptimizer",
    "Hybrid",
    "InternalError",
    "InvalidArgument",
    "Mean",
    "Mismatch",
    "Nesterov",
    "PeerLost",
    "ProtocolError",
    "Sum",
    "Sync",
    "SyncOptimizer",
    "TimedOut",
    "TopK",
    "Work",
    "__version__",
    "build_info",
    "distributed",
    "init",
    "join",
    "metrics",
    "optim",
    "prometheus",
    "ps",
    "shard",
    "trace",
]

_LAZY = {
    "Communicator": "gradring.collectives.communicator",
    "TopK": "gradring.compression",
    "Async": "gradring.modes",
    "AsyncOptimizer": "gradring.modes.asynchronous",
    "BoundedStaleness": "gradring.modes",
    "Geo": "gradring.modes",
    "GeoOptimizer": "gradring.modes.geo.optimizer",
    "Hybrid": "gradring.modes",
    "Mean": "gradring.modes",
    "Nesterov": "gradring.modes",
    "Sum": "gradring.modes",
    "Sync": "gradring.modes",
    "distributed": "gradring.modes.factory",
    "SyncOptimizer": "gradring.optim.sync",
    "Work": "gradring.collectives.work",
    "build_info": "gradring.machine.build",
    "init": "gradring.collectives.joining",
    "join": "gradring.collectives.newcomers",
    "shard": "gradring.collectives.sampling",
}


def __getattr__(name: str) -> Any:
    if name in {"metrics", "optim", "prometheus", "ps", "trace"}:
        return import_module(f"gradring.{name}")
    if name == "__version__":
        return import_module("gradring._core").version
    if name not in _LAZY:
        raise AttributeError(f"module 'gradring' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
