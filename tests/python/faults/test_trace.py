"""Traces of several ranks, put onto one clock, show causes before effects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gradring as gr
from gradring import cli, trace
from rank_job import StartJob

pytestmark = pytest.mark.timeout(120)

BARRIERS = """
for turn in range(20):
    with gr.trace.span("work"):
        time.sleep(0.001 * ((turn + comm.rank) % 3))
    comm.barrier()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the ranks that a test starts leave their traces."""
    monkeypatch.setenv("GRADRING_TRACE", str(tmp_path / "traces"))
    return tmp_path / "traces"


def barriers(events: list[dict[str, Any]]) -> dict[int, dict[int, tuple[float, float]]]:
    """Begin and end by number and rank."""
    found: dict[int, dict[int, tuple[float, float]]] = {}
    for event in events:
        if event["name"] == "barrier":
            times = found.setdefault(event["args"]["seq"], {})
            times[event["pid"]] = (event["ts"], event["ts"] + event["dur"])
    return found


def expect_causal(merged: dict[str, Any], count: int) -> None:
    """Nobody leaves a barrier before everybody has come to it."""
    found = barriers(merged["traceEvents"])
    assert len(found) == count
    unsure = 1.0 + 2 * max(merged["otherData"]["clock_error_us"].values())
    for ranks in found.values():
        assert len(ranks) == 3
        last_begin = max(begin for begin, _ in ranks.values())
        assert min(end for _, end in ranks.values()) >= last_begin - unsure


def run_barriers(job: StartJob) -> None:
    ranks = job(3)
    ranks.call(BARRIERS)
    ranks.call("comm.close()")


def test_traces_of_three_ranks_merge_in_causal_order(job: StartJob, folder: Path) -> None:
    run_barriers(job)
    traces = trace.read(folder)
    assert [one.rank for one in traces] == [0, 1, 2]
    expect_causal(trace.merge(traces), 20)


def test_a_clock_that_is_wrong_is_set_right(job: StartJob, folder: Path) -> None:
    run_barriers(job)
    hour = 3600 * 10**9
    path = folder / "rank-2.trace.json"
    skewed = json.loads(path.read_text())
    for event in skewed["traceEvents"]:
        if "ts" in event:
            event["ts"] += hour / 1e3
    assert skewed["otherData"]["clock"]
    for reading in skewed["otherData"]["clock"]:
        reading["at"] += hour
        reading["offset"] -= hour
    path.write_text(json.dumps(skewed))
    expect_causal(trace.merge(trace.read(folder)), 20)


def test_the_merged_trace_says_who_came_last_and_holds_the_spans(
    job: StartJob, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_barriers(job)
    output = tmp_path / "merged.json"
    assert cli.main(["trace", "merge", str(folder), "-o", str(output)]) == 0
    assert "3 ranks" in capsys.readouterr().out
    events = json.loads(output.read_text())["traceEvents"]
    assert min(event["ts"] for event in events if "ts" in event) == 0
    assert sum(event["name"] == "work" and event["cat"] == "span" for event in events) == 60
    seen = [event for event in events if event["name"] == "barrier"]
    for event in seen:
        assert event["args"]["arrival_us"] >= 0
        if event["args"]["last"] == event["pid"]:
            others = [e for e in seen if e["args"]["seq"] == event["args"]["seq"]]
            assert event["ts"] == max(other["ts"] for other in others)


def test_asynchronous_operations_messages_and_children_are_in_the_trace(
    job: StartJob, folder: Path
) -> None:
    ranks = job(2)
    ranks.call(
        "child = comm.split(0)\n"
        "child.all_reduce(np.ones(10), async_op=True).wait()\n"
        "child.close()\n"
        "comm.send(np.ones(3), 1, tag=4) if comm.rank == 0 else comm.recv(np.ones(3), 0, tag=4)\n"
        "comm.close()"
    )
    events = trace.read(folder)[0].events
    (reduced,) = [event for event in events if event["name"] == "all_reduce"]
    assert (reduced["args"]["dtype"], reduced["args"]["count"]) == ("float64", 10)
    assert reduced["args"]["queued_us"] >= 0
    begin, end = [event for event in events if event["name"] == "send"]
    assert (begin["ph"], end["ph"], begin["id"]) == ("b", "e", end["id"])
    assert (begin["args"]["peer"], begin["args"]["tag"]) == (1, 4)
    assert begin["ts"] <= end["ts"]


def test_a_world_of_one_has_a_trace_too(folder: Path) -> None:
    with gr.init() as comm:
        comm.barrier()
    assert len(barriers(trace.read(folder)[0].events)) == 1


def test_offsets_between_two_readings_lie_on_a_line() -> None:
    readings = [
        {"at": 0, "offset": 1000, "error": 100},
        {"at": 1_000_000, "offset": 900_000, "error": 500_000},  # Slow: says nothing.
        {"at": 2_000_000, "offset": 3000, "error": 120},
    ]
    other = {"job": "a", "rank": 0, "clock": readings, "lost": 0, "world_size": 1}
    events = [{"name": "x", "ph": "X", "ts": ts, "pid": 0} for ts in (0.0, 1000.0, 2000.0)]
    merged = trace.merge([trace.RankTrace(0, events, other)])
    assert [event["ts"] for event in merged["traceEvents"]] == [0.0, 1001.0, 2002.0]
    assert merged["otherData"]["clock_error_us"] == {"0": 0.12}


def test_a_folder_without_traces_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(gr.InvalidArgument, match="holds no traces"):
        trace.read(tmp_path)
    (tmp_path / "rank-0.trace.json").write_text("{}")
    with pytest.raises(gr.InvalidArgument, match="is no trace"):
        trace.read(tmp_path)
