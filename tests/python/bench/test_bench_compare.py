"""bench/compare: what it is asked to measure, short real runs, and what is drawn from records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradring.bench import report
from gradring.bench.starts import Start
from gradring.errors import InvalidArgument
from source_tree import ROOT

sys.path.insert(0, str(ROOT / "bench"))

from compare import (
    cells,
    collectives,
    command,
    environments,
    markdown,
    namespaces,
    network,
    pictures,
    plan,
    processes,
    records,
    training,
)
from compare.namespaces import Hosts
from compare.options import parse

RECORDS = Path(__file__).parent / "compare_records"


def compare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / "compare"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def record(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_world_is_a_job_with_sizes_as_they_will_be_measured() -> None:
    options = parse(["collectives", "--ranks", "2,4", "--sizes", "4,1M", "--congestion", "bbr"])
    jobs = plan.jobs_of(options)

    assert [job.name for job in jobs] == ["shm-2", "shm-4", "tcp-2-bbr", "tcp-4-bbr"]
    assert jobs[1].sizes["all_reduce"] == [4, 1 << 20]
    assert jobs[1].sizes["all_gather"] == [16, 1 << 20], "an element for each rank"
    assert plan.estimate(jobs[1], 6, 5, 0.3) > plan.estimate(jobs[0], 6, 5, 0.3) > 0


def test_rows_are_named_by_operation_transport_ranks_and_size() -> None:
    rows = ["all_reduce:tcp:4:64K", "broadcast:tcp:4:4", "all_reduce:shm:2:1M"]
    options = parse([word for row in rows for word in ("--rows", row)])

    assert options.what == ["collectives"]
    tcp, shm = plan.jobs_of(options)
    assert (tcp.name, tcp.sizes) == ("tcp-4", {"all_reduce": [64 << 10], "broadcast": [4]})
    assert (shm.name, shm.sizes) == ("shm-2", {"all_reduce": [1 << 20]})


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rows", "all_reduce:tcp:4"],
        ["--rows", "all_reduce:pigeon:4:4"],
        ["--rows", "no_such:tcp:4:4"],
        ["--transport", "pigeon"],
        ["--sizes", "large"],
        ["--ranks", "two"],
    ],
)
def test_what_does_not_exist_is_refused(arguments: list[str]) -> None:
    with pytest.raises(InvalidArgument):
        plan.jobs_of(parse(["collectives", *arguments]))


def test_a_table_has_every_ratio_and_says_where_we_are_behind() -> None:
    text = markdown.whole(RECORDS)

    assert "| 4 ranks, tcp, system's bbr | 5 |" in text
    assert "### all_reduce, 2 ranks, shm" in text
    (behind,) = [line for line in text.splitlines() if line.startswith("- all_reduce, 4 ranks")]
    assert "1M: openmpi-tcp 0.86x" in behind
    assert "| gradring async | 55 k (50 k-60 k) | test AUC 0.82 to 0.83 | 2.25x |" in text
    assert "Paddle async (examples): it was not through after 300 s and was ended" in text


def test_every_section_says_on_which_machine_and_at_which_state_of_the_code() -> None:
    sections = markdown.whole(RECORDS).split("\n## ")[1:]
    measured = [section for section in sections if not section.startswith("Where a peer")]
    assert len(measured) == len(list(RECORDS.iterdir()))
    for section in measured:
        assert re.search(r"^- .+, \d+ of \d+ cores, load ", section, re.MULTILINE), section
    (clicks,) = [section for section in measured if section.startswith("Click rates")]
    assert "\n- A processor, 2 of 4 cores, load 0.5\n" in clicks
    assert "\n- commit 0123456; 2026-11-22T17:08:46+00:00, load 0.5\n" in clicks


def test_what_was_measured_before_a_change_is_in_no_table(tmp_path: Path) -> None:
    for name in ("shm-2.json", "shm-2-before.json"):
        (tmp_path / name).write_bytes((RECORDS / "shm-2.json").read_bytes())
    assert [one["name"] for one in cells.documents(tmp_path, "shm", "tcp")] == ["shm-2"]


def test_a_processor_has_a_name_also_where_linux_gives_numbers_only() -> None:
    amd = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9R14\n"
    arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x1\nCPU part\t: 0xd40\n"
    assert report.cpu_model(amd, "x86_64") == "AMD EPYC 9R14"
    assert report.cpu_model(arm, "aarch64") == "aarch64 (implementer 0x41, part 0xd40)"
    assert report.cpu_model("", "riscv64") == "riscv64"


def test_a_wrong_result_is_no_best_peer_and_is_called_wrong() -> None:
    document = record(RECORDS / "shm-2.json")
    row = document["operations"][0]["rows"][1]
    best = cells.best_peer(row)
    assert best is not None
    row["results"][best[0]]["wrong"] = 3
    again = cells.best_peer(row)

    assert again is not None
    assert again[0] != best[0]


def test_pictures_are_drawn_from_records_alone_and_are_small(tmp_path: Path) -> None:
    for path in RECORDS.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    drawn = pictures.draw_all(tmp_path)

    names = {path.name for path in drawn}
    assert names == {
        "shm-2.png", "tcp-4.png", "heat-map.png", "all-reduce.png", "scaling.png", "training.png",
    }  # fmt: skip
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 150_000


@pytest.mark.timeout(400)
def test_rows_are_measured_kept_and_measured_again(tmp_path: Path) -> None:
    folders = ("--no-pictures", "--json", str(tmp_path), "--environments", str(tmp_path / "p"))
    world = ("--ranks", "2", "--transport", "tcp", "--operations", "all_reduce")
    first = compare("collectives", *world, "--sizes", "1K", "--peers", "gloo", "--quick", *folders)
    assert first.returncode == 0, first.stderr
    before = record(tmp_path / "tcp-2.json")
    more = compare("--rows", "all_reduce:tcp:2:4K", "--peers", "gloo", "--quick", *folders)
    assert more.returncode == 0, more.stderr
    after = record(tmp_path / "tcp-2.json")
    again = compare("collectives", *world, "--sizes", "1K,4K", "--resume", "--peers", "gloo",
                    *folders)  # fmt: skip
    assert again.returncode == 0, again.stderr

    (row,) = before["operations"][0]["rows"]
    assert {name: found["wrong"] for name, found in row["results"].items()} == {
        "gradring": 0,
        "gloo": 0,
    }
    assert len(row["results"]["gloo"]["rounds_us"]) == 5
    assert row["measured"]["date"]
    assert before["libraries"]["gloo"]["congestion"], "peers' sockets are described"
    assert before["environments"]["gloo"]["torch"].startswith("2.")
    asked = ("python bench/compare collectives --ranks 2 --transport tcp --operations all_reduce "
             "--sizes 1K --peers gloo --quick --no-pictures")  # fmt: skip
    assert before["command"] == row["measured"]["command"] == asked, "as asked, without folders"
    assert after["command"] == asked, "most rows' command stays"
    added = after["operations"][0]["rows"][1]["measured"]["command"]
    assert added.startswith("python bench/compare --rows all_reduce:tcp:2:4K ")
    assert [one["bytes"] for one in after["operations"][0]["rows"]] == [1 << 10, 4 << 10]
    kept = after["operations"][0]["rows"][0]
    assert kept["measured"].items() >= row["measured"].items()
    assert kept["measured"]["libraries"] == before["environments"], "what it was measured with"
    assert {**kept, "measured": None} == {**row, "measured": None}, "the other row is as it was"
    assert "all rows are there" in again.stderr
    assert record(tmp_path / "tcp-2.json") == after
    assert "### all_reduce, 2 ranks, tcp" in (tmp_path / "table.md").read_text()


def test_a_peer_that_cannot_be_installed_has_a_reason(tmp_path: Path) -> None:
    python = tmp_path / "mpich" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    said: list[str] = []
    found = environments.prepare(["mpich"], tmp_path, said.append)

    assert found["mpich"].reason.startswith("mpich: ")
    assert said == [found["mpich"].reason]


def test_a_program_that_hangs_is_ended_with_its_children_and_the_run_goes_on() -> None:
    hung = ["sh", "-c", "echo begun; sleep 600 & wait"]
    ended = processes.run([hung], deadline=0.3)
    assert "not through after 0.3 s" in ended.reason

    failed = processes.run([["sh", "-c", "echo why >&2; exit 7"], ["sleep", "600"]], deadline=60)
    assert failed.reason == "it ended with 7: why"
    assert processes.run([["echo", "fine"]], deadline=60).output == "fine\n"


def test_a_contender_is_read_by_its_last_line_of_json() -> None:
    text = 'noise\n{"pairs/s": 1.0}\n{"pairs/s": 2.0, "held-out loss": 3.0}\n{"x": 1}\n'
    found = training.last_json(text, "pairs/s")

    assert found == {"pairs/s": 2.0, "held-out loss": 3.0}
    assert training.last_json("nothing", "pairs/s") is None


def test_no_all_reduce_beats_what_the_links_must_carry() -> None:
    size = 16 << 20
    alike = network.least_seconds(size, [1000] * 4)
    assert alike == pytest.approx(1.5 * size * 8 / 1e9)
    slow = network.least_seconds(size, [1000, 1000, 1000, 250])
    assert slow == pytest.approx(size * 8 / 250e6), "the slow host sends its own data once"


def test_every_rank_is_started_on_a_host_of_its_own(tmp_path: Path) -> None:
    hosts = Hosts("test", [1000, 1000])
    mpi = Start("mpich-tcp", ("mpiexec", "-n", "2", "python"), tmp_path)
    argv = network.placed(mpi, hosts, tmp_path / "agent.sh").argv
    assert argv[:4] == ("ip", "netns", "exec", "test-0")
    assert argv[argv.index("-hosts") + 1] == "10.77.0.1,10.77.0.2"

    run = (sys.executable, "-m", "gradring", "run", "-n", "2", sys.executable, "-m", "ranks")
    ours = network.placed(Start("gradring", run, tmp_path), hosts, tmp_path / "agent.sh")
    lines = ours.argv[-1].splitlines()
    assert len(lines) == 3
    assert "netns exec test-1 " in lines[1]
    assert "GRADRING_RANK=1" in lines[1]
    assert len(ours.environ["GRADRING_SECRET"]) == 64


def settings(folder: Path, **changes: Any) -> collectives.Settings:
    usual: dict[str, Any] = {
        "folder": folder, "rounds": 5, "seconds": 0.01, "bind": "none", "peers": (),
        "deadline": 60.0, "resume": False, "environments": {},
    }  # fmt: skip
    return collectives.Settings(**usual | changes)


def small_job() -> plan.Job:
    return plan.Job("shm", 2, "", {"all_reduce": [4]})


def test_a_wrong_result_is_named_and_fails_its_run_but_not_the_runs_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(row: Any) -> dict[str, Any]:
        found = report.row_of(row)
        found["results"]["gradring"]["wrong"] = 5
        return found

    with monkeypatch.context() as patch:
        patch.setattr(collectives, "report", SimpleNamespace(**{**vars(report), "row_of": damaged}))
        assert not collectives.measure(small_job(), settings(tmp_path))
    assert "shm-2 all_reduce 4: WRONG elements of the result: {'gradring': 5}" in (
        capsys.readouterr().err
    )
    (row,) = record(tmp_path / "shm-2.json")["operations"][0]["rows"]
    assert cells.right_results(row) == {}, "no picture has it"

    other = plan.Job("shm", 2, "", {"all_reduce": [1024]})
    assert collectives.measure(other, settings(tmp_path))


def test_without_any_peer_that_was_wanted_nothing_is_measured_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = environments.Environment("mpich", sys.executable, reason="mpich: no wheel for this")
    wanted = settings(tmp_path, peers=("mpich",), environments={"mpich": none})

    assert not collectives.measure(small_job(), wanted)
    said = capsys.readouterr().err
    assert "mpich: no wheel for this" in said
    assert "no peer came, nothing is measured" in said
    assert not (tmp_path / "shm-2.json").exists()


def test_rows_that_are_kept_say_what_machine_and_versions_they_are_of() -> None:
    old = {
        "command": "old", "machine": {"cpu": "old cpu"}, "environments": {"gloo": {"torch": "1"}},
        "operations": [{"op": "all_reduce", "rows": [
            {"bytes": 4, "measured": {"commit": "a"}}, {"bytes": 8, "measured": {"commit": "a"}}]}],
    }  # fmt: skip
    new: dict[str, Any] = {"command": "new", "machine": {"cpu": "new cpu"}, "environments": {}}
    records.keep_rows(new, old, {"all_reduce": [8]})

    kept = new["operations"][0]["rows"][0]["measured"]
    assert kept == {
        "commit": "a", "command": "old", "cpu": "old cpu", "libraries": {"gloo": {"torch": "1"}}
    }  # fmt: skip


@pytest.mark.parametrize("asked", [["network"], ["collectives", "--congestion", "reno"]])
def test_what_needs_root_is_refused_where_it_was_asked_for(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)

    assert command.main([*asked, "--peers", "gloo"]) == 2
    assert "network namespaces need root" in capsys.readouterr().err


@pytest.mark.parametrize(
    "asked", [("--hosts", "9"), ("--delay-ms", "-1"), ("--mbit", "0"), ("--slow-mbit", "0")]
)
def test_a_network_that_cannot_be_is_refused_before_anything_is_installed(
    asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(*_: object) -> None:
        raise AssertionError("peers were being installed")

    monkeypatch.setattr(command.environments, "prepare", install)
    assert command.main(["network", *asked]) == 2
    assert f"network: {' '.join(asked)} is " in capsys.readouterr().err


@pytest.mark.skipif(bool(namespaces.complaint()), reason=namespaces.complaint())
def test_hosts_are_made_reach_each_other_and_are_gone_afterwards() -> None:
    def reaches(hosts: Hosts) -> bool:
        knock = [*hosts.inside(0), "bash", "-c", f": > /dev/tcp/{hosts.addresses()[1]}/1"]
        asked = subprocess.run(knock, capture_output=True, text=True, check=False, timeout=60)
        return "refused" in asked.stderr  # By the host itself: nothing listens there.

    def left() -> str:
        return subprocess.run(
            ["ip", "netns", "list"], capture_output=True, text=True, check=True
        ).stdout

    with namespaces.hosts([1000, 1000]) as hosts:
        assert reaches(hosts)
        prefix = hosts.prefix
    assert prefix not in left()

    if not Path("/dev/net/tun").exists():
        pytest.skip("no /dev/net/tun here: hosts that are far apart were not made")
    with namespaces.hosts([1000, 1000], delay_seconds=0.2) as hosts:
        begin = time.monotonic()
        assert reaches(hosts)
        assert time.monotonic() - begin >= 0.4  # There and back.
    assert prefix not in left()


@pytest.mark.skipif(bool(namespaces.complaint()), reason=namespaces.complaint())
def test_a_congestion_control_that_the_kernel_has_not_is_refused() -> None:
    with (
        pytest.raises(InvalidArgument, match="no-such-control"),
        namespaces.with_congestion("no-such-control"),
    ):
        pass


def test_peers_read_the_data_without_gradring() -> None:
    program = "import sys; sys.modules['gradring'] = None; import datasets"
    examples = ROOT / "examples"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=examples, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
