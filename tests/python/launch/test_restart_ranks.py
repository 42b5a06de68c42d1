"""gradring run --restart-ranks: lost ranks are started again, and join the others in grow()."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from launcher_runs import (
    LIVE,
    Run,
    Start,
    is_alive,
    launching,
    patched,
    read_error,
    run_patched,
    wait_for_end,
)
from thread_ranks import TRANSPORTS, free_ports

pytestmark = pytest.mark.timeout(90)

# The loop of docs/training.md, until who was lost is back: the victim dies in its fifth step.
LOOP = (
    LIVE
    + """
import numpy as np
import gradring as gr
def train(victims, size, join=gr.init):
    comm, weights = join(), np.zeros(2)
    is_first = "GRADRING_NEWCOMER" not in os.environ
    shared, step = None, 0
    while step < 12:
        try:
            if comm is not shared:
                state = comm.broadcast(np.array([step, *weights]))
                step, weights, shared = int(state[0]), state[1:], comm
            weights += comm.all_reduce(np.array([comm.rank, 1.0]), "avg")
            if is_first and step == 5 and rank in victims: os.kill(os.getpid(), signal.SIGKILL)
            step += step < 8 or comm.world_size == size
            if step < 12: comm = comm.grow()
        except gr.PeerLost:
            comm = comm.shrink()
    names = "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NEWCOMER"
    own = [os.environ.get("GRADRING_" + name) for name in names]
    print("end", *own, comm.rank, comm.world_size, *weights, flush=True)
    return comm
"""
)

# Rank 1 dies with all in the job; the others shrink, and then do what comes behind this.
LOSE_RANK_1 = (
    LIVE
    + """
import gradring as gr
comm = gr.init()
comm.barrier()
if os.environ["GRADRING_RANK"] == "1": os.kill(os.getpid(), signal.SIGKILL)
try: comm.barrier()
except gr.PeerLost: comm = comm.shrink()
"""
)


# What has left its process group's leader says so; its successor says that it is there.
SPAWN_IN_GROUP = (
    LIVE
    + """
if "GRADRING_NEWCOMER" in os.environ: print("comes again", flush=True)
elif rank == 1:
    sleeper = [sys.executable, "-c", "import signal\\nwhile True: signal.pause()"]
    print("left", subprocess.Popen(sleeper).pid, flush=True)
