"""Which streams of a GPU calls, futures and averages follow, on a stand-in for torch.cuda."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from conftest import GetWorld
from gradring.torch.c10d.calls.job import Job
from gradring.torch.c10d.calls.lanes import Lane
from gradring.torch.c10d.calls.streams import CallStream, stream_of
from gradring.torch.c10d.calls.work import Flight
from gradring.torch.c10d.operations import sparse
from gradring.torch.gradients.buckets import bytes_of
from gradring.torch.gradients.device_buckets import DeviceBucket
from gradring.torch.gradients.gradient_streams import GradientStreams
from gradring.torch.gradients.sending import Sender


class FakeEvent:
    def __init__(self, stream: str, log: list[str]) -> None:
        self._stream, self._log = stream, log

    def __str__(self) -> str:
        return f"event of {self._stream}"

    def synchronize(self) -> None:
        self._log.append(f"the host waits for {self}")


class FakeStream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log
        self.cuda_stream = 0x1000

    def record_event(self) -> FakeEvent:
        self._log.append(f"event on {self.name}")
        return FakeEvent(self.name, self._log)

    def wait_event(self, event: FakeEvent) -> None:
        self._log.append(f"{self.name} waits for {event}")


class FakeCuda:
    """torch.cuda for one thread at a time: which stream is current, and what was asked of it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = FakeStream("first", self.log)

    def current_stream(self, _device: Any) -> FakeStream:
        return self.current

    def stream(self, stream: FakeStream) -> Any:
        cuda = self

        class Current:
            def __enter__(self) -> None:
                self.before, cuda.current = cuda.current, stream

            def __exit__(self, *_: Any) -> None:
                cuda.current = self.before

        return Current()


class DoneWork:
    source = None

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def wait(self, timeout: float, *, stream: Any = None) -> None:
        del timeout
        self._log.append("wait on the host" if stream is None else f"wait with stream {stream:#x}")

    def done(self) -> bool:
        return True


def test_what_finishes_a_call_runs_on_its_stream_whoever_waits() -> None:
    cuda = FakeCuda()
    stream = CallStream(torch.device("cpu"), cuda)
    flight = Flight(
        [DoneWork(cuda.log)],  # type: ignore[list-item]
        [lambda: cuda.log.append(f"finish on {cuda.current.name}")],
        None, patience=1, watcher=lambda _: None, stream=stream,
    )  # fmt: skip
    cuda.current = FakeStream("second", cuda.log)  # A thread of the group, say.
    flight.settle(None)
    flight.order_current()
    assert cuda.log == [
        "wait with stream 0x1000",
        "finish on first",
        "event on first",
        "second waits for event of first",
    ]
    assert cuda.current.name == "second"


def test_what_a_future_waits_for_is_not_put_into_the_call_s_stream() -> None:
    # DDP asks for one a bucket, while backward still puts its kernels into that stream.
    cuda = FakeCuda()
    flight = Flight(
        [DoneWork(cuda.log)],  # type: ignore[list-item]
        [lambda: cuda.log.append(f"finish on {cuda.current.name}")],
        None, patience=1, watcher=lambda _: None, stream=CallStream(torch.device("cpu"), cuda),
    )  # fmt: skip
    cuda.current = FakeStream("second", cuda.log)  # A thread of the group.
    flight.complete()
    flight.order_current()
    assert cuda.log == [
        "wait on the host",
        "finish on first",
        "event on first",
        "second waits for event of first",
    ]


def test_a_reduction_of_sparse_tensors_is_waited_for_on_a_device_too() -> None:
    cuda, lane, steps = FakeCuda(), Lane("sparse"), []
    job = Job(lane, lambda: steps.append("reduced"), "all_reduce of a sparse tensor")
    Flight(
        [job], [lambda: steps.append("finished")],
        None, patience=30, watcher=lambda _: None, stream=CallStream(torch.device("cpu"), cuda),
    ).settle(None)  # fmt: skip
    lane.stop()
    assert steps == ["reduced", "finished"]


