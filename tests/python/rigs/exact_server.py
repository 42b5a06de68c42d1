"""A parameter server in a few lines of NumPy: the reference that modes are tested against.

It keeps the promises of a real one (every push once, versions per row, rounds, bounds, apply then
mark) with one lock and no network. A seeded `Faults` has its own client ask again as if messages
were lost: that tests the numbers by which it does nothing twice, so that it is a reference, and
shows nothing of the product's sessions. What those do about broken connections is tested on
`RealServers`, which play the same `Faults` by `FlakyProxy`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import gradring as gr
from gradring import _core
from gradring.modes.stores.store import Changed, Domain, Gate, Pull, Push, Pushed, WorkerClocks

SECONDS = 20.0


@dataclass
class Table:
    """Rows by id; a dense table is one row. States as the rule wants them."""

    rule: Any
    shape: tuple[int, ...]
    init: Callable[[int], Any]
    is_dense: bool
    rows: dict[int, Any] = field(default_factory=dict)
    states: dict[int, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    changes: dict[int, tuple[int, int | None]] = field(default_factory=dict)  # stamp, writer
    stamp: int = 0
    pushes: int = 0
    made_with: Any = None

    def __post_init__(self) -> None:
        self.made_with = self.rule

    def row(self, key: int) -> Any:
        if key in self.rows:
            return self.rows[key]
        return np.full(self.shape, self.init(key), np.float32)

    def apply(self, keys: Sequence[int], grads: Any, writer: int | None) -> None:
        self.stamp += 1
        self.pushes += 1
        for key, grad in zip(keys, grads, strict=True):
            row = self.row(key)
            if isinstance(self.rule, gr.optim.SparseAdam):
                self.states[key]["step"] = self.pushes - 1  # It counts the table's.
            self.rule.update(row, np.array(grad, np.float32).reshape(self.shape), self.states[key])
            self.rows[key] = row
            self.changes[key] = (self.stamp, writer)


@dataclass
class Workers:
    """A domain: who has come, how far, and what was contributed to rounds."""

    clocks: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    weights: dict[tuple[int, int], float] = field(default_factory=dict)
    given: dict[int, dict[str, dict[int, Any]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    applied: int = 0

    def behind(self, domain: Domain, clock: int) -> list[int]:
        everybody = set(range(domain.workers)) | set(self.clocks)
        if not domain.is_round:
            everybody -= self.gone
        return sorted(each for each in everybody if self.clocks.get(each, 0) < clock)


@dataclass
class Faults:
    """How many of a hundred messages are asked again: the request is lost, or its answer.

    Attributes:
        struck: How many were so far.
    """

    seed: int
    percent: int = 0
    struck: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def strike(self) -> bool:
        is_struck = bool(self._random.integers(100) < self.percent)
        self.struck += is_struck
        return is_struck


class ExactServer:
    """All servers of a job in one object."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.domains: dict[str, Workers] = defaultdict(Workers)
        self.changed = threading.Condition()
        self.done: dict[tuple[int, int], tuple[int, Any]] = {}  # Client -> last seq, its answer.
        self.incarnations = 0
        self.faults: list[Faults] = []  # Of each client.
        self.on_applied: Callable[[str], None] = lambda table: None

    def client(self, rank: int, faults: Faults | None = None) -> ExactStore:
        self.incarnations += 1
        self.faults.append(faults or Faults(0))
        return ExactStore(self, rank, self.incarnations, self.faults[-1])

    @property
    def faults_played(self) -> int | None:
        """How many messages were asked again so far, of all clients."""
        return sum(faults.struck for faults in self.faults)

    def values(self, name: str) -> Any:
        """A dense table's values, or all rows of a sparse one by id."""
        table = self.tables[name]
        return table.row(0) if table.is_dense else table.rows

    def once(self, client: tuple[int, int], seq: int, change: Callable[[], Any]) -> Any:
        """Do a numbered request, or say again what its answer was."""
        with self.changed:
            last, answer = self.done.get(client, (0, None))
            if seq <= last:
                return answer
            assert seq == last + 1
            answer = change()
            self.done[client] = (seq, answer)
            self.changed.notify_all()
            return answer

    def apply_rounds(self, name: str, domain: Domain) -> None:
        workers = self.domains[name]
        while not workers.behind(domain, workers.applied + 1):
            everybody = sorted(workers.clocks)
            weights = [workers.weights.get((w, workers.applied), 0.0) for w in everybody]
            given = workers.given.pop(workers.applied, {})
            for table, by_worker in sorted(given.items()):
                sums: dict[int, Any] = {}
                for worker, weight in zip(everybody, weights, strict=True):
                    if weight == 0:
                        continue
                    for key, grad in zip(*by_worker.get(worker, ((), ())), strict=True):
                        share = np.float32(weight) * grad
                        sums[key] = sums[key] + share if key in sums else share
                total = np.float32(sum(weights))
                keys = sorted(sums)
                if not any(
                    by_worker.get(w)
                    for w, weight in zip(everybody, weights, strict=True)
                    if weight != 0
                ):
                    continue
                self.tables[table].apply(keys, [sums[key] / total for key in keys], None)
            workers.applied += 1


