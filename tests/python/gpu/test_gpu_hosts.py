"""all_reduce through NCCL inside hosts and staged between them: two hosts of two GPUs each.

Four processes of this machine play them, over the emulated GPU and a fake NCCL that works in its
streams. The hosts' NCCLs differ, which is what this way is for.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rank_job import Job, Outcome
from thread_ranks import listening_socket

pytestmark = pytest.mark.timeout(120)

LAYOUT = "abab"  # Rank r is on the host that the r-th letter names.
WORLD = len(LAYOUT)
VERSIONS = {"a": "22809", "b": "23004"}
REASON = (
    "nccl_in_hosts: rank 0 has NCCL 2.28.9, rank 1 has 2.30.4, "
    "but every host has one and the same number of ranks"
)
PREPARE = """
import ml_dtypes
from gradring import gpu
device = comm.rank // 2
def on_gpu(values):
    return gpu.from_numpy(values, device)
def values_of(rank, count, dtype="f4"):
    return (np.random.default_rng(rank).standard_normal(count) * 50).astype(dtype)
"""


def start(job: Job, folder: Path, *, timeout: float = 20.0, faults: dict[int, str]) -> Job:
    """Start four ranks that say that they are on two hosts."""
    listen_fd, address = listening_socket()
    job.spawn(0, listen_fd)
    for rank in range(1, WORLD):
        job.spawn(rank)
    settings = {
        "world_size": WORLD, "rendezvous": address, "secret": secrets.token_bytes(32),
        "transport": "auto", "timeout_ms": round(timeout * 1000), "heartbeat_timeout_ms": 5000,
        "interface": "",
    }  # fmt: skip
    for rank, host in zip(job.ranks, LAYOUT, strict=True):
        environ = {
            "NCCL_HOSTID": host,
            "FAKE_NCCL_VERSION": VERSIONS[host],
            "FAKE_NCCL_FOLDER": str(folder),
            "FAKE_NCCL_LOG": str(folder / "calls"),
            "FAKE_NCCL_FAULTS": faults.get(rank.rank, ""),
        }
        fd = listen_fd if rank.rank == 0 else -1
        rank.begin(
            f"os.environ.update({environ!r})\nfrom gradring import _core\n"
            f"comm = gr.Communicator(_core.join(rank={rank.rank}, listen_fd={fd}, "
            f"host_label={host!r}, **{settings!r}))\n{PREPARE}"
        )
    os.close(listen_fd)
    for outcome in job.outcomes():
        assert outcome.error is None, outcome
    return job


@pytest.fixture(scope="module")
def _libraries(emulated_gpu: Path, fake_nccl: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADRING_GPU_PLUGIN", str(emulated_gpu))
        patch.setenv("GRADRING_NCCL_LIB", str(fake_nccl))
        yield


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, _libraries: None) -> Iterator[Job]:
    """Ranks that have agreed on this way by themselves."""
    folder = tmp_path_factory.mktemp("hosts")
    job = Job(folder / "job")
    try:
        start(job, folder, faults={})
        assert job.call("result = comm.use_gpu(device)") == [REASON] * WORLD
        yield job
        assert [rank.leave() for rank in job.ranks] == [0] * WORLD
        assert [rank.log for rank in job.ranks] == [""] * WORLD
    finally:
        job.clean_up()


@pytest.fixture
def broken(tmp_path: Path, _libraries: None) -> Iterator[Callable[..., Job]]:
    """Start ranks whose NCCL has these faults, by rank."""
    job = Job(tmp_path / "job")
    yield lambda faults, **options: start(job, tmp_path, faults=faults, **options)
    job.clean_up()


def outcomes(ranks: Job, code: str) -> list[Outcome]:
    ranks.begin(code)
    return ranks.outcomes()


def test_a_sum_is_that_of_the_hosts_sums_to_the_bit(hosts: Job) -> None:
    code = """
BF16 = np.dtype(ml_dtypes.bfloat16)
def expected(dtype, op, count):
    x = [values_of(rank, count, dtype).astype("f4") for rank in range(4)]
    if op == "max":
        return np.maximum(np.maximum(x[0], x[2]), np.maximum(x[1], x[3])).astype(dtype)
    sums = [(x[0] + x[2]).astype(dtype).astype("f4"), (x[1] + x[3]).astype(dtype).astype("f4")]
    return ((sums[0] + sums[1]) / np.float32(4 if op == "avg" else 1)).astype(dtype)
