"""gradring doctor: tells what it finds, never the secret, and what to do about each problem."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gradring.doctor import choice_doctor, machine_doctor
from gradring.machine import host_facts
from gradring.machine.host_facts import Interface, chosen_interface, cpu_quota
from launcher_variables import OWN
from ps_servers import SECRET, connected

pytestmark = pytest.mark.usefixtures("no_gpu_plugin")

BY_HAND = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_the_role_is_shown_with_the_variables_it_came_from() -> None:
    role = machine_doctor.report({**BY_HAND, "GRADRING_SECRET": "x" * 64})["role"]
    assert role["source"] == "torch variables"
    assert (role["rank"], role["world_size"], role["rendezvous"]) == (0, 2, "127.0.0.1:29500")
    assert set(role["variables"]) == {*BY_HAND, "GRADRING_SECRET"}
    assert "alone" in machine_doctor.report({})["role"]["source"]
    by_hand = {"GRADRING_NEWCOMER": "1", "GRADRING_RENDEZVOUS": "127.0.0.1:4000"}
    for environ in (by_hand, {**OWN, **by_hand}):
        found = machine_doctor.report(environ)
        assert found["role"]["source"].endswith("joins the job at 127.0.0.1:4000")
        assert found["problems"] == []


def test_the_secret_is_shown_as_its_length_only(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "open-sesame" * 4
    misspelt = {"GRADRING_SECRETS": secret, "GRADRING_SECERT": secret}
    environ = {**BY_HAND, "GRADRING_SECRET": secret, **misspelt}
    for as_json in (True, False):
        machine_doctor.main(as_json=as_json, environ=environ)
        shown = capsys.readouterr().out
        assert "set, 44 characters" in shown
        assert "sesame" not in shown


def test_seconds_and_memory_are_shown_in_their_units(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host_facts, "available_memory", lambda: 5 << 29)
    monkeypatch.setattr(host_facts, "memory_limit", lambda: None)
    machine_doctor.main(environ={"GRADRING_TIMEOUT": "45"})
    shown = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert shown["timeout"] == ["45", "s"]
    assert shown["heartbeat_timeout"] == ["10", "s"]
    assert shown["available"] == ["2.5", "GiB"]
    assert shown["limit"] == ["-"]


def test_the_range_of_ports_is_shown_with_the_other_variables() -> None:
    found = machine_doctor.report({"GRADRING_PORTS": "20000-20099"})
    assert found["settings"]["ports"] == found["environment"]["GRADRING_PORTS"] == "20000-20099"


@pytest.mark.parametrize(
    ("environ", "list_name", "words"),
    [
        ({"RANK": "0"}, "problems", "WORLD_SIZE, MASTER_ADDR, MASTER_PORT missing"),
        (BY_HAND, "problems", "export GRADRING_SECRET="),
        ({"GRADRING_TIMEOUT": "soon"}, "problems", "GRADRING_TIMEOUT='soon'"),
        ({"GRADRING_PORTS": "4000"}, "problems", "GRADRING_PORTS='4000' is no range of ports"),
        ({"GRADRING_INTERFACE": "nope0"}, "problems", "GRADRING_INTERFACE=nope0: no interface"),
        ({**BY_HAND, "GRADRING_SECRET": "short"}, "warnings", "has 5 characters"),
        ({"GRADRING_SECRET": "short"}, "warnings", "has 5 characters"),
        ({"JOB_COMPLETION_INDEX": "1"}, "warnings", "this process is alone; if it is one of"),
        ({"DMLC_ROLE": "worker"}, "warnings", "DMLC_ROLE is set (ps-lite's)"),
        ({"GRADRING_TRANSPRT": "tcp"}, "warnings", "did you mean GRADRING_TRANSPORT?"),
        ({**BY_HAND, "LOCAL_WORLD_SIZE": "1"}, "problems", "on several hosts"),
        ({"GRADRING_SERVERS": "a:1,"}, "problems", "the address of server 1 of 2 is empty"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(
    environ: dict[str, str], list_name: str, words: str
) -> None:
    found = machine_doctor.report(environ)
    assert any(words in text for text in found[list_name]), found[list_name]
    assert words in machine_doctor.render(found)


def test_what_is_in_order_is_no_warning() -> None:
    enough = {"GRADRING_SECRET": "x" * 64}
    for environ in ({}, enough, {**BY_HAND, **enough, "JOB_COMPLETION_INDEX": "0"}):
        warnings = machine_doctor.report(environ)["warnings"]
        assert not [text for text in warnings if "GRADRING_" in text]


def test_ranks_with_cpus_of_their_own_share_none() -> None:
    all_cpus = os.sched_getaffinity(0)
    report = "import json, os; from gradring.doctor.machine_doctor import report"
    report += "; print(json.dumps(report(os.environ)))"
    shared = {**os.environ, "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

    def warnings(ranks: int, binding: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", f"import os; {binding}; {report}"],
            env={**shared, "WORLD_SIZE": str(ranks)}, capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
        return [text for text in json.loads(done.stdout)["warnings"] if "share" in text]

    bound = f"os.sched_setaffinity(0, {{{min(all_cpus)}}})"
    assert warnings(len(all_cpus), bound) == []
    several = len(all_cpus) + 1
    assert warnings(several, bound) == [
        f"{several} ranks share {len(all_cpus)} CPUs; each waits for the others"
    ]


def test_servers_are_asked_as_their_clients_ask_them() -> None:
    with connected(2) as ps, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        first, second = ps.servers
        gone = f"127.0.0.1:{closed.getsockname()[1]}"
        secret = {"GRADRING_SECRET": SECRET}
        found = machine_doctor.report({**secret, "GRADRING_SERVERS": f"{first},{second}"})
        assert found["servers"] == {f"0 {first}": "answers", f"1 {second}": "answers"}
        assert found["problems"] == []
        swapped = machine_doctor.report({**secret, "GRADRING_SERVERS": f"{second},{first}"})
        assert any("in the order of their numbers" in text for text in swapped["problems"])
        found = machine_doctor.report({**secret, "GRADRING_SERVERS": f"{gone},{first}"})
        assert [text.partition(" at ")[0] for text in found["problems"]] == ["parameter server 0"]
        other = machine_doctor.report({"GRADRING_SECRET": "x" * 64, "GRADRING_SERVERS": first})
        assert any("GRADRING_SECRET differs" in text for text in other["problems"])


def test_servers_hear_no_stranger_when_the_doctor_asks(capfd: pytest.CaptureFixture[str]) -> None:
    with connected(1) as ps:
        machine_doctor.report({"GRADRING_SECRET": SECRET, "GRADRING_SERVERS": ps.servers[0]})
    assert "refused a connection" not in capfd.readouterr().err


def test_without_a_secret_it_is_told_that_something_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        here, gone = (f"127.0.0.1:{s.getsockname()[1]}" for s in (listener, closed))
        found = machine_doctor.report({"GRADRING_SERVERS": f"{here},{gone}"})
    assert found["servers"][f"0 {here}"] == "something listens"
    assert found["problems"] == [
        "GRADRING_SECRET is not set; connect() needs that of the parameter servers",
        f"parameter server 1 at {gone} does not answer: [Errno 111] Connection refused",
    ]
    assert f"0 {here}" in machine_doctor.render(found)


def test_a_name_that_no_host_can_have_is_a_problem_and_no_crash() -> None:
    found = machine_doctor.report({"GRADRING_SERVERS": "ü" * 80 + ":80"})
    assert any("does not answer" in text for text in found["problems"])
    assert host_facts.route_source("ü" * 80, 80) is None


def test_several_hosts_of_our_launcher_may_be_this_machine() -> None:
    role = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    environ = {f"GRADRING_{name}": value for name, value in role.items()}
    environ |= {"GRADRING_RENDEZVOUS": "127.0.0.1:4000", "GRADRING_SECRET": "x" * 64}
    assert machine_doctor.report(environ)["problems"] == []


def test_a_job_that_could_not_start_is_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert machine_doctor.main(environ={"RANK": "0"}) == 1
    assert "problems" in capsys.readouterr().out


def test_a_missing_core_is_a_problem_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gradring._core", None)
    found = machine_doctor.report({})
    assert "missing" in found["core"]
    assert any("the compiled core does not load" in text for text in found["problems"])


def test_the_report_is_plain_json() -> None:
    found = machine_doctor.report(BY_HAND)
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["python"].startswith("3.")
    assert found["cpus"]["usable"] >= 1
    assert found["memory"]["open_files"] > 0


def test_the_report_says_who_may_read_whose_memory(tmp_path: Path) -> None:
    assert host_facts.ptrace_scope(tmp_path) == 0  # A kernel without Yama.
    (tmp_path / "kernel/yama").mkdir(parents=True)
    (tmp_path / "kernel/yama/ptrace_scope").write_text("1\n")
    assert host_facts.ptrace_scope(tmp_path) == 1
    assert machine_doctor.report(BY_HAND)["memory"]["ptrace_scope"] == host_facts.ptrace_scope()


def test_the_interfaces_include_loopback_with_its_network() -> None:
    assert Interface("lo", "127.0.0.1/8") in host_facts.interfaces()


def test_the_interface_is_chosen_by_name_network_or_route() -> None:
    found = [
        Interface("lo", "127.0.0.1/8"),
        Interface("eth0", "10.1.2.3/16"),
        Interface("eth1", "fd00::5/64"),
    ]
    assert chosen_interface(found, "eth1", None) == found[2]
    assert chosen_interface(found, "10.0.0.0/8", None) == found[1]
    assert chosen_interface(found, "fd00::/32", None) == found[2]
    assert chosen_interface(found, "wlan0", None) is None
    assert chosen_interface(found, None, ("127.0.0.1", 5)) == found[0]
    assert chosen_interface(found, None, None) == found[0]


def test_the_route_is_asked_without_sending() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        assert host_facts.route_source(*peer.getsockname()) == "127.0.0.1"
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)


def test_the_cpu_quota_is_read_in_both_forms(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cpu_quota(tmp_path) == 0.5


def test_in_a_job_rank_0_alone_says_which_algorithms_its_ranks_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = choice_doctor.Asked((1 << 20,))
    job = {
        "GRADRING_WORLD_SIZE": "3", "GRADRING_RENDEZVOUS": "127.0.0.1:4000",
        "GRADRING_SECRET": "s" * 32,
    }  # fmt: skip
    assert choice_doctor.main(asked, as_json=False, environ=job | {"GRADRING_RANK": "1"}) == 0
    assert capsys.readouterr().out == ""
    assert choice_doctor.main(asked, as_json=False, environ=job | {"GRADRING_RANK": "0"}) == 0
    assert capsys.readouterr().out.startswith("all_reduce of float32 between 3 ranks")
    assert choice_doctor.report(asked, {})["ranks"] == 4
    assert choice_doctor.report(asked, {"GRADRING_RANK": "0"})["ranks"] == 4


def test_the_doctor_says_where_hosts_of_several_ranks_take_another_algorithm() -> None:
    def says_so(size: int, op: str) -> bool:
        found = choice_doctor.report(choice_doctor.Asked((64, size), op), {})
        return "hierarchical from 64K on" in choice_doctor.render(found)

    assert says_so(64 << 10, "all_reduce")
    assert says_so(1 << 20, "broadcast")
    assert not says_so((64 << 10) - 4, "all_reduce")
    assert not says_so(1 << 20, "all_gather")
