"""The plan of a job: who runs where with which variables, and what is refused at once."""

from __future__ import annotations

import ast
import errno
import inspect
import math
import os
import pwd
import signal
import socket
from pathlib import Path
from types import ModuleType

import pytest

from gradring.errors import InvalidArgument
from gradring.launch import agent, agents, job, listeners
from gradring.launch.hosts import place, read_hosts
from gradring.launch.lost import restarting
from gradring.launch.options import Options
from gradring.launch.outcome import Failure, Outcome, describe, name_ranks
from gradring.launch.plan import Plan, make_plan

NO_SECONDS = (math.inf, 1e18, math.nan)


def plan_of(tmp_path: Path, hosts: str | None = None, **options: object) -> Plan:
    values: dict[str, object] = {"command": ("python3", "-c", ""), **options}
    if hosts is not None:
        values["hosts_file"] = tmp_path / "hosts"
        (tmp_path / "hosts").write_text(hosts, errors="surrogateescape")
    return make_plan(Options(**values), {"PYTHONPATH": "/lib", "GRADRING_HEARTBEAT_TIMEOUT": "3"})  # type: ignore[arg-type]


def test_a_local_job_stays_on_loopback_and_inherits_its_environment(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, count=3)
    assert [host.ranks for host in plan.hosts] == [(0, 1, 2)]
    assert (plan.listen_host, plan.listen_port, plan.rendezvous_host) == (
        "127.0.0.1",
        0,
        "127.0.0.1",
    )
    assert "PYTHONPATH" not in plan.environ
    environ = plan.environ_at(4000, {})
    assert environ["GRADRING_RENDEZVOUS"] == "127.0.0.1:4000"
    assert environ["GRADRING_WORLD_SIZE"] == "3"


def test_a_local_job_without_127_0_0_1_meets_at_the_other_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = socket.socket.bind

    def refuse(self: socket.socket, address: tuple[str, int]) -> None:
        if address[0] == "127.0.0.1":
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", refuse)
    plan = plan_of(tmp_path, count=3)
    assert plan.listen_host == plan.rendezvous_host == "::1"
    assert plan.environ_at(4000, {})["GRADRING_RENDEZVOUS"] == "[::1]:4000"


def test_the_secret_is_new_for_every_job_and_in_no_ones_text(tmp_path: Path) -> None:
    plans = [plan_of(tmp_path, count=1) for _ in range(2)]
    found = {plan.environ["GRADRING_SECRET"] for plan in plans}
    assert len(found) == 2
    assert all(len(secret) == 64 and secret not in repr(plans) for secret in found)


def test_servers_that_somebody_has_started_need_the_secret_that_they_know() -> None:
    options = Options(command=("true",), count=1)
    theirs = {"GRADRING_SERVERS": "a:1"}
    for unsaid in ({}, {"GRADRING_SECRET": " "}):
        with pytest.raises(InvalidArgument, match="not GRADRING_SECRET: set it to the secret of"):
            make_plan(options, {**theirs, **unsaid})
    plan = make_plan(options, {**theirs, "GRADRING_SECRET": "known"})
    assert plan.environ["GRADRING_SECRET"] == "known"
    ours = make_plan(Options(command=("true",), count=1, servers=1), theirs)
    assert len(ours.environ["GRADRING_SECRET"]) == 64


def test_hosts_are_filled_in_order_and_the_first_one_is_where_ranks_meet(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "a slots=2\nb slots=2\n a slots=1 # again\nc\n", count=5)
    assert [(host.name, host.ranks) for host in plan.hosts] == [("a", (0, 1, 2)), ("b", (3, 4))]
    assert plan.rendezvous_host == "a"
    assert plan.listen_host == ""  # The name may mean another address on a itself.
    assert plan.environ["PYTHONPATH"] == "/lib"
    assert plan.environ["GRADRING_HEARTBEAT_TIMEOUT"] == "3"


