"""`Work`: an operation that was started with ``async_op=True``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradring import _core
from gradring.arrays.device_arrays import stream_handle
from gradring.timeouts import milliseconds

if TYPE_CHECKING:
    from gradring.gpu.flights import Flight


class Work:
    """An operation in flight: its arrays live, and must not be touched, until it is done."""

    def __init__(self, core: _core.Work | Flight, result: Any) -> None:
        """Wrap a compiled handle; made by `Communicator`."""
        self._core = core
        self._result = result

    def wait(self, timeout: float | None = None, *, stream: Any = None) -> Any:
        """Wait until it is done; may be called again.

        Args:
            timeout: Seconds. ``None``: until it has ended, which the timeout it was started with
                sees to; for a send, a recv and arrays on a device the communicator's.
            stream: Of arrays on a device: this returns as soon as what comes on the stream from
                now on will find the result (docs/gpu.md). ``None``: it is there when this returns.
                Ignored for arrays on the CPU.

        Returns:
            What the blocking call would have returned.

        Raises:
            InvalidArgument: ``timeout`` is not positive and finite, or ``stream`` is none.
            TimedOut: ``timeout`` has passed and it is not done yet; says what it waits for. A
                collective goes on, so wait again; a send or recv has closed the communicator. Or
                as in the blocking call.
            PeerLost: As in the blocking call, and so for every other error.
        """
        timeout_ms = milliseconds(timeout)
        if isinstance(self._core, _core.Work):
            self._core.wait(timeout_ms)
        else:
            self._core.wait(timeout_ms, stream_handle(stream))
        return self._result

    @property
    def source(self) -> int | None:
        """Rank that sent the message, for a `recv` that is done; else ``None``."""
        rank = self._core.source
        return None if rank < 0 else rank

    def done(self) -> bool:
        """Tell, without waiting, whether it has ended, well or not; then the result is there.

        Raises:
            Closed: This is a forked child, and the operation its parent's.
        """
        return self._core.done()
