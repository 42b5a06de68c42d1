"""`gradring bench`: short real runs, what they write, and that a wrong answer is never a figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.bench import cases, options, report, statistics, table
from gradring.bench.cases import (
    Link,
    bus_factor,
    link_cpu_per_gb,
    lower_bound,
    make_cases,
    parse_size,
)
from gradring.bench.command import run
from gradring.bench.groups import GroupFailed, JoinedGroup, LaunchedGroup
from gradring.bench.peers import pattern
from gradring.bench.peers.ours import Ours
from gradring.bench.peers.pattern import Case
from gradring.bench.peers.timing import Rank
from gradring.bench.starts import Start
from gradring.bench.sweep import Row
from gradring.errors import InvalidArgument
from reference import ops_of, reduced
from thread_ranks import ThreadWorld

SHORT = ("--seconds", "0.02", "--rounds", "5", "--warmup", "1")

# Rank 1's result of all_reduce is made wrong in one element, whatever the library does.
LYING_RANK = """
import sys
import gradring as gr
from gradring.bench.command import run
from gradring.bench.peers import ours

class Lying(ours.Ours):
    def bind(self, case, x, y):
        bound = super().bind(case, x, y)
        def call():
            bound.call()
            if self.rank == 1:
                bound.result[-1] += 1
        return ours.Bound(call, bound.result)

ours.Ours = Lying
sys.exit(run(sys.argv[1:]))
"""

# No rank can do what is asked for.
GIVING_UP = """
import sys
from gradring.bench.command import run
from gradring.bench.peers import ours
from gradring.bench.peers.timing import Unsupported

class Refusing(ours.Ours):
    def bind(self, case, x, y):
        raise Unsupported("not on this machine")

