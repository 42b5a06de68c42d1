"""Traces: what every rank did when, on one clock.

With ``GRADRING_TRACE=folder`` each rank writes its operations, messages and spans there when its
last communicator closes, as Chrome trace events. `merge` puts the ranks' traces onto rank 0's
clock; https://ui.perfetto.dev and chrome://tracing show the result. See docs/flight_recorder.md.
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gradring.commands.input_files import cannot_read, files_in
from gradring.commands.output_files import require_writable, write_whole, writing
from gradring.core_arguments import MOST_RANKS
from gradring.errors import InvalidArgument

Event = dict[str, Any]

_FILES = "rank-*.trace.json"  # One a rank, in the folder.


class span:  # noqa: N801 - reads like the function it is used as: with span("forward")
    """A stretch of code with a name, to be seen in records and traces.

    A context manager; may be entered again after it was left. Costs about a microsecond, also
    where no trace is made: `gradring doctor --job` shows the spans that a rank is in.
    """

    def __init__(self, name: str) -> None:
        """Name it. Names should be few: "forward", not "forward of step 17".

        Raises:
            InvalidArgument: The name is no UTF-8 text.
        """
        from gradring import _core

        try:
            name.encode()
        except (AttributeError, UnicodeEncodeError):
            raise InvalidArgument(f"span: the name is UTF-8 text, got {name!r}") from None
        self._span = _core.Span(name)

    def __enter__(self) -> span:
        """Begin."""
        self._span.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        self._span.end()


@dataclass(frozen=True)
class RankTrace:
    """One rank's trace as it wrote it.

    Attributes:
        rank: Of the job.
        events: Chrome trace events; ``ts`` in microseconds of the rank's steady clock.
        other: The ``otherData`` of the file: job, clock readings and so on.
    """

    rank: int
    events: list[Event]
    other: dict[str, Any]


def read(folder: Path) -> list[RankTrace]:
    """Return the traces of the job that wrote there last, by rank.

    Raises:
        InvalidArgument: There are none, or one is no trace of ours.
    """
    files = files_in(folder, _FILES)
    if not files:
        raise InvalidArgument(f"{folder} holds no traces (rank-0.trace.json, ...)")
    traces = [trace for _, trace in sorted(map(_read_one, files), key=lambda read: read[0])]
    job = traces[-1].other["job"]
    return sorted((trace for trace in traces if trace.other["job"] == job), key=lambda t: t.rank)


def merge(traces: Sequence[RankTrace]) -> dict[str, Any]:
    """Put traces onto rank 0's clock, and say of each collective how unevenly the ranks came.

    Returns:
        A Chrome trace whose first event is at 0. A collective that several ranks recorded has
        ``args.arrival_us``, how long after the first rank this one came, and ``args.last``, who
        came last. ``otherData.clock_error_us`` is how far off each rank's times may be.
    """
    events: list[Event] = []
    for trace in traces:
        correction = _correction(trace.other["clock"])
        for event in trace.events:
            moved = dict(event)
            if "ts" in event:
                moved["ts"] = event["ts"] + correction.micros(event["ts"])
            events.append(moved)
    begin = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] - begin, 3)
    _compare_arrivals(events)
    events.sort(key=lambda event: event.get("ts", -1.0))
    return {
        "displayTimeUnit": "ns",
        "traceEvents": events,
        "otherData": {
            "format": "gradring-trace-merged",
            "job": traces[0].other["job"],
            "ranks": [trace.rank for trace in traces],
            "clock_error_us": {
                str(trace.rank): _correction(trace.other["clock"]).error for trace in traces
            },
            "lost": {str(trace.rank): trace.other["lost"] for trace in traces},
        },
    }


def merge_folder(folder: Path, output: Path) -> str:
    """Merge what is in a folder into one file, and return a line that says what was done.

    Args:
        folder: Where the traces are.
        output: The file; ``-`` is standard output.

    Raises:
        InvalidArgument: As `read`; or the file cannot be written, or is one of the traces.
        CannotWrite: Writing it failed.
    """
    require_writable(output, "-o", is_replaced=True)
    _require_no_trace(folder, output)
    traces = read(folder)
    try:
        merged = merge(traces)
        text = json.dumps(merged, allow_nan=False)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{folder}: a trace lacks what belongs in it: {error!r}") from error
    missing = set(range(traces[0].other["world_size"])) - {trace.rank for trace in traces}
    if str(output) == "-":
        print(text)
    else:
        with writing(output) as file:
            write_whole(file, text)
    gone = f"; no trace of rank {', '.join(map(str, sorted(missing)))}" if missing else ""
    worst = max(merged["otherData"]["clock_error_us"].values())
    return (
        f"{output}: {len(merged['traceEvents'])} events of {len(traces)} ranks, clocks to within "
        f"{worst:.1f} us{gone}"
    )


def _require_no_trace(folder: Path, output: Path) -> None:
    # Also none that is not there yet: the next merge would take it for a rank's.
    place = Path(os.path.realpath(output))
    would_be_one = place.match(_FILES) and place.parent == Path(os.path.realpath(folder))
    is_one = output.exists() and any(output.samefile(path) for path in folder.glob(_FILES))
    if would_be_one or is_one:
        raise InvalidArgument(f"-o {output}: that is one of the traces to be merged; name another")


@dataclass(frozen=True)
class _Correction:
    """What to add to a rank's times, by straight lines between readings, in microseconds."""

    at: list[float]
    offset: list[float]
    error: float

    def micros(self, time: float) -> float:
        if not self.at:
            return 0.0
        after = bisect.bisect(self.at, time)
        if after == 0 or after == len(self.at):
            return self.offset[min(after, len(self.at) - 1)]
        begin, end = self.at[after - 1], self.at[after]
        share = (time - begin) / (end - begin)
        return self.offset[after - 1] * (1 - share) + self.offset[after] * share


