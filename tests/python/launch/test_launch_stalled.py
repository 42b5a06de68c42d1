"""gradring run where whoever reads its output stalls: signals are heard, and nothing is lost."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradring.launch.outlets import MOST_QUEUED_BYTES, Outlet
from gradring.launch.screen import Screen
from gradring.launch.watch import Watch
from launcher_runs import LIVE, is_alive, wait_for_end
from waiting import readable

PATIENCE = 60.0  # Seconds; what takes longer does not come.


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Make a pipe as a shell does, which blocks."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def screen_on(out: int, err: int, *terminals: int) -> Screen:
    return Screen(Outlet(out), Outlet(err), terminals=frozenset(terminals), has_colour=False)


@pytest.mark.parametrize("is_shared_as_it_is", [True, False], ids=["not-to-be-opened", "opened"])
def test_bytes_and_the_order_of_both_streams_are_kept_with_a_slow_reader(
    is_shared_as_it_is: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_shared_as_it_is:
        monkeypatch.setattr("gradring.launch.outlets._opened_again", lambda _: None)
    with pipe() as (reader, writer):
        screen = screen_on(writer, again := os.dup(writer))  # As `2>&1` makes them.
        texts = [b"%d " % i + bytes(range(256)) * (i % 40) + b"\n" for i in range(100)]
        for i, text in enumerate(texts):
            screen.write_as_is(1 + i % 2, text)
        got = bytearray()
        while screen.outlets.stalled is not None:
            got += os.read(reader, 1000)
            screen.outlets.go_on()
        os.set_blocking(reader, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                got += os.read(reader, 1 << 20)
        assert got == b"".join(texts)
        assert screen.take_lost() == []
        screen.outlets.close()
        os.close(again)


def test_a_shared_pipe_keeps_its_flags() -> None:
    with pipe() as (_, writer):
        outlet = Outlet(writer)
        while outlet.write(b"x" * select.PIPE_BUF):
            pass
        assert not fcntl.fcntl(writer, fcntl.F_GETFL) & os.O_NONBLOCK
        outlet.close()


def test_a_reader_that_leaves_what_is_queued_is_told_once() -> None:
    with pipe() as (reader, writer):
        screen = screen_on(writer, writer)
        screen.write_as_is(1, b"x" * (1 << 20))
        os.close(reader)
        screen.outlets.go_on()
        assert screen.outlets.stalled is None
        assert [(stream, type(error)) for stream, error in screen.take_lost()] == [
            (1, BrokenPipeError)
        ]
        screen.outlets.close()


def test_the_status_of_a_stalled_terminal_does_not_pile_up() -> None:
    master, slave = pty.openpty()
    screen = screen_on(slave, slave, 1, 2)
    screen.set_bottom(b"the first")
    while screen.outlets.stalled is None:
        screen.write(2, [b"x" * 70])
    for i in range(1000):
        screen.set_bottom(b"seconds: %d" % i)
    drawn = b""
    while screen.outlets.stalled is not None:
        drawn += os.read(master, 4096)
        screen.outlets.go_on()
    screen.set_bottom(b"the last")
    while not drawn.endswith(b"the last"):
        drawn += os.read(master, 4096)
    assert b"seconds" not in drawn
    screen.outlets.close()
    os.close(master)
    os.close(slave)


def test_agents_are_not_read_while_too_much_is_queued_unless_that_may_not_be() -> None:
    with pipe() as (reader, writer), pipe() as (said, says):
        screen = screen_on(writer, writer)
        watch = Watch(screen.outlets)
        heard: list[bytes] = []
        with open(said, "rb", buffering=0, closefd=False) as agent, contextlib.closing(watch):
            watch.add(agent, lambda: heard.append(os.read(said, 1)))
            os.write(says, b"abc")
            watch.wait(0, may_hold=True)
            screen.write_as_is(1, b"x" * (2 * MOST_QUEUED_BYTES))
            watch.wait(0, may_hold=True)
            assert (heard, watch.is_holding) == ([b"a"], True)
            watch.wait(0, may_hold=False)
            assert (heard, watch.is_holding) == ([b"a", b"b"], False)
            while screen.outlets.are_full:
                os.read(reader, 1 << 16)
                watch.wait(0, may_hold=True)
            watch.wait(0, may_hold=True)
            assert (heard, watch.is_holding) == ([b"a", b"b", b"c"], False)
            screen.outlets.close()


def launch(
    tmp_path: Path, program: str, *options: str, stdout: int, patch: str = ""
) -> subprocess.Popen[str]:
    """Start a launcher, after some Python has changed it, that gives agents no time of its own."""
    (tmp_path / "program.py").write_text(LIVE + program)
    start = "import sys\nfrom gradring import cli\nfrom gradring.launch import job\n"
    start += f"job._TEARDOWN_SECONDS = 0.5\n{patch}\nsys.exit(cli.main(sys.argv[1:]))\n"
    return subprocess.Popen(
        [sys.executable, "-c", start, "run", *options, str(tmp_path / "program.py")],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )


def wait_until_full(writer: int) -> None:
    poll = select.poll()
    poll.register(writer, select.POLLOUT)
    deadline = time.monotonic() + PATIENCE
    while poll.poll(0):
        assert time.monotonic() < deadline, "the launcher writes nothing"
        os.sched_yield()


def wait_until_there(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path.name}"
        os.sched_yield()


def wait_for_byte(fifo: int) -> None:
    assert readable(fifo, seconds=PATIENCE), "no rank has heard of it"
    assert os.read(fifo, 1)


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[int]:
    """A named pipe in which ranks say that they heard a signal."""
    os.mkfifo(tmp_path / "heard")
    descriptor = os.open(tmp_path / "heard", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


CHATTY = (
    "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
    "try:\n"
    "    while True: os.write(1, (b'x' * 99 + b'\\n') * 30000)\n"
    "except KeyboardInterrupt:\n"
    "    open('heard', 'w').write('!')\n"
)


@pytest.mark.parametrize("open_output", [os.pipe, pty.openpty], ids=["pipe", "terminal"])
def test_signals_are_heard_though_nobody_reads_our_output(
    tmp_path: Path, heard: int, open_output: object
) -> None:
    assert callable(open_output)
    reader, writer = open_output()
    run = launch(tmp_path, CHATTY, "-n", "1", stdout=writer)
    try:
        wait_until_full(writer)
        run.terminate()
        wait_for_byte(heard)
        run.terminate()
        _, err = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
        os.close(reader)
        os.close(writer)
    assert run.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in err


# Rank 1 fails once it may; rank 0 has much to say then.
SAVES = (
    "if rank == 1: open('gate').read(); sys.exit(3)\n"
    "def save(*_):\n"
    "    os.write(1, b''.join(b'%d %s\\n' % (i, b'x' * 40) for i in range(9000)))\n"
    "    print('checkpoint saved', flush=True); os._exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('ready', os.getpid(), os.getppid(), flush=True)\n"
    "while True: signal.pause()\n"
)

# While agents are not read, more time passes than any deadline leaves them.
OURS_IS_NOT_THEIRS = (
    "from gradring.launch import outlets, watch\n"
    "outlets.MOST_QUEUED_BYTES = 1 << 16\n"
    "class Clock:\n"
    "    late = 0.0\n"
    "    @classmethod\n"
    "    def monotonic(cls): return time.monotonic() + cls.late\n"
    "import time\n"
    "job.time = Clock\n"
    "wait = watch.Watch.wait\n"
    "def slow(self, seconds, **how):\n"
    "    if self._outlets.are_full: Clock.late += 10000; open('held', 'w').close()\n"
    "    wait(self, seconds, **how)\n"
    "watch.Watch.wait = slow\n"
)


def test_a_slow_reader_gets_all_of_a_failed_job_however_long_it_takes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    reader, writer = os.pipe()
    options = ("-n", "2", "--grace", "100")
    run = launch(tmp_path, SAVES, *options, stdout=writer, patch=OURS_IS_NOT_THEIRS)
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as output:
        ready, agent = map(int, output.readline().split()[2:])
        (tmp_path / "gate").write_text("")
        wait_for_end(ready)
        wait_until_there(tmp_path / "held")
        lines = output.readall().splitlines()
    _, err = run.communicate(timeout=PATIENCE)
    assert run.returncode == 3
    assert lines == [*(b"[0] %d %s" % (i, b"x" * 40) for i in range(9000)), b"[0] checkpoint saved"]
    assert "after that: rank 0 finished\n" in err
    assert not is_alive(agent)


def test_a_job_that_is_over_waits_for_its_reader_until_the_second_signal(tmp_path: Path) -> None:
    program = "print('ready', os.getppid(), flush=True)\nos.write(1, b'x' * 500000)\n"
    with pipe() as (reader, writer):
        run = launch(tmp_path, program, "-n", "1", stdout=writer)
        with os.fdopen(reader, "rb", buffering=0, closefd=False) as output:
            wait_for_end(int(output.readline().split()[2]))
        assert run.poll() is None
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=PATIENCE)
        assert run.returncode == 128 + signal.SIGINT