ours.Ours = Refusing
sys.exit(run(sys.argv[1:]))
"""


def bench(
    *arguments: str, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradring", "bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def measured(*arguments: str) -> dict[str, Any]:
    """Run with --json and return the document; the run must succeed."""
    ended = bench(*arguments, *SHORT, "--json")
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_document_holds_every_figure_of_every_size(transport: str) -> None:
    document = measured("all_reduce", "barrier", "--sizes", "4,1K,64K", "--transport", transport)

    assert document["schema"] == 1
    assert (document["world_size"], document["transport"]) == (2, transport)
    assert document["checked"]
    assert document["machine"]["cpus"]["usable"] >= 1
    assert document["libraries"]["gradring"]["version"].startswith("gradring")
    all_reduce, barrier = document["operations"]
    assert [row["bytes"] for row in all_reduce["rows"]] == [4, 1 << 10, 64 << 10]
    assert [row["bytes"] for row in barrier["rows"]] == [0]
    for row in all_reduce["rows"]:
        ours = row["results"]["gradring"]
        assert ours["wrong"] == 0
        assert len(ours["rounds_us"]) == 5
        assert 0 < ours["p50_us"] <= ours["p99_us"]
        assert ours["algbw_gbs"] == pytest.approx(row["bytes"] / ours["time_us"] / 1e3, rel=0.01)
        assert ours["busbw_gbs"] == pytest.approx(ours["algbw_gbs"], abs=1e-8)  # 2(n-1)/n is 1.
        assert ours["cpu_s_per_gb"] > 0
        assert row["link_gbs"] > 0
        assert (row["link_cpu_s_per_gb"] is None) == (transport == "shm")
        assert row["algorithm"]
    controls = document["libraries"]["gradring"]["congestion"]
    assert transport == "shm" or sum(controls.values()) > 2, "data sockets were not found"


def test_temporary_files_may_lie_deeper_than_a_sockets_name_may_be_long(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "gradring", "bench", "barrier", *SHORT],
        env={**os.environ, "TMPDIR": str(deep)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_operation_is_right_with_three_ranks() -> None:
    document = measured(*cases.OPERATIONS, "-n", "3", "--sizes", "12,3000")

    assert [operation["op"] for operation in document["operations"]] == list(cases.OPERATIONS)
    for operation in document["operations"]:
        for row in operation["rows"]:
            assert row["results"]["gradring"]["wrong"] == 0, operation["op"]


def test_ranks_that_a_launcher_started_measure_together(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    gradring = [sys.executable, "-m", "gradring"]
    arguments = ["broadcast", "--sizes", "1K", *SHORT, "--json", str(path)]
    ended = subprocess.run(
        [*gradring, "run", "-n", "2", "--no-prefix", *gradring, "bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("# broadcast") == 1, "only rank 0 reports"
    document = json.loads(path.read_text())
    assert document["operations"][0]["rows"][0]["results"]["gradring"]["wrong"] == 0


@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
def test_a_wrong_answer_on_one_rank_fails_the_run(op: str, tmp_path: Path) -> None:
    script = tmp_path / "lying.py"
    script.write_text(LYING_RANK)
    command = [sys.executable, "-m", "gradring", "run", "-n", "2", "--no-prefix", str(script), op]

    def lie(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--sizes", "4K", *SHORT, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    checked = lie()
    assert checked.returncode == 1
    assert "5 elements of results are WRONG" in checked.stderr, checked.stderr
    assert lie("--no-check").returncode == 0


def test_a_bench_that_gives_up_ends_its_other_ranks_quietly(tmp_path: Path) -> None:
    script = tmp_path / "giving_up.py"
    script.write_text(GIVING_UP)
    # Each rank is left to end by itself.
    command = [sys.executable, "-m", "gradring", "run", "-n", "2", "--keep-going", str(script)]
    ended = subprocess.run(
        [*command, "all_reduce", "--sizes", "4", *SHORT],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 1
    assert "[0] gradring bench: all_reduce: not on this machine" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "PeerLost" not in ended.stderr
    assert "after that: rank 1 finished" in ended.stderr


def test_a_group_whose_communicator_failed_closes_without_another_error(
    fresh_world: Callable[..., ThreadWorld],
) -> None:
    world = fresh_world(2, "tcp")

    def take_part(comm: gr.Communicator) -> str:
        if comm.rank == 1:
            comm.close()
            return ""
        group = JoinedGroup(comm, Rank(Ours(comm, "auto", "cpu")))
        try:
            with pytest.raises(gr.Error) as raised:
                group.ask(do="about")
        finally:
            group.close()
        return type(raised.value).__name__

    assert world.run(take_part) == ["PeerLost", ""]


def test_gloo_is_measured_in_the_same_rounds() -> None:
    document = measured("all_reduce", "--sizes", "64K", "--transport", "tcp", "--compare", "gloo")

    (row,) = document["operations"][0]["rows"]
    assert document["missing"] == {}
    assert document["libraries"]["gloo"]["version"].startswith("torch")
    assert row["results"]["gloo"]["wrong"] == 0
    ratio = row["ratios"]["gloo"]
    pairs = zip(
        row["results"]["gloo"]["rounds_us"], row["results"]["gradring"]["rounds_us"], strict=True
    )
    expected = [peer / ours for peer, ours in pairs]
    assert ratio["median"] == pytest.approx(float(np.median(expected)), rel=0.01)
    assert ratio["low"] <= ratio["median"] <= ratio["high"]


def test_a_peer_that_is_missing_is_named_with_how_to_install_it(tmp_path: Path) -> None:
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    empty.chmod(0o755)
    document = measured(
        "all_reduce", "--sizes", "4", "--compare", "gloo", "--peer-python", str(empty)
    )

    assert "pip install torch" in document["missing"]["gloo"]
    assert list(document["operations"][0]["rows"][0]["results"]) == ["gradring"]


def test_a_peer_that_cannot_start_is_named_with_what_it_said(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "no such thing as torch" >&2\nexit 3\n'
    )
    broken.chmod(0o755)
    document = measured(
        "all_reduce", "--sizes", "4", "--compare", "gloo", "--peer-python", str(broken)
    )

    assert "no such thing as torch" in document["missing"]["gloo"]


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    ended = bench("all_reduce", "broadcast", "--sizes", "4,64K", *SHORT, "--plot", str(path))

    assert ended.returncode == 0, ended.stderr
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert path.stat().st_size > 10_000


def test_the_table_is_aligned_and_says_what_was_measured() -> None:
    ended = bench("all_gather", "--sizes", "4,64K", *SHORT)

    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    start = lines.index("# all_gather") + 1
    heads, *rows = lines[start : start + 3]
    assert heads.split()[:3] == ["size", "count", "us"]
    assert [row.split()[0] for row in rows] == ["8", "64K"]  # An element for each of the ranks.
    assert {len(line) for line in rows} == {len(heads)}
    assert "congestion control" in ended.stdout
    assert "# algbw: size / us; busbw: " in ended.stdout


def test_figures_of_a_slow_link_have_digits_that_count() -> None:
    figures = [1234.6, 12.34, 1.234, 0.126, 0.0336, 0.00125, 0.00008, 0.0]
    texts = ["1235", "12.3", "1.23", "0.13", "0.034", "0.0013", "0.000080", "0.00"]
    assert [table.number(figure) for figure in figures] == texts
    case = Case("all_reduce", 1 << 20, "float32")
    link = Link(alone=1.25e6, together=1.2e6)
    row = report.row_of(Row(case, "ring", link, bound=3.4, figures={}, ratios={}))
    assert (row["link_alone_gbs"], row["link_gbs"]) == (0.00125, 0.0012)


def test_the_command_line_is_checked_before_anything_starts() -> None:
    wrong = [
        ["all_reduce", "--rounds", "2"],
        ["all_reduce", "--sizes", "4,many"],
        ["all_reduce", "--begin", "1K", "--end", "4"],
        ["all_reduce", "--op", "band"],
        ["all_reduce", "--op", "avg", "--dtype", "bool"],
        ["all_reduce", "--compare", "smoke-signals"],
    ]
    for argv in wrong:
        with pytest.raises(InvalidArgument):
            options.parse(argv, is_launched=False)
    with pytest.raises(InvalidArgument, match="launcher"):
        options.parse(["all_reduce", "--compare", "gloo"], is_launched=True)
    with pytest.raises(SystemExit):
        run(["all_the_things"])


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5), ("reduce_scatter", 0.75), ("all_gather", 0.75), ("all_to_all", 0.75),
        ("gather", 0.75), ("scatter", 0.75), ("broadcast", 1.0), ("reduce", 1.0), ("sendrecv", 1.0),
        ("barrier", 0.0),
    ],
)  # fmt: skip
def test_bus_bandwidth_has_the_factors_of_nccl_tests(op: str, factor: float) -> None:
    assert bus_factor(op, 4) == factor


def test_the_lower_bound_is_the_tightest_of_what_must_take_time() -> None:
    gigabyte = 10**9
    case = Case("all_reduce", gigabyte, "uint8")
    # 1.5 GB a rank at 1 GB/s, or 6 GB in all where four ranks together move 2 GB/s.
    assert lower_bound(case, 4, Link(alone=1e9, together=1e9)) == pytest.approx(1.5)
    assert lower_bound(case, 4, Link(alone=1e9, together=0.5e9)) == pytest.approx(3.0)
    small = Case("all_reduce", 1, "uint8")
    assert lower_bound(small, 5, Link(1e9, 1e9, half_trip=5e-6)) == pytest.approx(15e-6)
    assert lower_bound(case, 1, Link(1e9, 1e9)) == 0.0


def test_processor_time_of_the_link_is_that_of_all_bytes_that_must_move() -> None:
    streams = Link(1e9, 1e9, cpu=0.4e-9)
    assert link_cpu_per_gb("all_reduce", 4, streams) == pytest.approx(6 * 0.4)
    assert link_cpu_per_gb("broadcast", 4, streams) == pytest.approx(3 * 0.4)
    assert link_cpu_per_gb("barrier", 4, streams) is None
    assert link_cpu_per_gb("all_reduce", 4, Link(1e9, 1e9)) is None


def test_sizes_are_read_and_cut_evenly() -> None:
    assert [parse_size(text) for text in ("4", "1K", "64M", "2GiB")] == [4, 1024, 64 << 20, 2 << 30]
    assert cases.sweep_sizes(4, 70, 4) == [4, 16, 64]
    counts = [case.count for case in make_cases("all_gather", [4, 8, 1024], "float32", "sum", 3)]
    assert counts == [3, 258]
    shown = [table.size_text(size) for size in (4, 1024, 1536, 64 << 20)]
    assert shown == ["4", "1K", "1536", "64M"]


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_the_expected_reduction_is_that_of_the_ranks_elements(dtype: str) -> None:
    kind = pattern.numpy_dtype(dtype)
    for op in ops_of(dtype):
        case = Case("all_reduce", 100_003, dtype, op)
        inputs = [np.empty(case.count, kind) for _ in range(3)]
        for rank, x in enumerate(inputs):
            pattern.fill(x, case, rank)
        assert (inputs[0] != inputs[1]).any(), "ranks must differ"
        result = reduced(inputs, op, "ring")
        assert pattern.count_wrong(result, case, 0, 3) == 0, op

        result.view(np.uint8)[-1] ^= 1
        assert pattern.count_wrong(result, case, 0, 3) == 1, op


def test_a_ratio_compares_round_with_round() -> None:
    def figures(*rounds: float) -> statistics.Figures:
        return statistics.Figures(1.0, 1.0, 1.0, 1.0, 1.0, None, 0, 1, rounds)

    ratio = statistics.ratio_of(figures(1.0, 10.0, 1.0), figures(2.0, 15.0, 0.5))
    assert (ratio.median, ratio.low, ratio.high) == (1.5, 0.5, 2.0)
    assert ratio.won == pytest.approx(2 / 3)


# Stands in for a launcher whose rank dies: it hears of that after us, and says how.
LAUNCHER = """
import json, os, socket, sys, time
rank = socket.socket(socket.AF_UNIX)
rank.connect(sys.argv[1])
rank.sendall(json.dumps({"rank": 0}).encode() + b"\\n")
rank.recv(int(sys.argv[2]))
rank.close()
time.sleep(0.5)  # Only who waits for us hears what comes now; how long does not matter.
print("rank 0 failed first: killed by SIGKILL", flush=True)
"""


@pytest.mark.parametrize("read", ["1", "4096"])
def test_of_a_rank_that_ends_it_is_said_how(read: str, tmp_path: Path) -> None:
    path = tmp_path / "ranks.sock"
    start = Start("library", (sys.executable, "-c", LAUNCHER, str(path), read), tmp_path, {})
    group = LaunchedGroup(start, 1, path)
    with pytest.raises(GroupFailed) as failure:
        group.ask(do="about")
    group.close()
    assert str(failure.value).splitlines()[0] == "library: rank 0 ended"
    assert "rank 0 failed first: killed by SIGKILL" in str(failure.value)
