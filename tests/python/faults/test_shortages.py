"""What a machine refuses (threads, descriptors) is said of who lacks it; nothing is half done."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ps_servers import SECRET, serving
from rank_job import StartJob
from thread_ranks import TRANSPORTS, listening_socket

pytestmark = [pytest.mark.timeout(60)]

NO_DESCRIPTORS = """
import os, resource
taken = []
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, most))
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for _ in range({left}):
    os.close(taken.pop())
"""

NO_THREADS = """
import resource
def refused(call):
    status = open("/proc/self/status").read().split()
    mapped = int(status[status.index("VmSize:") + 1]) * 1024
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (2 << 20), before[1]))  # A stack takes more.
    try:
        call()
    except gr.DeviceError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
"""


def run(ranks: Any, *programs: str) -> list[Any]:
    for rank, program in zip(ranks.ranks, programs, strict=True):
        rank.begin(program)
    outcomes: list[Any] = ranks.outcomes(ranks.ranks)
    return outcomes


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_without_descriptors_says_so_and_nobody_else_is_accused(
    job: StartJob, transport: str
) -> None:
    ranks = job(2, transport=transport)
    for outcome in run(
        ranks,
        NO_DESCRIPTORS.format(left=0) + "comm.send(np.ones(4), 1)",
        "comm.recv(np.ones(4), 0)",
    ):
        assert outcome.error == "DeviceError", outcome
        assert "rank 0 (" in outcome.text, outcome
        assert "can open no connection to rank 1 (" in outcome.text, outcome
        assert "Too many open files; see its process's ulimit -n" in outcome.text, outcome


def test_nor_where_it_has_none_left_for_the_memory_that_it_would_share(job: StartJob) -> None:
    ranks = job(2, transport="shm")
    for outcome in run(
        ranks,
        NO_DESCRIPTORS.format(left=1) + "comm.send(np.ones(4), 1)",
        "comm.recv(np.ones(4), 0)",
    ):
        assert outcome.error == "DeviceError", outcome
        assert "creating" in outcome.text, outcome
        assert "Too many open files; see this process's ulimit -n" in outcome.text, outcome


def test_nor_where_it_cannot_take_the_memory_that_it_is_passed(job: StartJob) -> None:
    ranks = job(2, transport="shm")
    ranks.ranks[1].begin(NO_DESCRIPTORS.format(left=1) + "say('short'); comm.recv(np.ones(4), 0)")
    ranks.ranks[1].expect("short")
    ranks.ranks[0].begin("comm.send(np.ones(4), 1); comm.recv(np.ones(4), 1)")
    for outcome in ranks.outcomes():
        assert outcome.error == "DeviceError", outcome
        assert "ulimit -n" in outcome.text, outcome


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("comm.all_reduce(x, out=out, async_op=True)", "progress"),
        ("comm.recv(out, 1, async_op=True)", "messages"),
    ],
)
def test_a_call_that_gets_no_thread_has_not_begun(job: StartJob, call: str, what: str) -> None:
    ranks = job(2, transport="tcp", timeout=5)
    first = f"""
{NO_THREADS}
x, out = np.full(1000, 7.0), np.zeros(1000)
text = refused(lambda: {call})
assert "starts no more threads, and the {what} thread is needed" in text, text
comm.barrier()
y = np.ones(3)
comm.all_reduce(y, async_op=True).wait()
z = np.zeros(3)
assert comm.recv(z, 1, async_op=True).wait() is z
assert (y == 2).all() and (z == 5).all() and (out == 0).all()
"""
    second = """
comm.barrier()
comm.all_reduce(np.ones(3))
comm.send(np.full(3, 5.0), 0)
"""
    for outcome in run(ranks, first, second):
        assert outcome.error is None, outcome


def test_a_rank_that_gets_no_monitor_says_so_when_it_joins(job: StartJob) -> None:
    ranks = job(0)
    listen_fd, address = listening_socket("127.0.0.1")
    settings = f"world_size=2, rendezvous={address!r}, secret='of this test only', timeout=20"
    ranks.spawn(0, listen_fd).begin(f"join(rank=0, listen_fd={listen_fd}, {settings})")
    os.close(listen_fd)
    # What a first call imports needs memory as well: that is there before the limit.
    text = ranks.spawn(1).call(f"""
{NO_THREADS}
gr.init(rank=0, world_size=1).close()
result = refused(lambda: gr.init(rank=1, {settings}))
""")
    assert "starts no more threads, and the monitor thread is needed" in text


def test_a_connection_to_servers_that_gets_no_thread_says_so(job: StartJob) -> None:
    ranks = job(0)
    with serving() as addresses:
        text = ranks.spawn(0).call(f"""
{NO_THREADS}
to = dict(secret={SECRET!r}, transport="tcp", timeout=20)
connect = gr.ps.connect  # Imported before memory is short.
result = refused(lambda: connect({addresses!r}, **to))
connect({addresses!r}, **to).close()
""")
    assert "starts no more threads, and the client thread is needed" in text
