"""gradring run that ends before it has begun, or may not end somebody: nothing is left behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradring.launch import processes
from gradring.launch.agent import Agent
from launcher_runs import LIVE, Start, launching, patched, run_patched, wait_for_end

# Says on standard error what agents are told.
TELL_COMMANDS = (
    "from gradring.launch.link import AgentLink\n"
    "send = AgentLink.send\n"
    "def told(self, **command):\n"
    "    print('told', command['do'], file=sys.stderr)\n"
    "    send(self, **command)\n"
    "AgentLink.send = told\n"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with launching(tmp_path) as start:
        yield start


def test_after_ctrl_c_no_rank_is_started() -> None:
    ended = run_patched(
        TELL_COMMANDS + "from gradring.launch.job import Job\n"
        "note = Job._note_port\n"
        "def late(self, *args):\n"
        "    self._take_signal(2)\n"
        "    note(self, *args)\n"
        "Job._note_port = late\n",
        *("-n", "2", "sh", "-c", "echo started"),
    )
    assert (ended.returncode, ended.stdout) == (130, "")
    assert [line for line in ended.stderr.splitlines() if "told" in line] == [
        "told listen",
        "told stop",
    ]


def test_an_agent_that_was_told_to_stop_starts_nothing_any_more() -> None:
    stop = {"do": "stop", "signal": signal.SIGINT, "servers": False}
    listen = {"do": "listen", "number": 0, "host": "127.0.0.1", "port": 0}
    begin = {"do": "start", "ranks": [0], "servers": [], "argv": ["true"], "server_argv": []}
    begin |= {"cwd": "/", "environ": {}, "grace": 5, "bind": False, "programs": "", "share": [0, 1]}
    ended = subprocess.run(
        [sys.executable, "-m", "gradring.launch.agent"],
        input="".join(json.dumps(each) + "\n" for each in (stop, listen, begin)).encode(),
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"started" not in ended.stdout
    assert b"listening" not in ended.stdout


def test_a_host_that_still_connects_keeps_nobody_from_hearing_signals(
    start: Start, tmp_path: Path
) -> None:
    # Both say that they are there; then one reads nothing, however long its command is.
    ssh = tmp_path / "fake-ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        '[ "$1" = stuck ] && { echo $$ > stuck; exec tail -f /dev/null; }\n'
        'shift; exec setsid --wait sh -c "$*"\n'
    )
    ssh.chmod(0o755)
    os.mkfifo(tmp_path / "stuck")
    (tmp_path / "hosts").write_text("red\nstuck\n")
    options = ["--hosts", str(tmp_path / "hosts"), "--ssh", str(ssh), "--grace", "0"]
    environ = {"LONG": "x" * 100_000, "OMP_NUM_THREADS": "1"}  # Nothing is said of threads then.
    run = start(LIVE, *options, "--env", "LONG", "--verbose", environ=environ)
    stuck = int((tmp_path / "stuck").read_text())
    assert run.process.stderr is not None
    assert "rank 0: process" in run.process.stderr.readline()  # Both were told to start by then.
    for _ in range(2):
        run.process.send_signal(signal.SIGINT)
        assert "SIGINT" in run.process.stderr.readline()
    os.kill(stuck, signal.SIGKILL)
    assert run.finish()[0] == 130
    wait_for_end(stuck)


def test_a_command_longer_than_a_pipe_reaches_a_host_once_it_reads(
    start: Start, tmp_path: Path
) -> None:
    ssh = tmp_path / "fake-ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        '[ "$1" = late ] && open=$(cat gate)\n'  # Reads only when the other one's rank runs.
        'shift; exec setsid --wait sh -c "$*"\n'
    )
    ssh.chmod(0o755)
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "hosts").write_text("red\nlate\n")
    options = ["--hosts", str(tmp_path / "hosts"), "--ssh", str(ssh), "--env", "LONG"]
    program = LIVE + "if rank == 0: open('gate', 'w').write('')\nprint(len(os.environ['LONG']))\n"
    run = start(program, *options, environ={"LONG": "x" * 100_000})
    code, lines, err = run.finish()
    assert (code, sorted(lines), err) == (0, ["[0] 100000", "[1] 100000"], "")


def test_an_ssh_that_lingers_keeps_nobody_from_hearing_signals(tmp_path: Path) -> None:
    ssh = tmp_path / "fake-ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        f'cd {tmp_path}; shift; setsid --wait sh -c "$*"\n'
        "exec >&- 2>&-; echo $$ > lingers; exec sleep infinity\n"
    )
    ssh.chmod(0o755)
    os.mkfifo(tmp_path / "lingers")
    (tmp_path / "hosts").write_text("red\n")
    patch = "from gradring.launch import job\njob._TEARDOWN_SECONDS = 1000.0\n"
    options = ["--hosts", str(tmp_path / "hosts"), "--ssh", str(ssh)]
    with subprocess.Popen(patched(patch, *options, "true"), stderr=subprocess.PIPE) as run:
        lingers = int((tmp_path / "lingers").read_text())
        run.send_signal(signal.SIGINT)
        _, err = run.communicate()
    assert b"Traceback" not in err
    wait_for_end(lingers)


def not_ours(*_: int) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["tail", "-f", "/dev/null"], process_group=0) as process:
        yield process
        process.send_signal(signal.SIGKILL)


def test_processes_of_another_user_are_left_alone(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = frozenset(processes._children()) - {sleeper.pid}
    with monkeypatch.context() as patch:
        patch.setattr(processes, "UNKILLABLE_SECONDS", 0.0)
        for name in ("kill", "killpg"):
            patch.setattr(os, name, not_ours)
        processes.Orphans(before).end(except_for=(), session=None)
        Agent(0, 1)._send(signal.SIGTERM, [sleeper.pid])
    assert sleeper.poll() is None
