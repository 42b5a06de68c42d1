"""Measures collectives of all libraries in turn; each row is saved when it is done."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from compare import records
from compare.environments import Environment
from compare.plan import PEERS, Job
from compare.processes import end_strays
from compare.records import Document
from gradring.bench import libraries, report
from gradring.bench import options as bench_options
from gradring.bench.cases import make_cases, message_bytes
from gradring.bench.groups import GroupFailed, LaunchedGroup
from gradring.bench.starts import Missing, Start
from gradring.bench.sweep import Sweep

_RESTARTS = 2  # Of a peer that fails, in a job.

Place = Callable[[Start], Start]


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        folder: Where the JSON goes.
        rounds: Of each row.
        seconds: On a row, for each library.
        bind: none or core.
        peers: Names without -tcp; others are left out.
        deadline: Seconds that a rank has for a batch.
        resume: Whether rows that are there already are left as they are.
        environments: By name.
        until: When no further row is begun, on the monotonic clock.
        place: Where ranks are put; changes what starts them.
    """

    folder: Path
    rounds: int
    seconds: float
    bind: str
    peers: tuple[str, ...]
    deadline: float
    resume: bool
    environments: Mapping[str, Environment]
    until: float = float("inf")
    place: Place = lambda start: start


def peers_of(transport: str, wanted: tuple[str, ...]) -> list[str]:
    """Return the peers' names on a transport."""
    return [name for name in PEERS[transport] if name.removesuffix("-tcp") in wanted]


def measure(job: Job, settings: Settings) -> bool:
    """Measure a job; returns whether ours ran through, beside a peer, and all was right."""
    path = settings.folder / f"{job.name}.json"
    old = records.load(path)
    todo = {
        op: [s for s in sizes if not (settings.resume and old and records.has_row(old, op, s))]
        for op, sizes in job.sizes.items()
    }
    if not any(todo.values()):
        print(f"{job.name}: all rows are there", file=sys.stderr)
        return True
    argv = [*job.sizes, "-n", str(job.ranks), "--transport", job.transport, "--rounds",
            str(settings.rounds), "--seconds", str(settings.seconds), "--warmup", "2"]  # fmt: skip
    if settings.bind == "core":
        argv += ["--bind", "core"]
    options = bench_options.parse(argv, is_launched=False)
    document = report.start_document(options, argv, job.ranks, job.transport)
    if job.congestion:
        document["machine"]["tcp_congestion_control"] = job.congestion
    document["command"] = records.asked_command()
    document["environments"] = {
        name: settings.environments[name.removesuffix("-tcp")].versions
        for name in peers_of(job.transport, settings.peers)
    }
    if old:
        records.keep_rows(document, old, todo)
    if time.monotonic() > settings.until:
        print(f"{job.name}: left out, the minutes are over", file=sys.stderr)
        return True
    with _starting(job, settings) as world:
        if not world.start_all(document["missing"], options.is_bound):
            return False  # Of what is in the file nothing was measured anew.
        is_right = world.measure(options, todo, document, path)
    records.save(path, document)
    return is_right


