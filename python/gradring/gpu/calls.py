"""`DeviceCalls`: which way a call on device arrays goes, and its way there.

Owned by a communicator from its first device array on. The call is put into the order of the
communicator's calls before anything here returns, so that order is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradring import _core
from gradring.device_arrays import DeviceView
from gradring.gpu.copied import CopiedCalls, Landing
from gradring.gpu.flights import Flight

_FOR_GOOD_MS = 365 * 24 * 3600 * 1000  # A call has a deadline of its own.


class DeviceCalls:
    """The calls of one communicator on arrays of devices."""

    def __init__(self, core: _core.Communicator) -> None:
        """Belong to a communicator; nothing is loaded yet."""
        self._core = core
        self._copied = CopiedCalls(core)

    def run(
        self,
        op: int,
        source: DeviceView | None,
        target: DeviceView | None,
        *,
        in_background: bool,
        **options: Any,
    ) -> Flight | None:
        """Do a collective on one array a rank.

        Args:
            op: Code of the operation.
            source: What this rank gives.
            target: Where the result goes; ``source`` itself where it is in place.
            in_background: Return at once.
            **options: Of `_core.Communicator.run`.

        Returns:
            What waits for it; ``None``: done, and the result is there.

        Raises:
            DeviceError: No GPU, no plugin, or the driver fails.
            PeerLost: As the CPU's call, and so for its other errors.
        """
        sources = [] if source is None else [source]
        targets = [] if target is None else sources if target is source else [target]
        return self.run_many(op, sources, targets, in_background=in_background, **options)

    def run_many(
        self,
        op: int,
        sources: Sequence[DeviceView],
        targets: Sequence[DeviceView],
        *,
        in_background: bool,
        **options: Any,
    ) -> Flight | None:
        """Do a collective on several arrays of one dtype and device, as if they were one."""
        landing = self._copied.run(op, sources, targets, in_background=in_background, **options)
        return _landed(landing, in_background)

    def run_on_host(self, view: DeviceView, start: Callable[[Any], _core.Work]) -> Landing:
        """Do in place on the host what ``start`` begins with a flat array of the same dtype."""
        return self._copied.run_in_place(view, start)

    def transfer(
        self,
        view: DeviceView,
        peer: int,
        tag: int,
        *,
        is_recv: bool,
        timeout_ms: int,
        async_op: bool,
    ) -> Flight | None:
        """Send or receive one array; see `run`."""
        landing = self._copied.transfer(
            view, peer, tag, is_recv=is_recv, timeout_ms=timeout_ms, async_op=async_op
        )
        return _landed(landing, async_op)


def _landed(flight: Flight, in_background: bool) -> Flight | None:
    if in_background:
        return flight
    flight.wait(_FOR_GOOD_MS)
    return None
