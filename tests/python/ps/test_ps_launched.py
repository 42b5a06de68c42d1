"""gradring run --servers with real servers: ranks train on them, also when one is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher_runs import Start, launching

# Each rank adds 1 to 64 rows and to an array, twenty times; DIE is put into rank 0's loop.
TRAIN = """
import os, pathlib, signal
import numpy as np
import gradring as gr

comm, ps = gr.init(), gr.ps.connect()
table = ps.sparse_table("t", 4, gr.optim.Sum())
dense = ps.dense_table("d", 100, gr.optim.Sum())
ids = np.arange(64)

def kill_server(index):
    agent = os.getppid()
    for pid in pathlib.Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\\0")
        if "serve" in words and words[words.index("--index") + 1] == str(index):
            os.kill(int(pid), signal.SIGKILL)

for step in range(20):
    table.push(ids, np.ones((64, 4), np.float32), async_op=True)
    dense.push(np.ones(100, np.float32))
    if comm.rank == 0 and step == 10:
        pass  # DIE
ps.flush()
comm.barrier()
rows, array = table.pull(ids), dense.pull()
assert (rows == 40).all() and (array == 40).all(), (rows, array)
print(f"client {ps.client} of {len(ps.servers)} servers has everything")
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with launching(tmp_path) as start:
        yield start


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_find_their_servers_and_every_push_counts(start: Start, transport: str) -> None:
    options = ("-n", "2", "--servers", "2", "--transport", transport)
    code, lines, err = start(TRAIN, *options).finish()
    assert (code, err) == (0, "")
    for rank in range(2):
        assert f"[{rank}] client {rank} of 2 servers has everything" in lines
        assert any(line.startswith(f"[s{rank}] gradring: server {rank} of 2 at") for line in lines)


def test_a_killed_server_comes_back_from_its_log_and_nothing_is_lost_or_done_twice(
    start: Start, tmp_path: Path
) -> None:
    program = TRAIN.replace("pass  # DIE", "kill_server(1)")
    options = ("--servers", "2", "--server-log", str(tmp_path / "log"), "--restart-servers")
    code, lines, err = start(program, "-n", "2", *options).finish()
    assert code == 0, err
    assert "server 1: killed by SIGKILL" in err
    assert sum("server 1 of 2 at" in line for line in lines) == 2
    assert sum("has everything" in line for line in lines) == 2


def test_a_killed_server_without_a_log_fails_the_job(start: Start) -> None:
    program = TRAIN.replace("pass  # DIE", "kill_server(0)")
    code, _, err = start(program, "-n", "2", "--servers", "2").finish()
    assert code == 128 + 9
    assert "gradring: server 0 failed first: killed by SIGKILL" in err
