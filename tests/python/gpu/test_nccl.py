"""NCCL's operations, over a fake library between processes: results, and how they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rank_job import Job

WORLD = 3


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "calls"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, fake_nccl: Path, log: Path) -> Iterator[Job]:
    """Three processes that have met in NCCL: ``nccl`` in each."""
    folder = tmp_path_factory.mktemp("nccl")
    job = Job(folder / "job")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADRING_NCCL_LIB", str(fake_nccl))
        patch.setenv("GRADRING_GPU_PLUGIN", str(fake_nccl))
        patch.setenv("FAKE_NCCL_FOLDER", str(folder))
        patch.setenv("FAKE_NCCL_LOG", str(log))
        try:
            job.start(WORLD)
            job.call("from fake_nccl import *\nnccl = Ranks(comm)\nrank = comm.rank")
            yield job
        finally:
            job.clean_up()


@pytest.fixture
def called(log: Path) -> Callable[[], list[str]]:
    """Ask what all ranks have called since the test began."""
    before = log.stat().st_size if log.exists() else 0
    return lambda: log.read_bytes()[before:].decode().splitlines()


ORDERED = ("sum", "prod", "min", "max")
REDUCTIONS = [
    *((dtype, op) for dtype in ("float64", "float32") for op in (*ORDERED, "avg")),
    *((dtype, op) for dtype in ("int8", "uint8", "int32", "int64") for op in ORDERED),
    *(("bool", op) for op in (*ORDERED, "band", "bor")),
]


def test_reductions_of_every_type_give_what_ours_give(ranks: Job) -> None:
    assert (
        ranks.call(f"""
result = []
for dtype, op in {REDUCTIONS!r}:
    x = (np.arange(1000) * (rank + 3) % 5).astype(dtype)
    ours = np.ascontiguousarray(comm.all_reduce(x.copy(), op=op))
    theirs = np.zeros_like(x)
    nccl.run("all_reduce", x, theirs, reduce_op=op)
    if ours.tobytes() != theirs.tobytes():
        result.append((dtype, op))
""")
        == [[]] * WORLD
    )


def test_16_bit_floats_are_added_as_such(ranks: Job) -> None:
    code = """
import ml_dtypes
result = True
for name, kind in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
    x = (np.arange(1000) % 32 + rank).astype(kind)
    theirs = np.zeros(1000, np.uint16)
    nccl.run("all_reduce", x.view(np.uint16), theirs, dtype=name)
    ours = sum((np.arange(1000) % 32 + r).astype(np.float32) for r in range(3)).astype(kind)
    result = result and bool((theirs == ours.view(np.uint16)).all())
"""
    assert ranks.call(code) == [True] * WORLD


def test_a_factor_is_multiplied_in_before_the_sum_and_the_average(ranks: Job) -> None:
    code = """
x = np.full(100, rank + 1, np.float32)
sums, averages = np.zeros_like(x), np.zeros_like(x)
nccl.run("all_reduce", x, sums, factor=0.25)
nccl.run("all_reduce", x, averages, reduce_op="avg", factor=1.5)
parts = np.zeros(50, np.float64)
nccl.run("reduce_scatter", np.full(150, rank, np.float64), parts, parts=[50] * 3, factor=2.0)
result = [set(sums.tolist()) == {1.5}, bool(np.allclose(averages, 3.0)), set(parts) == {6.0}]
"""
    assert ranks.call(code) == [[True] * 3] * WORLD


@pytest.mark.parametrize("parts", [[40, 40, 40], [50, 0, 7]])
def test_parts_may_be_of_any_sizes(ranks: Job, parts: list[int]) -> None:
    code = f"""
parts = {parts}
x = np.arange(sum(parts), dtype=np.int32) * (rank + 1)
mine = np.zeros(parts[rank], np.int32)
nccl.run("reduce_scatter", x, mine, parts=parts)
begin = sum(parts[:rank])
ok = (mine == np.arange(begin, begin + parts[rank]) * 6).all()
whole = np.zeros(sum(parts), np.int32)
nccl.run("all_gather", mine, whole, parts=parts, count=whole.size)
result = bool(ok and (whole == np.arange(sum(parts)) * 6).all())
"""
    assert ranks.call(code) == [True] * WORLD


def test_rooted_operations_work_for_every_root(ranks: Job) -> None:
    code = """
result = []
for root in range(3):
    x = np.full(20_000, 10 * rank + 1, np.int64)
    nccl.run("broadcast", x if rank == root else None, x, root=root)
    result.append(set(x.tolist()) == {10 * root + 1})
    y = np.full(5, rank, np.float32)
    sums = np.zeros(5, np.float32)
    nccl.run("reduce", y, sums, root=root)
    result.append(set(sums.tolist()) == {3.0 if rank == root else 0.0})
    everything = np.zeros(15, np.float32)
    nccl.run("gather", y, everything, count=5, root=root)
    result.append((everything.reshape(3, 5) == np.arange(3)[:, None]).all() == (rank == root))
    got = np.zeros(5, np.float32)
    nccl.run("scatter", np.repeat(np.arange(3, dtype=np.float32), 5), got, count=5, root=root)
    result.append(set(got.tolist()) == {float(rank)})
result = all(map(bool, result)) or result
"""
    assert ranks.call(code) == [True] * WORLD


def test_all_to_all_and_messages_reach_whom_they_are_for(
    ranks: Job, called: Callable[[], list[str]]
) -> None:
    code = """
