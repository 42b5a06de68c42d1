"""gradring run where its own output goes somewhere slow, full, closed or odd: nothing is lost."""

from __future__ import annotations

import errno
import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gradring.launch.output import LINE_BYTES_MAX, Passage, RankOutput
from gradring.launch.screen import Screen
from launcher_runs import LIVE, WITH_GRANDCHILDREN, is_alive, patched, run_patched
from waiting import freeze, readable

RUN = [sys.executable, "-m", "gradring", "run", "-n", "1"]


def screen_of(out: io.BytesIO, err: io.BytesIO, *terminals: int) -> Screen:
    return Screen(out, err, terminals=frozenset(terminals), has_colour=False)


def run_program(tmp_path: Path, program: str, *options: str, stdout: int) -> subprocess.Popen[str]:
    (tmp_path / "program.py").write_text(program)
    return subprocess.Popen(
        [*RUN, *options, str(tmp_path / "program.py")],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


# Binary, with a bar, a line over the limit, half a line in the end.
ODD = bytes(range(256)) * 3 + b"\r 10%\r 50%\r\n" + b"x" * (3 * LINE_BYTES_MAX) + b"\nno end"


def test_without_prefix_output_is_as_it_was_written() -> None:
    for size in (1000, LINE_BYTES_MAX + 1, len(ODD)):
        out, err = io.BytesIO(), io.BytesIO()
        output = RankOutput(screen_of(out, err), has_prefix=False)
        for start in range(0, len(ODD), size):
            output.take(0, 1, ODD[start : start + size])
        output.finish(0)
        assert out.getvalue() == ODD


def test_without_prefix_lines_of_several_ranks_stay_whole() -> None:
    passage = Passage()
    assert passage.feed(b"one\ntw") == b"one\n"
    assert passage.feed(b"o\n") == b"two\n"
    assert passage.finish() == b""


def test_our_own_words_start_on_a_line_of_their_own() -> None:
    err = io.BytesIO()
    screen = screen_of(io.BytesIO(), err)
    screen.write_as_is(2, b"no end")
    screen.say("rank 0 failed \udce9")
    assert err.getvalue() == b"no end\ngradring: rank 0 failed \\udce9\n"


def test_what_two_streams_lose_is_told_once_each() -> None:
    class Full(io.BytesIO):
        def write(self, _data: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    screen = screen_of(Full(), io.BytesIO())
    screen.write(1, [b"a", b"b"])
    screen.write(1, [b"c"])
    assert [(stream, error.errno) for stream, error in screen.take_lost()] == [(1, errno.ENOSPC)]
    assert screen.take_lost() == []


@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_launcher_whose_pipe_does_not_block_loses_nothing(
    tmp_path: Path, buffering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", buffering)
    reader, writer = os.pipe2(os.O_NONBLOCK)
    run = run_program(tmp_path, LIVE + "os.write(1, b'x' * 1000000)", stdout=writer)
    os.close(writer)
    got = read_all(reader)
    assert (run.communicate()[1], run.returncode) == ("", 0)
    assert got.count(b"x") == 1000000


def test_the_exit_code_is_kept_where_the_last_news_come_late_and_at_once() -> None:
    ended = run_patched(
        "from gradring.launch.job import Job\n"
        "take = Job._take_event\n"
        "def late(self, link, event):\n"
        "    is_done = event['event'] == 'done'\n"
        "    take(self, link, event)\n"
        "    if is_done: os.waitid(os.P_PID, link.pid, os.WEXITED | os.WNOWAIT)\n"
        "Job._take_event = late\n",
        *("sh", "-c", "exit 7"),
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 7


def test_a_rank_whose_first_thread_has_ended_is_waited_for() -> None:
    # Such a process is a zombie to look at, but cannot be reaped: the end of it was not told.
    agent = (
        "from gradring.launch import processes\n"
        "processes.descendants = lambda ancestor: []\n"  # Leaves zombies out.
        "main()"
    )
    ended = run_patched(
        "from gradring.launch import link\n"
        "argv = link._argv\n"
        "def patched(*args):\n"
        "    *start, program, packages = argv(*args)\n"
        f"    return [*start, program.replace('; main()', '\\n' + {agent!r}), packages]\n"
        "link._argv = patched\n",
        *("-n", "2", "sh", "-c", "[ $GRADRING_RANK = 1 ] || exit 3; tail -f /dev/null"),
    )
    assert "after that: rank 1 stopped\n" in ended.stderr
    assert ended.returncode == 3


SAVE_AT_SIGINT = LIVE + (
    "try:\n"
    "    print('ready', flush=True)\n"
    "    while True: print('step', flush=True)\n"
    "except KeyboardInterrupt:\n"
    "    open(sys.argv[1], 'w').close()\n"
)


@pytest.mark.parametrize("is_controlling", [True, False], ids=["hang-up", "without-a-signal"])
def test_a_closed_terminal_stops_the_ranks_as_ctrl_c_does(
    tmp_path: Path, is_controlling: bool
) -> None:
    (tmp_path / "program.py").write_text(SAVE_AT_SIGINT)
    command = [*RUN, str(tmp_path / "program.py"), str(tmp_path / "saved")]
    take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    take += "os.execv(sys.argv[1], sys.argv[1:])"
    master, slave = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-c", take, *command] if is_controlling else command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    drawn = b""
    while b"ready" not in drawn:
        drawn += os.read(master, 4096)
    os.close(master)
    assert run.wait() == 128 + signal.SIGHUP
    assert (tmp_path / "saved").exists()


def test_a_full_disk_behind_our_output_is_told_and_ends_the_job(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        run = run_program(tmp_path, LIVE + "print('x'); signal.pause()", stdout=full.fileno())
    _, err = run.communicate()
    assert err.startswith("gradring: cannot write standard output: No space left on device\n")
    assert "Traceback" not in err
    assert run.returncode == 1


def read_all(reader: int) -> bytes:
    """Read a pipe that does not block to its end, and close it."""
    found = b""
    while readable(reader) and (data := os.read(reader, 1 << 16)):
        found += data
    os.close(reader)
    return found


def test_nothing_outlives_an_agent_that_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WITH_GRANDCHILDREN)
    patch = "from gradring.launch import job\njob._TEARDOWN_SECONDS = 0.1\n"
    run = subprocess.Popen(
        patched(patch, "-n", "2", "--grace", "0", str(tmp_path / "program.py")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    ready = [list(map(int, run.stdout.readline().split()[2:])) for _ in range(2)]
    agent = int(Path(f"/proc/{ready[0][0]}/stat").read_text().rpartition(")")[2].split()[1])
    freeze(agent)
    run.terminate()
    _, err = run.communicate(timeout=60)
    assert "Traceback" not in err
    assert run.returncode == 128 + signal.SIGTERM
    assert not [pid for pids in ready for pid in pids if is_alive(pid)]
