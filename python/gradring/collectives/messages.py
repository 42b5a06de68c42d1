"""Messages: send and recv between two ranks."""

from __future__ import annotations

from typing import Any

from gradring.arrays import buffers
from gradring.arrays.device_arrays import DeviceView
from gradring.collectives import calling
from gradring.errors import InvalidArgument
from gradring.timeouts import milliseconds

_ANY = -1  # The core's name for a message from any rank.


class Messages(calling.Caller):
    """The pairwise methods of `gradring.Communicator`."""

    def send(
        self,
        x: Any,
        dst: int,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Send ``x`` to rank ``dst``; returns when ``x`` may be reused.

        Messages between two ranks with one tag arrive in order. They have links of their own, so a
        rank may wait in `recv` while another of its threads runs collectives.

        Args:
            x: Any supported dtype and shape; not written.
            dst: Rank; may be this one.
            tag: 32-bit integer that the receiver asks for.
            async_op: Return a `Work` at once.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Raises:
            InvalidArgument: ``dst`` is no rank, or ``tag`` is out of range.
            PeerLost: As `all_reduce`.
            TimedOut: Nobody received it in time; the communicator is closed.
            Closed: As `all_reduce`.
        """
        dst = calling.whole_number("send: dst", dst)
        view = buffers.operand(x, "x", writes=False, stream=stream)
        return self._transfer(view, x, dst, tag, is_recv=False, async_op=async_op, timeout=timeout)

    def recv(
        self,
        x: Any,
        src: int | None,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Receive the next message with this tag from rank ``src`` into ``x``.

        Args:
            x: Dtype and size of the message; written in place. May be strided.
            src: Rank; may be this one. ``None`` takes the first message that comes from any rank.
            tag: What the sender gave.
            async_op: Return a `Work` at once; when done, its ``source`` says who sent.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            ``x``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``src`` is no rank, or ``tag`` is out of range.
            Mismatch: The message has another dtype or size.
            PeerLost: As `all_reduce`.
            TimedOut: It did not come in time; the communicator is closed.
            Closed: As `all_reduce`.
        """
        view = buffers.operand(x, "x", writes=True, stream=stream)
        peer = _ANY if src is None else calling.whole_number("recv: src", src)
        if src is not None and peer < 0:
            raise InvalidArgument(f"recv: rank {src} is not a rank of 0..{self.world_size - 1}")
        return self._transfer(view, x, peer, tag, is_recv=True, async_op=async_op, timeout=timeout)

    def _transfer(
        self,
        view: buffers.Operand,
        result: Any,
        peer: int,
        tag: int,
        *,
        is_recv: bool,
        async_op: bool,
        timeout: float | None,
    ) -> Any:
        tag = calling.whole_number("tag", tag)
        async_op = calling.truth("async_op", async_op)
        timeout_ms = milliseconds(timeout)
        pending: Any
        if isinstance(view, DeviceView):
            pending = self._device_calls().transfer(
                view, peer, tag, is_recv=is_recv, timeout_ms=timeout_ms, async_op=async_op
            )
        else:
            pending = self._core.transfer(
                is_recv, view.buffer, view.dtype, peer, tag, timeout_ms, async_op, view.memory
            )
        return calling.finish(pending, result if is_recv else None)
