"""What goes wrong in NCCL becomes an error as everywhere: in time, on every rank, by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import gradring as gr
from gradring.machine import nccl
from rank_job import Job, Outcome
from test_gpu_plugin import run

JOIN = "from fake_nccl import *\nnccl = Ranks(comm)\nx = np.ones(1000, np.float32)"
REDUCE = "nccl.run('all_reduce', x, x)"
GRACE = 8.0  # Seconds beyond a deadline, on a busy machine.


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def pair(
    job: Callable[..., Job],
    fake_nccl: Path,
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Job]:
    """Start two ranks whose NCCL has these faults, by rank."""
    monkeypatch.setenv("GRADRING_NCCL_LIB", str(fake_nccl))
    monkeypatch.setenv("GRADRING_GPU_PLUGIN", str(fake_nccl))
    monkeypatch.setenv("FAKE_NCCL_FOLDER", str(tmp_path))
    monkeypatch.setenv("FAKE_NCCL_LOG", str(log))

    def start(*faults: str, has_joined: bool = True, **options: object) -> Job:
        ranks = job(2, **options)
        for rank, text in zip(ranks.ranks, faults, strict=False):
            rank.call(f"os.environ['FAKE_NCCL_FAULTS'] = {text!r}")
        if has_joined:
            ranks.call(JOIN)
        return ranks

    return start


def outcomes(ranks: Job, code: str = REDUCE) -> list[Outcome]:
    ranks.begin(code)
    return ranks.outcomes()


def closed(ranks: Job) -> None:
    """The next call of each rank tells what has closed this."""
    for outcome in outcomes(ranks):
        assert outcome.error == "Closed", outcome
        assert outcome.cause is not None


def test_an_error_of_nccl_is_a_device_error_on_every_rank(
    pair: Callable[..., Job], log: Path
) -> None:
    ranks = pair("AllReduce:2:cuda")
    ranks.call(REDUCE)
    for outcome in outcomes(ranks):
        assert outcome.error == "DeviceError", outcome
        assert "all_reduce #" in outcome.text
        assert "ncclAllReduce: unhandled cuda error: the fake was told to fail" in outcome.text
    closed(ranks)
    # One of them may have heard of it before it called.
    ranks.call("nccl.core.close()")
    assert log.read_text().splitlines().count("CommAbort") == 2


def test_a_killed_rank_is_lost_by_name(pair: Callable[..., Job], log: Path) -> None:
    ranks = pair("AllReduce:2:remote")
    ranks.call(REDUCE)
    first, victim = ranks.ranks
    first.begin(REDUCE)
    while log.read_text().count("AllReduce") < 3:  # Else it may hear of the end before its call.
        os.sched_yield()
    at = victim.kill()
    outcome = first.outcome()
    assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome
    assert "all_reduce #" in outcome.text
    assert "rank 1" in outcome.text
    assert outcome.at - at < GRACE
    assert "CommAbort" in log.read_text()


def test_a_remote_error_that_nobody_explains_is_a_lost_peer_without_a_name(
    pair: Callable[..., Job],
) -> None:
    for outcome in outcomes(pair("AllReduce:1:remote", "AllReduce:1:hang")):
        assert (outcome.error, outcome.lost) == ("PeerLost", -1), outcome
        assert "network error" in outcome.text


def test_a_rank_that_never_calls_is_named_when_the_time_is_up(pair: Callable[..., Job]) -> None:
    ranks = pair(timeout=2.0)
    ranks.ranks[0].begin(REDUCE)
    outcome = ranks.ranks[0].outcome()
    assert outcome.error == "TimedOut", outcome
    assert "all_reduce #" in outcome.text
    assert "rank 1" in outcome.text


@pytest.mark.parametrize("fault", ["AllReduce:1:hang", "AllReduce:1:stuck"])
def test_a_call_that_never_ends_is_timed_out_and_aborted(
    pair: Callable[..., Job], log: Path, fault: str
) -> None:
    ranks = pair(fault, fault, timeout=2.0)
    for outcome in outcomes(ranks):
        assert outcome.error == "TimedOut", outcome
        assert "not finished within its timeout of 2 s" in outcome.text
    ranks.call("nccl.core.close()")
    assert log.read_text().splitlines().count("CommAbort") == 2


def test_an_abort_that_does_not_return_holds_nobody(pair: Callable[..., Job]) -> None:
    ranks = pair("AllReduce:1:hang,CommAbort:1:block", "AllReduce:1:hang", timeout=1.0)
    first = outcomes(ranks)[0]
    assert first.error == "TimedOut", first
    assert "ncclCommAbort does not return" in ranks.ranks[0].log


def test_a_goodbye_that_nobody_answers_ends_in_an_abort_and_holds_no_other_thread(
    pair: Callable[..., Job], log: Path
) -> None:
    ranks = pair("CommFinalize:1:stuck")
    code = f"""
