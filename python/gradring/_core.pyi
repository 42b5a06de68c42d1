"""The compiled core. Bare: names, defaults and documentation are in the Python modules above it."""

from collections.abc import Callable, Sequence
from typing import Any

version: str
compiler: str

class Span:
    def __init__(self, name: str) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...

class Work:
    def wait(self, timeout_ms: int = -1) -> None: ...
    def done(self) -> bool: ...
    @property
    def source(self) -> int: ...

class SharedArray:
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Communicator:
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_world_size(self) -> int: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def cause(self) -> Exception | None: ...
    def describe(self, rank: int) -> str: ...
    def run(
        self,
        op: int,
        source: Any,
        target: Any,
        *,
        dtype: int = -1,
        reduce_op: int = 0,
        root: int = 0,
        count: int = 0,
        counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        algorithm: int = 0,
        is_rank_ordered: bool = False,
        timeout_ms: int = -1,
        in_background: bool = False,
    ) -> Work | None: ...
    def transfer(
        self,
        is_recv: bool,
        array: Any,
        dtype: int,
        peer: int,
        tag: int,
        timeout_ms: int = -1,
        in_background: bool = False,
    ) -> Work | None: ...
    def split(self, color: int, key: int, timeout_ms: int = -1) -> Communicator | None: ...
    def subgroup(self, ranks: Sequence[int], name: int) -> Communicator: ...
    def shrink(self, timeout_ms: int = -1) -> Communicator: ...
    def share_memory(self, size_bytes: int, timeout_ms: int = -1) -> SharedArray | None: ...
    def all_reduce_compressed(
        self,
        array: Any,
        codec: int,
        ratio: float,
        residual: Any,
        total: Any,
        timeout_ms: int = -1,
    ) -> Work: ...
    def average(self, array: Any, dtype: int, total: Any, timeout_ms: int = -1) -> Work: ...
    def algorithm_for(self, op: int, dtype: int, count: int) -> str: ...
    def close(self) -> None: ...

