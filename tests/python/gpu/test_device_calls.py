"""Every call on device arrays gives the bits of the same call on the CPU.

Runs over the emulated plugin, whose device is host memory: pointers, streams and copies are
checked there as a driver would, and work on streams is late by a seed. No GPU is touched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from gpu_places import PLACES, to_device, use_place
from thread_ranks import ThreadWorld

pytestmark = [
    pytest.mark.usefixtures("_place"),
    pytest.mark.parametrize("transport", ["tcp", "shm"]),
    pytest.mark.one_transport,
]

SIZE = 3
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = ["float64", "float32", "float16", BF16, "int8", "int16", "int32", "int64", "uint8", "bool"]
FLOATS = ["float64", "float32", "float16", BF16]


@pytest.fixture(params=PLACES)
def _place(request: pytest.FixtureRequest) -> None:
    use_place(request)


def values_of(rank: int, shape: Any, dtype: Any = "float32") -> Any:
    random = np.random.default_rng(100 + rank)
    return (random.standard_normal(shape) * 50).astype(dtype)


def bits(values: Any) -> Any:
    return np.ascontiguousarray(values).view(np.uint8)


def assert_same(device: Any, host: Any) -> None:
    found = device.to_numpy()
    assert (found.shape, found.dtype) == (host.shape, host.dtype)
    np.testing.assert_array_equal(bits(found), bits(host))


def both(
    world: GetWorld, transport: str, call: Callable[[Any, int, Callable[[Any], Any]], Any]
) -> None:
    """Make a call on host arrays and on device arrays: results and inputs have the same bits."""

    def run(comm: Any) -> None:
        kept: dict[str, list[Any]] = {"host": [], "device": []}

        def on_host(values: Any) -> Any:
            kept["host"].append(values.copy())
            return kept["host"][-1]

        def on_device(values: Any) -> Any:
            kept["device"].append(to_device(values))
            return kept["device"][-1]

        expected = call(comm, comm.rank, on_host)
        found = call(comm, comm.rank, on_device)
        if expected is not None:
            assert_same(found, expected)
        for host, device in zip(kept["host"], kept["device"], strict=True):
            assert_same(device, host)

    world(SIZE, transport).run(run)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_reduce_of_every_dtype(world: GetWorld, transport: str, dtype: Any) -> None:
    for count in (0, 1, 1000):
        both(world, transport, lambda comm, rank, to, n=count: comm.all_reduce(
            to(values_of(rank, n, dtype)), "max"))  # fmt: skip
    if dtype != "bool":
        both(world, transport, lambda comm, rank, to: comm.all_reduce(
            to(values_of(rank, (7, 9), dtype)), out=to(np.zeros((7, 9), dtype))))  # fmt: skip


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reductions_have_the_same_order_of_additions(
    world: GetWorld, transport: str, dtype: Any, op: str
) -> None:
    both(world, transport, lambda comm, rank, to: comm.all_reduce(
        to(values_of(rank, 5000, dtype)), op))  # fmt: skip
    both(world, transport, lambda comm, rank, to: comm.all_reduce(
        to(values_of(rank, 5000, dtype)), op, deterministic="rank_order"))  # fmt: skip


def test_reductions_to_one_and_to_parts(world: GetWorld, transport: str) -> None:
    both(world, transport, lambda comm, rank, to: comm.reduce_scatter(
        to(values_of(rank, 1001))))  # fmt: skip
    both(world, transport, lambda comm, rank, to: comm.reduce_scatter(
        to(values_of(rank, 10)), to(np.zeros([7, 0, 3][rank], np.float32)), "avg",
        counts=[7, 0, 3]))  # fmt: skip
    both(world, transport, lambda comm, rank, to: comm.reduce(to(values_of(rank, 100)), 1))
    both(world, transport, lambda comm, rank, to: comm.reduce(
        to(values_of(rank, 100)), 2, out=to(np.zeros(100, np.float32))))  # fmt: skip


def test_exchanges(world: GetWorld, transport: str) -> None:
    both(world, transport, lambda comm, rank, to: comm.all_gather(
        to(values_of(rank, (4, 5), BF16))))  # fmt: skip
    both(world, transport, lambda comm, rank, to: comm.all_gather(
        to(values_of(rank, rank + 1)), counts=[1, 2, 3]))  # fmt: skip
    both(world, transport, lambda comm, rank, to: comm.broadcast(to(values_of(rank, (3, 4))), 1))
    both(world, transport, lambda comm, rank, to: comm.gather(to(values_of(rank, 50)), 1))
    both(world, transport, lambda comm, rank, to: comm.scatter(
        to(values_of(rank, (SIZE, 20))), 2))  # fmt: skip
    both(world, transport, lambda comm, rank, to: comm.all_to_all(to(values_of(rank, 30))))
    both(world, transport, lambda comm, rank, to: comm.all_to_all(
        to(values_of(rank, 6)), send_counts=[1, 2, 3], recv_counts=[rank + 1] * 3))  # fmt: skip
    both(world, transport, lambda comm, rank, to: comm.all_gather_rows(
        to(values_of(rank, (rank * 2, 5), BF16))))  # fmt: skip
    both(world, transport, lambda comm, rank, to: comm.all_to_all_rows(
        to(values_of(rank, (6, 2))), [rank, 6 - rank, 0])[0])  # fmt: skip


def test_messages(world: GetWorld, transport: str) -> None:
    def pass_on(comm: Any, rank: int, to: Any) -> Any:
        sending = comm.send(to(values_of(rank, 77, BF16)), (rank + 1) % SIZE, 5, async_op=True)
        received = comm.recv(to(np.zeros(77, BF16)), (rank - 1) % SIZE, 5)
        sending.wait()
        return received

    both(world, transport, pass_on)


def test_many_arrays_in_few_operations(world: GetWorld, transport: str) -> None:
    def run(comm: Any) -> None:
        kept = []
        for to in (np.copy, to_device):
            shapes = (((3,), "f4"), ((0,), "f4"), ((4, 5), "f4"), (9, "i4"), (300, "f4"))
            many = [to(values_of(comm.rank, shape, dtype)) for shape, dtype in shapes]
            results = comm.all_reduce_many(many, bucket_bytes=1000)
            assert [id(one) for one in results] == [id(one) for one in many]
            kept.append(many)
        for host, device in zip(*kept, strict=True):
            assert_same(device, host)

    world(SIZE, transport).run(run)


def test_host_and_device_calls_in_one_order(world: GetWorld, transport: str) -> None:
    def run(comm: Any) -> None:
        works = []
        for index in range(10):
            host = np.full(100, comm.rank + index, np.float32)
            works.append((index, comm.all_reduce(to_device(host), async_op=True)))
            works.append((index, comm.all_reduce(host, async_op=True)))
        for index, work in works:
            result = work.wait()
            result = result if isinstance(result, np.ndarray) else result.to_numpy()
            assert (result == 3 + 3 * index).all()

    world(SIZE, transport).run(run)


@pytest.mark.parametrize("streams_wait", ["0", "1"])
def test_the_call_comes_after_what_its_stream_holds_and_before_what_comes_next(
    fresh_world: Callable[..., ThreadWorld],
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
    streams_wait: str,
) -> None:
    from gradring import gpu

    monkeypatch.setenv("GRADRING_GPU_STREAM_WAITS", streams_wait)

    def run(comm: Any) -> None:
        mine, other = gpu.Stream(), gpu.Stream()
        x, late = gpu.empty(50_000), gpu.empty(50_000)
        values = np.full(50_000, comm.rank + 1, np.float32)
        staged = to_device(values)
        x.copy_on_device(staged, mine)
        work = comm.all_reduce(x, stream=mine, async_op=True)
        assert work.wait(stream=other) is x
        late.copy_on_device(x, other)
        assert (late.to_numpy(other) == 6).all()

    fresh_world(SIZE, transport).run(run)


def test_whether_streams_wait_is_said_by_0_or_1(
    fresh_world: Callable[..., ThreadWorld], transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = to_device(np.ones(3, np.float32))
    (comm,) = fresh_world(1, transport).comms
    monkeypatch.setenv("GRADRING_GPU_STREAM_WAITS", "yes")
    with pytest.raises(gr.InvalidArgument, match="GRADRING_GPU_STREAM_WAITS='yes' is neither"):
        comm.all_reduce(x)
    monkeypatch.delenv("GRADRING_GPU_STREAM_WAITS")
    assert comm.all_reduce(x) is x


class Late:
    """A device array whose library has it on a stream of its own, which still writes junk to it."""

    def __init__(self, values: Any) -> None:
        from gradring import gpu

        self.array, self._junk = to_device(values), to_device(np.full_like(values, 77))
        self._ballast = gpu.empty(1 << 22), gpu.empty(1 << 22)
        self.stream = gpu.Stream()
        self.shape = self.array.shape
        for _ in range(20):
            self._ballast[0].copy_on_device(self._ballast[1], self.stream)
        self.array.copy_on_device(self._junk, self.stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__cuda_array_interface__, "stream": self.stream.ptr}

    def to_numpy(self) -> Any:
        return self.array.to_numpy(self.stream)


class Allocating:
    """One that is there already, of a library whose new arrays are `Late`."""

    def __init__(self, values: Any) -> None:
        self.array = to_device(values)
        self.shape = self.array.shape
        self.__cuda_array_interface__ = self.array.__cuda_array_interface__

    def new_empty(self, shape: tuple[int, ...]) -> Late:
        return Late(np.zeros(shape, self.array.dtype))

    def to_numpy(self) -> Any:
        return self.array.to_numpy()


def test_a_result_comes_after_what_the_stream_of_its_array_holds(
    world: GetWorld, transport: str
) -> None:
    def run(comm: Any) -> None:
        comm.all_reduce(to_device(values_of(comm.rank, 300)))  # What the first call makes is there.
        x, late = to_device(values_of(comm.rank, 300)), Late(np.zeros(300, np.float32))
        assert_same(comm.all_reduce(x, out=late), comm.all_reduce(values_of(comm.rank, 300)))

    world(SIZE, transport).run(run)


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, x, **options: comm.all_gather(x, **options),
        lambda comm, x, **options: comm.gather(x, 1, **options),
        lambda comm, x, **options: comm.scatter(x, 1, **options),
        lambda comm, x, **options: comm.all_to_all(x, **options),
        lambda comm, x, **options: comm.reduce_scatter(x, **options),
    ],
    ids=["all_gather", "gather", "scatter", "all_to_all", "reduce_scatter"],
)
def test_a_result_that_is_allocated_comes_after_who_had_its_memory(
    world: GetWorld, transport: str, call: Callable[..., Any]
) -> None:
    from gradring import gpu

    def run(comm: Any) -> None:
        values = values_of(comm.rank, (SIZE, 100))
        expected = call(comm, values)
        found = call(comm, Allocating(values), stream=gpu.Stream())
        if expected is not None:
            assert_same(found, expected)

    world(SIZE, transport).run(run)


def test_compressed_sums(world: GetWorld, transport: str) -> None:
    def run(comm: Any) -> None:
        for codec in ("int8", "bf16", gr.TopK(0.1)):
            results = []
            for to in (np.copy, to_device):
                residual = np.zeros(500, np.float32)
                x = to(values_of(comm.rank, 500))
                comm.all_reduce_compressed(x, codec, residual)
                results.append((x, residual))
            assert_same(results[1][0], results[0][0])
            np.testing.assert_array_equal(results[1][1], results[0][1])

    world(SIZE, transport).run(run)


def test_what_done_says_is_there_without_a_wait(world: GetWorld, transport: str) -> None:
    from gradring import gpu

    def run(comm: Any) -> None:
        sent = values_of(comm.rank, 5000)
        x, total = gpu.empty(5000), to_device(sent)
        works = [
            comm.recv(x, (comm.rank - 1) % SIZE, async_op=True),
            comm.send(to_device(sent), (comm.rank + 1) % SIZE, async_op=True),
            # With its residual on the CPU it is encoded there, and comes back.
            comm.all_reduce_compressed(total, "bf16", np.zeros(5000, np.float32), async_op=True),
        ]
        while not all(work.done() for work in works):
            pass
        assert_same(x, values_of((comm.rank - 1) % SIZE, 5000))
        comm.all_reduce_compressed(sent, "bf16", np.zeros(5000, np.float32))
        assert_same(total, sent)

    world(SIZE, transport).run(run)


def test_a_message_that_failed_is_done_and_its_array_as_it_was(
    fresh_world: Callable[..., ThreadWorld], transport: str
) -> None:
    def run(comm: Any) -> None:
        if comm.rank == 1:
            comm.send(to_device(np.ones(7, np.float32)), 0)
            return
        x = to_device(np.full(5, 3, np.float32))
        work = comm.recv(x, 1, async_op=True)
        while not work.done():
            pass
        with pytest.raises(gr.Mismatch):
            work.wait()
        assert work.done()
        assert (x.to_numpy() == 3).all()

    fresh_world(2, transport).errors(run)


def test_what_makes_no_sense_is_refused_before_anything_is_sent(
    world: GetWorld, transport: str
) -> None:
    def run(comm: Any) -> None:
        x, host = to_device(np.zeros(12, np.float32)), np.zeros(12, np.float32)
        with pytest.raises(gr.DeviceError, match=r"x is on .*, out is on the CPU"):
            comm.all_reduce(x, out=host)
        with pytest.raises(gr.DeviceError, match="out is on"):
            comm.all_gather(host, to_device(np.zeros(36, np.float32)))
        with pytest.raises(gr.InvalidArgument, match="different dtypes"):
            comm.all_reduce(x, out=to_device(np.zeros(12, np.float16)))
        with pytest.raises(gr.InvalidArgument, match="out has 5 elements"):
            comm.all_reduce(x, out=to_device(np.zeros(5, np.float32)))
        with pytest.raises(gr.InvalidArgument, match="out must not be x"):
            comm.all_to_all(x, x)
        with pytest.raises(gr.InvalidArgument, match="stream is a str"):
            comm.all_reduce(x, stream="mine")
        with pytest.raises(gr.InvalidArgument, match="band is not defined"):
            comm.all_reduce(x, "band")
        comm.barrier()

    world(SIZE, transport).run(run)


def test_memory_that_is_no_device_s_is_refused(world: GetWorld, transport: str) -> None:
    class Liar:
        def __init__(self) -> None:
            self.values = np.zeros(4, np.float32)
            self.__cuda_array_interface__ = self.values.__array_interface__ | {"stream": 1}

    def run(comm: Any) -> None:
        with pytest.raises(gr.DeviceError, match=r"no memory of a CUDA device|neither"):
            comm.all_reduce(Liar())

    world(1, transport).run(run)


def test_a_lost_rank_comes_out_of_wait(
    fresh_world: Callable[..., ThreadWorld], transport: str
) -> None:
    world = fresh_world(SIZE, transport, timeout=20)
    gone = threading.Event()

    def run(comm: Any) -> None:
        x = to_device(np.ones(1 << 18, np.float32))
        comm.all_reduce(x)
        if comm.rank == 2:
            comm.close()
            gone.set()
            return
        gone.wait(20)
        with pytest.raises((gr.PeerLost, gr.Closed)):
            comm.all_reduce(x, async_op=True).wait()
        with pytest.raises((gr.PeerLost, gr.Closed)):
            comm.all_reduce(x)
        x.to_numpy()  # No stream hangs.

    world.run(run)
