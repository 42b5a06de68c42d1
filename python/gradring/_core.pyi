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
def inspect(address: str, secret: bytes, timeout_ms: int) -> tuple[bytes, int, int]: ...
def quick(
    communicator: Communicator, name: str, method: Callable[..., Any]
) -> Callable[..., Any]: ...