class PushReport:
    @property
    def rows(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def not_admitted(self) -> int: ...
    @property
    def staleness(self) -> int: ...

class PsWork:
    def wait(self, timeout_ms: int = -1) -> Any: ...
    def done(self) -> bool: ...

class PsClient:
    def __init__(
        self,
        *,
        servers: Sequence[str],
        secret: bytes,
        client: int,
        transport: str,
        timeout_ms: int,
    ) -> None: ...
    @property
    def shards(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...
    def pull(
        self,
        tables: Sequence[int],
        ids: list[Any],
        outs: list[Any],
        *,
        codec: int = 0,
        gate: tuple[int, int, bool] | None = None,
        timeout_ms: int = -1,
        in_background: bool = False,
    ) -> Any: ...
    def push(
        self,
        tables: Sequence[int],
        ids: list[Any],
        gradients: list[Any],
        *,
        codec: int = 0,
        round: tuple[int, int] | None = None,  # noqa: A002 - as in the protocol
        returns_rows: list[Any] | None = None,
        seen: list[list[int]] | None = None,
        ids_are_distinct: bool = False,
        timeout_ms: int = -1,
        in_background: bool = False,
    ) -> Any: ...
    def pull_dense(
        self,
        table: int,
        out: Any,
        *,
        codec: int = 0,
        gate: tuple[int, int, bool] | None = None,
        timeout_ms: int = -1,
        in_background: bool = False,
    ) -> Any: ...
    def push_dense(
        self,
        table: int,
        gradient: Any,
        *,
        codec: int = 0,
        round: tuple[int, int] | None = None,  # noqa: A002 - as in the protocol
        returns_rows: Any = None,
        seen: list[int] | None = None,
        timeout_ms: int = -1,
        in_background: bool = False,
    ) -> Any: ...
    def make_table(self, spec: dict[str, Any], timeout_ms: int = -1) -> int: ...
    def pull_changed(
        self, table: int, since: Sequence[int], most: int, timeout_ms: int = -1
    ) -> tuple[bytes, bytes, list[int], bool]: ...
    def read_rows(
        self, table: int, shard: int, cursor: int, most: int, timeout_ms: int = -1
    ) -> tuple[bytes, bytes, int, bool]: ...
    def write_rows(self, table: int, metas: Any, floats: Any, timeout_ms: int = -1) -> None: ...
    def read_dense(self, table: int, timeout_ms: int = -1) -> list[tuple[int, bytes]]: ...
    def write_dense(
        self, table: int, parts: list[tuple[int, Any]], timeout_ms: int = -1
    ) -> None: ...
    def clock(
        self,
        domain: int,
        clock: int,
        workers: int,
        kind: int,
        weight: float = 1.0,
        timeout_ms: int = -1,
    ) -> int: ...
    def leave(self, domain: int, timeout_ms: int = -1) -> None: ...
    def tick(self, value: int, timeout_ms: int = -1) -> int: ...
    def shrink(
        self,
        unseen_ticks: int,
        least_score: float,
        table: int | None = None,
        timeout_ms: int = -1,
    ) -> int: ...
    def stats(self, timeout_ms: int = -1) -> list[str]: ...
    def seen(self, table: int) -> list[int]: ...
    def flush(self, timeout_ms: int = -1) -> None: ...
    def freeze_and_cut(
        self,
        jobs: Sequence[str],
        bases: Sequence[dict[int, int]] = ...,
        freeze_ms: int = 10000,
        timeout_ms: int = -1,
    ) -> tuple[int, list[int], list[dict[int, int]]]: ...
    def begin_load(self, jobs: Sequence[str], timeout_ms: int = -1) -> int: ...
    def await_job(self, number: int, timeout_ms: int = -1) -> list[str]: ...
    def close(self) -> None: ...

class PsServer:
    def __init__(
        self,
        *,
        host: str,
        port: int,
        listen_fd: int,
        threads: int,
        index: int,
        servers: int,
        secret: bytes,
        transport: str,
        log_directory: str,
        fsync: str,
        client_grace_ms: int = 5000,
    ) -> None: ...
    @property
    def address(self) -> str: ...
    @property
    def first_shard(self) -> int: ...
    @property
    def shards(self) -> int: ...
    def check(self) -> None: ...
    def next_job(self, timeout_ms: int) -> tuple[int, int, bool, str] | None: ...
    def read_piece(self, shard: int, most_bytes: int) -> bytes | None: ...
    def end_snapshot(self, shard: int) -> None: ...
    def begin_load(self, shard: int) -> None: ...
    def load_piece(self, shard: int, piece: Any) -> None: ...
    def commit_load(self, shard: int) -> None: ...
    def abandon_load(self, shard: int) -> None: ...
    def finish_job(self, shard: int, cut: int, result: str, error: str) -> None: ...
    def stop(self) -> None: ...

def join(
    *,
    rank: int,
    world_size: int,
    rendezvous: str,
    secret: bytes,
    transport: str,
    timeout_ms: int,
    heartbeat_timeout_ms: int,
    interface: str,
    listen_fd: int,
    host_label: str = "",
    record_operations: int = 1024,
    record_directory: str = "",
    trace_directory: str = "",
) -> Communicator: ...
def encode(array: Any, codec: int, ratio: float, residual: Any) -> bytes: ...
def decode(encoded: bytes, codec: int, ratio: float, array: Any) -> None: ...
def compressed_bytes(codec: int, ratio: float, count: int, rank: int, ranks: int) -> int: ...
def update_dense(
    rule: dict[str, Any],
    step: int,
    dim: int,
    weights: Any,
    state: Sequence[Any],
    gradient: Any,
) -> None: ...
def state_fields(rule: dict[str, Any], dim: int) -> list[tuple[str, int, float]]: ...
def offer_rows(weights: Any, base: Any, slots: Any, workers: int, delta: Any) -> None: ...
def accept_rows(weights: Any, base: Any, slots: Any, server: Any) -> float: ...
def inspect(address: str, secret: bytes, timeout_ms: int) -> tuple[bytes, int, int]: ...
def quick(
    communicator: Communicator, name: str, method: Callable[..., Any]
) -> Callable[..., Any]: ...