class World:
    """The ranks of all libraries while a job is measured."""

    def __init__(self, job: Job, settings: Settings, sockets: Path) -> None:
        self.groups: dict[str, LaunchedGroup] = {}
        self._job, self._settings, self._sockets = job, settings, sockets
        self._starts = 0
        self._is_bound = False

    def start_all(self, missing: dict[str, str], is_bound: bool) -> bool:
        """Start all libraries, ours first, each rank on one core if wanted.

        Returns:
            Whether ours came, and a peer if any is wanted.
        """
        self._is_bound = is_bound
        for name in ("gradring", *peers_of(self._job.transport, self._settings.peers)):
            try:
                self.start(name)
            except (GroupFailed, Missing) as failure:
                missing[name] = str(failure)
                print(f"{self._job.name}: {failure}", file=sys.stderr)
                self._end(name)
                if name == "gradring":
                    return False
        if len(self.groups) == 1 and self._settings.peers:
            print(f"{self._job.name}: no peer came, nothing is measured", file=sys.stderr)
            return False
        return True

    def start(self, name: str) -> LaunchedGroup:
        """Start a library's ranks."""
        self._starts += 1
        job, path = self._job, self._sockets / f"{name}.{self._starts}.sock"
        if name == "gradring":
            start = libraries.start_ours(job.ranks, job.transport, "auto", path)
        else:
            environment = self._settings.environments[name.removesuffix("-tcp")]
            if environment.reason:
                raise Missing(environment.reason)
            start = libraries.start_peer(name, job.ranks, environment.python, path)
        placed = self._settings.place(start)
        group = LaunchedGroup(placed, job.ranks, path, self._settings.deadline)
        self.groups[name] = group
        if self._is_bound:
            group.ask(do="bind")
        return group

    def measure(
        self, options: bench_options.Options, todo: dict[str, list[int]], document: Document,
        path: Path,
    ) -> bool:  # fmt: skip
        """Measure the rows; returns whether ours ran through and nobody's result was wrong."""
        ours, *peers = self.groups.values()
        sweep = Sweep(ours, peers, options, is_tcp=self._job.transport == "tcp")
        self._describe(document, "gradring")
        restarts: dict[str, int] = {}
        is_right = True
        for op, sizes in todo.items():
            for case in make_cases(op, sizes, "float32", "sum", self._job.ranks):
                what = f"{self._job.name} {op} {message_bytes(case)}"
                if time.monotonic() > self._settings.until:
                    print(f"{what}: left out, the minutes are over", file=sys.stderr)
                    continue
                try:
                    row = report.row_of(sweep.measure(case, lambda _: None))
                except GroupFailed as failure:
                    document["missing"]["gradring"] = f"{what}: {failure}"
                    print(f"{what}: {failure}", file=sys.stderr)
                    return False
                row |= {"measured": records.stamp(), "failed": dict(sweep.dropped)}
                wrong = {name: found["wrong"] for name, found in row["results"].items()
                         if found["wrong"]}  # fmt: skip
                if wrong:
                    is_right = False
                    print(f"{what}: WRONG elements of the result: {wrong}", file=sys.stderr)
                records.put_row(document, op, row)
                records.save(path, document)
                print(f"{what}: {_summary(row)}", file=sys.stderr, flush=True)
                for name, reason in list(sweep.dropped.items()):
                    restarts[name] = restarts.get(name, 0) + 1
                    self._revive(name, sweep, document, (restarts[name], f"{what}: {reason}"))
        for name in self.groups:
            self._describe(document, name)
        return is_right

    def _revive(
        self, name: str, sweep: Sweep, document: Document, failure: tuple[int, str]
    ) -> None:
        """Start a peer anew that failed, unless it fails for ever."""
        count, reason = failure
        self._end(name)
        if name in document["missing"]:
            return
        document.setdefault("failures", []).append(reason)
        print(reason, file=sys.stderr, flush=True)
        if count > _RESTARTS:
            document["missing"][name] = f"{name}: given up after {count} failures; {reason}"
            return
        try:
            group = self.start(name)
        except (GroupFailed, Missing) as again:
            document["missing"][name] = str(again)
            self._end(name)
            return
        sweep.rejoin(group)

    def _describe(self, document: Document, name: str) -> None:
        with contextlib.suppress(GroupFailed):
            answers = self.groups[name].ask(do="about")
            document["libraries"][name] = report.describe_library(answers)

    def _end(self, name: str) -> None:
        group = self.groups.pop(name, None)
        if group is not None:
            group.close()
        end_strays(f"{self._sockets / name}.")

    def close(self) -> None:
        """Let all ranks end."""
        for group in self.groups.values():
            group.close()
        end_strays(str(self._sockets))


@contextlib.contextmanager
def _starting(job: Job, settings: Settings) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="gradring-compare-") as folder:
        world = World(job, settings, Path(folder))
        try:
            yield world
        finally:
            world.close()


def _summary(row: Document) -> str:
    found = {name: round(result["time_us"], 2) for name, result in row["results"].items()}
    return json.dumps(found) + (f" failed: {list(row['failed'])}" if row["failed"] else "")
