"""What ranks and servers write, as whole lines, and the one line at the bottom of a terminal.

Bytes come in pieces, from many processes; complete lines go out, each with its name in front. A
progress bar (text that returns to the start of its line) of rank 0 is shown at the bottom until it
ends its line; else the launcher's status is shown there. Away from a terminal a bar leaves only
its last state. Launcher's thread only.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from gradring.launch.numbers import label

ERASE_LINE = b"\r\x1b[K"

# A line longer than this is cut, so that a rank cannot fill the launcher's memory.
LINE_BYTES_MAX = 1 << 16

# How many of a failed rank's last lines are told again.
LAST_LINES = 12

_COLOURS = (36, 33, 35, 32, 34, 31)


class LineSplitter:
    """Turns one rank's stream into lines. Where text was overwritten, the last state counts."""

    def __init__(self) -> None:
        """Start with nothing pending."""
        self._pending = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next piece; return the lines it completes, without their ends."""
        *lines, rest = (self._pending + data).split(b"\n")
        # "\r" just before the end may be half of "\r\n".
        self._pending = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
        if len(self._pending) > LINE_BYTES_MAX:
            lines.append(self._pending)
            self._pending = b""
        return [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]

    @property
    def bar(self) -> bytes:
        """The unfinished line."""
        return self._pending.rstrip(b"\r")

    def finish(self) -> list[bytes]:
        """Return the unfinished line, if there is one."""
        pending, self._pending = self.bar, b""
        return [pending] if pending else []


class Screen:
    """Where lines go. Knows what is drawn at the bottom and gets it out of the way."""

    def __init__(
        self, out: BinaryIO, err: BinaryIO, *, is_terminal: bool, has_colour: bool
    ) -> None:
        """Write to two streams; on a terminal, ``err`` also shows the bottom line."""
        self.is_terminal = is_terminal
        self._has_colour = has_colour
        self._streams = {1: out, 2: err}
        self._bottom = b""

    @classmethod
    def of_process(cls, environ: Mapping[str, str]) -> Screen:
        """Use this process's standard streams; NO_COLOR and TERM=dumb are respected."""
        is_terminal = sys.stderr.isatty() and environ.get("TERM") != "dumb"
        return cls(
            sys.stdout.buffer,
            sys.stderr.buffer,
            is_terminal=is_terminal,
            has_colour=is_terminal and sys.stdout.isatty() and not environ.get("NO_COLOR"),
        )

    def prefix(self, number: int) -> bytes:
        """Return what the lines of a rank or server start with."""
        text = f"[{label(number)}]"
        if self._has_colour:
            text = f"\x1b[{_COLOURS[number % len(_COLOURS)]}m{text}\x1b[0m"
        return f"{text} ".encode()

    def write(self, stream: int, lines: Iterable[bytes]) -> None:
        """Write whole lines to standard output (1) or error (2), above the bottom line.

        Raises:
            BrokenPipeError: Nobody reads that stream any more; further writes to it vanish.
        """
        text = b"".join(line + b"\n" for line in lines)
        if text:
            bottom = self._bottom
            self.set_bottom(b"")
            self._put(stream, text)
            self.set_bottom(bottom)

    def say(self, text: str) -> None:
        """Write the launcher's own words to standard error."""
        self.write(2, [f"gradring: {line}".encode() for line in text.splitlines()])

    def set_bottom(self, text: bytes) -> None:
        """Show ``text`` below everything else, or nothing."""
        if self.is_terminal and text != self._bottom:
            self._bottom = text
            columns = shutil.get_terminal_size().columns
            self._put(2, ERASE_LINE + _fit(text, columns - 1))

    def _put(self, stream: int, data: bytes) -> None:
        try:
            self._streams[stream].write(data)
            self._streams[stream].flush()
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._streams[stream].fileno())
            os.close(nothing)
            raise


def _fit(text: bytes, columns: int) -> bytes:
    # A line that wraps could not be erased. Escape sequences take no room: leave those lines alone.
    return text if b"\x1b" in text else text.decode(errors="replace")[:columns].encode()


class RankOutput:
    """The lines of all processes: split, prefixed, shown, and the last errors of each kept."""

    def __init__(self, screen: Screen, *, has_prefix: bool) -> None:
        """Write to ``screen``."""
        self._screen = screen
        self._has_prefix = has_prefix
        self._splitters: dict[tuple[int, int], LineSplitter] = {}
        self._last_errors: dict[int, deque[bytes]] = {}

    def take(self, number: int, stream: int, data: bytes) -> None:
        """Take a piece of what a process wrote to its standard output (1) or error (2)."""
        splitter = self._splitters.setdefault((number, stream), LineSplitter())
        self._show(number, stream, splitter.feed(data))

    def finish(self, number: int) -> None:
        """Show what a process wrote without ending the line."""
        for stream in (1, 2):
            splitter = self._splitters.get((number, stream))
            if splitter is not None:
                self._show(number, stream, splitter.finish())

    def finish_all(self) -> None:
        """Show every unfinished line."""
        for number in sorted({number for number, _ in self._splitters}):
            self.finish(number)

    def last_errors(self, number: int) -> list[bytes]:
        """Return the last lines of a process's standard error."""
        return list(self._last_errors.get(number, ()))

    @property
    def bar(self) -> bytes:
        """Rank 0's unfinished line as shown at the bottom, or nothing."""
        for stream in (2, 1):
            splitter = self._splitters.get((0, stream))
            if splitter is not None and splitter.bar:
                return self._prefix(0) + splitter.bar
        return b""

    def _show(self, number: int, stream: int, lines: list[bytes]) -> None:
        if stream == 2:
            self._last_errors.setdefault(number, deque(maxlen=LAST_LINES)).extend(lines)
        self._screen.write(stream, [self._prefix(number) + line for line in lines])

    def _prefix(self, number: int) -> bytes:
        return self._screen.prefix(number) if self._has_prefix else b""
