"""init() more than once: in turn it makes one world after the other, and never two at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher_runs import Start, launching

pytestmark = pytest.mark.timeout(90)

PROGRAM = "import os, sys, select, subprocess\nimport numpy as np\nimport gradring as gr\n"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with launching(tmp_path) as start:
        yield start


@pytest.mark.parametrize("late", [0, 1])
def test_a_closed_world_may_be_followed_by_another(start: Start, late: int) -> None:
    program = PROGRAM + (
        "for turn in range(3):\n"
        "    with gr.init() as comm:\n"
        "        assert comm.all_reduce(np.ones(1))[0] == 3\n"
        # Others come while this rank is still in the world before.
        f"        if comm.rank == {late}: select.poll().poll(300)\n"
        "print('done')\n"
    )
    code, lines, err = start(program, "-n", "3").finish()
    assert (code, sorted(lines), err) == (0, [f"[{rank}] done" for rank in range(3)], "")


def test_two_worlds_at_a_time_are_refused_and_the_first_goes_on(start: Start) -> None:
    program = PROGRAM + (
        "comm = gr.init()\n"
        "try: gr.init()\n"
        "except gr.InvalidArgument as error: print(error)\n"
        "assert comm.all_reduce(np.ones(1))[0] == 2\n"
    )
    code, lines, err = start(program, "-n", "2", "--no-prefix").finish()
    assert (code, err) == (0, "")
    assert len(lines) == 2
    assert all("already: use the communicator that init() returned" in line for line in lines)


def test_a_second_world_meets_where_its_arguments_say(start: Start) -> None:
    program = PROGRAM + (
        "import socket\n"
        "comm = gr.init()\n"
        # Bound while others listen there: nobody else is given the number.
        "kept = socket.socket()\n"
        "kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "kept.bind(('127.0.0.1', 0))\n"
        "port = int(comm.broadcast(np.array([kept.getsockname()[1]]))[0])\n"
        "turned = 1 - comm.rank\n"
        "where = f'127.0.0.1:{port}'\n"
        "for rank in (comm.rank, turned):\n"
        "    with gr.init(rank=rank, world_size=2, rendezvous=where, timeout=20) as other:\n"
        "        assert other.all_gather(np.array([comm.rank])).ravel()[rank] == comm.rank\n"
        "with gr.init(rank=0, world_size=1) as alone: assert alone.world_size == 1\n"
        "assert comm.all_reduce(np.ones(1))[0] == 2\n"
        "print('done')\n"
    )
    code, lines, err = start(program, "-n", "2", "--no-prefix").finish()
    assert (code, lines, err) == (0, ["done"] * 2, "")


def test_init_after_a_call_that_has_joined_by_itself_returns_what_that_made(start: Start) -> None:
    program = PROGRAM + (
        "optimizer = gr.distributed([np.zeros(1, np.float32)], gr.optim.SGD(lr=1.0), gr.Sync())\n"
        "try: gr.init(timeout=5)\n"
        "except gr.InvalidArgument as error: print(error)\n"
        "comm = gr.init()\n"
        "assert comm is optimizer.dense_side.comm\n"
        "assert comm.all_reduce(np.ones(1))[0] == 2\n"
        "try: gr.init()\n"
        "except gr.InvalidArgument as error: print(error)\n"
    )
    code, lines, err = start(program, "-n", "2", "--no-prefix").finish()
    assert (code, err) == (0, "")
    assert sum("call init() with its arguments before it" in line for line in lines) == 2
    assert sum("use the communicator that init() returned" in line for line in lines) == 2


def test_a_program_alone_has_one_communicator_whoever_asks_first() -> None:
    program = PROGRAM + (
        "optimizer = gr.distributed([np.zeros(1, np.float32)], gr.optim.SGD(lr=1.0))\n"
        "assert gr.init() is optimizer.dense_side.comm\n"
        "gr.distributed([np.zeros(1, np.float32)], gr.optim.SGD(lr=1.0))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_who_comes_when_all_have_joined_is_told_so(start: Start) -> None:
    program = PROGRAM + (
        "if 'LATE' in os.environ:\n"
        "    try: gr.init(timeout=1)\n"
        "    except gr.TimedOut as error: print(error)\n"
        "    sys.exit()\n"
        "comm = gr.init()\n"
        "if comm.rank == 1:\n"
        "    late = {**os.environ, 'LATE': '1'}\n"
        "    subprocess.run([sys.executable, *sys.orig_argv[1:]], env=late, check=True)\n"
        "assert comm.all_reduce(np.ones(1))[0] == 2\n"
    )
    code, lines, err = start(program, "-n", "2", "--no-prefix").finish()
    assert (code, err) == (0, "")
    assert len(lines) == 1
    assert "all ranks of this job have joined; who comes later calls join()" in lines[0]
