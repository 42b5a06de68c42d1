"""Arrays of torch, CuPy, JAX and Numba on a GPU: the bits of the same call on the CPU.

Without a GPU, and without the library, each test is skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from gpu_places import why_no_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("_gpu"),
    pytest.mark.filterwarnings("default"),  # Other libraries' are theirs.
]

LARGE = 1 << 22  # Elements: of several slots, and long enough to be under way for a while.


@pytest.fixture
def _gpu() -> None:
    reason = why_no_gpu()
    if reason is not None:
        pytest.skip(reason)


def library(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a library, or skip the test."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX takes most of the GPU else.
    module: ModuleType = pytest.importorskip(name, exc_type=ImportError)
    if name == "torch" and not module.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return module


def values_of(rank: int, count: int = 10_001) -> Any:
    return (np.random.default_rng(rank).standard_normal(count) * 50).astype(np.float32)


def expected_sum(comm: Any, count: int = 10_001) -> Any:
    return comm.all_reduce(values_of(comm.rank, count))


def assert_same_bits(found: Any, expected: Any) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


def test_sums_in_place_and_results_that_torch_allocates(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = library("torch", monkeypatch)

    def run(comm: Any) -> None:
        x = torch.from_numpy(values_of(comm.rank)).cuda()
        assert comm.all_reduce(x) is x
        assert_same_bits(x.cpu().numpy(), expected_sum(comm))
        parts = comm.all_gather(x)
        assert isinstance(parts, torch.Tensor)
        assert parts.device == x.device
        assert_same_bits(parts.cpu().numpy(), comm.all_gather(x.cpu().numpy()))

    world(2, "shm").run(run)


def test_sums_in_place_and_results_that_cupy_allocates(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = library("cupy", monkeypatch)

    def run(comm: Any) -> None:
        with cupy.cuda.Stream(non_blocking=True):
            x = cupy.asarray(values_of(comm.rank))
            assert comm.all_reduce(x) is x
            assert_same_bits(cupy.asnumpy(x), expected_sum(comm))
            part = comm.reduce_scatter(x)
            assert isinstance(part, cupy.ndarray)
            assert_same_bits(cupy.asnumpy(part), comm.reduce_scatter(cupy.asnumpy(x)))

    world(2, "shm").run(run)


def test_what_jax_has_is_read_and_results_go_where_they_are_told(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax = library("jax", monkeypatch)
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")

    def run(comm: Any) -> None:
        x = jax.numpy.asarray(values_of(comm.rank))
        out = gr.gpu.empty(10_001)
        assert comm.all_reduce(x, out=out) is out
        assert_same_bits(out.to_numpy(), expected_sum(comm))
        np.testing.assert_array_equal(np.asarray(x), values_of(comm.rank))

    world(2, "shm").run(run)


def test_numba_s_arrays_are_reduced_in_place(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = library("numba.cuda", monkeypatch)

    def run(comm: Any) -> None:
        x = cuda.to_device(values_of(comm.rank))
        comm.all_reduce(x)
        assert_same_bits(x.copy_to_host(), expected_sum(comm))

    world(2, "shm").run(run)


def test_one_rank_s_torch_tensor_meets_another_s_numpy_array(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = library("torch", monkeypatch)

    def run(comm: Any) -> None:
        x = values_of(comm.rank)
        if comm.rank == 1:
            x = torch.from_numpy(x).cuda()
        comm.all_reduce(x)
        found = x.cpu().numpy() if comm.rank == 1 else x
        assert_same_bits(found, expected_sum(comm))

    world(2, "shm").run(run)


@pytest.mark.parametrize("is_on_host", [True, False], ids=["host", "stream"])
def test_a_call_comes_after_torch_s_stream_and_before_what_is_put_there_later(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch, is_on_host: bool
) -> None:
    torch = library("torch", monkeypatch)

    def run(comm: Any) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(5):
                x = torch.zeros(LARGE, device="cuda")
                torch.cuda._sleep(20_000_000)  # About 10 ms, in which the call is made.
                x += comm.rank + turn
                work = comm.all_reduce(x, async_op=True)
                work.wait() if is_on_host else work.wait(stream=torch.cuda.current_stream())
                x *= 2
                assert x.eq(2 * (1 + 2 * turn)).all()

    world(2, "shm").run(run)


def test_gradients_in_bfloat16_and_many_tensors(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = library("torch", monkeypatch)

    def run(comm: Any) -> None:
        host = [torch.from_numpy(values_of(comm.rank, n)).bfloat16() for n in (1, 1000, 77, 4096)]
        device = [tensor.cuda() for tensor in host]
        comm.all_reduce_many(host, "avg")
        comm.all_reduce_many(device, "avg")
        for one, other in zip(host, device, strict=True):
            assert torch.equal(one, other.cpu())

    world(2, "shm").run(run)


@pytest.mark.parametrize("what", ["call", "wait"])
def test_a_stream_that_is_captured_is_left_alone(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    torch = library("torch", monkeypatch)
    (comm,) = world(1, "tcp").comms
    x = torch.ones(1000, device="cuda")
    y = torch.ones(1000, device="cuda")
    earlier = comm.all_reduce(y, async_op=True)
    refused: dict[str, Callable[[], Any]] = {
        "call": lambda: comm.all_reduce(x),
        "wait": lambda: earlier.wait(stream=torch.cuda.current_stream()),
    }
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x += 1
        with pytest.raises(gr.InvalidArgument, match="captur"):
            refused[what]()
        x += 1
    earlier.wait()
    before = float(x[0])
    graph.replay()
    assert x.eq(before + 2).all()


def test_another_thread_s_capture_is_not_broken_by_calls(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = library("torch", monkeypatch)

    def run(comm: Any) -> None:
        if comm.rank == 0:  # Captures while the other ranks' threads copy, allocate and reduce.
            x = torch.zeros(1000, device="cuda")
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                comm.barrier()
                x += 1
                comm.barrier()
            graph.replay()
            assert x.eq(1).all()
        else:
            comm.barrier()
            y = gr.gpu.from_numpy(values_of(comm.rank, LARGE))
            np.testing.assert_array_equal(y.to_numpy(), values_of(comm.rank, LARGE))
            comm.barrier()
        z = gr.gpu.from_numpy(values_of(comm.rank, 100_000))
        comm.all_reduce(z)
        assert_same_bits(z.to_numpy(), expected_sum(comm, 100_000))

    world(2, "shm").run(run)
