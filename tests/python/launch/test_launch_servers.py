"""gradring run --servers: they start with the ranks, serve until the last one ends, and may die.

A program stands in for `gradring serve`: it answers each connection with one line about itself.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradring.errors import InvalidArgument
from gradring.launch.options import Options
from gradring.launch.outcome import Restarts
from gradring.launch.plan import Plan, make_plan
from launcher_runs import LIVE, WAIT, Start, is_alive, launching, wait_for_end
from thread_ranks import free_ports

# Stands in for the interpreter: what runs `gradring serve ...` becomes this, all else stays.
FAKE_PYTHON = """#!/bin/sh
[ "$4" = serve ] || exec {python} "$@"
shift 4
exec {python} {server} "$@"
"""

SERVER = """
import argparse, os, signal, socket, sys
parser = argparse.ArgumentParser()
for option in ("--index", "--servers", "--listen-fd"):
    parser.add_argument(option, type=int)
for option in ("--log", "--threads"):
    parser.add_argument(option)
options = parser.parse_args()
assert "GRADRING_RANK" not in os.environ and len(os.environ["GRADRING_SECRET"]) == 64
def end(number, _):
    print("server ends by", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
listener = socket.socket(fileno=options.listen_fd)
print("serving with", options.log, options.threads, flush=True)
while True:
    peer = listener.accept()[0]
    word = peer.recv(100).decode()
    if word == "die":
        print("dying", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    peer.sendall(f"{options.index} of {options.servers}, {os.getpid()}".encode())
"""

ASK = LIVE + (
    "def ask(server, word='who'):\n"
    "    host, port = os.environ['GRADRING_SERVERS'].split(',')[server].split(':')\n"
    "    peer = socket.create_connection((host, int(port)))\n"
    "    peer.sendall(word.encode())\n"
    "    try: return peer.recv(100).decode()\n"
    "    except ConnectionResetError: return ''\n"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with launching(tmp_path) as start:
        yield start


@pytest.fixture
def serving(tmp_path: Path) -> tuple[str, ...]:
    """The option that puts the stand-in into `gradring serve`'s place."""
    (tmp_path / "server.py").write_text(SERVER)
    fake = tmp_path / "fake-python"
    fake.write_text(FAKE_PYTHON.format(python=sys.executable, server=tmp_path / "server.py"))
    fake.chmod(0o755)
    return ("--python", str(fake))


def test_servers_serve_every_rank_and_end_after_the_last(
    start: Start, serving: tuple[str, ...]
) -> None:
    program = ASK + "print(*(ask(server).partition(',')[0] for server in range(2)))\n"
    options = ("-n", "3", "--servers", "2", "--server-options", "--threads 4", *serving)
    code, lines, err = start(program, *options).finish()
    assert (code, err) == (0, "")
    for server in range(2):
        mine = [line for line in lines if line.startswith(f"[s{server}] ")]
        assert mine == [f"[s{server}] serving with None 4", f"[s{server}] server ends by SIGTERM"]
    # Both have served everybody before either of them ended.
    assert sorted(line for line in lines if line[1] != "s") == [
        f"[{rank}] 0 of 2 1 of 2" for rank in range(3)
    ]


def test_every_socket_that_the_launcher_opens_is_in_the_range_of_ports(
    start: Start, serving: tuple[str, ...]
) -> None:
    names = ("GRADRING_RENDEZVOUS", "GRADRING_SERVERS", "GRADRING_PORTS")
    program = LIVE + f"print(*(os.environ[name] for name in {names}))\n"
    options = ("-n", "1", "--servers", "2", "--no-prefix", *serving)
    with free_ports(3) as (first, last):
        ports = f"{first}-{last}"
        code, lines, err = start(program, "--ports", ports, *options).finish()
        assert (code, err) == (0, "")
        (said,) = (line for line in lines if line.endswith(ports))
        taken = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", said)]
        assert sorted(taken) == [first, first + 1, last]
        # One port short, and by the variable.
        environ = {"GRADRING_PORTS": f"{first}-{last - 1}"}
        code, _, err = start(program, *options, environ=environ).finish()
    assert code == 1
    assert f"127.0.0.1: all 2 ports of GRADRING_PORTS={first}-{last - 1} are taken; end what" in err


def test_a_server_that_dies_fails_the_job_and_is_named(
    start: Start, serving: tuple[str, ...]
) -> None:
    program = ASK + "ask(1, 'die')\nwhile True: signal.pause()\n"
    code, _, err = start(program, "-n", "1", "--servers", "2", "--keep-going", *serving).finish()
    assert code == 128 + signal.SIGKILL
    assert "gradring: server 1 failed first: killed by SIGKILL" in err
    assert "the last lines of server 1's standard error:\n    dying\n" in err
    assert "after that: rank 0 stopped\n" in err


def test_what_ends_a_job_that_goes_on_without_a_rank_is_named(
    start: Start, serving: tuple[str, ...], tmp_path: Path
) -> None:
    program = ASK + (
        "if rank == 0: sys.exit(9)\n"
        "if rank == 1: open('gate').read(); ask(0, 'die')\n"
        "while True: signal.pause()\n"
    )
    os.mkfifo(tmp_path / "gate")
    run = start(program, "-n", "3", "--servers", "1", "--keep-going", *serving)
    assert run.process.stderr is not None
    assert "rank 0 failed first: exit code 9" in run.process.stderr.readline()
    (tmp_path / "gate").write_text("")
    code, _, err = run.finish()
    assert code == 9
    assert "gradring: server 0 failed: killed by SIGKILL" in err
    assert "the last lines of server 0's standard error:\n    dying\n" in err
    assert "after that: ranks 1-2 stopped\n" in err


def test_a_server_with_a_log_is_started_again_at_the_same_address(
    start: Start, serving: tuple[str, ...], tmp_path: Path
) -> None:
    program = ASK + (
        "before = ask(0)\n"
        "ask(0, 'die')\n"
        "after = ask(0)\n"
        "assert after.startswith('0 of 1, ') and after != before\n"
        "print('both answered')\n"
    )
    log = tmp_path / "log"
    options = ("--servers", "1", "--server-log", str(log), "--restart-servers", *serving)
    code, lines, err = start(program, "-n", "1", *options).finish()
    assert code == 0
    assert "[0] both answered" in lines
    assert lines.count(f"[s0] serving with {log} None") == 2
    assert "gradring: server 0: killed by SIGKILL" in err
    assert "starting it again from its log" in err


def test_a_server_that_cannot_stay_alive_is_started_again_after_growing_pauses(
    start: Start, serving: tuple[str, ...], tmp_path: Path
) -> None:
    program = "import sys\nprint('serving', flush=True)\nsys.exit('no room for the log')\n"
    (tmp_path / "server.py").write_text(program)
    options = ("--servers", "1", "--server-log", "log", "--restart-servers", *serving)
    run = start(WAIT, "-n", "1", *options)
    run.until("serving", times=4)
    run.process.send_signal(signal.SIGINT)  # Also a pause ends with the job.
    code, _, err = run.finish()
    assert code == 130
    for pause in ("0.1", "0.2", "0.4"):
        assert f"; starting it again from its log in {pause} s" in err


def test_a_server_that_cannot_stay_alive_is_given_up(
    start: Start, serving: tuple[str, ...], tmp_path: Path
) -> None:
    # All of its pauses: 26 s, in which nothing runs.
    program = "import sys\nprint('serving', flush=True)\nsys.exit('no room for the log')\n"
    (tmp_path / "server.py").write_text(program)
    options = ("--servers", "1", "--server-log", "log", "--restart-servers", *serving)
    code, _, err = start(WAIT, "-n", "1", *options).finish()
    assert code == 1
    assert err.count("starting it again") == 10
    assert "server 0 failed first: exit code 1" in err
    assert "    no room for the log\n" in err


@pytest.mark.parametrize(
    ("program", "status"),
    [("sys.exit(1)", 1), ("print('serving', flush=True); sys.exit(2)", 2)],
    ids=["never-served", "refuses-its-options"],
)
def test_a_server_that_can_never_start_is_started_once(
    start: Start, serving: tuple[str, ...], tmp_path: Path, program: str, status: int
) -> None:
    (tmp_path / "server.py").write_text(f"import sys\n{program}\n")
    options = ("--servers", "1", "--server-log", "log", "--restart-servers", *serving)
    code, _, err = start(WAIT, "-n", "1", *options).finish()
    assert code == status
    assert "starting it again" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_servers_outlive_ranks_that_still_save_when_they_are_interrupted(
    start: Start, serving: tuple[str, ...], number: signal.Signals
) -> None:
    program = ASK + (
        "def interrupt(*_): raise KeyboardInterrupt\n"
        f"signal.signal({int(number)}, interrupt)\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    while True: signal.pause()\n"
        "except KeyboardInterrupt:\n"
        "    print('saved at', ask(0).partition(',')[0], flush=True)\n"
    )
    run = start(program, "-n", "2", "--servers", "1", "--grace", "60", *serving)
    run.until("ready", times=2)
    run.process.send_signal(number)
    code, lines, _ = run.finish()
    assert code == 128 + number
    assert {"[0] saved at 0 of 1", "[1] saved at 0 of 1"} <= set(lines)
    assert lines[-1] == "[s0] server ends by SIGTERM"


def test_a_failed_rank_ends_the_servers_too(start: Start, serving: tuple[str, ...]) -> None:
    program = ASK + "print(ask(0))\nif rank == 1: sys.exit(7)\nwhile True: signal.pause()\n"
    code, lines, err = start(program, "-n", "2", "--servers", "1", *serving).finish()
    assert code == 7
    assert "rank 1 failed first" in err
    assert "[s0] server ends by SIGTERM" in lines


def test_sigkill_of_the_launcher_ends_the_servers_too(
    start: Start, serving: tuple[str, ...]
) -> None:
    program = ASK + "print('server', ask(0).split()[-1], flush=True)\nsignal.pause()\n"
    run = start(program, "-n", "1", "--servers", "1", *serving)
    server = int(run.until(r"server (\d+)")[0][1])
    assert is_alive(server)
    run.process.kill()
    wait_for_end(server)


def test_a_server_is_started_again_unless_it_keeps_on_dying() -> None:
    restarts = Restarts(now=0)
    assert all(restarts.note_end(0, now) is not None for now in range(10))
    assert restarts.note_end(0, 10) is None
    assert restarts.note_end(1, 10) is not None
    assert restarts.note_end(0, 80) is not None  # It had lived for a minute.


def test_pauses_between_starts_outlast_a_disk_that_is_full_for_a_while() -> None:
    restarts, now, pauses = Restarts(now=0), 0.0, []
    while (start := restarts.note_end(0, now)) is not None:
        pauses.append(start - now)
        now = start  # It ends as soon as it is started.
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5])
    after_a_long_life = restarts.note_end(0, now + 100)
    assert after_a_long_life == pytest.approx(now + 100.1)