def test_the_sum_of_sparse_tensors_is_allocated_on_the_stream_of_the_call(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, copy = FakeCuda(), torch.Tensor.copy_
    stream = CallStream(torch.device("cpu"), cuda)
    cuda.current = FakeStream("the lane's", cuda.log)

    def watched_copy(self: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if self.is_sparse:
            cuda.log.append(f"written on {cuda.current.name}")
        return copy(self, *arguments)

    monkeypatch.setattr(torch.Tensor, "copy_", watched_copy)
    monkeypatch.setattr(sparse, "stream_of", lambda _: stream, raising=False)
    reducer = sparse.SparseReducer(world(1, "tcp").comms[0], "group")
    x = torch.sparse_coo_tensor([[0, 2, 0]], [1.0, 2.0, 4.0], (4,), check_invariants=True)
    call: Any = SimpleNamespace(timeout=30, is_async=True)
    job = reducer.reduce(x, dist.ReduceOp.SUM, call)
    assert job is not None
    job.wait(30)
    reducer.close(linger=False)
    assert x.to_dense().tolist() == [5, 0, 2, 0]
    assert cuda.log == ["written on first", "event on first", "the host waits for event of first"]


def test_the_call_s_own_stream_has_nothing_to_wait_for() -> None:
    cuda = FakeCuda()
    stream = CallStream(torch.device("cpu"), cuda)
    stream.order_current()  # Nothing has finished yet.
    with stream.finishing():
        pass
    stream.order_current()
    assert cuda.log == ["event on first"]


def test_calls_on_the_cpu_have_no_stream() -> None:
    assert stream_of([torch.zeros(3), torch.zeros(0)]) is None
    assert stream_of([]) is None


def test_a_bucket_is_sent_after_the_streams_of_all_its_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, params = FakeCuda(), [torch.nn.Parameter(torch.zeros(3)) for _ in range(4)]
    members = list(range(4))
    bucket = DeviceBucket(
        members, params, torch.zeros(bytes_of(members, params), dtype=torch.uint8)
    )
    bucket._streams = GradientStreams(torch.device("cpu"), cuda)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda _, stream: cuda.log.append(f"kept for {stream.name}")
    )
    second = FakeStream("second", cuda.log)
    for index, param in enumerate(params):
        if index == 2:
            cuda.current = second
        param.grad = torch.ones_like(param)
        bucket.put(index, param, 1.0)
    assert cuda.log == ["event on first", "second waits for event of first"] + 4 * [
        "kept for second"
    ]
    cuda.current = FakeStream("another thread's", cuda.log)
    with bucket.sending():
        assert cuda.current is second
    bucket.reset()
    for index, param in enumerate(params):
        bucket.put(index, param, 1.0)  # On one stream nothing is to be waited for.
    assert len(cuda.log) == 6


class StartedWork:
    def __init__(self, what: str, log: list[str]) -> None:
        self._what, self._log = what, log

    def wait(self, *, stream: Any = None) -> None:
        self._log.append(f"{self._what}: {'the host' if stream is None else stream}")


class StartingRanks:
    """What a `Sender` asks of a communicator."""

    rank, world_size = 0, 2

    def __init__(self) -> None:
        self.log: list[str] = []

    def all_reduce(self, x: Any, *, async_op: bool) -> StartedWork:
        assert async_op
        return StartedWork(x if isinstance(x, str) else "weight", self.log)

    def average_bucket(self, _marks: Any, _total: Any) -> StartedWork:
        return StartedWork("marks", self.log)


class BucketOn:
    """What a `Sender` asks of a bucket."""

    is_apart, residual, travelling = True, None, ""
    buffer = marks = np.ones(1)

    def __init__(self, number: int) -> None:
        self.values = self
        self.device, self.is_cuda = torch.device("cuda", number), True

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        self.travelling = "gradients"
        yield
        self.travelling = ""

    def numel(self) -> int:
        return 1

    def element_size(self) -> int:
        return 4


def test_averages_are_waited_for_by_the_streams_of_their_own_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"stream of {device}")
    comm: Any = StartingRanks()
    sender = Sender(comm, None)
    sender.open(1.0)
    for number in (0, 1):
        bucket: Any = BucketOn(number)
        sender.send(bucket)
    sender.wait()
    assert comm.log == [
        "weight: the host",
        "gradients: stream of cuda:0",
        "marks: the host",
        "gradients: stream of cuda:1",
        "marks: the host",
    ]
