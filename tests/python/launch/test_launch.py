"""gradring run: lines stay whole, the first failure is named, and no process outlives the job.

Real launchers, agents and ranks; see launcher_runs.py.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher_runs import (
    FAIL_AT_GATE,
    LIVE,
    SAVE_AT_SIGTERM,
    SPAWN,
    WITH_GRANDCHILDREN,
    Start,
    is_alive,
    launching,
    wait_for_end,
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with launching(tmp_path) as start:
        yield start


def test_every_line_starts_with_its_rank_and_stays_whole(start: Start) -> None:
    program = LIVE + (
        "for i in range(300):\n"
        "    for part in ('line ', str(i), ' of ', str(rank), ' ' + 'x' * 200, '\\n'):\n"
        "        os.write(1, part.encode())\n"
    )
    code, lines, err = start(program, "-n", "3").finish()
    assert (code, err) == (0, "")
    for rank in range(3):
        mine = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] line {i} of {rank} {'x' * 200}" for i in range(300)]
    assert len(lines) == 900


def test_ranks_of_a_host_are_in_one_session_and_in_groups_of_their_own(start: Start) -> None:
    program = LIVE + "print(os.getsid(0), os.getpgid(0) - os.getpid())"
    code, lines, err = start(program, "-n", "3", "--no-prefix").finish()
    assert (code, err, len(lines)) == (0, "", 3)
    session, leads = lines[0].split()
    assert set(lines) == {f"{session} 0"}
    assert (leads, session == str(os.getsid(0))) == ("0", False)


def test_both_streams_are_kept_apart_and_an_unended_line_is_not_lost(start: Start) -> None:
    program = LIVE + "os.write(1, b'out'); os.write(2, b'err')"
    assert start(program, "-n", "1").finish() == (0, ["[0] out"], "[0] err\n")


def test_ranks_get_their_role_and_share_the_cores(start: Start) -> None:
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TRANSPORT", "TIMEOUT"
    program = LIVE + f"print(*(os.environ['GRADRING_' + name] for name in {names}))"
    program += "\nprint('threads', os.environ['OMP_NUM_THREADS'])"
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    run = start(program, "-n", "2", "--transport", "tcp", "--timeout", "7")
    code, lines, _ = run.finish()
    threads = environ.get("OMP_NUM_THREADS", max(1, len(os.sched_getaffinity(0)) // 2))
    assert code == 0
    assert sorted(lines) == sorted(
        f"[{rank}] {text}"
        for rank in range(2)
        for text in (f"{rank} 2 {rank} 2 tcp 7.0", f"threads {threads}")
    )


def test_rank_0_inherits_a_socket_that_listens_at_the_rendezvous(start: Start) -> None:
    # Rank 1 may well connect before rank 0 has looked at its socket: nothing is lost.
    program = LIVE + (
        "host, port = os.environ['GRADRING_RENDEZVOUS'].split(':')\n"
        "if rank == 0:\n"
        "    listener = socket.socket(fileno=int(os.environ['GRADRING_LISTEN_FD']))\n"
        "    assert listener.getsockname() == (host, int(port))\n"
        "    print(listener.accept()[0].recv(100).decode())\n"
        "else:\n"
        "    assert 'GRADRING_LISTEN_FD' not in os.environ\n"
        "    socket.create_connection((host, int(port))).sendall(b'hello')\n"
    )
    stale = {"GRADRING_LISTEN_FD": "99", "GRADRING_RANK": "5"}  # From a job around this one.
    code, lines, err = start(program, "-n", "2", environ=stale).finish()
    assert (code, lines, err) == (0, ["[0] hello"], "")


def test_nobody_answers_at_the_rendezvous_once_rank_0_is_gone(start: Start) -> None:
    program = LIVE + (
        "host, port = os.environ['GRADRING_RENDEZVOUS'].split(':')\n"
        "if rank == 0:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "while True:\n"
        "    try: socket.create_connection((host, int(port)), 1).recv(1)\n"
        "    except ConnectionRefusedError: break\n"
        "    except OSError: pass\n"
        "print('refused')\n"
    )
    code, lines, _ = start(program, "-n", "2", "--keep-going").finish()
    assert (code, lines) == (128 + signal.SIGKILL, ["[1] refused"])


def test_the_first_failure_is_named_with_its_code_and_last_words(start: Start) -> None:
    program = LIVE + (
        "if rank == 1:\n"
        "    print('about to fail', file=sys.stderr)\n"
        "    raise ValueError('bad batch')\n"
        "while True: signal.pause()\n"
    )
    code, _, err = start(program, "-n", "3").finish()
    assert code == 1
    assert "gradring: rank 1 failed first: exit code 1, on localhost after" in err
    after = err.split("the last lines of rank 1's standard error:")[1]
    assert "    about to fail\n" in after
    assert "    ValueError: bad batch\n" in after
    assert "gradring: after that: ranks 0, 2 stopped\n" in err


def test_a_rank_that_raised_is_named_although_those_that_lost_it_end_before_it(
    start: Start, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    # Rank 1 leaves its communicator, and then does not end before rank 0 has.
    program = LIVE + (
        "import atexit, select, gradring, numpy\n"
        "def see_it_end(process):\n"
        "    end = select.poll()\n"
        "    end.register(process, select.POLLIN)\n"
        "    end.poll()\n"
        "if rank == 0: open('gate', 'w').write(str(os.getpid()))\n"
        "else: atexit.register(see_it_end, os.pidfd_open(int(open('gate').read())))\n"
        "comm = gradring.init()\n"
        "comm.barrier()\n"
        "if rank == 1: sys.exit(42)\n"
        "comm.recv(numpy.zeros(1), src=1)\n"
    )
    code, _, err = start(program, "-n", "2").finish()
    assert "PeerLost: recv" in err
    assert "gradring: rank 1 failed first: exit code 42" in err
    assert code == 42
    assert "gradring: after that: rank 0 ended with exit code 1\n" in err


def test_a_lost_rank_that_ended_well_leaves_the_blame_with_those_that_needed_it(
    start: Start,
) -> None:
    program = LIVE + (
        "import gradring, numpy\n"
        "comm = gradring.init()\n"
        "comm.barrier()\n"
        "if rank == 0: comm.recv(numpy.zeros(1), src=1)\n"
    )
    code, _, err = start(program, "-n", "2").finish()
    assert code == 1
    assert "gradring: rank 0 failed first: exit code 1" in err
    assert "gradring: after that: rank 1 finished\n" in err


@pytest.mark.parametrize("option", ["--no-prefix", "--keep-going"])
def test_a_job_of_which_all_have_lost_a_rank_that_was_started_by_hand_fails(
    start: Start, option: str
) -> None:
    program = LIVE + "sys.exit('PeerLost: rank 2 (127.0.0.1:4) has left: its script ended')\n"
    code, _, err = start(program, "-n", "2", option).finish()
    assert code == 1
    assert re.search(r"gradring: rank \d failed first: exit code 1", err)


def test_the_exit_code_of_the_first_failed_rank_is_kept(start: Start) -> None:
    program = LIVE + "if rank == 1: sys.exit(42)\nwhile True: signal.pause()\n"
    assert start(program, "-n", "2").finish()[0] == 42


def test_a_rank_killed_by_a_signal_is_told_by_its_name(start: Start) -> None:
    program = LIVE + "if rank == 0: os.kill(os.getpid(), signal.SIGSEGV)\nsignal.pause()\n"
    code, _, err = start(program, "-n", "2").finish()
    assert code == 128 + signal.SIGSEGV
    assert "rank 0 failed first: killed by SIGSEGV" in err


def test_a_rank_that_ignores_sigterm_is_killed_when_the_grace_is_over(start: Start) -> None:
    program = LIVE + (
        "host, port = os.environ['GRADRING_RENDEZVOUS'].split(':')\n"
        "if rank == 0:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    socket.socket(fileno=int(os.environ['GRADRING_LISTEN_FD'])).accept()\n"
        "    while True: signal.pause()\n"
        "socket.create_connection((host, int(port))).recv(1)  # Until rank 0 closes it.\n"
        "sys.exit(3)\n"
    )
    code, _, err = start(program, "-n", "2", "--grace", "0.2").finish()
    assert code == 3
    assert "after that: rank 0 killed" in err


def test_keep_going_leaves_the_others_to_finish(start: Start) -> None:
    program = LIVE + "if rank == 0: sys.exit(9)\nprint('finished')\n"
    code, lines, err = start(program, "-n", "2", "--keep-going").finish()
    assert (code, lines) == (9, ["[1] finished"])
    assert "after that: rank 1 finished" in err


CORES = sorted(os.sched_getaffinity(0))
SHOW_CORES = "import os\nprint(sorted(os.sched_getaffinity(0)))\n"


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_ranks_get_cores_of_their_own(start: Start) -> None:
    code, lines, _ = start(SHOW_CORES, "-n", "2").finish()
    middle = len(CORES) // 2
    assert code == 0
    assert sorted(lines) == [f"[0] {CORES[:middle]}", f"[1] {CORES[middle:]}"]


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_ranks_of_a_host_that_is_named_twice_get_cores_of_their_own_too(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("localhost\n127.0.0.1\n")
    code, lines, _ = start(SHOW_CORES, "--hosts", str(tmp_path / "hosts")).finish()
    middle = len(CORES) // 2
    assert code == 0
    assert sorted(lines) == [f"[0] {CORES[:middle]}", f"[1] {CORES[middle:]}"]


@pytest.mark.parametrize(
    "options", [("-n", "2", "--no-bind"), ("-n", str(len(CORES) + 1))], ids=["no-bind", "too-many"]
)
def test_ranks_share_the_cores_when_asked_or_too_many(
    start: Start, options: tuple[str, ...]
) -> None:
    code, lines, _ = start(SHOW_CORES, *options).finish()
    assert code == 0
    assert {line.partition("] ")[2] for line in lines} == {str(CORES)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupt_leaves_no_process_behind(start: Start, number: signal.Signals) -> None:
    run = start(WITH_GRANDCHILDREN, "-n", "2")
    ready = run.until(r"ready (\d+) (\d+) (\d+)", times=2)
    run.process.send_signal(number)
    code, _, err = run.finish()
    assert code == 128 + number
    assert f"{number.name}: stopping all ranks" in err
    assert "failed first" not in err
    assert not [pid for match in ready for pid in map(int, match.groups()) if is_alive(pid)]


def test_a_failure_leaves_no_grandchild_behind(start: Start, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    run = start(FAIL_AT_GATE, "-n", "2")
    ready = run.until(r"ready (\d+) (\d+) (\d+)", times=2)
    (tmp_path / "gate").write_text("")
    assert run.finish()[0] == 5
    assert not [pid for match in ready for pid in map(int, match.groups()) if is_alive(pid)]


def test_what_ranks_leave_behind_after_success_is_ended_too(start: Start) -> None:
    run = start(SPAWN, "-n", "2")
    ready = run.until(r"ready (\d+) (\d+) (\d+)", times=2)
    assert run.finish()[0] == 0
    assert not [pid for match in ready for pid in map(int, match.groups()) if is_alive(pid)]


def test_ctrl_c_reaches_the_ranks_as_keyboard_interrupt(start: Start) -> None:
    program = LIVE + (
        "try:\n"
        "    print('ready', flush=True)\n"
        "    while True: signal.pause()\n"
        "except KeyboardInterrupt:\n"
        "    print('saved')\n"
    )
    run = start(program, "-n", "2")
    run.until("ready", times=2)
    run.process.send_signal(signal.SIGINT)
    code, lines, _ = run.finish()
    assert code == 130
    assert sorted(lines)[-2:] == ["[1] ready", "[1] saved"]


def test_sigterm_reaches_the_ranks_as_sigterm(start: Start) -> None:
    run = start(SAVE_AT_SIGTERM, "-n", "2")
    run.until("ready", times=2)
    run.process.send_signal(signal.SIGTERM)
    code, lines, _ = run.finish()
    assert code == 143
    assert {line for line in lines if "saved" in line} == {"[0] saved", "[1] saved"}


def test_a_second_ctrl_c_kills_at_once(start: Start) -> None:
    program = LIVE + (
        "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, lambda *_: print('no', flush=True))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    run = start(program, "-n", "1", "--grace", "1000")
    run.until("ready")
    run.process.send_signal(signal.SIGINT)
    run.until("no")
    run.process.send_signal(signal.SIGINT)
    code, _, err = run.finish()
    assert code == 130
    assert "SIGINT: killing all ranks" in err


def test_sigkill_of_the_launcher_ends_every_rank_and_grandchild(start: Start) -> None:
    run = start(WITH_GRANDCHILDREN, "-n", "2")
    ready = run.until(r"ready (\d+) (\d+) (\d+)", times=2)
    run.process.kill()
    for match in ready:
        for pid in map(int, match.groups()):
            wait_for_end(pid)


def test_sigkill_of_the_agent_ends_ranks_and_grandchildren_and_is_told(start: Start) -> None:
    run = start(WITH_GRANDCHILDREN, "-n", "2")
    ready = run.until(r"ready (\d+) (\d+) (\d+)", times=2)
    agent = int(Path(f"/proc/{ready[0][1]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(agent, signal.SIGKILL)
    code, _, err = run.finish()
    assert code == 1
    assert "lost localhost (ranks 0-1): killed by SIGKILL" in err
    assert not [pid for match in ready for pid in map(int, match.groups()) if is_alive(pid)]


def test_a_stopped_rank_is_torn_down_like_any_other(start: Start) -> None:
    program = LIVE + (
        "print('ready', os.getpid(), flush=True)\n"
        "if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "while True: signal.pause()\n"
    )
    run = start(program, "-n", "2", "--grace", "1000")  # Asking has to be enough.
    pids = [int(match[1]) for match in run.until(r"ready (\d+)", times=2)]
    run.process.send_signal(signal.SIGTERM)
    assert run.finish()[0] == 143
    assert not any(is_alive(pid) for pid in pids)


def test_the_secret_is_shared_random_and_on_no_command_line(start: Start) -> None:
    program = LIVE + (
        "secret = os.environ['GRADRING_SECRET']\n"
        "import pathlib\n"
        "for entry in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    try: assert secret.encode() not in entry.read_bytes(), entry\n"
        "    except (FileNotFoundError, ProcessLookupError): pass\n"
        "import hashlib; print(len(secret), hashlib.sha256(secret.encode()).hexdigest())\n"
    )
    digests = []
    for _ in range(2):
        code, lines, err = start(program, "-n", "2", "--verbose").finish()
        assert code == 0
        shown = {line[4:] for line in lines}
        assert len(shown) == 1
        assert shown.copy().pop().startswith("64 ")
        assert "secret" not in err.lower()
        digests.append(shown.pop())
    assert digests[0] != digests[1]


def test_output_whose_reader_left_ends_the_job_quietly(start: Start) -> None:
    program = LIVE + "while True: print('y' * 1000, flush=True)\n"
    run = start(program, "-n", "2")
    run.until("yyy")
    assert run.process.stdout is not None
    run.process.stdout.close()
    assert run.process.stderr is not None
    assert run.process.stderr.read() == ""
    assert run.process.wait() == 128 + signal.SIGPIPE
