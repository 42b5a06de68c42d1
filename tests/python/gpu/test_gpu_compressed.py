"""Compressed sums that are encoded on the device have the bits of those on the CPU.

Ranks are threads over the emulated plugin (or a GPU, where there is one), and processes where one
of them is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from gpu_places import PLACES, to_device, use_place
from gradring.gpu.copied import CopiedCalls
from rank_job import StartJob
from thread_ranks import TRANSPORTS

CODECS: list[Any] = ["bf16", "fp16", "int8", gr.TopK(0.1), gr.TopK(1)]


@pytest.fixture(params=PLACES)
def _place(request: pytest.FixtureRequest) -> None:
    use_place(request)


on_devices = pytest.mark.usefixtures("_place", "_nothing_comes_down")
over_transports = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.fixture
def _nothing_comes_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to encode what is on a device on the CPU."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a vector was brought to the CPU")

    monkeypatch.setattr(CopiedCalls, "run_in_place", refuse)


def values_of(rank: int, count: int, turn: int = 0) -> Any:
    random = np.random.default_rng([rank, count, turn])
    return (random.standard_normal(count) * 50).astype(np.float32)


def rounds(
    comm: Any, to: Callable[[Any], Any], codec: Any, count: int, **options: Any
) -> list[bytes]:
    """Return what three sums in a row leave in arrays and residual, as bytes."""
    residual = to(np.zeros(count, np.float32))
    left = []
    for turn in range(3):
        x = to(values_of(comm.rank, count, turn))
        assert comm.all_reduce_compressed(x, codec, residual, **options) is x
        left += [x, residual]
        left = [one if isinstance(one, bytes) else bytes_of(one) for one in left]
    return left


def bytes_of(array: Any) -> bytes:
    host: Any = array if isinstance(array, np.ndarray) else array.to_numpy()
    return bytes(host.tobytes())


@on_devices
@over_transports
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_results_and_residuals_have_the_bits_of_the_cpu(
    world: GetWorld, transport: str, codec: Any
) -> None:
    def run(comm: Any) -> None:
        for count, op in ((0, "sum"), (1, "avg"), (2, "sum"), (773, "avg"), (40_001, "sum")):
            host = rounds(comm, np.copy, codec, count, op=op)
            assert rounds(comm, to_device, codec, count, op=op) == host, (count, op)

    world(3, transport).run(run)


@on_devices
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_without_a_residual_what_is_left_out_is_lost_as_on_the_cpu(
    world: GetWorld, codec: Any
) -> None:
    def run(comm: Any) -> None:
        host = comm.all_reduce_compressed(values_of(comm.rank, 1501), codec)
        device = comm.all_reduce_compressed(to_device(values_of(comm.rank, 1501)), codec)
        assert bytes_of(device) == bytes_of(host)

    world(2, "shm").run(run)


@on_devices
@over_transports
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_ranks_on_the_cpu_and_on_devices_are_in_one_sum(
    world: GetWorld, transport: str, codec: Any
) -> None:
    def run(comm: Any) -> None:
        host = rounds(comm, np.copy, codec, 2003)
        mixed = rounds(comm, np.copy if comm.rank == 1 else to_device, codec, 2003)
        assert mixed == host

    world(3, transport).run(run)


@pytest.mark.usefixtures("_place")
def test_a_residual_on_the_cpu_has_the_array_encoded_there(world: GetWorld) -> None:
    def run(comm: Any) -> None:
        x, rest = values_of(comm.rank, 900), np.zeros(900, np.float32)
        on_device, beside = to_device(x), rest.copy()
        comm.all_reduce_compressed(x, "int8", rest)
        comm.all_reduce_compressed(on_device, "int8", beside)
        assert (bytes_of(on_device), bytes_of(beside)) == (bytes_of(x), bytes_of(rest))

    world(2, "shm").run(run)


@on_devices
def test_a_world_of_one_leaves_everything_as_it_is(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    x, residual = to_device(values_of(0, 70)), to_device(values_of(1, 70))
    comm.all_reduce_compressed(x, "int8", residual)
    assert bytes_of(x) == bytes_of(values_of(0, 70))
    assert bytes_of(residual) == bytes_of(values_of(1, 70))


@on_devices
def test_what_is_not_finite_arrives_everywhere_and_leaves_nothing_behind(world: GetWorld) -> None:
    def run(comm: Any) -> None:
        for codec in CODECS:
            values = values_of(comm.rank, 1200)
            if comm.rank == 0:
                values[[5, 700]] = np.nan, np.inf
            x, residual = to_device(values), to_device(np.zeros(1200, np.float32))
            comm.all_reduce_compressed(x, codec, residual)
            assert not np.isfinite(x.to_numpy()[[5, 700]]).any(), codec
            assert np.isfinite(residual.to_numpy()).all(), codec

    world(2, "shm").run(run)


@on_devices
@over_transports
def test_a_stream_is_ordered_before_and_after_with_several_in_flight(
    world: GetWorld, transport: str
) -> None:
    from gradring import gpu

    def run(comm: Any) -> None:
        other = gpu.Stream()
        given = [to_device(values_of(comm.rank, 9001, turn)) for turn in range(4)]
        late = [gpu.empty(9001) for _ in given]
        rest = [to_device(np.zeros(9001, np.float32)) for _ in given]
        works = [
            comm.all_reduce_compressed(x, "int8", left, async_op=True)
            for x, left in zip(given, rest, strict=True)
        ]
        host = comm.all_reduce(np.ones(3))  # Comes after them.
        for work, x, seen in zip(works, given, late, strict=True):
            assert work.wait(stream=other) is x
            seen.copy_on_device(x, other)
        assert host.tolist() == [comm.world_size] * 3
        for turn, seen in enumerate(late):
            expected = values_of(comm.rank, 9001, turn)
            comm.all_reduce_compressed(expected, "int8", np.zeros(9001, np.float32))
            assert bytes_of(expected) == seen.to_numpy(other).tobytes()
        assert all(work.done() for work in works)

    world(3, transport).run(run)


@on_devices
def test_what_makes_no_sense_is_refused_before_anything_is_sent(world: GetWorld) -> None:
    def run(comm: Any) -> None:
        x, host = to_device(np.ones(12, np.float32)), np.ones(12, np.float32)
        for residual in (np.ones(11, np.float32), np.ones(12, np.float16)):
            with pytest.raises(gr.InvalidArgument, match="residual has"):
                comm.all_reduce_compressed(x, "int8", to_device(residual))
        with pytest.raises(gr.InvalidArgument, match="float32"):
            comm.all_reduce_compressed(to_device(np.ones(12, np.float64)), "int8")
        with pytest.raises(gr.DeviceError, match="x is on the CPU, so residual"):
            comm.all_reduce_compressed(host, "int8", x)
        comm.barrier()

    world(2, "shm").run(run)


@on_devices
def test_ranks_that_compress_differently_are_told(
    fresh_world: Callable[..., Any],
) -> None:
    codecs = ["int8", gr.TopK(0.5)]
    for made in (to_device, np.copy):
        errors = fresh_world(2, "shm").errors(
            lambda comm, made=made: comm.all_reduce_compressed(
                (to_device if comm.rank == 0 else made)(np.ones(100, np.float32)),
                codecs[comm.rank],
            )
        )
        assert all(isinstance(error, gr.Error) for error in errors), errors
        assert any(isinstance(error, gr.Mismatch) for error in errors), errors


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("emulated_gpu")
@over_transports
def test_a_killed_rank_is_named_and_array_and_residual_are_as_they_were(
    job: StartJob, transport: str
) -> None:
    ranks = job(3, transport=transport)
    ranks.call("""
from gradring import gpu
stream = gpu.Stream()
x = gpu.from_numpy(np.full(300_001, comm.rank, "f4") + np.arange(300_001, dtype="f4"))
residual = gpu.from_numpy(np.zeros(300_001, "f4"))
kept = [gpu.empty(300_001) for _ in range(2)]
def once():
    work = comm.all_reduce_compressed(x, "int8", residual, async_op=True)
    work.wait()
    for to, source in zip(kept, (x, residual)):
        to.copy_on_device(source)
once()
""")
    ranks.begin("""
for turn in range(10**9):
    once()
    if turn == 1:
        say("moving")
""")
    ranks.expect("moving")
    ranks.ranks[1].kill()
    others = ranks.others(1)
    for outcome in ranks.outcomes(others):
        assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome
        assert "rank 1 (" in outcome.text
    for rank in others:
        assert rank.call("""
before = [one.to_numpy() for one in kept]
stream.synchronize()
result = [x.to_numpy().tobytes() == before[0].tobytes(),
          residual.to_numpy().tobytes() == before[1].tobytes(), comm.is_closed]
""") == [True, True, True]