def test_this_machines_own_name_needs_no_ssh(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, f"{socket.gethostname()}\nlocalhost\n127.0.0.1\n::1\nother\n")
    assert [host.is_here for host in plan.hosts] == [True, True, True, True, False]


def test_users_are_for_ssh_and_in_no_address(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "alice@node1\nalice@node2\nalice@fd00::3\n", servers=3)
    assert [host.name for host in plan.hosts] == ["alice@node1", "alice@node2", "alice@fd00::3"]
    environ = plan.environ_at(4000, {0: 1, 1: 2, 2: 3})
    assert environ["GRADRING_RENDEZVOUS"] == "node1:4000"
    assert environ["GRADRING_SERVERS"] == "node1:1,node2:2,[fd00::3]:3"


def test_this_machine_needs_ssh_for_another_user_only(tmp_path: Path) -> None:
    here, me = socket.gethostname(), pwd.getpwuid(os.geteuid()).pw_name
    plan = plan_of(tmp_path, f"{me}@{here}\n{me}@localhost\nnot-{me}@{here}\n")
    assert [host.is_here for host in plan.hosts] == [True, True, False]


def test_a_links_rate_is_said_for_each_host_and_goes_to_no_other(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2 mbit=1000\nb mbit=250 slots=1\na\nc\n")
    options = Options(command=("python3",), hosts_file=tmp_path / "hosts", count=4)
    plan = make_plan(options, {"GRADRING_LINK_MBIT": "5", "GRADRING_TIMEOUT": "7"})
    assert [host.environ for host in plan.hosts] == [
        {"GRADRING_LINK_MBIT": "1000"},
        {"GRADRING_LINK_MBIT": "250"},
    ]
    assert "GRADRING_LINK_MBIT" not in plan.environ
    assert plan.environ["GRADRING_TIMEOUT"] == "7"


def test_every_loopback_address_is_where_its_socket_listens(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, count=2, rendezvous="127.0.0.9:0")
    assert (plan.listen_host, plan.rendezvous_host) == ("127.0.0.9", "127.0.0.9")
    plan = plan_of(tmp_path, "127.0.0.1\n127.0.0.2\n::1\nlocalhost\n", servers=4)
    listening = [plan.server_listen_host(host) for host in plan.hosts]
    assert listening == ["127.0.0.1", "127.0.0.2", "::1", "127.0.0.1"]


def test_ranks_share_the_cores_of_a_machine_that_has_several_names(tmp_path: Path) -> None:
    names = ["localhost slots=2", "node", "127.0.0.1", socket.gethostname(), "me@node slots=2"]
    plan = plan_of(tmp_path, "\n".join(names), rendezvous="10.0.0.1:0")
    starts = [plan.start_of(host, {}) for host in plan.hosts]
    assert [start["share"] for start in starts] == [(0, 4), (0, 3), (2, 4), (3, 4), (1, 3)]


def words_of(module: ModuleType, method: str) -> set[str]:
    """Names of what each call of `method` in a module's source says."""
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return {
        " ".join(word.arg or "..." for word in call.keywords)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == method
    }


def test_what_launcher_and_agents_say_changes_only_with_the_greeting(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, count=1)
    said = (
        agent.GREETING,
        set().union(*(words_of(each, "send") for each in (agents, job, restarting))),
        " ".join(plan.start_of(plan.hosts[0], {})),
        words_of(agent, "_tell"),
    )
    # Where they change, count the greeting up: another host's agent may be of another build.
    assert said == (
        b"gradring-agent 5\n",
        {
            "do number host port ports", "do ... grace bind restarts mark", "do number place",
            "do place", "do signal servers",
        },
        "ranks share servers argv server_argv metrics cwd programs environ",
        {
            "event text", "event number port", "event pids threads", "event number status",
            "event left", "event number text", "event",
        },
    )  # fmt: skip


def test_an_ipv6_address_in_brackets_is_given_to_ssh_without_them(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "[fd00::1] slots=2\nalice@[fd00::2]\nfd00::1\n", servers=2)
    assert [host.name for host in plan.hosts] == ["fd00::1", "alice@fd00::2"]
    assert [host.ranks for host in plan.hosts] == [(0, 1, 2), (3,)]
    environ = plan.environ_at(4000, {0: 1, 1: 2})
    assert environ["GRADRING_RENDEZVOUS"] == "[fd00::1]:4000"
    assert environ["GRADRING_SERVERS"] == "[fd00::1]:1,[fd00::2]:2"


def test_a_hosts_file_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert [host.name for host in plan_of(tmp_path, "\ufeffa\nb\n").hosts] == ["a", "b"]


def test_a_job_needs_the_working_directory_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InvalidArgument, match="there is no working directory any more"):
        plan_of(tmp_path, count=1)


