"""A failure leaves a record on every rank that hears of it, which says what each was doing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import gradring as gr
from rank_job import Job, StartJob
from thread_ranks import TRANSPORTS

pytestmark = pytest.mark.timeout(120)

HEARTBEAT_TIMEOUT = 1.0

CALL = """
try:
    comm.all_reduce(np.ones(1000, np.float32), "max")
except gr.Error as error:
    result = error.__notes__
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the ranks that a test starts leave their records."""
    monkeypatch.setenv("GRADRING_RECORD", str(tmp_path / "records"))
    return tmp_path / "records"


def record_of(folder: Path, rank: int) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / f"rank-{rank}.json").read_text())
    assert (record["format"], record["version"]) == ("gradring-record", 1)
    assert record["rank"] == rank
    return record


def notes_of(ranks: Job, *victims: int) -> list[list[str]]:
    outcomes = ranks.outcomes(ranks.others(*victims))
    assert not any(outcome.error for outcome in outcomes), outcomes
    return [outcome.result for outcome in outcomes]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_frozen_rank_is_named_by_the_records_of_the_others(
    job: StartJob, folder: Path, transport: str, victim: int
) -> None:
    ranks = job(3, transport=transport, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    ranks.call("comm.barrier()")
    ranks.ranks[victim].freeze()
    for rank in ranks.others(victim):
        rank.begin(CALL)
    for rank, notes in zip(ranks.others(victim), notes_of(ranks, victim), strict=True):
        (note,) = notes
        assert str(folder / f"rank-{rank.rank}.json") in note
        record = record_of(folder, rank.rank)
        assert record["pid"] == rank.pid
        assert (record["failure"]["kind"], record["failure"]["rank"]) == ("PeerLost", victim)
        assert f"rank {victim} (" in record["failure"]["text"]
        (group,) = record["communicators"]
        assert group["ranks"] == [0, 1, 2]
        barrier, call = group["operations"]
        assert (barrier["op"], barrier["state"]) == ("barrier", "finished")
        assert (call["seq"], call["state"], call["awaited"]) == (2, "failed", victim)
        assert (call["op"], call["dtype"], call["count"], call["reduce_op"]) == (
            "all_reduce", "float32", 1000, "max",
        )  # fmt: skip
        assert barrier["begin"] <= barrier["end"] <= call["begin"] < call["end"] <= record["now"]
        assert call["end"] - call["begin"] > 0.5e9
    assert not (folder / f"rank-{victim}.json").exists()

    # Thawed, it says for itself that it had not made that call.
    os.kill(ranks.ranks[victim].pid, signal.SIGCONT)
    ranks.ranks[victim].call("while not comm.is_closed: time.sleep(0.01)" + CALL)
    operations = record_of(folder, victim)["communicators"][0]["operations"]
    assert [operation["op"] for operation in operations] == ["barrier"]


def test_a_rank_that_was_in_no_call_records_that_too(job: StartJob, folder: Path) -> None:
    ranks = job(3)
    ranks.ranks[0].begin(CALL)
    ranks.ranks[1].begin("comm.barrier()")
    ranks.ranks[2].begin("while not comm.is_closed: time.sleep(0.01)\ncomm.close()")
    outcomes = ranks.outcomes()
    assert outcomes[1].error == "Mismatch", outcomes
    record = record_of(folder, 2)
    assert record["failure"]["kind"] == "Mismatch"
    assert record["communicators"][0]["operations"] == []


def test_a_failure_of_an_asynchronous_operation_or_a_message_has_the_note_too(
    job: StartJob, folder: Path
) -> None:
    note = """
try:
    {}
except gr.Error as error:
    result = error.__notes__
"""
    ranks = job(3)
    calls = "comm.all_reduce(np.ones(3), async_op=True).wait()", "comm.recv(np.ones(3), 2)"
    for rank, call in zip(ranks.ranks, calls, strict=False):
        rank.begin(note.format(f"say('in'); {call}"))
        rank.expect("in")
        rank.wait_until_it_sleeps()  # Else its call may come too late to have anything under way.
    ranks.ranks[2].kill()
    for rank, notes in enumerate(notes_of(ranks, 2)):
        assert [str(folder / f"rank-{rank}.json") in text for text in notes] == [True]
    (message,) = record_of(folder, 1)["communicators"][0]["messages"]
    assert (message["op"], message["peer"], message["state"]) == ("recv", 2, "failed")


def test_without_operations_to_keep_nothing_is_left(
    job: StartJob, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADRING_RECORD_OPS", "0")
    ranks = job(2)
    ranks.ranks[1].kill()
    ranks.ranks[0].begin(
        "try:\n    comm.barrier()\nexcept gr.PeerLost as error:\n    "
        "result = hasattr(error, '__notes__')"
    )
    assert notes_of(ranks, 1) == [False]
    assert not folder.exists()


def test_a_number_of_operations_that_makes_no_sense_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for text in ("-1", "many", "100000000"):
        monkeypatch.setenv("GRADRING_RECORD_OPS", text)
        with pytest.raises(gr.InvalidArgument, match="GRADRING_RECORD_OPS"):
            gr.init()
