"""Collectives on an emulated GPU, staged through host memory, by ranks that are processes."""

from __future__ import annotations

from typing import Any

import pytest

from gradring import DeviceError, _core
from rank_job import Job, StartJob

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("emulated_gpu")]

PREPARE = """
from emulated import EmulatedDevice
from gradring import _core
gpu = EmulatedDevice()
stream = gpu.stream()
staged = _core.Staged(comm._core, slot_bytes=65536, slots=3, streams_may_wait=STREAMS_WAIT)

def all_reduce(address, count, **options):
    return staged.submit(
        1, source=address, source_count=count, target=address, target_count=count, count=count,
        dtype=1, device=0, stream=stream, **options)
"""


def prepare(job: StartJob, size: int, *, streams_wait: bool = True, **options: Any) -> Job:
    ranks = job(size, **options)
    ranks.call(f"STREAMS_WAIT = {streams_wait}\n{PREPARE}")
    return ranks


@pytest.mark.parametrize("streams_wait", [False, True])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_staged_sums_have_the_bits_of_host_memory(
    job: StartJob, transport: str, streams_wait: bool
) -> None:
    ranks = prepare(job, 3, streams_wait=streams_wait, transport=transport)
    assert (
        ranks.call("""
values = np.random.default_rng(comm.rank).standard_normal(300_001).astype(np.float32)
address, view = gpu.upload(values)
work = all_reduce(address, view.size)
work.wait_stream(stream)
gpu.synchronize(stream)
host = values.copy()
comm.all_reduce(host)
work.wait()
result = [bool((view.view(np.uint32) == host.view(np.uint32)).all()), work.done(), work.is_over()]
""")
        == [[True, True, True]] * 3
    )


@pytest.mark.parametrize("streams_wait", [False, True])
def test_a_killed_peer_ends_staged_work_by_name_and_frees_the_stream(
    job: StartJob, streams_wait: bool
) -> None:
    ranks = prepare(job, 3, streams_wait=streams_wait)
    ranks.begin("""
address, view = gpu.upload(np.ones(4_000_000, np.float32))
for turn in range(10**9):
    work = all_reduce(address, view.size)
    work.wait()
    if turn == 1:
        say("moving")
""")
    ranks.expect("moving")
    ranks.ranks[1].kill()
    for outcome in ranks.outcomes(ranks.others(1)):
        assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome
        assert "rank 1 (" in outcome.text
    for rank in ranks.others(1):
        assert rank.call("""
gpu.synchronize(stream)
before = view.copy()
while not work.is_over():
    pass
result = bool((view == before).all())
""")


def test_wrong_calls_are_refused_before_anything_is_sent(job: StartJob) -> None:
    ranks = prepare(job, 2)
    ranks.begin(
        "staged.submit(1, source=1, source_count=3, target=1, target_count=4, count=4,"
        " dtype=1, device=0, stream=stream)"
    )
    for outcome in ranks.outcomes():
        assert outcome.error == "InvalidArgument", outcome
        assert "the input has 3 elements, 4 are needed" in outcome.text
    ranks.begin("_core.Staged(comm._core).describe(7)")
    for outcome in ranks.outcomes():
        assert outcome.error == "DeviceError", outcome
        assert outcome.text == "there is no GPU 7; this process sees 2"
    assert "3 slots of 64 KiB" in ranks.call("result = staged.describe(0)")[0]


def test_measuring_gives_each_stage_and_the_whole(job: StartJob) -> None:
    ranks = prepare(job, 2)
    for stages in ranks.call("""
address, view = gpu.upload(np.ones(100_000, np.float32))
result = staged.measure(address, view.size, 0)
"""):
        assert stages["rounds"] == 7  # 400,000 bytes in slots of 64 KiB.
        assert all(stages[f"{stage}_s"] > 0 for stage in ("down", "network", "up", "whole"))


def test_the_way_is_chosen_by_what_the_ranks_have() -> None:
    ranks = [(0, "a", "01:00.0", 22809, ""), (1, "a", "02:00.0", 22809, "")]
    assert _core.choose_gpu_path(ranks)[0] == "nccl"
    ranks[1] = (0, "a", "01:00.0", 22809, "")
    assert _core.choose_gpu_path(ranks) == ("staged", "ranks 0 and 1 share one GPU (01:00.0)")
    with pytest.raises(DeviceError, match="share one GPU"):
        _core.choose_gpu_path(ranks, 1)
