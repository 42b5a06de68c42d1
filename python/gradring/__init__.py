"""Gradring: data-parallel training on ordinary machines."""

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

__all__ = [
    "AuthError",
    "Closed",
    "DeviceError",
    "Error",
    "InternalError",
    "InvalidArgument",
    "Mismatch",
    "PeerLost",
    "ProtocolError",
    "TimedOut",
]
