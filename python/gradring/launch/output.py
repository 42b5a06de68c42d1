"""What ranks and servers write, as whole lines.

Bytes come in pieces, from many processes; complete lines go out, each with its name in front. A
progress bar (text that returns to the start of its line) of rank 0 is shown at the bottom until it
ends its line; else the launcher's status is shown there. Away from a terminal a bar leaves only
its last state. Without names nothing is changed at all, but on a terminal. Launcher's thread only.
"""

from __future__ import annotations

from collections import deque

from gradring.launch.lost.blame import lost_rank
from gradring.launch.numbers import name
from gradring.launch.screen import Screen

# A line longer than this is cut, so that a rank cannot fill the launcher's memory.
LINE_BYTES_MAX = 1 << 16

# How many of a failed rank's last lines are told again.
LAST_LINES = 12


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


class Passage:
    """Lets one rank's stream through byte for byte, cut between lines where that can be.

    So that lines of several ranks stay whole, as long as they are no longer than the limit.
    """

    def __init__(self) -> None:
        """Start with nothing pending."""
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next piece; return what can go on."""
        everything = self._pending + data
        end = everything.rfind(b"\n") + 1
        if len(everything) - end > LINE_BYTES_MAX:
            end = len(everything)
        self._pending = everything[end:]
        return everything[:end]

    def finish(self) -> bytes:
        """Return the rest."""
        rest, self._pending = self._pending, b""
        return rest


class RankOutput:
    """The lines of all processes: split, prefixed, shown, and the last errors of each kept."""

    def __init__(self, screen: Screen, *, has_prefix: bool) -> None:
        """Write to ``screen``."""
        self._screen = screen
        self._has_prefix = has_prefix
        self._splitters: dict[tuple[int, int], LineSplitter] = {}
        self._passages: dict[tuple[int, int], Passage] = {}
        self._last_errors: dict[int, deque[bytes]] = {}
        self._earlier_errors: dict[int, list[bytes]] = {}  # Of lives before.

    def take(self, number: int, stream: int, data: bytes) -> None:
        """Take a piece of what a process wrote to its standard output (1) or error (2)."""
        if self._has_prefix or self._screen.is_terminal(stream):
            splitter = self._splitters.setdefault((number, stream), LineSplitter())
            self._show(number, stream, splitter.feed(data))
        else:
            passage = self._passages.setdefault((number, stream), Passage())
            self._pass_on(number, stream, passage.feed(data))

    def finish(self, number: int) -> None:
        """Show what a process wrote without ending the line."""
        for stream in (1, 2):
            splitter = self._splitters.get((number, stream))
            if splitter is not None:
                self._show(number, stream, splitter.finish())
            passage = self._passages.get((number, stream))
            if passage is not None:
                self._pass_on(number, stream, passage.finish())

    def finish_all(self) -> None:
        """Show every unfinished line."""
        for number in sorted({number for number, _ in (*self._splitters, *self._passages)}):
            self.finish(number)

    def repeat_last_errors(self, number: int) -> None:
        """Show the last lines of a process's standard error once more, if it wrote any."""
        if lines := self._last_lines(number):
            self._screen.say(f"the last lines of {name(number)}'s standard error:")
            self._screen.write(2, [b"    " + line for line in lines])

    def begin_again(self, number: int) -> None:
        """Take what a process will write for that of another life: it is started again."""
        self._earlier_errors[number] = [*self._last_lines(number)]
        self._last_errors.pop(number, None)

    def lost_by(self, number: int) -> int | None:
        """Return the rank that a process' last errors say it has lost; None: they name none."""
        return lost_rank(self._last_errors.get(number, ()))

    @property
    def bar(self) -> bytes:
        """Rank 0's unfinished line as shown at the bottom, or nothing."""
        for stream in (2, 1):
            splitter = self._splitters.get((0, stream))
            if splitter is not None and splitter.bar:
                return self._prefix(0) + splitter.bar
        return b""

    def _show(self, number: int, stream: int, lines: list[bytes]) -> None:
        self._remember(number, stream, lines)
        self._screen.write(stream, [self._prefix(number) + line for line in lines])

    def _pass_on(self, number: int, stream: int, data: bytes) -> None:
        self._remember(number, stream, data.splitlines())
        self._screen.write_as_is(stream, data)

    def _remember(self, number: int, stream: int, lines: list[bytes]) -> None:
        if stream == 2:
            self._last_errors.setdefault(number, deque(maxlen=LAST_LINES)).extend(lines)

    def _last_lines(self, number: int) -> list[bytes]:
        lines = [*self._earlier_errors.get(number, ()), *self._last_errors.get(number, ())]
        return lines[-LAST_LINES:]

    def _prefix(self, number: int) -> bytes:
        return self._screen.prefix(number) if self._has_prefix else b""
