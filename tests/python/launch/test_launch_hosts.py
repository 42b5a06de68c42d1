"""gradring run --hosts: the same promises over ssh, for which a local program stands in."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher_runs import (
    FAIL_AT_GATE,
    FOREVER,
    LIVE,
    SAVE_AT_SIGTERM,
    WAIT,
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


@pytest.fixture
def fake_ssh(tmp_path: Path) -> str:
    """A program that does what ssh would, on this machine: another session, after some chatter."""
    script = tmp_path / "fake-ssh"
    script.write_text(
        "#!/bin/sh\n"
        'echo "$@" >> ssh-calls\n'
        "[ $1 = down ] && { echo no route >&2; exit 255; }\n"
        "echo Welcome to $1; shift\n"
        # Another host would not know the launcher's variables either.
        'exec env -u GRADRING_CANARY -u GRADRING_LINK_MBIT -u MY_FLAG setsid --wait sh -c "$*"\n'
    )
    script.chmod(0o755)
    return str(script)


def hosts_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "hosts"
    path.write_text(text)
    return str(path)


def test_a_hosts_file_places_ranks_in_blocks_and_starts_them_by_ssh(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    hosts = hosts_file(tmp_path, "# ours\nred slots=2\n\nblue slots=2  # the big one\ngreen\n")
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    program = LIVE + (
        f"print(*(os.environ['GRADRING_' + name] for name in {names}), "
        "os.environ['GRADRING_RENDEZVOUS'].split(':')[0], os.environ.get('MY_FLAG'), "
        "os.environ.get('GRADRING_CANARY'))"
    )
    options = ["--hosts", hosts, "--ssh", fake_ssh, "--env", "MY_FLAG", "-n", "4"]
    environ = {"MY_FLAG": "a b'c", "GRADRING_CANARY": "yes"}
    code, lines, err = start(program, *options, environ=environ).finish()
    assert (code, err) == (0, "")
    assert sorted(lines) == [f"[{rank}] {rank} 4 {rank % 2} 2 red a b'c yes" for rank in range(4)]
    calls = (tmp_path / "ssh-calls").read_text()
    assert sorted(line.split()[0] for line in calls.splitlines()) == ["blue", "red"]
    assert not re.search(r"[0-9a-f]{64}", calls)  # No secret.


def test_users_and_rates_of_a_hosts_file_stay_with_their_host(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    program = LIVE + (
        "print(os.environ['GRADRING_RENDEZVOUS'].split(':')[0], "
        "os.environ.get('GRADRING_LINK_MBIT'))"
    )
    said = hosts_file(tmp_path, "alice@red mbit=1000\nblue mbit=250\n")
    run = start(program, "--hosts", said, "--ssh", fake_ssh, environ={"GRADRING_LINK_MBIT": "7"})
    code, lines, err = run.finish()
    assert (code, sorted(lines), err) == (0, ["[0] red 1000", "[1] red 250"], "")
    calls = (tmp_path / "ssh-calls").read_text()
    assert sorted(line.split()[0] for line in calls.splitlines()) == ["alice@red", "blue"]

    # The launcher's own goes nowhere else: what another host has of it is that host's.
    unsaid = hosts_file(tmp_path, f"{socket.gethostname()}\nblue\n")
    run = start(program, "--hosts", unsaid, "--ssh", fake_ssh, environ={"GRADRING_LINK_MBIT": "7"})
    code, lines, err = run.finish()
    here = socket.gethostname()
    assert (code, sorted(lines), err) == (0, [f"[0] {here} 7", f"[1] {here} None"], "")


def test_ranks_on_other_hosts_meet_where_they_are_told(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    program = LIVE + (
        "host, port = os.environ['GRADRING_RENDEZVOUS'].rsplit(':', 1)\n"
        "if rank == 0:\n"
        "    listener = socket.socket(fileno=int(os.environ['GRADRING_LISTEN_FD']))\n"
        "    print(listener.accept()[0].recv(100).decode())\n"
        "else:\n"
        "    socket.create_connection((host, int(port))).sendall(b'hello')\n"
    )
    hosts = hosts_file(tmp_path, "red\nblue\n")
    options = ["--hosts", hosts, "--ssh", fake_ssh, "--rendezvous", "127.0.0.1:0"]
    assert start(program, *options).finish() == (0, ["[0] hello"], "")


def test_where_rank_0_cannot_listen_it_is_said_why_and_what_to_do(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    hosts = hosts_file(tmp_path, "red\nblue\n")
    options = ["--hosts", hosts, "--ssh", fake_ssh, "--rendezvous"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for place, why in (
            (f"127.0.0.1:{port}", f"at 127.0.0.1, port {port}: the port is in use"),
            # An address of documents only (RFC 5737).
            ("192.0.2.1:4000", "at 192.0.2.1, port 4000: it is no address of this host"),
        ):
            code, lines, err = start(LIVE, *options, place).finish()
            assert (code, lines) == (1, [])
            assert err.startswith(f"gradring: red: cannot listen: {why}; --rendezvous names"), err


def test_programs_beside_the_interpreter_are_found_on_every_host_without_activation(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    program = LIVE + "import shutil; print(sys.executable, os.environ['PATH'])\n"
    folder, python = os.path.split(sys.executable)
    for before, after in (
        ("/usr/bin:/bin", f"{folder}:/usr/bin:/bin"),
        (f"/usr/bin:/bin:{folder}", f"/usr/bin:/bin:{folder}"),  # Where somebody has put it.
    ):
        seen = [f"[{rank}] {shutil.which(python, path=after)} {after}" for rank in (0, 1)]
        hosts = ["--hosts", hosts_file(tmp_path, "red\nblue\n"), "--ssh", fake_ssh]
        for where in (hosts, ["-n", "2"]):
            run = start(program, *where, python, environ={"PATH": before})
            code, lines, err = run.finish()
            assert (code, sorted(lines), err) == (0, seen, "")


def test_an_interpreter_may_be_named_by_a_relative_path_and_what_is_beside_it_comes_first(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    program = LIVE + "import shutil; print(shutil.which('python'))\n"
    run = start(program, "-n", "1", "--python", "bin/python")
    assert run.finish() == (0, [f"[0] {python}"], "")
    hosts = ["--hosts", hosts_file(tmp_path, "red\n"), "--ssh", fake_ssh]
    assert start(program, *hosts, "--python", "bin/python").finish()[0] == 0
    assert f" {python} -" in (tmp_path / "ssh-calls").read_text()


def test_a_failure_on_one_host_ends_the_others(start: Start, fake_ssh: str, tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, "red\nblue\n")
    os.mkfifo(tmp_path / "gate")
    run = start(FAIL_AT_GATE, "--hosts", hosts, "--ssh", fake_ssh)
    ready = run.until(r"ready (\d+) (\d+) (\d+)", times=2)
    (tmp_path / "gate").write_text("")
    code, _, err = run.finish()
    assert code == 5
    assert "rank 1 failed first: exit code 5, on blue" in err
    assert not [pid for match in ready for pid in map(int, match.groups()) if is_alive(pid)]


def test_sigterm_reaches_the_ranks_of_every_host_as_sigterm(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    hosts = hosts_file(tmp_path, "red\nblue\n")
    run = start(SAVE_AT_SIGTERM, "--hosts", hosts, "--ssh", fake_ssh)
    run.until("ready", times=2)
    run.process.send_signal(signal.SIGTERM)
    code, lines, _ = run.finish()
    assert code == 143
    assert {line for line in lines if "saved" in line} == {"[0] saved", "[1] saved"}


def test_a_dropped_connection_ends_the_ranks_behind_it(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    run = start(
        WITH_GRANDCHILDREN, "--hosts", hosts_file(tmp_path, "red\nblue\n"), "--ssh", fake_ssh
    )
    ready = run.until(r"ready (\d+) (\d+) (\d+)", times=2)
    run.process.kill()  # The pipes to both hosts close, as when the network goes.
    for match in ready:
        for pid in map(int, match.groups()):
            wait_for_end(pid)


def test_a_host_that_is_lost_after_a_rank_that_was_let_go_is_named(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    program = LIVE + (
        "if rank == 0: sys.exit(9)\n"
        "open('gate').read()\n"
        "os.kill(os.getppid(), signal.SIGKILL)\n" + FOREVER
    )
    os.mkfifo(tmp_path / "gate")
    hosts = hosts_file(tmp_path, "red\nblue\n")
    run = start(program, "--hosts", hosts, "--ssh", fake_ssh, "--keep-going")
    assert run.process.stderr is not None
    assert "rank 0 failed first: exit code 9" in run.process.stderr.readline()
    (tmp_path / "gate").write_text("")
    code, _, err = run.finish()
    assert code == 9
    assert "gradring: lost blue (rank 1): " in err


def test_a_host_that_cannot_be_reached_is_named_with_its_reason(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    hosts = hosts_file(tmp_path, "red\ndown\n")
    code, _, err = start(WAIT, "--hosts", hosts, "--ssh", fake_ssh).finish()
    assert code == 1
    assert "gradring: down: no route\n" in err
    assert "could not start anything on down (rank 1): exit code 255" in err


def test_a_host_that_does_not_answer_is_given_up(start: Start, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec 3>&1 cat >/dev/null\n")
    silent.chmod(0o755)
    hosts = hosts_file(tmp_path, "red\nblue\n")
    options = ["--hosts", hosts, "--ssh", str(silent), "--start-timeout", "0.3"]
    code, _, err = start(WAIT, *options).finish()
    assert code == 1
    assert "red, blue: no answer within 0.3 s" in err
    assert "after that" not in err, "no rank was started"


def test_a_command_that_cannot_run_on_a_host_is_an_error_there(
    start: Start, fake_ssh: str, tmp_path: Path
) -> None:
    hosts = hosts_file(tmp_path, "red\nblue\n")
    options = ["--hosts", hosts, "--ssh", fake_ssh, "--python", sys.executable]
    run = start("", *options, "no-such-command")
    code, _, err = run.finish()
    assert code == 1
    assert "cannot start: [Errno 2] No such file or directory: 'no-such-command'" in err
