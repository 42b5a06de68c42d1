"""How training goes, shown on rank 0: a bar, the loss, examples a second, the speed-up.

On a terminal with rich, a live bar; as rank 0 of a `gradring run` on a terminal, one line that the
launcher keeps at the bottom; anywhere else a plain line now and then. The other ranks show nothing.
Used from the thread that trains.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, TextIO

PLAIN_SECONDS = 10.0  # Between two plain lines.
LINE_SECONDS = 0.2


class Progress:
    """Counts steps and examples, and shows them on rank 0.

    ::

        with Progress(len(loader), rank=comm.rank, label="epoch 1") as progress:
            for batch in loader:
                ...
                progress.advance(examples=global_batch, loss=loss)
    """

    def __init__(
        self,
        total: int,
        *,
        rank: int = 0,
        label: str = "training",
        baseline: float | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start counting when the block is entered.

        Args:
            total: Number of steps to come.
            rank: This process's; only rank 0 shows anything.
            label: What is going on.
            baseline: Examples a second of one process, which the speed-up is relative to.
            stream: Where to show it; ``None`` is standard error.
            clock: Seconds.
        """
        self.total = total
        self.label = label
        self.steps = 0
        self.examples = 0
        self.loss: float | None = None
        self._baseline = baseline
        self._clock = clock
        self._started_at = 0.0
        self._ended_at: float | None = None
        self._display = _display(stream or sys.stderr, os.environ) if rank == 0 else None

    def __enter__(self) -> Progress:
        """Start the clock."""
        self._started_at = self._clock()
        if self._display is not None:
            self._display.start(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the clock and show the end."""
        self._ended_at = self._clock()
        if self._display is not None:
            self._display.finish(self)

    def advance(self, *, examples: int, loss: float | None = None, steps: int = 1) -> None:
        """Count steps that are done.

        Args:
            examples: Examples used in them, by all ranks together.
            loss: Latest loss.
            steps: How many.
        """
        self.steps += steps
        self.examples += examples
        self.loss = loss if loss is not None else self.loss
        if self._display is not None:
            self._display.update(self)

    @property
    def seconds(self) -> float:
        """Time since the block was entered, or that it took."""
        return (self._clock() if self._ended_at is None else self._ended_at) - self._started_at

    @property
    def examples_per_second(self) -> float:
        """Throughput of all ranks together."""
        seconds = self.seconds
        return self.examples / seconds if seconds > 0 else 0.0

    @property
    def speed_up(self) -> float | None:
        """Throughput relative to that of one process, where that is known."""
        return self.examples_per_second / self._baseline if self._baseline else None

    def facts(self) -> str:
        """Return loss, throughput and speed-up as text."""
        rate = self.examples_per_second
        parts = [] if self.loss is None else [f"loss {self.loss:.4f}"]
        parts.append(f"{rate:,.0f} examples/s")
        if self._baseline:
            parts.append(f"speed-up {rate / self._baseline:.2f}")
        return "  ".join(parts)


class _Display(Protocol):
    def start(self, progress: Progress) -> None: ...

    def update(self, progress: Progress) -> None: ...

    def finish(self, progress: Progress) -> None: ...


class _Lines:
    """Text, now and then: lines of their own, or one that is overwritten."""

    def __init__(self, stream: TextIO, *, is_overwriting: bool) -> None:
        self._stream = stream
        self._is_overwriting = is_overwriting
        self._seconds = LINE_SECONDS if is_overwriting else PLAIN_SECONDS
        self._next = 0.0

    def start(self, progress: Progress) -> None:
        self._next = progress.seconds + self._seconds

    def update(self, progress: Progress) -> None:
        if progress.seconds >= self._next and progress.steps < progress.total:
            self._next = progress.seconds + self._seconds
            text = self._text(progress)
            self._write(f"\r{text}" if self._is_overwriting else f"{text}\n")

    def finish(self, progress: Progress) -> None:
        self._write(f"{chr(13) if self._is_overwriting else ''}{self._text(progress)}\n")

    def _text(self, progress: Progress) -> str:
        text = f"{progress.label}  {progress.steps}/{progress.total}"
        if self._is_overwriting:
            done = round(20 * progress.steps / max(1, progress.total))
            text += f" [{'#' * done}{'.' * (20 - done)}]"
        return f"{text}  {progress.facts()}"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _Bar:
    """A live bar drawn by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich import console, progress

        self._bar: Any = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=None),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[facts]}"),
            console=console.Console(file=stream),
        )
        self._task: Any = None

    def start(self, progress: Progress) -> None:
        self._task = self._bar.add_task(progress.label, total=progress.total, facts="")
        self._bar.start()

    def update(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.steps, facts=progress.facts())

    def finish(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.steps, facts=progress.facts())
        self._bar.stop()


def _display(stream: TextIO, environ: Mapping[str, str]) -> _Display:
    if stream.isatty():
        try:
            return _Bar(stream)
        except ModuleNotFoundError:
            return _Lines(stream, is_overwriting=True)
    # The launcher gives its ranks COLUMNS where it runs on a terminal.
    is_at_bottom = "GRADRING_RANK" in environ and "COLUMNS" in environ
    return _Lines(stream, is_overwriting=is_at_bottom)
