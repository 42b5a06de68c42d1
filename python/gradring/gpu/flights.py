"""Calls in flight on a device: what `gradring.Work` asks of them, whatever way they go."""

from __future__ import annotations

from typing import Protocol


class Flight(Protocol):
    """A call in flight; has what `_core.Work` has, and can order a stream."""

    def wait(self, timeout_ms: int = -1, stream: int | None = None) -> None:
        """Wait for the result; or, with a stream, only have that wait for it.

        Args:
            timeout_ms: -1 is the communicator's.
            stream: Who goes on with the result.

        Raises:
            PeerLost: As the CPU's call, and so for its other errors; with a stream, what is known
                by now.
        """

    def done(self) -> bool:
        """Tell, without waiting, whether it has ended, well or not."""

    @property
    def source(self) -> int:
        """Rank that sent a message; -1: none."""