result = []
for dtype in (np.dtype("f4"), BF16):
    for op in ("sum", "avg", "max"):
        for count in (1, 2, 3, 1000, 40_003):
            x = on_gpu(values_of(comm.rank, count, dtype))
            out = comm.all_reduce(x, op, out=x.new_empty((count,))) if count == 1000 else x
            if count != 1000:
                comm.all_reduce(x, op)
            if out.to_numpy().tobytes() != expected(dtype, op, count).tobytes():
                result.append((str(dtype), op, count))
"""
    assert hosts.call(code) == [[]] * WORLD


def test_integers_wrap_and_averages_of_them_are_truncated(hosts: Job) -> None:
    code = """
result = []
for dtype in ("i1", "i4", "i8", "u1"):
    x = (np.arange(77) * (3 * comm.rank + 5) - 40).astype(dtype)
    for op in ("sum", "avg", "prod", "min"):
        found, right = on_gpu(x), x.copy()
        comm.all_reduce(found, op)
        comm.all_reduce(right, op)
        if found.to_numpy().tobytes() != right.tobytes():
            result.append((dtype, op))
"""
    assert hosts.call(code) == [[]] * WORLD


def test_only_sums_go_by_hosts_and_all_else_is_staged(hosts: Job) -> None:
    log = Path(hosts.ranks[0].call("result = os.environ['FAKE_NCCL_LOG']"))
    log.touch()
    before = log.stat().st_size
    assert hosts.call("comm.all_reduce(on_gpu(np.ones(7, 'f4')))") == [None] * WORLD
    calls = log.read_bytes()[before:].decode().splitlines()
    assert {name: calls.count(name) for name in set(calls)} == {
        "ReduceScatter 3": WORLD, "Reduce 1": WORLD, "AllGather 12": WORLD, "Broadcast 4": WORLD,
    }  # fmt: skip
    before = log.stat().st_size
    code = """
x = values_of(comm.rank, 12)
small = np.arange(9, dtype="i2")
result = []
for call in (
    lambda to: comm.broadcast(to(x), 2),
    lambda to: comm.all_gather(to(x)),
    lambda to: comm.reduce_scatter(to(x)),
    lambda to: comm.all_to_all(to(x)),
    lambda to: comm.all_reduce(to(x), deterministic="rank_order"),
    lambda to: comm.all_reduce(to(x), algorithm="ring"),
    lambda to: comm.all_reduce(to(small)),
):
    result.append(call(on_gpu).to_numpy().tobytes() == call(np.copy).tobytes())
"""
    assert hosts.call(code) == [[True] * 7] * WORLD
    assert log.stat().st_size == before


def test_many_arrays_go_by_hosts_side_by_side(hosts: Job) -> None:
    log = Path(hosts.ranks[0].call("result = os.environ['FAKE_NCCL_LOG']"))
    log.touch()
    before = log.stat().st_size
    code = """
shapes = [((3,), "f4"), ((0,), "f4"), ((4, 5), "f4"), (9, "i4"), (301, "f4"), (7, "i2"), (2, "i2")]
def given(rank, turn):
    return [(np.random.default_rng([rank, turn, i]).standard_normal(shape) * 50).astype(dtype)
            for i, (shape, dtype) in enumerate(shapes)]
mine, result = gpu.Stream(device), []
for turn in range(2):
    many = [on_gpu(one) for one in given(comm.rank, turn)]
    found = comm.all_reduce_many(many, bucket_bytes=2000, stream=mine)
    result.append([id(one) for one in found] == [id(one) for one in many])
    for one, *x in zip(many, *[given(rank, turn) for rank in range(4)]):
        result.append(one.to_numpy().tobytes() == ((x[0] + x[2]) + (x[1] + x[3])).tobytes())
"""
    assert hosts.call(code) == [[True] * 16] * WORLD
    calls = log.read_bytes()[before:].decode().splitlines()
    # In each turn 324 floats together and 9 integers, spread as bytes; NCCL has no 16-bit ones.
    assert {name: calls.count(name) for name in set(calls)} == {
        "ReduceScatter 162": 2 * WORLD, "AllGather 648": 2 * WORLD,
        "ReduceScatter 4": 2 * WORLD, "Reduce 1": 2 * WORLD,
        "AllGather 16": 2 * WORLD, "Broadcast 4": 2 * WORLD,
    }  # fmt: skip


def test_a_stream_is_ordered_before_and_after_however_many_are_in_flight(hosts: Job) -> None:
    code = """
mine, other = gpu.Stream(device), gpu.Stream(device)
given = [on_gpu(np.full(5001, comm.rank + turn, "f4")) for turn in range(5)]
x, seen = gpu.empty(5001, device=device), [gpu.empty(5001, device=device) for turn in range(5)]
works = []
for turn in range(5):
    x.copy_on_device(given[turn], mine)
    works.append(comm.all_reduce(x, stream=mine, async_op=True))
    works[-1].wait(stream=mine)
    seen[turn].copy_on_device(x, mine)