class Done:
    """A push that is done: its outcomes."""

    def __init__(self, outcomes: list[Pushed]) -> None:
        self._outcomes = outcomes

    def result(self) -> list[Pushed]:
        return self._outcomes

    def leave(self, seconds: float) -> None:
        assert seconds >= 0


class Asked:
    """A pull that is done as soon as its gate is open, if it has one: when it is asked for."""

    def __init__(self, pull: Callable[[], list[Any]], *, is_gated: bool) -> None:
        self._pull = pull
        self._seen = None if is_gated else pull()

    def is_done(self) -> bool:
        return self._seen is not None

    def result(self, timeout: float | None = None) -> list[Any]:
        assert timeout is None or timeout >= 0
        return self._pull() if self._seen is None else self._seen


class ExactStore:
    """A worker's client; a `gradring.modes.stores.store.Store`."""

    def __init__(self, server: ExactServer, rank: int, incarnation: int, faults: Faults) -> None:
        self.rank = rank
        self._server = server
        self._client = (rank, incarnation)
        self._faults = faults
        self._lock = threading.RLock()
        self._seq = 0

    def dense_table(self, name: str, shape: tuple[int, ...], rule: Any) -> str:
        return self._make(name, shape, rule, None, is_dense=True)

    def sparse_table(self, name: str, dim: int, rule: Any, init: Any = None, seed: int = 0) -> str:
        return self._make(name, (dim,), rule, init, is_dense=False)

    def _make(self, name: str, shape: Any, rule: Any, init: Any, *, is_dense: bool) -> str:
        def make() -> str:
            start = init if callable(init) else lambda key: 0
            table = self._server.tables.setdefault(name, Table(rule, shape, start, is_dense))
            assert rule in (table.rule, table.made_with)
            return name

        return self._change(make)

    def _change(self, change: Callable[[], Any]) -> Any:
        with self._lock:
            self._seq += 1
            while self._faults.strike():  # The request is lost.
                pass
            while True:
                answer = self._server.once(self._client, self._seq, change)
                if not self._faults.strike():  # Else its answer is: ask again.
                    return answer

    def set_rules(self, rules: Sequence[tuple[str, Any]]) -> None:
        def set_rules() -> None:
            for table, rule in rules:
                self._server.tables[table].rule = rule

        self._change(set_rules)

    def write(self, table: str, values: Any, state: Any = None) -> None:
        def write() -> None:
            held = self._server.tables[table]
            held.stamp += 1
            held.rows[0] = np.array(values, np.float32)
            held.states[0] = {
                name: int(value) if name == "step" else value.copy()
                for name, value in (state or {}).items()
                if value is not None
            }
            if isinstance(held.rule, gr.optim.SparseAdam):
                held.pushes = held.states[0].get("step", 0)

        self._change(write)

    def read_state(self, table: str) -> tuple[dict[str, Any], int]:
        with self._server.changed:
            held = self._server.tables[table]
            state = held.states[0]
            steps = int(state.get("step", held.pushes or bool(state)))
            fields = {
                name: np.array(state.get(name, np.full(held.shape, initial)), np.float32)
                for name, _, initial in _core.state_fields(held.rule.to_core(), 2)
            }
            return fields, steps

    def pull(self, pulls: Sequence[Pull], gate: Gate | None = None) -> list[Any]:
        if gate is not None:
            self.wait(gate)
        seen = []
        with self._server.changed:
            for pull in pulls:
                table = self._server.tables[pull.table]
                if pull.ids is None:
                    pull.out[...] = table.row(0)
                for place, key in enumerate([] if pull.ids is None else pull.ids.tolist()):
                    pull.out[place] = table.row(key)
                seen.append(table.pushes)
        return seen

    def begin_pull(self, pulls: Sequence[Pull], gate: Gate | None = None) -> Asked:
        return Asked(lambda: self.pull(pulls, gate), is_gated=gate is not None)

    def push(self, pushes: Sequence[Push], round_: Gate | None = None) -> Done:
        return Done([self._change(self._pushing(push, round_)) for push in pushes])

    def _pushing(self, push: Push, round_: Gate | None) -> Callable[[], Pushed]:
        keys = [0] if push.ids is None else push.ids.tolist()
        grads = np.array(push.values, np.float32)
        grads = grads[np.newaxis] if push.ids is None else grads
        assert len(set(keys)) == len(keys)

        def apply() -> Pushed:
            table = self._server.tables[push.table]
            if round_ is not None:
                workers = self._server.domains[round_.domain.name]
                assert workers.applied <= round_.clock
                workers.given[round_.clock][push.table][self.rank] = (keys, list(grads))
                return Pushed()
            staleness = table.pushes - (table.pushes if push.seen is None else push.seen)
            table.apply(keys, grads, self.rank)
            self._server.on_applied(push.table)
            if push.after is not None:
                rows = np.array([table.row(key) for key in keys], np.float32)
                push.after[...] = rows[0] if push.ids is None else rows
            return Pushed(staleness)

        return apply

    def changed(self, table: str, since: Any, most: int | None = None) -> Changed:
        with self._server.changed:
            held = self._server.tables[table]
            keys = [
                key
                for key, (stamp, writer) in held.changes.items()
                if since is not None and stamp > since and writer != self.rank
            ]
            rows = np.array([held.row(key) for key in keys], np.float32)
            ids = np.array(keys, np.uint64)
            return Changed([(ids, rows.reshape(len(keys), *held.shape))], held.stamp)

    def written_past(self, table: str) -> int:
        return 0  # There is no other way.

    def clock(self, domain: Domain, clock: int, weight: float = 1.0) -> int:
        def say() -> int:
            workers = self._server.domains[domain.name]
            workers.gone.discard(self.rank)
            if clock > workers.clocks.get(self.rank, 0):
                workers.weights[self.rank, clock - 1] = weight
            workers.clocks[self.rank] = max(clock, workers.clocks.get(self.rank, 0))
            if domain.is_round:
                self._server.apply_rounds(domain.name, domain)
            return len(set(workers.clocks) - workers.gone)

        return int(self._change(say))

    def wait(self, gate: Gate) -> None:
        workers = self._server.domains[gate.domain.name]

        def is_open() -> bool:
            if gate.domain.is_round:
                return workers.applied >= gate.clock
            return not workers.behind(gate.domain, gate.clock)

        with self._server.changed:
            if not self._server.changed.wait_for(is_open, SECONDS):
                missing = workers.behind(gate.domain, gate.clock)
                raise gr.TimedOut(f"{gate} still waits for workers {missing}")

    def clocks(self, domain: Domain) -> WorkerClocks:
        workers = self._server.domains[domain.name]
        with self._server.changed:
            living = set(workers.clocks) - workers.gone
            return WorkerClocks(
                {rank: workers.clocks[rank] for rank in living},
                {rank: workers.clocks[rank] for rank in workers.gone},
            )

    def leave(self, domain: Domain) -> None:
        self._change(lambda: self._server.domains[domain.name].gone.add(self.rank))

    def die(self) -> None:
        """What servers do when they give a worker up, in all domains."""
        with self._server.changed:
            for workers in self._server.domains.values():
                workers.gone.add(self.rank)
            self._server.changed.notify_all()
