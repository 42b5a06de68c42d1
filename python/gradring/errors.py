"""The exceptions users see, named by what the caller can do about them.

The compiled core raises these very classes (the binding imports this module), so one `except`
works for both. Each is also the built-in exception that a program without gradring in mind would
catch.
"""

# The names are what happened, not "...Error": they are the words of the messages and the docs.
# ruff: noqa: N818

from __future__ import annotations


class Error(Exception):
    """Anything gradring raises on purpose. Catch it to tell our failures from your own."""


class InvalidArgument(Error, ValueError):
    """Your call, variable or option is wrong; nothing was sent. Fix what the message names."""


class Mismatch(Error):
    """Ranks made different calls; the message shows both.

    Nothing was reduced and the communicator is closed. Make every rank call the same operation
    with the same count, dtype, operator and root, in the same order, and start again.
    """


class PeerLost(Error, ConnectionError):
    """A rank died, froze or left; this communicator is closed.

    Read the log of the rank that the message names; it failed first. Then stop, or go on in a new
    communicator without that rank.

    Attributes:
        rank: The lost rank, or -1 where it could not be told which one it was.
    """

    def __init__(self, message: str = "", rank: int = -1) -> None:
        """Keep the text and who was lost."""
        super().__init__(message)
        self.rank = rank


class TimedOut(Error, TimeoutError):
    """A deadline passed while every peer still seemed alive.

    After a collective the communicator is closed. Look for the rank that never made the call; raise
    `GRADRING_TIMEOUT` only where a step may truly take that long.
    """


class AuthError(Error):
    """One end of a connection could not prove that it knows the job's secret.

    Give every rank the same `GRADRING_SECRET`, and check that two jobs do not share one rendezvous
    address.
    """


class ProtocolError(Error, ConnectionError):
    """The bytes that arrived make no sense: another version of gradring, or corruption.

    The communicator is closed. Compare `gradring version` on the hosts that the message names.
    """


class DeviceError(Error, RuntimeError):
    """CUDA, NCCL or this machine (descriptors, threads, a disk) refused a call; says which."""


class Closed(Error, RuntimeError):
    """Used after a failure or after `close()`; the message tells the first failure."""


class InternalError(Error, RuntimeError):
    """A bug in gradring. Please report it with the message."""


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
