"""Gradring: data-parallel training on ordinary machines."""

from gradring.communicator import Communicator, init
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
from gradring.work import Work

__all__ = [
    "AuthError",
    "Closed",
    "Communicator",
    "DeviceError",
    "Error",
    "InternalError",
    "InvalidArgument",
    "Mismatch",
    "PeerLost",
    "ProtocolError",
    "TimedOut",
    "Work",
    "init",
]