"""
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with launching(tmp_path) as start:
        yield start


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[str, ...]:
    """Options for two hosts, red with rank 0 and blue with ranks 1 and 2."""
    ssh = tmp_path / "fake-ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec setsid --wait sh -c "$*"\n')
    ssh.chmod(0o755)
    (tmp_path / "hosts").write_text("red\nblue slots=2\n")
    return ("--hosts", "hosts", "--ssh", str(ssh), "--rendezvous", "127.0.0.1:0")


def ends_of(lines: list[str]) -> list[list[str]]:
    """Return what each rank printed in the end, without what all have to agree on."""
    ends = [line.split() for line in lines if " end " in line]
    assert len({tuple(end[-2:]) for end in ends}) == 1, lines
    return sorted(end[2:-2] for end in ends)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_comes_back_and_all_agree(
    start: Start, transport: str, victim: int
) -> None:
    options = ("-n", "3", "--restart-ranks", "--transport", transport)
    code, lines, err = start(LOOP + f"train([{victim}], 3)\n", *options).finish()
    assert code == 0, err
    survivors = [rank for rank in range(3) if rank != victim]
    assert ends_of(lines) == sorted(
        [[str(old), str(old), "3", "None", str(new), "3"] for new, old in enumerate(survivors)]
        + [[str(victim), str(victim), "3", "1", "2", "3"]]
    )
    assert f"gradring: rank {victim}: killed by SIGKILL" in err
    assert "starting it again in 0.1 s, to join the others" in err
    assert f"gradring: rank {victim} is in the job again, as rank 2 of 3" in err


def test_two_lost_ranks_come_back_through_ports_of_a_range_beside_servers(start: Start) -> None:
    program = LOOP + (
        "def join(): return gr.join(os.environ['GRADRING_RENDEZVOUS'])\n"
        "train([1, 2], 3, join=join if 'GRADRING_NEWCOMER' in os.environ else gr.init)\n"
        "gr.ps.connect().close()\n"
    )
    with free_ports(9) as (first, last):
        options = ("-n", "3", "--restart-ranks", "--servers", "1", "--ports", f"{first}-{last}")
        code, lines, err = start(program, *options, "--no-prefix").finish()
    assert code == 0, err
    assert len([line for line in lines if line.startswith("end ")]) == 3
    assert err.count("is in the job again") == 2


def test_ranks_of_several_hosts_come_back_on_their_own(
    start: Start, hosts: tuple[str, ...]
) -> None:
    # All that red has, and with it rank 0.
    code, lines, err = start(LOOP + "train([0], 3)\n", *hosts, "--restart-ranks").finish()
    assert code == 0, err
    assert ends_of(lines) == [
        ["0", "0", "1", "1", "2", "3"],
        ["1", "0", "2", "None", "0", "3"],
        ["2", "1", "2", "None", "1", "3"],
    ]
    assert "rank 0: killed by SIGKILL (kill -9, or the kernel when memory ran out), on red" in err


def test_a_newcomer_that_nobody_lets_in_is_stopped_when_the_others_have_ended(
    start: Start, tmp_path: Path
) -> None:
    program = (
        LIVE
        + "if 'GRADRING_NEWCOMER' in os.environ: print('newcomer', os.getpid(), flush=True)\n"
        + LOSE_RANK_1
        + "open(f'gate{rank}').read()\n"
    )
    for rank in (0, 2):
        os.mkfifo(tmp_path / f"gate{rank}")
    run = start(program, "-n", "3", "--restart-ranks")
    newcomer = int(run.until(r"newcomer (\d+)")[0][1])
    for rank in (0, 2):
        (tmp_path / f"gate{rank}").write_text("")
    code, _, err = run.finish()
    assert code == 0
    assert "gradring: rank 1 was not let in again before the others had ended" in err
    assert not is_alive(newcomer)


@pytest.mark.parametrize("before", ["", "import gradring as gr; gr.init().barrier(); "])
def test_a_script_with_an_error_in_it_fails_at_once_and_the_first_rank_is_named(
    start: Start, before: str
) -> None:
    code, _, err = start(f"{before}raise SystemExit(7)\n", "-n", "3", "--restart-ranks").finish()
    assert code == 7
    assert re.search(r"^gradring: rank \d failed first: exit code 7", err, re.MULTILINE)
    assert " is in the job again" not in err


def test_who_loses_a_rank_and_does_not_go_on_fails_the_job_and_the_lost_one_is_named(
    start: Start,
) -> None:
    program = LOSE_RANK_1.replace("except gr.PeerLost: comm = comm.shrink()", "finally: pass")
    code, _, err = start(program, "-n", "3", "--restart-ranks").finish()
    assert code == 128 + signal.SIGKILL
    assert "gradring: rank 1 failed first: killed by SIGKILL" in err


def test_a_rank_that_no_start_helps_fails_the_job_with_its_last_words(tmp_path: Path) -> None:
    program = LIVE + "if 'GRADRING_NEWCOMER' in os.environ: sys.exit('cannot load')\n"
    (tmp_path / "program.py").write_text(program + LOSE_RANK_1 + "signal.pause()\n")
    two = "from gradring.launch.outcome import Restarts; Restarts.MOST = 2\n"  # Of ten.
    ended = run_patched(two, "-n", "3", "--restart-ranks", str(tmp_path / "program.py"))
    assert ended.returncode == 1
    assert ended.stderr.count("starting it again") == 2
    assert "rank 1 failed first: exit code 1" in ended.stderr
    assert "not started again: 2 starts in a row were in vain" in ended.stderr
    assert "standard error:\n    cannot load\n" in ended.stderr
    assert "after that: ranks 0, 2 stopped" in ended.stderr


def test_with_keep_going_the_others_finish_without_a_rank_that_no_start_helps(
    tmp_path: Path,
) -> None:
    program = LIVE + "if 'GRADRING_NEWCOMER' in os.environ: sys.exit('cannot load')\n"
    until_told = "sys.stdin = open('gate'); sys.stdin.read(); print('done')\n"
    (tmp_path / "program.py").write_text(program + LOSE_RANK_1 + until_told)
    os.mkfifo(tmp_path / "gate")
    none = "from gradring.launch.outcome import Restarts; Restarts.MOST = 0\n"
    options = ("-n", "2", "--restart-ranks", "--keep-going", str(tmp_path / "program.py"))
    with subprocess.Popen(
        patched(none, *options), cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True
    ) as process:
        run = Run(process)
        read_error(run, "rank 1 failed first: killed by SIGKILL")
        (tmp_path / "gate").write_text("")
        code, lines, _ = run.finish()
    assert (code, lines) == (128 + signal.SIGKILL, ["[0] done"])


def test_with_keep_going_each_rank_that_is_not_started_again_any_more_is_named(
    tmp_path: Path,
) -> None:
    second = "open(f'gate{rank}').read()\nif rank == 2: sys.exit(f'no {rank}')\n"
    (tmp_path / "program.py").write_text(LOSE_RANK_1 + second)
    for name in ("gate0", "gate2"):
        os.mkfifo(tmp_path / name)
    none = "from gradring.launch.outcome import Restarts; Restarts.MOST = 0\n"
    options = ("-n", "3", "--restart-ranks", "--keep-going", str(tmp_path / "program.py"))
    with subprocess.Popen(
        patched(none, *options), cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True
    ) as process:
        run = Run(process)
        read_error(run, "rank 1 failed first: killed by SIGKILL")
        (tmp_path / "gate2").write_text("")
        said = read_error(run, "    no 2")
        assert "rank 2 failed: exit code 1" in said
        assert "not started again: 0 starts in a row were in vain" in said
        (tmp_path / "gate0").write_text("")
        assert run.finish()[0] == 128 + signal.SIGKILL


def test_a_rank_that_fails_behind_the_last_step_fails_the_job_that_the_others_finish(
    start: Start, tmp_path: Path
) -> None:
    program = (
        LIVE
        + "if 'GRADRING_NEWCOMER' in os.environ: print('comes again', flush=True)\n"
        + "import gradring as gr\n"
        + "comm = gr.init()\n"
        + "comm.barrier()\n"
        + "if rank == 0: sys.exit('the disk is full')\n"
        + "sys.stdin = open('gate'); sys.stdin.read()\n"
    )
    os.mkfifo(tmp_path / "gate")
    run = start(program, "-n", "2", "--restart-ranks")
    run.until("comes again")
    (tmp_path / "gate").write_text("")
    code, _, err = run.finish()
    assert code == 1
    assert "rank 0 was not let in again before the others had ended" in err
    assert re.search("rank 0 failed first: .*; the others have not gone on without it\n", err)
    assert "standard error:\n    the disk is full\n" in err


def test_a_rank_that_raises_and_ends_behind_the_others_who_went_on_fails_no_job(
    start: Start, tmp_path: Path
) -> None:
    program = LIVE + (
        "import gradring as gr\n"
        "comm = gr.init()\n"
        "comm.barrier()\n"
        "if rank == 1:\n"
        "    comm.close()\n"
        "    sys.stdin = open('gate')\n"
        "    sys.stdin.read()\n"
        "    sys.exit(3)\n"
        "try: comm.barrier()\n"
        "except gr.PeerLost: comm = comm.shrink()\n"
        "print('done', os.getpid(), flush=True)\n"
    )
    os.mkfifo(tmp_path / "gate")
    run = start(program, "-n", "2", "--restart-ranks")
    wait_for_end(int(run.until(r"done (\d+)")[0][1]))
    (tmp_path / "gate").write_text("")
    code, _, err = run.finish()
    assert code == 0
    assert "rank 1: exit code 3" in err
    assert "rank 1 was not let in again before the others had ended" in err


def test_a_start_again_that_the_system_refuses_stops_nobody(start: Start, tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    program = LOSE_RANK_1.replace(
        "if os.environ", "if rank == 1: os.remove('python')\nif os.environ"
    )
    os.mkfifo(tmp_path / "gate")
    options = ("-n", "2", "--restart-ranks", "--python", "./python")
    run = start(program + "open('gate').read(); print('done')\n", *options)
    read_error(run, "[1] cannot restart: ")
    (tmp_path / "gate").write_text("")
    code, lines, _ = run.finish()
    assert (code, lines) == (0, ["[0] done"])


def test_ctrl_c_in_the_pause_starts_nobody(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LOSE_RANK_1 + "signal.pause()\n")
    long = "from gradring.launch.outcome import Restarts; Restarts.FIRST_PAUSE_SECONDS = 60\n"
    long += "Restarts.LONGEST_PAUSE_SECONDS = 60\n"
    command = patched(long, "-n", "2", "--restart-ranks", str(tmp_path / "program.py"))
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        run = Run(process)
        read_error(run, "starting it again in 60.0 s")
        process.send_signal(signal.SIGINT)
        code, _, err = run.finish()
    assert code == 130
    assert "again" not in err


def test_what_a_lost_rank_has_left_is_gone_when_it_comes_again(start: Start) -> None:
    program = SPAWN_IN_GROUP + LOSE_RANK_1 + "signal.pause()\n"
    run = start(program, "-n", "2", "--restart-ranks")
    left = int(run.until(r"left (\d+)")[0][1])
    run.until("comes again")
    wait_for_end(left)
    run.process.send_signal(signal.SIGINT)
    assert run.finish()[0] == 130


def test_a_worker_of_servers_alone_is_started_again_as_the_rank_it_was(start: Start) -> None:
    program = LIVE + (
        "import numpy as np\n"
        "import gradring as gr\n"
        "ps = gr.ps.connect()\n"
        "table = ps.dense_table('t', 1, optimizer=gr.optim.SGD(lr=1.0))\n"
        "first = rank == 1 and not os.path.exists('been')\n"
        "if first: open('been', 'w').close()\n"
        "table.push(np.ones(1, np.float32))\n"
        "if first: os.kill(os.getpid(), signal.SIGKILL)\n"
        "while float(table.pull()[0]) > -3: pass\n"
        "print(rank, 'GRADRING_NEWCOMER' in os.environ)\n"
    )
    options = ("-n", "2", "--servers", "1", "--restart-ranks", "--no-prefix")
    code, lines, err = start(program, *options).finish()
    assert code == 0, err
    assert {"0 False", "1 False"} <= set(lines)
    assert "starting it again in 0.1 s\n" in err
