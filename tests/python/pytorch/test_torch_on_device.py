"""What the torch side does for CUDA tensors: its logic on CPU tensors, the rest marked gpu."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from gradring.torch.c10d.calls.job import Job
from gradring.torch.c10d.calls.lanes import Lane
from gradring.torch.c10d.calls.streams import CallStream, stream_of
from gradring.torch.c10d.calls.work import Flight
from gradring.torch.c10d.operations import sparse
from gradring.torch.gradients import averaging
from gradring.torch.gradients.buckets import bytes_of
from gradring.torch.gradients.device_buckets import DeviceBucket
from gradring.torch.gradients.sending import Sender
from torch_models import mlp

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]


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


def params_of(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    return [
        torch.nn.Parameter(torch.full(shape, 2.0).to(dtype)) for shape in ((3, 4), (5,), (), (2, 1))
    ]


def bucket_of(params: list[torch.nn.Parameter]) -> DeviceBucket:
    members = list(range(len(params)))
    return DeviceBucket(members, params, torch.zeros(bytes_of(members, params), dtype=torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_gradients_come_into_the_bucket_together(dtype: torch.dtype, weight: float) -> None:
    params = params_of(dtype)
    bucket = bucket_of(params)
    for index, param in enumerate(params):
        param.grad = torch.full_like(param, index + 1)
        bucket.put(index, param, weight)
    sizes = [torch.view_as_real(p).numel() if p.is_complex() else p.numel() for p in params]
    real = [np.full(size, (index + 1) * weight) for index, size in enumerate(sizes)]
    expected = np.concatenate(real)
    if dtype.is_complex:
        expected = expected * np.tile([1.0, 0.0], len(expected) // 2)
    np.testing.assert_array_equal(bucket.values.numpy(), expected)
    assert bucket.missing == 0
    bucket.give(params)
    for index, param in enumerate(params):
        assert param.grad is not None
        assert (param.grad == (index + 1) * weight).all()


def test_absent_gradients_stay_absent_and_count_as_zero() -> None:
    params = params_of(torch.float32)
    bucket = bucket_of(params)
    bucket.values.fill_(99)
    for index, param in enumerate(params):
        param.grad = torch.ones_like(param) if index == 1 else None
        bucket.put(index, param, 1.0)
    assert bucket.marks.tolist() == [0, 1, 0, 0]
    assert bucket.values.sum() == params[1].numel()
    bucket.give(params)
    assert [param.grad is None for param in params] == [True, False, True, True]


def test_gradients_that_lie_in_the_bucket_are_not_copied_again() -> None:
    params = params_of(torch.float32)
    bucket = bucket_of(params)
    for _ in range(2):
        for index, param in enumerate(params):
            if param.grad is None:
                param.grad = torch.ones_like(param)
            bucket.put(index, param, 1.0)
        for index, param in enumerate(params):
            assert param.grad is not None
            assert param.grad.data_ptr() == bucket._slots[index].data_ptr()
        assert not bucket._late
        bucket.reset()


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
        return StartedWork("gradients" if isinstance(x, str) else "weight", self.log)

    def average_bucket(self, _marks: Any, _total: Any) -> StartedWork:
        return StartedWork("marks", self.log)


class BucketOn:
    """What a `Sender` asks of a bucket."""

    is_apart, residual, travelling = True, None, "gradients"
    buffer = marks = np.ones(1)

    def __init__(self, number: int) -> None:
        self.values = self
        self.device, self.is_cuda = torch.device("cuda", number), True

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


def train(comm: Any, dtype: torch.dtype, **options: Any) -> list[torch.Tensor]:
    model = mlp(dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    distributed = gt.distributed(optimizer, model=model, comm=comm, **options)
    for step in range(4):
        generator = torch.Generator().manual_seed(10 * step + comm.rank)
        x = torch.randn(5, next(model.parameters()).shape[1], generator=generator, dtype=dtype)
        distributed.zero_grad()
        (model(x) ** 2).mean().backward()
        distributed.step(weight=None)
    return [param.detach().clone() for param in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"bucket_bytes": 256}], ids=str)
def test_training_with_device_buckets_is_training_with_those_of_the_host(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, options: Any
) -> None:
    expected = world(2, "shm").run(lambda comm: train(comm, dtype, **options))

    def on_device(layout: Any, params: Any, _comm: Any) -> list[DeviceBucket]:
        sizes = [bytes_of(members, params) for members in layout]
        memory = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        pairs = zip(layout, memory, strict=True)
        return [DeviceBucket(members, params, room) for members, room in pairs]

    monkeypatch.setattr(averaging, "make_buckets", on_device)
    found = world(2, "shm").run(lambda comm: train(comm, dtype, **options))
    for mine, theirs in zip(expected, found, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            # The divisor is 2: exact however it is done.
            assert torch.equal(one, other)


def on_cuda(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give every rank's thread a stream of its own."""

    def run(comm: Any) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            return function(comm)

    return run


@pytest.fixture
def _cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")


@pytest.mark.gpu
@pytest.mark.usefixtures("_cuda")
def test_collectives_of_cuda_tensors_have_the_bits_of_the_cpu(world: GetWorld) -> None:
    def run(comm: Any) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            host = (torch.arange(10_000) % 97 + comm.rank).to(dtype)
            device = host.cuda()
            comm.all_reduce(host)
            work = comm.all_reduce(device, async_op=True)
            work.wait(stream=torch.cuda.current_stream())
            assert torch.equal(device.cpu(), host)
            gathered = comm.all_gather(device)
            assert gathered.is_cuda
            assert torch.equal(gathered.cpu(), comm.all_gather(host))

    world(2, "shm").run(on_cuda(run))


@pytest.mark.gpu
@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_on_cuda_is_the_same_on_all_ranks(world: GetWorld, dtype: torch.dtype) -> None:
    def run(comm: Any) -> list[torch.Tensor]:
        model = mlp(dtype=dtype).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        distributed = gt.distributed(optimizer, model=model, comm=comm)
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + comm.rank)
            x = torch.randn(5, next(model.parameters()).shape[1], generator=generator)
            distributed.zero_grad()
            (model(x.to(dtype).cuda()) ** 2).mean().backward()
            distributed.step()
        torch.cuda.current_stream().synchronize()
        return [param.detach().cpu() for param in model.parameters()]

    first, second = world(2, "shm").run(on_cuda(run))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()


@pytest.mark.gpu
@pytest.mark.usefixtures("_cuda")
def test_strided_cuda_tensors_are_refused_by_name(world: GetWorld) -> None:
    comm = world(1, "tcp").comms[0]
    with pytest.raises(gr.InvalidArgument, match=r"x\.contiguous\(\)"):
        comm.all_reduce(torch.ones(4, 4, device="cuda").t())