def _correction(readings: Iterable[dict[str, int]]) -> _Correction:
    # A reading that took long says little: it is left out where quicker ones are near.
    known = list(readings)
    quickest = min((reading["error"] for reading in known), default=0)
    good = [reading for reading in known if reading["error"] <= 3 * quickest + 1000]
    return _Correction(
        [reading["at"] / 1e3 for reading in good],
        [reading["offset"] / 1e3 for reading in good],
        max((reading["error"] for reading in good), default=0) / 1e3,
    )


def _compare_arrivals(events: Sequence[Event]) -> None:
    calls: dict[tuple[str, int], dict[int, Event]] = {}
    for event in events:
        if event.get("cat") == "collective":
            key = (event["args"]["communicator"], event["args"]["seq"])
            calls.setdefault(key, {})[event["pid"]] = event
    for of_rank in calls.values():
        if len(of_rank) < 2:
            continue
        first = min(event["ts"] for event in of_rank.values())
        last = max(of_rank, key=lambda rank: float(of_rank[rank]["ts"]))
        for event in of_rank.values():
            event["args"]["arrival_us"] = round(event["ts"] - first, 3)
            event["args"]["last"] = last


def _read_one(path: Path) -> tuple[int, RankTrace]:
    """Return when it was written, in nanoseconds, and what."""
    try:
        text = json.loads(path.read_text())
        written = path.stat().st_mtime_ns
        other = text["otherData"]
        if (other["format"], other["version"]) == ("gradring-trace", 1):
            if not isinstance(text["traceEvents"], list) or "job" not in other:
                raise ValueError("no list of events, or no job")
            if not 0 <= other["rank"] < other["world_size"] <= MOST_RANKS:
                raise ValueError("no rank of a world")
            return written, RankTrace(other["rank"], text["traceEvents"], other)
    except OSError as error:
        raise cannot_read(path, error) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidArgument(f"{path} is no trace: {error}") from error
    raise InvalidArgument(f"{path} is no trace of this version of gradring")