host = comm.all_reduce(np.ones(3))
result = [set(one.to_numpy(mine).tolist()) for one in seen]
result = result == [{6.0 + 4 * turn} for turn in range(5)] and host.tolist() == [4.0] * 3
for work in works:
    work.wait()
"""
    assert hosts.call(code) == [True] * WORLD


def test_hosts_of_different_sizes_are_staged_and_told_why(hosts: Job) -> None:
    hosts.ranks[1].call("os.environ.update(NCCL_HOSTID='c')")
    told = hosts.call("""
result = comm.use_gpu(device)
x = on_gpu(np.full(5, comm.rank, 'f4'))
assert comm.all_reduce(x).to_numpy().tolist() == [6.0] * 5
""")
    differ = "rank 0 has NCCL 2.28.9, rank 1 has 2.30.4"
    assert told == [f"staged: {differ}; hosts have different numbers of ranks"] * WORLD
    for outcome in outcomes(hosts, "comm.use_gpu(device, path='nccl_in_hosts')"):
        assert outcome.error == "DeviceError", outcome
        assert "'nccl_in_hosts' was asked for, but hosts have different" in outcome.text
    hosts.ranks[1].call("os.environ.update(NCCL_HOSTID='b')")
    assert hosts.call("result = comm.use_gpu(device)") == [REASON] * WORLD


def test_an_array_on_another_device_is_refused(hosts: Job) -> None:
    for outcome in outcomes(hosts, "comm.all_reduce(gpu.empty(5, device=1 - device))"):
        assert outcome.error == "DeviceError", outcome
        assert "but use_gpu() was told device" in outcome.text


def test_a_killed_rank_is_named_on_both_hosts_and_no_stream_hangs(
    broken: Callable[..., Job],
) -> None:
    ranks = broken({})
    ranks.call("comm.use_gpu(device)")
    ranks.begin("""
x = on_gpu(np.ones(200_001, "f4"))
for turn in range(10**9):
    comm.all_reduce(x, "max")
    if turn == 1:
        say("moving")
""")
    ranks.expect("moving")
    ranks.ranks[3].kill()
    others = ranks.others(3)
    for outcome in ranks.outcomes(others):
        assert (outcome.error, outcome.lost) == ("PeerLost", 3), outcome
        assert "all_reduce" in outcome.text
        assert "rank 3 (" in outcome.text
    for rank in others:
        assert rank.call("x.to_numpy()\nresult = comm.is_closed") is True


def test_an_error_of_nccl_is_a_device_error_on_both_hosts(broken: Callable[..., Job]) -> None:
    ranks = broken({1: "CommInitRankConfig:1:cuda,ReduceScatter:2:cuda"})
    for outcome in outcomes(ranks, "comm.use_gpu(device)"):
        assert outcome.error == "DeviceError", outcome
        assert "NCCL inside the hosts cannot be used: rank 1 (" in outcome.text
        assert "unhandled cuda error" in outcome.text
    # Nothing is lost but the attempt.
    assert ranks.call("result = comm.use_gpu(device)") == [REASON] * WORLD
    reduce = "x = comm.all_reduce(on_gpu(np.ones(1000, 'f4')))"
    ranks.call(reduce)
    for outcome in outcomes(ranks, reduce):
        assert outcome.error == "DeviceError", outcome
        assert "all_reduce #" in outcome.text
        assert "ncclReduceScatter: unhandled cuda error" in outcome.text
    for outcome in outcomes(ranks, reduce):
        assert outcome.error == "Closed", outcome
        assert outcome.cause is not None


def test_a_sum_that_never_comes_ends_all_ranks_when_their_time_is_up(
    broken: Callable[..., Job], tmp_path: Path
) -> None:
    ranks = broken({2: "ReduceScatter:1:hang"}, timeout=2.0)
    ranks.call("comm.use_gpu(device)")
    code = "x = on_gpu(np.ones(1000, 'f4'))\ncomm.all_reduce(x)"
    for outcome in outcomes(ranks, code):
        assert outcome.error == "TimedOut", outcome
        assert "all_reduce #" in outcome.text
        assert "not finished within its timeout of 2 s" in outcome.text
    assert ranks.call("x.to_numpy()\ncomm.close()\nresult = True") == [True] * WORLD  # No hang.
    assert (tmp_path / "calls").read_text().splitlines().count("CommAbort") == WORLD