import threading, time
turns, is_over = [], threading.Event()
def count():
    while not is_over.wait(0.01):
        turns.append(1)
thread = threading.Thread(target=count)
{REDUCE}
thread.start()
begin = time.monotonic()
del nccl
result = [len(turns), time.monotonic() - begin]
is_over.set()
thread.join()
"""
    (turns, seconds), (_, at_once) = ranks.call(code)
    assert turns > 20
    assert 1.9 < seconds < GRACE
    assert at_once < 1.9
    lines = log.read_text().splitlines()
    assert lines.count("CommDestroy") == lines.count("CommAbort") == 1


def test_a_call_that_is_refused_is_never_launched(pair: Callable[..., Job], log: Path) -> None:
    ranks = pair()
    code = """
works, refused = [], ""
if comm.rank == 0:
    try:
        while True:
            works.append(nccl.submit("all_reduce", x[:1], x[:1], reduce_op="max"))
    except gr.InvalidArgument as error:
        refused = str(error)
    comm.send(np.array([len(works)]), 1)
else:
    wanted = np.zeros(1, np.int64)
    comm.recv(wanted, 0)
    works = [nccl.submit("all_reduce", x[:1], x[:1], reduce_op="max") for _ in range(wanted[0])]
works[-1].wait(PATIENCE_MS)
nccl.run("all_reduce", x, x)
result = [len(works), refused, float(x[0])]
"""
    (count, refused, first), (other_count, _, second) = ranks.call(code)
    assert "asynchronous operations are waiting already" in refused
    assert count == other_count
    assert first == second == 2.0
    assert log.read_text().count("AllReduce 1\n") == 2 * count


def test_different_calls_are_a_mismatch(pair: Callable[..., Job]) -> None:
    ranks = pair()
    ranks.ranks[0].begin(REDUCE)
    ranks.ranks[1].begin("nccl.run('all_reduce', x[:10], x[:10], reduce_op='max')")
    for outcome in ranks.outcomes():
        assert outcome.error == "Mismatch", outcome
        assert "float32 x 1000, sum" in outcome.text
        assert "float32 x 10, max" in outcome.text


def test_a_slow_library_is_waited_for(pair: Callable[..., Job]) -> None:
    ranks = pair("AllReduce:1:slow,GroupEnd:1:slow,CommFinalize:1:slow")
    code = (
        f"{REDUCE}\nnccl.run('all_to_all', x, x.copy(), parts=[500] * 2, recv_parts=[500] * 2)\n"
        "nccl.core.close()\nresult = float(x[0])"
    )
    assert ranks.call(code) == [2.0, 2.0]


def test_a_group_that_fails_leaves_none_open(pair: Callable[..., Job], log: Path) -> None:
    ranks = pair("Send:2:system", timeout=4.0)
    code = "nccl.run('all_to_all', x, x.copy(), parts=[500] * 2, recv_parts=[500] * 2)"
    for outcome in outcomes(ranks, code):
        assert outcome.error == "DeviceError", outcome
        assert "ncclSend: unhandled system error" in outcome.text
    lines = log.read_text().splitlines()
    assert lines.count("GroupStart") == lines.count("GroupEnd")


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("CommInitRankConfig:1:cuda", "DeviceError", "unhandled cuda error"),
        ("CommInitRankConfig:1:stuck", "TimedOut", "timeout of 2 s"),
        ("CommInitRankConfig:1:block", "TimedOut", "timeout of 2 s"),
    ],
)
def test_ranks_that_cannot_meet_all_hear_why(
    pair: Callable[..., Job], fault: str, error: str, words: str
) -> None:
    ranks = pair("", fault, has_joined=False, timeout=2.0 if error == "TimedOut" else 30.0)
    for outcome in outcomes(ranks, JOIN):
        assert outcome.error == error, outcome
        assert words in outcome.text


def test_a_rank_with_an_old_library_is_named_to_all(pair: Callable[..., Job]) -> None:
    ranks = pair(has_joined=False)
    ranks.ranks[1].call("os.environ['FAKE_NCCL_VERSION'] = '21705'")
    for outcome in outcomes(ranks, JOIN):
        assert outcome.error == "DeviceError", outcome
        assert "rank 1" in outcome.text
        assert "NCCL 2.17.5 at" in outcome.text
        assert "is too old; 2.18.0 or newer" in outcome.text


def test_ranks_with_different_libraries_do_not_meet(pair: Callable[..., Job]) -> None:
    ranks = pair(has_joined=False)
    ranks.ranks[1].call("os.environ['FAKE_NCCL_VERSION'] = '23004'")
    for outcome in outcomes(ranks, JOIN):
        assert outcome.error == "DeviceError", outcome
        assert "has version 2.30.4, rank 0 2.28.9" in outcome.text


FIND = (
    "import gradring as gr\nfrom gradring.machine import nccl\n"
    "try:\n    print(*nccl.find())\nexcept gr.DeviceError as error:\n    print(error)"
)


def test_the_library_is_looked_for_in_its_order(fake_nccl: Path, tmp_path: Path) -> None:
    environ = {"GRADRING_NCCL_LIB": "", "LD_LIBRARY_PATH": str(fake_nccl.parent)}
    assert run(FIND, GRADRING_NCCL_LIB=str(fake_nccl)).strip() == f"2.28.9 {fake_nccl}"
    assert run(FIND, **environ).strip() == f"2.28.9 {fake_nccl}"
    gone = tmp_path / "gone.so"
    text = run(FIND, GRADRING_NCCL_LIB=str(gone))
    assert text.startswith(f"NCCL was not found: GRADRING_NCCL_LIB={gone}: ")
    # A copy that is loaded already comes before the one that would be found.
    loaded = tmp_path / "libnccl.so.2"
    loaded.write_bytes(fake_nccl.read_bytes())
    load = f"import ctypes\nkept = ctypes.CDLL({str(loaded)!r})\n"
    assert run(load + FIND, **environ).strip() == f"2.28.9 {loaded}"


def test_wheels_are_looked_into_without_importing_them(
    fake_nccl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    (folder / "libnccl.so.2").write_bytes(fake_nccl.read_bytes())
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    found = run(FIND, GRADRING_NCCL_LIB="", PYTHONPATH=path, FAKE_NCCL_VERSION="21803")
    assert found.strip() == f"2.18.3 {folder / 'libnccl.so.2'}"


def test_the_build_tells_which_nccl_is_used(fake_nccl: Path) -> None:
    code = "import gradring as gr\nprint(gr.build_info()['nccl'])"
    assert str(fake_nccl) in run(code, GRADRING_NCCL_LIB=str(fake_nccl))
    assert "missing" in run(code, GRADRING_NCCL_LIB="/nowhere.so")
    assert nccl.wheel_paths() is not None
    assert gr.build_info()["nccl"]
