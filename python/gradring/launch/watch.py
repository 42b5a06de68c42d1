"""What the launcher waits for: agents, signals, and room in a pipe that is full.

Signals arrive through a wake-up pipe. While too much waits to be written, agents are not read, so
that they, and in turn their ranks, wait as well. Launcher's thread only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
from collections.abc import Callable, Iterator
from typing import IO

from gradring.launch import agent
from gradring.launch.link import AgentLink
from gradring.launch.outlets import Outlets


class Watch:
    """One selector. Close it in the end."""

    def __init__(self, outlets: Outlets) -> None:
        """Watch what is written there; nothing is read yet."""
        self.caught: list[int] = []  # Signals, in order.
        self.is_holding = False  # Whether the last wait was one without reading.
        self._outlets = outlets
        self._readers: dict[object, tuple[IO[bytes], Callable[[], object]]] = {}
        self._links: list[AgentLink] = []
        self._selector = selectors.DefaultSelector()

    def close(self) -> None:
        """Let go of the selector."""
        self._selector.close()

    def add(self, stream: IO[bytes], read: Callable[[], object]) -> None:
        """Call ``read`` whenever there is something in ``stream``, until it is removed."""
        self._readers[stream] = (stream, read)
        if not self.is_holding:
            self._selector.register(stream, selectors.EVENT_READ, read)

    def add_commands(self, link: AgentLink) -> None:
        """Have what the agent is told written on whenever there is room."""
        self._links.append(link)

    def remove(self, stream: IO[bytes]) -> None:
        """Read it no more, if it was read."""
        if self._readers.pop(stream, None) is not None and not self.is_holding:
            self._selector.unregister(stream)

    def wait(self, seconds: float | None, *, may_hold: bool) -> None:
        """Wait for something to happen and see to it; signals are left in ``caught``.

        Args:
            seconds: At most so long; ``None`` is for ever.
            may_hold: Whether agents are left unread while too much is queued.
        """
        self._hold(is_held=may_hold and self._outlets.are_full)
        # Watched for one wait only: what fails is replaced under the same number.
        full = {link.commands.fileno(): link.write_on for link in self._links if link.wants_room}
        if self._outlets.stalled is not None:
            full[self._outlets.stalled] = self._outlets.go_on
        for descriptor, write in full.items():
            self._selector.register(descriptor, selectors.EVENT_WRITE, write)
        ready = self._selector.select(0.0 if self.caught else seconds)
        for descriptor in full:
            self._selector.unregister(descriptor)
        for key, _ in ready:
            is_agent = not isinstance(key.fileobj, int)
            is_full = may_hold and self._outlets.are_full
            # What came before this in the batch may have removed it.
            if not is_agent or (key.fileobj in self._readers and not is_full):
                key.data()

    @contextlib.contextmanager
    def catching_signals(self) -> Iterator[None]:
        """Collect signals that ask for the end; SIGHUP too, unless nohup has it ignored."""
        wake, wakened = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        for number, handler in before.items():
            if number != signal.SIGHUP or handler != signal.SIG_IGN:
                signal.signal(number, lambda number, _: self.caught.append(number))
        wakened_before = signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        heed = functools.partial(os.read, wake, agent.READ_BYTES)
        self._selector.register(wake, selectors.EVENT_READ, heed)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakened_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.unregister(wake)
            os.close(wake)
            os.close(wakened)

    def _hold(self, *, is_held: bool) -> None:
        if is_held != self.is_holding:
            for stream, read in self._readers.values():
                if is_held:
                    self._selector.unregister(stream)
                else:
                    self._selector.register(stream, selectors.EVENT_READ, read)
        self.is_holding = is_held
