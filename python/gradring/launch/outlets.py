"""Standard output and error, written without ever waiting for who reads them.

What cannot be written at once is queued, in one queue: both streams may be the same pipe, and stay
in order. The launcher's loop goes on with it once there is room. Launcher's thread only.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Protocol

# While more than this is queued no agent is read, so that ranks wait for a slow reader.
MOST_QUEUED_BYTES = 1 << 20


class Sink(Protocol):
    """What bytes can be written to."""

    def fileno(self) -> int:
        """Return the descriptor that tells when there is room."""

    def write(self, data: bytes, /) -> int:
        """Take what there is room for, or fail; return how many bytes that was."""

    def close(self) -> None:
        """Let go of it."""


class Outlet:
    """A descriptor of this process. Others may share what is behind it, and its flags with it."""

    def __init__(self, descriptor: int) -> None:
        """Write there from now on."""
        self._shared = descriptor
        self._own = _opened_again(descriptor)
        self._poll = select.poll()
        self._poll.register(self.fileno(), select.POLLOUT)

    def fileno(self) -> int:
        """Return the descriptor that is written to."""
        return self._shared if self._own is None else self._own

    def write(self, data: bytes, /) -> int:
        """Write what there is room for, of at most PIPE_BUF bytes.

        Returns:
            How many bytes; not all of them where it would have to wait.

        Raises:
            OSError: It cannot be written; from now on what is written vanishes.
        """
        try:
            return os.write(self.fileno(), data) if self._poll.poll(0) else 0
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._shared)
            os.close(nothing)
            raise

    def close(self) -> None:
        """Close what was opened here; the descriptor itself stays open."""
        if self._own is not None:
            self._poll.unregister(self._own)
            self._poll.register(self._shared, select.POLLOUT)
            os.close(self._own)
            self._own = None


class Outlets:
    """Both streams, and what waits to be written to them."""

    def __init__(self, sinks: Mapping[int, Sink]) -> None:
        """Write to these: standard output is 1, standard error 2."""
        self._sinks = sinks
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued_bytes = 0
        self._is_dropping = False
        self._lost: dict[int, OSError] = {}  # That nobody has heard of yet.

    @property
    def stalled(self) -> int | None:
        """The descriptor that has to have room before anything more is written, if any."""
        return self._sinks[self._queue[0][0]].fileno() if self._queue else None

    @property
    def are_full(self) -> bool:
        """Whether so much is queued that nothing should be added that can wait."""
        return self._queued_bytes > MOST_QUEUED_BYTES

    def put(self, stream: int, data: bytes) -> None:
        """Write this behind what is queued, now or later."""
        is_first = not self._queue
        self._queue.extend((stream, piece) for piece in _pieces(data))
        self._queued_bytes += len(data)
        # Else the loop goes on: it may be watching a descriptor that failing would replace.
        if is_first:
            self.go_on()

    def go_on(self) -> None:
        """Write what is queued, as far as there is room."""
        while self._queue:
            stream, data = self._queue.popleft()
            try:
                written = self._sinks[stream].write(data)
            except OSError as error:
                self._lost.setdefault(stream, error)
                written = len(data)
            self._queued_bytes -= written
            if written < len(data):
                self._queue.appendleft((stream, data[written:]))
                break
        if self._is_dropping:
            self._queue.clear()
            self._queued_bytes = 0

    def drop(self) -> None:
        """Forget what is queued; from now on what there is no room for vanishes."""
        self._is_dropping = True
        self.go_on()

    def close(self) -> None:
        """Let go of both."""
        for sink in self._sinks.values():
            sink.close()

    def take_lost(self) -> list[tuple[int, OSError]]:
        """Return the streams that were lost since the last time, each with its reason."""
        lost, self._lost = list(self._lost.items()), {}
        return lost


def _opened_again(descriptor: int) -> int | None:
    """Open a pipe or terminal once more, so that it can be non-blocking for us alone.

    A terminal that says it has room may have less than what is written, and others may fill a pipe
    before we do. ``None`` where that cannot be done, or need not be.
    """
    with contextlib.suppress(OSError):
        if os.isatty(descriptor) or stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    return None


def _pieces(data: bytes) -> Iterator[bytes]:
    # A pipe takes so much whole or not at all: lines are cut only where they are longer.
    start = 0
    while start < len(data):
        end = start + select.PIPE_BUF
        if end < len(data):
            end = data.rfind(b"\n", start, end) + 1 or end
        yield data[start:end]
        start = end
