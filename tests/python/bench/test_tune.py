"""Profiles of what links cost: measured, written, refused, and what the planner makes of them."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.bench.starts import role_in_group
from gradring.cli import main
from gradring.doctor import choice_doctor, machine_doctor
from gradring.doctor.choice_doctor import Asked
from gradring.dtypes import DTYPE_CODES
from gradring.errors import InvalidArgument
from gradring.operations import ALL_REDUCE
from gradring.settings import cost_profile
from gradring.settings.cost_profile import Costs, Measured, Profile
from gradring.tune import choices, fit, schedule
from gradring.tune.choices import OPERATIONS, Question
from gradring.tune.fit import Times
from gradring.tune.options import parse
from thread_ranks import ThreadWorld, listening_socket

pytestmark = pytest.mark.usefixtures("no_gpu_plugin")

FLOAT32 = DTYPE_CODES["float32"]
COUNT = 4096  # Float32: 16 KiB, which two ranks exchange whole by the defaults over TCP.

# Steps are free and bytes are dear: halves rather than whole vectors, whatever the size.
SLOW_LINK = Costs(latency_us=0.1, bandwidth_gb_s=0.01, reduce_gb_s=10.0, further_link=1.0)


def write(path: Path, costs: Costs, transport: str = "tcp") -> Path:
    """Write a profile that only has these costs."""
    cost_profile.save(Profile({transport: Measured(costs, 2, 1, 0.1)}), path)
    return path


def command(*arguments: str, environ: dict[str, str] | None = None) -> Any:
    """Run `gradring`; returns what it printed, which must be JSON."""
    ended = subprocess.run(
        [sys.executable, "-m", "gradring", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, **(environ or {})},
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    profile = Profile(
        {
            "tcp": Measured(Costs(12.25, 1.5, 9.0, 0.0), 4, 2, 0.25),
            "shm": Measured(Costs(1e-2, 1e4, 0.125, 8.0), 2, 1, 0.0),
        },
        {"date": "2026-01-01", "cpu": "one"},
    )
    cost_profile.save(profile, tmp_path / "profile.json")
    assert cost_profile.load(tmp_path / "profile.json") == profile
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("version",), 2, "version is 2, not 1"),
        (("version",), None, "version is None, not 1"),
        (("transports",), {}, "transports is no object"),
        (("transports", "infiniband"), {}, "transports.infiniband is not known"),
        (("transports", "tcp"), 3, "transports.tcp is no object"),
        (("transports", "tcp", "latency_us"), -1.0, "transports.tcp.latency_us is -1.0, not above"),
        (("transports", "tcp", "latency_us"), 10**400, "transports.tcp.latency_us is above 1e"),
        (("transports", "tcp", "latency_us"), 0, "transports.tcp.latency_us is 0, not above 0"),
        (("transports", "tcp", "bandwidth_gb_s"), float("nan"), "bandwidth_gb_s is nan, not a"),
        (("transports", "tcp", "reduce_gb_s"), "fast", "reduce_gb_s is 'fast', not a number"),
        (("transports", "tcp", "reduce_gb_s"), True, "reduce_gb_s is True, not a number"),
        (("transports", "tcp", "further_link"), -0.5, "further_link is -0.5, not 0 or more"),
        (("transports", "tcp", "latency_us"), 1e30, "latency_us is 1e+30, above 1e+09"),
        (("transports", "tcp", "ranks"), 0, "ranks is 0, not a whole number from 1"),
        (("transports", "tcp", "streams"), 99, "transports.tcp.streams is 99, above 32"),
        (("transports", "tcp", "jitter"), 1.0, "transports.tcp.jitter is not known"),
        (("made", "cpu"), 3, "made.cpu is 3, no text"),
        (("made", "mood"), "good", "made.mood is not known"),
        (("notes",), "mine", "notes is not known"),
    ],
)
def test_nonsense_is_refused_with_the_file_and_the_field(
    where: tuple[str, ...], value: object, words: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "mine.json", SLOW_LINK)
    document = json.loads(path.read_text())
    holder = document
    for name in where[:-1]:
        holder = holder[name]
    holder[where[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidArgument) as raised:
        cost_profile.load(path)
    assert str(path) in str(raised.value)
    assert words in str(raised.value)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", SLOW_LINK)
    whole = json.loads(path.read_text())
    for name in whole["transports"]["tcp"]:
        document = json.loads(path.read_text())
        del document["transports"]["tcp"][name]
        short = tmp_path / "short.json"
        short.write_text(json.dumps(document))
        words = rf"short\.json: transports\.tcp\.{name} is missing"
        with pytest.raises(InvalidArgument, match=words):
            cost_profile.load(short)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", "\x00\xff", "[" * 100_000])
def test_what_is_no_profile_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text, "latin-1")
    with pytest.raises(InvalidArgument, match=r"mine\.json"):
        cost_profile.load(path)
    with pytest.raises(InvalidArgument, match=r"none\.json cannot be read"):
        gr.init(profile=tmp_path / "none.json")


def join_with(profiles: list[Path | None]) -> list[gr.Communicator]:
    """Join as so many ranks over TCP, each with its profile."""
    listen_fd, address = listening_socket()
    secret = secrets.token_bytes(32)

    def join(rank: int) -> gr.Communicator:
        return gr.init(
            rank=rank, world_size=len(profiles), rendezvous=address, secret=secret, timeout=30,
            transport="tcp", listen_fd=listen_fd if rank == 0 else None, profile=profiles[rank],
        )  # fmt: skip

    with ThreadPoolExecutor(len(profiles)) as pool:
        return list(pool.map(join, range(len(profiles))))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("none", "none", "gather"),
        ("slow", "none", "ring"),
        ("slow", "broken", "ring"),
        ("none", "slow", "gather"),
    ],
)
def test_all_ranks_choose_by_rank_0s_profile_whatever_the_others_have(
    first: str, second: str, expected: str, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    files = {"none": None, "slow": write(tmp_path / "slow.json", SLOW_LINK), "broken": broken}
    comms = join_with([files[first], files[second]])
    chosen = [comm._core.algorithm_for(ALL_REDUCE, FLOAT32, COUNT) for comm in comms]
    assert chosen == [expected] * 2
    arrays = [np.full(COUNT, float(rank + 1), np.float32) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda comm, x: comm.all_reduce(x), comms, arrays))
        list(pool.map(lambda comm: comm.close(), comms))
    assert all(np.all(x == 3.0) for x in arrays)


def test_the_variable_changes_what_the_bench_reports(tmp_path: Path) -> None:
    path = write(tmp_path / "profile.json", SLOW_LINK)
    arguments = ("all_reduce", "--sizes", "16K", "--transport", "tcp", "--json")
    short = ("--seconds", "0.01", "--rounds", "5", "--warmup", "1")
    found = command("bench", *arguments, *short, environ={"GRADRING_PROFILE": str(path)})
    (row,) = found["operations"][0]["rows"]
    assert row["algorithm"] == "ring"


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_the_doctor_says_what_a_communicator_does(
    transport: str, world: Callable[[int, str], ThreadWorld]
) -> None:
    core = world(3, transport).comms[0]._core
    costs = choices.default_costs()[transport]
    for op, code in OPERATIONS.items():
        question = Question(op, 3, transport)
        for nbytes in (12, 12 << 10, 12 << 20):
            count = nbytes // 4 // (3 if op in ("gather", "scatter") else 1)
            chosen = choices.choose(question, nbytes, costs)
            assert chosen.algorithm == core.algorithm_for(code, FLOAT32, count), (op, nbytes)
            assert (chosen.estimate_us is None) == (chosen.algorithm == "flat")


def test_the_doctor_tells_algorithm_estimate_and_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "profile.json", SLOW_LINK)
    asked = ["doctor", "--size", "16K,1MiB", "--ranks", "2"]
    monkeypatch.delenv("GRADRING_PROFILE", raising=False)
    assert main([*asked, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    monkeypatch.setenv("GRADRING_PROFILE", str(path))
    assert main([*asked, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert main(asked) == 0
    text = capsys.readouterr().out

    tcp = before["transports"]["tcp"]
    assert tcp["source"] == "defaults"
    assert [each["algorithm"] for each in tcp["choices"]] == ["gather", "ring"]
    tcp = after["transports"]["tcp"]
    assert (tcp["source"], tcp["costs"]) == ("profile", vars(SLOW_LINK))
    assert [each["algorithm"] for each in tcp["choices"]] == ["ring", "ring"]
    # Half of it each way, twice, at 0.01 GB/s, and a tenth of a microsecond a step.
    assert tcp["choices"][0]["estimate_us"] == pytest.approx(16384 / 10 + 0.2, rel=0.01)
    assert after["transports"]["shm"]["source"] == "defaults"
    assert f"tcp: profile {path}" in text
    assert "shm: defaults" in text
    assert main(["doctor", "--op", "fold"]) == 2
    assert "operation 'fold' is none of" in capsys.readouterr().err
    assert machine_doctor.report({"GRADRING_PROFILE": str(path)})["planner"]["tcp"].startswith(
        "profile"
    )
    assert choice_doctor.report(Asked((64,), "gather", 5), {})["ranks"] == 5


def test_the_doctor_tells_what_is_taken_between_far_hosts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADRING_PROFILE", raising=False)
    assert main(["doctor", "--size", "64K,1M", "--path-ms", "10", "--json"]) == 0
    tcp = json.loads(capsys.readouterr().out)["transports"]["tcp"]
    assert [each["algorithm"] for each in tcp["choices"]] == ["gather", "direct"]
    assert tcp["choices"][0]["estimate_us"] > 10_000
    assert choices.default_costs(100) == choices.default_costs(), "a room is what they are for"
    assert main(["doctor", "--path-ms", "nan"]) == 2
    assert "--path-ms nan: not from 0 to" in capsys.readouterr().err


def test_the_doctors_json_is_json_whatever_a_profile_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "profile.json", Costs(1.0, 1e-320, 1e-320, 1.0))
    monkeypatch.setenv("GRADRING_PROFILE", str(path))
    assert main(["doctor", "--size", "1M", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["transports"]["tcp"]["choices"][0]["estimate_us"] is None


def test_a_broken_profile_is_a_problem_of_the_doctors_report(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"version": 7}')
    found = machine_doctor.report({"GRADRING_PROFILE": str(path)})
    assert any(f"{path}: version is 7" in text for text in found["problems"])
    # Of the ranks of a job only the first one reads it.
    job = {"GRADRING_WORLD_SIZE": "2", "GRADRING_RENDEZVOUS": "127.0.0.1:9"}
    for rank in (0, 1):
        found = machine_doctor.report({**job, "GRADRING_RANK": str(rank), "GRADRING_PROFILE": "x"})
        assert any("the profile" in text for text in found["problems"]) == (rank == 0)
    assert set(machine_doctor.report({})["planner"]) == {"tcp", "shm"}


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_fit_finds_the_costs_that_times_were_made_from(ranks: int) -> None:
    truth = Costs(25.0, 3.0, 8.0, 0.5 if ranks > 2 else choices.default_costs()["tcp"].further_link)
    dice = np.random.default_rng(5)
    seconds = {}
    for case in schedule.make_cases(schedule.FULL, ranks, has_flat=True):
        if case.algorithm == "flat":
            seconds[case] = 1e-9
            continue
        question = Question(case.op, ranks, "tcp")
        exact = choices.estimates(question, case.nbytes, truth.as_tuple(), any_order=True)
        # One in ten was hit by something else that ran; the others are a few percent off.
        hit = 20.0 if dice.random() < 0.1 else 1.0
        seconds[case] = exact[case.algorithm] * 1e-6 * hit * dice.normal(1.0, 0.03)
    found = fit.fit(Times(seconds, ranks), truth.reduce_gb_s)
    assert found.as_tuple() == pytest.approx(truth.as_tuple(), rel=0.1)
    assert fit.quality_of(Times(seconds, ranks), found).error < 0.05
    assert fit.flat_wins(Times(seconds, ranks)) == (24, 24)


def test_what_is_lost_is_how_much_slower_than_the_fastest_the_choices_are() -> None:
    costs = Costs(25.0, 3.0, 8.0, 0.5)
    cases = [case for case in schedule.make_cases(schedule.QUICK, 4, has_flat=False)
             if case.op == "all_reduce"]  # fmt: skip
    sizes = sorted({case.nbytes for case in cases})
    question = Question("all_reduce", 4, "tcp")
    taken = {size: choices.choose(question, size, costs).algorithm for size in sizes}
    seconds = {case: 2e-3 if case.algorithm != taken[case.nbytes] else 1e-3 for case in cases}
    assert fit.quality_of(Times(seconds, 4), costs).lost == 0, "each choice was the fastest"

    wrong = sizes[0]
    for case in cases:
        if case.nbytes == wrong and case.algorithm == taken[wrong]:
            seconds[case] = 3e-3
    found = fit.quality_of(Times(seconds, 4), costs)
    assert found.worst == pytest.approx(0.5), "3 ms where 2 were possible"
    assert found.lost == pytest.approx(0.5 / len(sizes))


def test_the_fit_of_times_that_mean_nothing_is_a_profile_that_is_not_refused(
    tmp_path: Path,
) -> None:
    cases = schedule.make_cases(schedule.QUICK, 4, has_flat=False)
    for seconds in (1e-9, 1.0):
        found = fit.fit(Times(dict.fromkeys(cases, seconds), 4), 10.0)
        assert cost_profile.load(write(tmp_path / "p.json", found)).transports["tcp"].costs == found


def test_local_ranks_are_measured_over_tcp_and_shared_memory(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    found = command("tune", "-n", "2", "--quick", "--json", "--out", str(path))
    profile = cost_profile.load(path)
    assert set(profile.transports) == {"tcp", "shm"}
    assert profile.made["gradring"]
    for transport, measured in profile.transports.items():
        told = found["transports"][transport]
        assert (measured.ranks, measured.hosts) == (2, 1)
        assert told["costs"] == vars(measured.costs)
        assert told["quality"]["error"] == measured.error, "what the profile says is what is told"
    assert found["transports"]["tcp"]["crossovers"]["all_reduce"]["defaults"][0][0] == "4"
    assert found["transports"]["shm"]["flat"]["cases"] == 12


def test_the_profile_that_is_to_be_replaced_may_be_broken_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    tune = ["tune", "--quick", "--json", "--transport", "shm", "--out", str(path)]
    gradring = [sys.executable, "-m", "gradring"]
    for before, ranks in ((None, [*tune, "-n", "2"]), ("{}", ["run", "-n", "2", *gradring, *tune])):
        if before is not None:
            path.write_text(before)
        ended = subprocess.run(
            [*gradring, *ranks], capture_output=True, text=True, check=False, timeout=100,
            env={**os.environ, "GRADRING_PROFILE": str(path)},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert list(cost_profile.load(path).transports) == ["shm"]


def test_ranks_that_a_launcher_started_are_measured_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    gradring = [sys.executable, "-m", "gradring"]
    arguments = ["tune", "--quick", "--transport", "tcp", "--out", str(path)]
    ended = subprocess.run(
        [*gradring, "run", "-n", "3", "--no-prefix", *gradring, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("tcp: 3 ranks") == 1, "only rank 0 reports"
    assert f"GRADRING_PROFILE={path}" in ended.stdout
    assert list(cost_profile.load(path).transports) == ["tcp"]


SLURM_TASK = {
    "SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}  # fmt: skip


def test_a_shell_that_slurm_has_started_as_its_only_task_starts_ranks_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**SLURM_TASK, "SLURM_NTASKS": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["tune", "--quick", "-n", "2", "--transport", "shm"]) == 0
    assert "shm: 2 ranks" in capsys.readouterr().out


def test_one_rank_is_a_group_but_for_slurm_which_may_have_started_a_shell() -> None:
    ours = {"GRADRING_RANK": "0", "GRADRING_WORLD_SIZE": "1"}
    for environ, is_alone in (
        ({}, True),
        ({**SLURM_TASK, "SLURM_NTASKS": "1"}, True),
        ({**SLURM_TASK, "SLURM_NTASKS": "2"}, False),
        (ours, False),
        ({**SLURM_TASK, "SLURM_NTASKS": "1", **ours}, False),
    ):
        assert (role_in_group(environ) is None) == is_alone


def test_a_wrong_command_line_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="it takes 2 ranks to have a link"):
        parse(["-n", "1"], is_launched=False)
    with pytest.raises(InvalidArgument, match="leave out -n"):
        parse(["-n", "4"], is_launched=True)
    assert parse([], is_launched=False).transports == ("tcp", "shm")
    assert parse([], is_launched=True).transports == ()