def test_a_program_that_may_not_be_executed_is_not_called_missing(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(InvalidArgument, match=r"train\.sh: not executable; `chmod \+x"):
        plan_of(tmp_path, count=1, command=(str(script),))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(InvalidArgument, match=r"folder\.py: a folder, no file"):
        plan_of(tmp_path, count=1, command=(str(tmp_path / "folder.py"),))


def test_a_rendezvous_that_was_asked_for_is_where_rank_0_listens(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "a\nb\n", rendezvous="[fd00::5]:7000")
    assert (plan.listen_host, plan.listen_port) == ("fd00::5", 7000)
    assert plan.environ_at(7000, {})["GRADRING_RENDEZVOUS"] == "[fd00::5]:7000"
    assert plan_of(tmp_path, "a\nb\n", rendezvous="a.example:0").listen_host == ""


def test_a_link_local_address_is_bound_on_the_link_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, "a\nb\n", rendezvous="[fe80::1%lo]:7000")
    bound: list[tuple[object, ...]] = []
    monkeypatch.setattr(socket, "create_server", lambda address, **_: bound.append(address))
    listeners.listen(plan.listen_host, plan.listen_port)
    assert [address[1:] for address in bound] == [(7000, 0, socket.if_nametoindex("lo"))]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "say how many ranks"),
        ({"count": 0}, "at least one rank"),
        ({"count": 2, "command": ()}, "say what to run"),
        ({"count": 2, "command": ("missing.py",)}, "missing.py: no such file"),
        ({"count": 2, "command": ("no-such-program",)}, "no-such-program: no such command"),
        ({"count": 2, "command": ("", "x")}, "what is to run has an empty name"),
        ({"count": 2, "command": ("/tmp",)}, "/tmp: a folder"),
        ({"count": 2, "transport": "rdma"}, "transport='rdma' is not one of auto, shm, tcp"),
        ({"count": 2, "timeout": -1.0}, "timeout='-1.0' is not a positive number"),
        ({"count": 2, "interface": "10.0.0.0/99"}, "interface='10.0.0.0/99' is no network"),
        ({"count": 2, "ports": "4000"}, "ports='4000' is no range of ports: write FIRST-LAST"),
        ({"count": 2, "metrics": "here"}, "metrics='here' is not host:port"),
        ({"count": 2, "metrics": "65534", "servers": 1}, "would answer at port 65536, which is"),
        ({"count": 2, "rendezvous": "here"}, "--rendezvous='here' is not host:port"),
        ({"hosts": "a slots=two\n"}, "hosts:1: 'a slots=two' is not `[user@]host [slots"),
        ({"hosts": "a mbit=0\n"}, "hosts:1:"),
        ({"hosts": "a mbit=5 mbit=5\n"}, "hosts:1:"),
        ({"hosts": "a mbit=999999999\n"}, "hosts:1:"),
        ({"hosts": "a rate=5\n"}, "hosts:1:"),
        ({"hosts": "alice@\n"}, "hosts:1:"),
        ({"hosts": "a\0b\n"}, "hosts:1:"),
        ({"hosts": "a mbit=5\nb\nc\n"}, "no mbit= for b, c: say it for every host"),
        ({"hosts": "a mbit=5\nb mbit=5\na mbit=6\n"}, "mbit=5 and mbit=6 for a"),
        ({"hosts": "a\nb slots=0\n"}, "hosts:2:"),
        ({"hosts": f"a slots={'9' * 5000}\n"}, "hosts:1:"),
        ({"hosts": "a slots=999999999\n"}, "at most 16384 ranks"),
        ({"count": 10**9}, "at most 16384 ranks"),
        ({"hosts": "-oProxyCommand=x\n"}, "hosts:1:"),
        ({"hosts": "caf\udce9\n"}, "can't decode byte"),
        *(({"count": 1, "grace": bad}, f"--grace {bad:g}: not a number") for bad in NO_SECONDS),
        ({"count": 1, "grace": -5.0}, "--grace -5: not a number of seconds from 0"),
        *(({"count": 1, "start_timeout": bad}, "--start-timeout") for bad in (*NO_SECONDS, 0.0)),
        ({"count": 1, "servers": 10**9}, "--servers 1000000000: not a number of servers"),
        ({"count": 1, "ssh": "x '"}, '--ssh "x \'": No closing quotation'),
        ({"count": 1, "ssh": " "}, "--ssh: no command in it"),
        ({"count": 1, "servers": 1, "server_options": "'"}, '--server-options "\'": No closing'),
        ({"count": 1, "server_options": "--threads 2"}, "--server-options without --servers"),
        *(
            (
                {"count": 1, "servers": 1, "server_options": own},
                f"{own.split()[0]} is this launcher's",
            )
            for own in (
                "--port 4100",
                "--ports 4100-4200",
                "--host=0.0.0.0",
                "--index 1",
                "--servers 2",
                "--listen-fd 3",
            )
        ),
        (
            {"count": 1, "servers": 1, "server_log": Path("x"), "server_options": "--log y"},
            "--log is this launcher's",
        ),
        ({"count": 1, "server_log": Path("x")}, "--server-log without --servers"),
        ({"count": 1, "restart_servers": True}, "--restart-servers without --servers"),
        ({"count": 1, "forward": ("A=B",)}, "--env A=B: say the name of a variable only"),
        ({"count": 1, "rendezvous": "no.such.name.invalid:0"}, "means no address here"),
        ({"count": 1, "rendezvous": "ü" * 80 + ":0"}, "means no address here"),
        ({"hosts": "# none\n"}, "no host in it"),
        ({"hosts": "a\nb\n", "count": 3}, "the hosts file has 2 slots"),
        ({"hosts": "localhost\nb\n"}, "the other hosts cannot reach 'localhost'"),
        ({"hosts_file": Path("no-such-file")}, "no such file"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        plan_of(tmp_path, **options)  # type: ignore[arg-type]
    assert words in str(refused.value)


@pytest.mark.parametrize("count", range(1, 8))
def test_every_rank_is_placed_once_and_neighbours_share_a_host(count: int, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("a slots=3\nb\nc slots=3\n")
    hosts = place(read_hosts(path), count)
    assert [rank for host in hosts for rank in host.ranks] == list(range(count))


def test_the_first_failure_stays_and_the_rest_is_told_in_groups() -> None:
    outcome = Outcome(6)
    outcome.has_begun = True
    outcome.end(4, 3)
    assert outcome.fail(Failure("rank 4", 3, 4))
    assert not outcome.fail(Failure("rank 1", 1, 1))
    for rank, status in ((0, -signal.SIGTERM), (1, 1), (2, -signal.SIGTERM), (3, 0)):
        outcome.end(rank, status)
    assert outcome.exit_code == 3
    assert outcome.aftermath() == (
        "ranks 0, 2 stopped; rank 1 ended with exit code 1; rank 3 finished; "
        "rank 5 unknown: the host did not say"
    )


def test_names_of_ranks_and_ends() -> None:
    assert name_ranks([7]) == "rank 7"
    assert name_ranks([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7-8"
    assert describe(3) == "exit code 3"
    assert describe(-11) == "killed by SIGSEGV"
    assert "memory ran out" in describe(-9)
    assert describe(-40) == "killed by signal 40"
