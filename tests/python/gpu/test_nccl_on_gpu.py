"""NCCL itself, with the one GPU that every rank has: results, a killed rank, and NCCL inside hosts.

NCCL takes each rank for a host of its own (NCCL_HOSTID), else it refuses to share a GPU, and their
kernels take turns on it: nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_places import why_no_gpu
from rank_job import Job, StartJob

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120), pytest.mark.usefixtures("_nccl")]

PREPARE = """
os.environ.update({
    "NCCL_HOSTID": f"rank{comm.rank}", "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2",
    "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_DEBUG": "WARN",
})
from gradring import gpu
rank, size = comm.rank, comm.world_size
def on_gpu(values):
    return gpu.from_numpy(values, 0)
base = np.arange(1001, dtype="f4")
mine, total = base + rank, size * base + sum(range(size))
"""


@pytest.fixture(scope="module")
def _nccl() -> None:
    reason = why_no_gpu()
    if reason is None:
        from gradring.errors import DeviceError
        from gradring.machine import nccl

        try:
            nccl.find()
        except DeviceError as error:
            reason = str(error)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, _nccl: None) -> Iterator[Job]:
    """Two ranks that have met in NCCL; at the end they leave without a word."""
    job = Job(tmp_path_factory.mktemp("nccl") / "job")
    try:
        yield meet(job, 2)
        job.call("comm.close()")
        assert [rank.leave() for rank in job.ranks] == [0, 0]
    finally:
        job.clean_up()


def meet(job: Job, size: int) -> Job:
    job.start(size, timeout=30.0)
    job.call(PREPARE)
    assert job.call('result = comm.use_gpu(0, path="nccl")') == ["nccl: asked for"] * size
    return job


def test_every_collective_gives_what_it_must(ranks: Job) -> None:
    code = """
halves = np.split(total[:1000], size)
cases = {
    "all_reduce": (lambda: comm.all_reduce(on_gpu(mine)), total),
    "avg": (lambda: comm.all_reduce(on_gpu(mine), "avg"), total / size),
    "max": (lambda: comm.all_reduce(on_gpu(mine), "max"), base + size - 1),
    "broadcast": (lambda: comm.broadcast(on_gpu(mine), 1), base + 1),
    "all_gather": (
        lambda: comm.all_gather(on_gpu(mine)), np.stack([base + other for other in range(size)])),
    "reduce_scatter": (lambda: comm.reduce_scatter(on_gpu(mine[:1000])), halves[rank]),
    "all_to_all": (
        lambda: comm.all_to_all(on_gpu(mine[:1000])),
        np.concatenate([np.split(base[:1000] + other, size)[rank] for other in range(size)])),
    "staged: int16, which NCCL has not": (
        lambda: comm.all_reduce(on_gpu(np.full(9, rank + 1, "i2"))), np.full(9, 3, "i2")),
}
result = [
    name for name, (call, right) in cases.items() if not np.array_equal(call().to_numpy(), right)]
"""
    assert ranks.call(code) == [[], []]


def test_many_in_flight_are_ordered_by_a_stream(ranks: Job) -> None:
    code = """
stream = gpu.Stream()
many = [on_gpu(mine + turn) for turn in range(50)]
work = [comm.all_reduce(x, async_op=True, stream=stream) for x in many]
for one in work:
    one.wait(stream=stream)
result = [i for i, x in enumerate(many) if not np.array_equal(x.to_numpy(stream), total + 2 * i)]
for one in work:
    one.wait()
"""
    assert ranks.call(code) == [[], []]


def test_several_arrays_go_as_one(ranks: Job) -> None:
    code = """
many = [on_gpu(np.full(shape, rank + 1, dtype)) for shape, dtype in (
    ((3,), "f4"), ((4, 5), "f4"), (9, "i4"), (30_001, "f4"), (7, "i2"))]
comm.all_reduce_many(many)
result = [i for i, x in enumerate(many) if not (x.to_numpy() == 3).all()]
"""
    assert ranks.call(code) == [[], []]


def test_a_split_meets_for_itself(ranks: Job) -> None:
    code = """
with comm.split(0, rank) as half:
    result = [half.use_gpu(0, path="nccl").split(":")[0]]
    result.append(half.all_reduce(on_gpu(mine)).to_numpy().tolist() == total.tolist())
"""
    assert ranks.call(code) == [["nccl", True]] * 2


def test_a_killed_rank_is_lost_by_name(job: StartJob) -> None:
    ranks = meet(job(0), 3)
    ranks.begin("""
x = on_gpu(np.ones(1 << 20, "f4"))
for turn in range(10**9):
    comm.all_reduce(x, "max")
    if turn == 1:
        say("moving")
""")
    ranks.expect("moving")
    ranks.ranks[1].kill()
    for outcome in ranks.outcomes(ranks.others(1)):
        assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome
    for rank in ranks.others(1):  # The GPU is theirs still.
        code = "comm.close()\nresult = float(on_gpu(np.full(5, 7, 'f4')).to_numpy()[0])"
        assert rank.call(code) == 7


def test_a_rank_that_never_calls_is_named_when_the_time_is_up(job: StartJob) -> None:
    ranks = meet(job(0), 2)
    ranks.ranks[0].begin("""
comm.all_reduce(on_gpu(mine))
comm.all_reduce(on_gpu(mine), timeout=2)
""")
    ranks.ranks[1].begin("comm.all_reduce(on_gpu(mine))\nsignal.pause()")
    outcome = ranks.ranks[0].outcome()
    assert outcome.error == "TimedOut", outcome
    assert "rank 1" in outcome.text


def test_sums_inside_hosts_by_nccl_and_between_them_staged(job: StartJob) -> None:
    ranks = job(4)
    ranks.call(PREPARE)
    ranks.call("""
from gradring.gpu import agreement
facts = agreement.device_facts
agreement._host = lambda: "ab"[rank % 2]
agreement.device_facts = lambda device: {**facts(device), "bus_id": str(rank)}
""")
    choices = ranks.call('result = comm.use_gpu(0, path="nccl_in_hosts")')
    assert all(choice.startswith("nccl_in_hosts") for choice in choices), choices
    code = """
result = []
for count in (1, 3, 1000, 300_001):
    x = on_gpu(np.arange(count, dtype="f4") + rank)
    comm.all_reduce(x)
    result.append(bool((x.to_numpy() == 4 * np.arange(count) + 6).all()))
stream = gpu.Stream()
many = [on_gpu(base + rank + turn) for turn in range(8)]
work = [comm.all_reduce(x, async_op=True, stream=stream) for x in many]
for turn, (one, x) in enumerate(zip(work, many)):
    one.wait(stream=stream)
    result.append(bool((x.to_numpy(stream) == 4 * (base + turn) + 6).all()))
    one.wait()
"""
    assert ranks.call(code) == [[True] * 12] * 4
