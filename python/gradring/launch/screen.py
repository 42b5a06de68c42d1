"""Where lines go: the launcher's standard output and error, and the line at a terminal's bottom.

A stream that cannot be written any more, because its reader left, its disk is full or its terminal
was closed, is noted and leads nowhere from then on; what that means for the job is the job's to
say. One that is only slow has its lines wait in `outlets`. Launcher's thread only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Mapping

from gradring.launch.numbers import label
from gradring.launch.outlets import Outlet, Outlets, Sink

ERASE_LINE = b"\r\x1b[K"

_COLOURS = (36, 33, 35, 32, 34, 31)

STREAM_NAMES = {1: "standard output", 2: "standard error"}


class Screen:
    """Both streams. Knows what is drawn at the bottom and gets it out of the way."""

    def __init__(
        self, out: Sink, err: Sink, *, terminals: frozenset[int], has_colour: bool
    ) -> None:
        """Write to two sinks.

        Args:
            out: Standard output.
            err: Standard error; on a terminal it also shows the bottom line.
            terminals: Which of the two, 1 and 2, are terminals.
            has_colour: Whether prefixes are coloured.
        """
        self.outlets = Outlets({1: out, 2: err})
        self._terminals = terminals
        self._has_colour = has_colour
        self._is_inside_line = {1: False, 2: False}
        self._bottom = b""

    @classmethod
    def of_process(cls, environ: Mapping[str, str]) -> Screen:
        """Use this process's standard streams; NO_COLOR and TERM=dumb are respected."""
        for written in (sys.stdout, sys.stderr):  # We write past their buffers.
            with contextlib.suppress(OSError):
                written.flush()
        is_dumb = environ.get("TERM") == "dumb"
        terminals = frozenset(fd for fd in (1, 2) if not is_dumb and os.isatty(fd))
        has_colour = len(terminals) == 2 and not environ.get("NO_COLOR")
        return cls(Outlet(1), Outlet(2), terminals=terminals, has_colour=has_colour)

    @property
    def has_bottom(self) -> bool:
        """Whether there is a terminal whose bottom line is ours."""
        return 2 in self._terminals

    def is_terminal(self, stream: int) -> bool:
        """Tell whether somebody looks at that stream."""
        return stream in self._terminals

    def take_lost(self) -> list[tuple[int, OSError]]:
        """Return the streams that were lost since the last time, each with its reason."""
        return self.outlets.take_lost()

    def prefix(self, number: int) -> bytes:
        """Return what the lines of a rank or server start with."""
        text = f"[{label(number)}]"
        if self._has_colour:
            text = f"\x1b[{_COLOURS[number % len(_COLOURS)]}m{text}\x1b[0m"
        return f"{text} ".encode()

    def write(self, stream: int, lines: Iterable[bytes]) -> None:
        """Write whole lines to standard output (1) or error (2), above the bottom line."""
        self.write_as_is(stream, b"".join(line + b"\n" for line in lines))

    def write_as_is(self, stream: int, data: bytes) -> None:
        """Write bytes, above the bottom line, whatever they are."""
        if data:
            bottom = self._bottom
            self.set_bottom(b"")
            self.outlets.put(stream, data)
            self._is_inside_line[stream] = not data.endswith(b"\n")
            self.set_bottom(bottom)

    def say(self, text: str) -> None:
        """Write the launcher's own words to standard error, on lines of their own."""
        if self._is_inside_line[2]:
            self.write_as_is(2, b"\n")
        # A name may hold bytes that are no UTF-8.
        lines = text.encode(errors="backslashreplace").splitlines()
        self.write(2, [b"gradring: " + line for line in lines])

    def set_bottom(self, text: bytes) -> None:
        """Show ``text`` below everything else, or nothing; not while lines wait to be written."""
        is_waiting = text != b"" and self.outlets.stalled is not None
        if self.has_bottom and text != self._bottom and not is_waiting:
            self._bottom = text
            # Of a terminal that was never given a size Python 3.10 says 0, later ones 80.
            columns = shutil.get_terminal_size().columns or 80
            self.outlets.put(2, ERASE_LINE + _fit(text, columns - 1))


def _fit(text: bytes, columns: int) -> bytes:
    # A line that wraps could not be erased. Escape sequences take no room: leave those lines alone.
    return text if b"\x1b" in text else text.decode(errors="replace")[:columns].encode()