sent = [rank + other for other in range(3)]
x = np.concatenate([np.full(sent[other], 10 * rank + other, np.int16) for other in range(3)])
y = np.zeros(sum(sent), np.int16)
nccl.run("all_to_all", x, y, parts=sent, recv_parts=sent)
expected = np.concatenate([np.full(sent[other], 10 * other + rank) for other in range(3)])
result = bool((y == expected).all())
if rank < 2:
    z = np.full(50_000, rank, np.int64)
    if rank == 0:
        nccl.run("send", z, None, root=1)
        nccl.run("recv", None, z, root=1)
    else:
        nccl.run("recv", None, z, root=0)
        nccl.run("send", z, None, root=0)
    result = result and set(z.tolist()) == {0}
"""
    assert ranks.call(code) == [True] * WORLD
    calls = called()
    assert calls.count("GroupStart") == calls.count("GroupEnd") == WORLD + 4


def test_operations_keep_their_order_however_many_are_under_way(ranks: Job) -> None:
    code = """
x = np.ones(64, np.float64)
works = [nccl.submit("all_reduce", x, x) for _ in range(30)]
works[-1].order(DEFAULT_STREAM, 60_000)
works[-1].wait(60_000)
result = [all(work.done() for work in works), x.tolist() == [3.0**30] * 64]
"""
    assert ranks.call(code) == [[True, True]] * WORLD


def test_what_nccl_does_not_know_is_refused_before_anything_is_sent(ranks: Job) -> None:
    code = """
result = []
for dtype, op, more in (("int16", "sum", {}), ("int32", "avg", {}), ("uint8", "bxor", {}),
                        ("int32", "sum", {"factor": 2.0}), ("float32", "max", {"factor": 2.0})):
    x = np.ones(4, dtype)
    try:
        nccl.run("all_reduce", x, x, reduce_op=op, **more)
    except gr.InvalidArgument as error:
        result.append(str(error))
"""
    for texts in ranks.call(code):
        assert len(texts) == 5
        assert "int16 x 4" in texts[0]


def test_arrays_of_another_device_are_refused_before_anything_is_sent(ranks: Job) -> None:
    code = """
from gradring.operations import ALL_REDUCE
from gradring.arrays.device_arrays import DeviceView
from gradring.gpu.calls import DeviceCalls
calls, x, result = DeviceCalls(comm._core), np.ones(4, np.float32), []
calls.nccl = nccl.core
here, there = (DeviceView(x.ctypes.data, DTYPE_CODES["float32"], x.shape, device, 0, x)
               for device in (0, 1))
for source, target in ((there, there), (here, there), (there, here)):
    try:
        calls.run(ALL_REDUCE, source, target, in_background=False, count=4, timeout_ms=1000)
    except gr.DeviceError as error:
        result.append(str(error))
"""
    told = "the array is on device 1, but use_gpu() was told device 0"
    assert ranks.call(code) == [[told] * 3] * WORLD


def test_what_nccl_refuses_for_now_is_no_call_of_the_pipeline(ranks: Job) -> None:
    code = """
from gradring import _core
from gradring.operations import ALL_REDUCE
from gradring.arrays.device_arrays import DeviceView
from gradring.gpu.calls import DeviceCalls

class Full:
    device, knows = 0, staticmethod(_core.NcclRanks.knows)
    def submit(self, *given, **options):
        raise gr.InvalidArgument("so many are waiting already")

calls, x = DeviceCalls(comm._core), np.ones(4, np.float32)
calls.nccl = Full()
view = DeviceView(x.ctypes.data, DTYPE_CODES["float32"], x.shape, 0, 0, x)
try:
    calls.run(ALL_REDUCE, view, view, in_background=False, count=4, timeout_ms=1000)
except gr.InvalidArgument as error:
    result = [str(error), calls._staged is None]
"""
    assert ranks.call(code) == [["so many are waiting already", True]] * WORLD


def test_a_split_talks_among_itself(ranks: Job) -> None:
    code = """
part = nccl.core.split(1 if rank == 1 else 7, -rank)
part = Ranks(part)
x = np.full(10, rank, np.float32)
part.run("all_reduce", x, x)
alone = nccl.core.split(-1 if rank == 0 else 0, 0)
result = [part.core.rank, part.core.world_size, float(x[0]), alone is None]
part.core.close()
if alone is not None:
    alone.close()
"""
    assert ranks.call(code) == [[1, 2, 2.0, True], [0, 1, 1.0, False], [0, 2, 2.0, False]]


def test_a_goodbye_aborts_nothing(ranks: Job, called: Callable[[], list[str]]) -> None:
    code = """
other = Ranks(comm)
other.run("all_reduce", np.ones(3), np.ones(3))
other.core.close()
result = other.core.is_closed
"""
    assert ranks.call(code) == [True] * WORLD
    calls = called()
    assert calls.count("CommFinalize") == calls.count("CommDestroy") == WORLD
    assert "CommAbort" not in calls


def test_who_lets_go_of_it_says_goodbye_too(ranks: Job, called: Callable[[], list[str]]) -> None:
    code = """
other = Ranks(comm)
other.run("all_reduce", np.ones(3), np.ones(3))
del other
"""
    ranks.call(code)
    calls = called()
    assert calls.count("CommFinalize") == calls.count("CommDestroy") == WORLD
    assert "CommAbort" not in calls
