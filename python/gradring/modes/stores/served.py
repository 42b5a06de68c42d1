"""`ServedStore`: a `Store` over a client of real parameter servers (`gradring.ps`).

One request goes to each shard for all sparse tables of a call, and one for each dense table; they
travel at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.core_arguments import OwnName
from gradring.errors import Error, InvalidArgument
from gradring.modes.stores.store import (
    Array,
    Changed,
    Domain,
    Gate,
    Pending,
    PendingPull,
    Pull,
    Push,
    Pushed,
    Store,
    WorkerClocks,
)
from gradring.optim import Sum
from gradring.ps.arguments.specs import codec_number
from gradring.timeouts import milliseconds

_PAGE_BYTES = 8 << 20  # Room for changed rows of one shard; half of it is asked for at a time.
_NOW = (1 << 64) - 1  # No change is younger.
_ENDS_TOO = 1.0  # s. Parts of a call have one deadline: where one has failed, the others end too.
_GATE_FLOATS = 16  # Of each shard: dense tables are cut in such blocks.


def number_of_workers() -> int:
    """Return the number of ranks in the job, without joining them.

    A worker that is restarted while the others go on could not join.
    """
    from gradring.collectives.joining import rank_and_world_size

    return rank_and_world_size()[1]


def store_of(ps: Any, timeout: float) -> Store:
    """Return what modes use for ``ps``.

    Args:
        ps: What `gradring.ps.connect` returned, ``None`` for the connection that there is or can
            be made, or a `Store`.
        timeout: Seconds that a pull may wait for other workers.

    Raises:
        InvalidArgument: It is none of these.
    """
    if ps is None:
        from gradring.ps.connecting import current

        ps = current()
    if hasattr(ps, "calls"):
        return ServedStore(ps, timeout)
    if not hasattr(ps, "dense_table"):
        raise InvalidArgument(
            f"ps is a {type(ps).__name__}; give what gr.ps.connect(...) returned, or None to have "
            "it connect"
        )
    store: Store = ps
    return store


class ServedStore:
    """A worker's client; see `gradring.modes.stores.store.Store`.

    Attributes:
        connection: What it wraps.
    """

    def __init__(self, ps: Any, timeout: float) -> None:
        """Wrap a `gradring.ps.ParameterServer`; ``timeout`` is for waits for other workers."""
        self.rank: int = ps.client
        self.connection = self._ps = ps
        self._core = ps.calls.core
        self._row_writes = ps.calls.row_writes
        self._own_writes: Counter[str] = Counter()  # Those of them that are this store's.
        self._gate_ms = milliseconds(timeout)
        self._gate_table: Any = None
        # By table: filled again by each `changed`, since fresh memory costs more than its rows.
        self._rooms: dict[int, list[npt.NDArray[np.uint8]]] = {}

    def dense_table(self, name: str, shape: tuple[int, ...], rule: Any) -> Any:
        """Make or find a dense table."""
        return self._ps.dense_table(name, shape or (1,), rule)

    def sparse_table(
        self, name: str, dim: int, rule: Any, init: Any = None, seed: int = 0, **settings: Any
    ) -> Any:
        """Make or find a sparse table."""
        return self._ps.sparse_table(name, dim, rule, init=init, seed=seed, **settings)

    def set_rules(self, rules: Sequence[tuple[Any, Any]]) -> None:
        """Give tables other settings of their rules."""
        self._ps.set_optimizers(rules)

    def write(self, table: Any, values: Array, state: Mapping[str, Any] | None = None) -> None:
        """Replace a dense table's values, and its optimizer state."""
        fields = {
            name: value if name == "step" else np.reshape(value, table.shape)
            for name, value in (state or {}).items()
            if value is not None
        }
        table.load_state_dict({"weights": values.reshape(table.shape), "state": fields})

    def read_state(self, table: Any) -> tuple[dict[str, Array], int]:
        """Return what a dense table keeps beside its values, and its number of steps."""
        read = table.state_dict()
        # Copies: the values lie in the same memory, and would stay as long as the state does.
        return {name: field.copy() for name, field in read["state"].items()}, int(read["step"])

    def pull(self, pulls: Sequence[Pull], gate: Gate | None = None) -> list[Any]:
        """Fill every ``out``, in one round trip."""
        return _Pulling(self._core, pulls, gate, gate_ms=self._gate_ms).result()

    def begin_pull(self, pulls: Sequence[Pull], gate: Gate | None = None) -> PendingPull:
        """Begin to fill every ``out``, in one round trip."""
        return _Pulling(self._core, pulls, gate, gate_ms=self._gate_ms, is_hint=True)

    def push(self, pushes: Sequence[Push], round_: Gate | None = None) -> Pending:
        """Begin a push of several tables."""
        pushing = _Pushing(self._core, pushes, round_)
        if round_ is None:  # A round is written by nobody in particular: `changed` names its rows.
            for push in pushes:
                if push.ids is not None:
                    self._row_writes.note(push.table.name)
                    self._own_writes[push.table.name] += 1
        return pushing

    def changed(self, table: Any, since: Any, most: int | None = None) -> Changed:
        """Return rows whose last change was after ``since`` and not by us."""
        shards, row_bytes = self._core.shards, 8 + 4 * table.dim
        if since is None:
            room = _room(shards, row_bytes)
            _, now, *_ = self._core.pull_changed(table.number, [_NOW] * shards, room)
            return Changed([], now)
        rooms = self._rooms.setdefault(table.number, [])
        pages, turn, more = [], 0, True
        while more and (most is None or turn < most):
            if turn == len(rooms):
                rooms.append(_room(shards, max(_PAGE_BYTES, row_bytes)))
            asked_since = since
            counts, since, more, share = self._core.pull_changed(
                table.number, asked_since, rooms[turn]
            )
            if share:  # One change had more rows than there is room for.
                rooms[turn], since, more = _room(shards, share), asked_since, True
                continue
            for shard, count in enumerate(counts):
                page = rooms[turn][shard * (len(rooms[turn]) // shards) :][: count * row_bytes]
                ids, rows = page[: 8 * count], page[8 * count :]
                pages.append((ids.view(np.uint64), rows.view(np.float32).reshape(count, table.dim)))
            turn += 1
        return Changed(pages, since, more)

    def written_past(self, table: Any) -> int:
        """Return how often the connection has written rows by other ways than this store."""
        return int(self._row_writes.of(table.name) - self._own_writes[table.name])

    def clock(self, domain: Domain, clock: int, weight: float = 1.0) -> int:
        """Say that we are done with all steps before ``clock``; the number of living workers."""
        return int(
            self._core.clock(_number(domain), clock, domain.workers, int(domain.is_round), weight)
        )

    def wait(self, gate: Gate) -> None:
        """Wait until a gate opens on every shard."""
        if self._gate_table is not None:
            try:
                self._wait(gate)
                return
            except InvalidArgument:
                pass  # A checkpoint from before the table was made may have been loaded.
        shards = self._core.shards
        # Named by its size: a checkpoint may be loaded by another number of servers.
        name = OwnName(f"gradring/gate/{shards}")
        self._gate_table = self._ps.dense_table(name, (_GATE_FLOATS * shards,), Sum())
        self._wait(gate)

    def _wait(self, gate: Gate) -> None:
        out = np.empty(self._gate_table.shape, np.float32)
        self._core.pull_dense(
            self._gate_table.number, out, gate=_gate(gate), timeout_ms=self._gate_ms
        )

    def clocks(self, domain: Domain) -> WorkerClocks:
        """Ask how far the workers have come, on the shard where each has come least far."""
        number, clocks = _number(domain), WorkerClocks()
        for shard in self._ps.stats():
            for known in shard["domains"]:
                for worker in known["workers"] if known["domain"] == number else ():
                    among = clocks.living if worker["presence"] == "here" else clocks.gone
                    rank, clock = worker["worker"], worker["clock"]
                    among[rank] = min(clock, among.get(rank, clock))
        return clocks

    def leave(self, domain: Domain) -> None:
        """Take no further part."""
        self._core.leave(_number(domain))


class _Pulling:
    """A pull of several tables that is under way."""

    def __init__(
        self,
        core: Any,
        pulls: Sequence[Pull],
        gate: Gate | None,
        *,
        gate_ms: int,
        is_hint: bool = False,
    ) -> None:
        self._core = core
        self._pulls = pulls
        options = {
            "gate": _gate(gate),
            "timeout_ms": -1 if gate is None else gate_ms,
            "in_background": True,
            "is_hint": is_hint,
        }
        self._works: list[Any] = []
        sparse: dict[str | None, list[Pull]] = {}  # One call has one codec.
        for pull in pulls:
            if pull.ids is not None and len(pull.ids):
                sparse.setdefault(pull.table.codec, []).append(pull)
        self._sparse = list(sparse.values())
        try:
            for pull in pulls:
                if pull.ids is None:
                    self._works.append(core.pull_dense(pull.table.number, pull.out, **options))
            for codec, chosen in sparse.items():
                numbers, ids, outs = zip(
                    *((pull.table.number, pull.ids, pull.out) for pull in chosen), strict=True
                )
                self._works.append(
                    core.pull(
                        list(numbers), list(ids), list(outs), codec=codec_number(codec), **options
                    )
                )
        except BaseException:  # One may find no room beside the pushes that are under way.
            self._abandon()
            raise

    def is_done(self) -> bool:
        """Whether it has ended, one way or the other."""
        return all(work.done() for work in self._works)

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait until all have come; what to give as ``seen`` with a later push.

        Where that fails, ``out`` is the caller's again. With ``timeout``, in seconds, nobody has to
        wait: one that is late raises `TimedOut`, and goes on.
        """
        try:
            outcomes = _outcomes(self._works, timeout)[len(self._works) - len(self._sparse) :]
        except BaseException:
            if timeout is None:
                self._abandon()
            raise
        # As they were when the rows came: others may have pulled from the same tables since.
        seen = {
            id(pull): of_table
            for chosen, of_tables in zip(self._sparse, outcomes, strict=True)
            for pull, of_table in zip(chosen, of_tables, strict=True)
        }
        return [
            seen[id(pull)] if id(pull) in seen else self._core.seen(pull.table.number)
            for pull in self._pulls
        ]

    def _abandon(self) -> None:
        for work in self._works:
            work.abandon()


class _Pushing:
    """A push of several tables that is under way."""

    def __init__(self, core: Any, pushes: Sequence[Push], round_: Gate | None) -> None:
        # Where the first part finds no room nothing is sent; half of a step never is.
        core_round = None if round_ is None else (_number(round_.domain), round_.clock)
        self._outcomes = [Pushed() for _ in pushes]
        self._works: list[tuple[Any, list[Pushed]]] = []
        sparse = []
        for push, outcome in zip(pushes, self._outcomes, strict=True):
            if push.ids is not None:
                sparse.append((push, outcome))
                continue
            work = core.push_dense(
                push.table.number,
                push.values,
                round=core_round,
                returns_rows=push.after,
                seen=push.seen,
                in_background=True,
                goes_along=bool(self._works),
            )
            self._works.append((work, [outcome]))
        # One request for each table: what became of it is then known for each.
        for push, outcome in sparse:
            work = core.push(
                [push.table.number],
                [push.ids],
                [push.values],
                codec=codec_number(push.table.codec),
                round=core_round,
                returns_rows=None if push.after is None else [push.after],
                seen=None if push.seen is None else [push.seen],
                ids_are_distinct=True,
                in_background=True,
                goes_along=bool(self._works),
            )
            self._works.append((work, [outcome]))

    def result(self) -> list[Pushed]:
        """Wait until all servers have acknowledged it."""
        reports = _outcomes([work for work, _ in self._works])
        for report, (_, outcomes) in zip(reports, self._works, strict=True):
            for outcome in outcomes:
                outcome.staleness = report.staleness
                outcome.refused = report.refused
        return self._outcomes

    def leave(self, seconds: float) -> None:
        """Wait so long for its end, then go: nobody hears of it, and its arrays are free again."""
        ends = time.monotonic() + seconds
        for work, _ in self._works:
            with contextlib.suppress(Error):
                work.wait(milliseconds(max(1e-3, ends - time.monotonic())))
            work.abandon()


def _outcomes(works: Sequence[Any], timeout: float | None = None) -> list[Any]:
    """Wait for all parts of a call; the first failure is raised, and stands for those after it.

    One that nobody had waited for would come out of the connection's `close`, long after it. With
    ``timeout``, in seconds, nobody has to wait, and one that is late raises `TimedOut`.
    """
    if timeout is not None:
        deadline = time.monotonic() + timeout
        return [work.wait(milliseconds(max(1e-3, deadline - time.monotonic()))) for work in works]
    outcomes: list[Any] = []
    waiting = iter(works)
    try:
        outcomes.extend(work.wait() for work in waiting)
    except Error:
        ends = time.monotonic() + _ENDS_TOO
        for work in waiting:
            with contextlib.suppress(Error):
                work.wait(milliseconds(max(1e-3, ends - time.monotonic())))
        raise
    return outcomes


def _room(shards: int, share_bytes: int) -> npt.NDArray[np.uint8]:
    """Return room for so many bytes of each shard, in whole 8 bytes, as the core divides it."""
    return np.empty(shards * -(-share_bytes // 8) * 8, np.uint8)


def _number(domain: Domain) -> int:
    return int.from_bytes(hashlib.blake2b(domain.name.encode(), digest_size=8).digest(), "little")


def _gate(gate: Gate | None) -> tuple[int, int, bool] | None:
    if gate is None:
        return None
    return _number(gate.domain), gate.clock, gate.domain.is_round