def plan_of(**options: object) -> Plan:
    return make_plan(Options(command=("python3",), **options), {})  # type: ignore[arg-type]


def test_servers_are_dealt_to_the_hosts_in_turn(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\nb\n")
    plan = plan_of(hosts_file=hosts, servers=3, rendezvous="a.example:0")
    assert [host.servers for host in plan.hosts] == [(0, 2), (1,)]
    assert plan.servers == 3
    assert [plan.server_listen_host(host) for host in plan.hosts] == ["", ""]
    environ = plan.environ_at(1, {0: 10, 1: 11, 2: 12})
    assert environ["GRADRING_SERVERS"] == "a.example:10,b:11,a.example:12"
    assert "GRADRING_SERVERS" not in plan.environ_at(1, {})


def test_servers_of_others_keep_their_secret() -> None:
    environ = {"GRADRING_SERVERS": "db:4000", "GRADRING_SECRET": "known to db"}
    command = Options(command=("python3",), count=1)
    assert make_plan(command, environ).environ["GRADRING_SECRET"] == "known to db"
    own = Options(command=("python3",), count=1, servers=1)
    assert len(make_plan(own, environ).environ["GRADRING_SECRET"]) == 64


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 1, "servers": -1}, "--servers -1: not a number of servers"),
        ({"count": 1, "servers": 1, "restart_servers": True}, "needs --server-log DIR"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        plan_of(**options)


def test_a_server_on_a_host_that_others_cannot_reach_is_refused(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{os.uname().nodename}\nlocalhost\nelsewhere\n")
    with pytest.raises(InvalidArgument, match="the other hosts cannot reach 'localhost'"):
        plan_of(hosts_file=hosts, servers=2)
