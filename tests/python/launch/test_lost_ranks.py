"""Which ranks are lost, and where newcomers are told to go: what launcher and ranks know of it."""

from __future__ import annotations

import math
import os
import socket
import sys
from pathlib import Path
from typing import cast

import pytest

import gradring as gr
from gradring.collectives import joining, newcomers
from gradring.errors import InvalidArgument
from gradring.launch.children import Child, Start
from gradring.launch.hosts import HostPlan
from gradring.launch.link import AgentLink
from gradring.launch.lost import restarting
from gradring.launch.lost.losses import Losses, Verdict
from gradring.launch.options import Options
from gradring.launch.outcome import Failure, Outcome, Restarts
from gradring.launch.plan import make_plan
from gradring.launchers import our_launcher
from gradring.settings.config import Settings
from waiting import readable


class FakeLink:
    """Stands in for the agent of a host, by default one that has both ranks."""

    is_open = True

    def __init__(self, host: HostPlan | None = None) -> None:
        self.host = host or HostPlan("here", (0, 1), is_here=True)
        self.told: list[object] = []

    def send(self, **command: object) -> None:
        self.told.append(command.get("number"))


def losses() -> Losses:
    """Return three ranks that have all joined, at second 0."""
    made = Losses(range(3), Restarts(now=0))
    for rank in range(3):
        made.note_told(rank, told(rank, 3, "a:1"), 0)
    return made


def told(rank: int, size: int, place: str) -> str:
    return f'{{"rank": {rank}, "world_size": {size}, "place": "{place}"}}'


def failed(number: int) -> Failure:
    return Failure(f"rank {number} failed", 1, number)


def test_a_rank_that_was_cut_off_and_goes_on_alone_takes_no_newcomers_along() -> None:
    job = losses()
    job.note_told(2, told(0, 1, "alone:1"), 1)
    assert job.place == "a:1"
    job.note_told(0, told(0, 2, "b:1"), 2)
    job.note_told(1, told(1, 2, "b:1"), 2)
    job.note_told(2, told(0, 1, "alone:2"), 3)
    assert job.place == "b:1"


def test_a_newcomer_that_cannot_say_that_it_is_in_is_not_taken_for_one_that_waits() -> None:
    job = losses()
    job.note_failure(1, failed(1), None, 1)
    job.note_start(1)
    job.note_told(0, "", 2)  # Of a rank of the start that is nothing to know.
    assert job.waiting == [1]
    assert job.note_told(1, "", 2) == ""
    assert job.waiting == []


def test_a_newcomer_that_fails_when_the_others_have_ended_well_fails_no_job() -> None:
    job = losses()
    job.note_failure(1, failed(1), None, 1)
    job.note_start(1)
    job.note_told(0, told(0, 2, "a:1"), 1)
    for rank in (0, 2):
        job.note_end(rank)
    assert job.note_failure(1, failed(1), None, 2) == Verdict()
    assert job.unmissed == []


def test_a_lost_rank_fails_the_job_in_the_end_where_nobody_has_missed_it() -> None:
    job = losses()
    job.note_failure(2, failed(2), None, 1)
    job.note_told(0, told(0, 3, "a:1"), 1)  # Of what all have joined, heard late.
    assert [failure.process for failure in job.unmissed] == [2]
    for rank in (0, 1):
        job.note_told(rank, told(rank, 2, "a:1"), 2)  # Without rank 2: it was missed.
    job.note_start(2)
    job.note_failure(2, failed(2), None, 3)  # Not a member since: nobody could miss it again.
    assert job.unmissed == []
    job.note_failure(1, failed(1), None, 4)
    (failure,) = job.unmissed
    assert failure.text == "rank 1 failed; the others have not gone on without it"
    job.note_start(1)
    job.note_end(1)  # What it had to do is done.
    assert job.unmissed == []


def test_a_rank_that_ends_when_the_others_have_done_the_rest_without_it_fails_no_job() -> None:
    """One that was frozen, or that raised and takes long to end."""
    for ends_before in (False, True):
        job = losses()
        for rank in (0, 1):
            job.note_told(rank, told(rank, 2, "a:1"), 1)
        if ends_before:
            job.note_end(0)
            job.note_end(1)
        verdict = job.note_failure(2, failed(2), None, 2)
        assert (verdict.again_at is None, verdict.failures) == (ends_before, ())
        assert job.unmissed == []


def test_the_last_two_fail_the_job_whoever_has_ended_well_before_they_were_two() -> None:
    job = losses()
    job.note_end(0)
    for rank in (1, 2):
        job.note_told(rank, told(rank - 1, 2, "a:1"), 1)
    assert job.note_failure(1, failed(1), None, 2).again_at is not None
    verdict = job.note_failure(2, failed(2), None, 3)
    assert [failure.process for failure, _ in verdict.failures] == [1, 2]


def test_a_line_that_is_let_go_of_is_heard_as_its_end(tmp_path: Path) -> None:
    let_go = "import os, signal; os.close(int(os.environ['GRADRING_LAUNCHER'].split(':')[0]))\n"
    argv = [sys.executable, "-c", let_go + "signal.pause()"]
    child = Child(Start(1, argv, dict(os.environ), str(tmp_path), has_line=True))
    assert child.line is not None
    assert readable(child.line, seconds=60)
    assert (child.hear(), child.has_let_go) == ([], True)
    assert child.process.poll() is None
    child.hang_up()
    child.process.kill()
    for pipe in (child.process.stdout, child.process.stderr):
        assert pipe is not None
        pipe.close()
    child.process.wait()


def test_the_place_of_the_job_is_what_the_living_have_said_last() -> None:
    job = losses()
    assert job.note_failure(0, failed(0), None, 1).again_at == pytest.approx(1.1)
    assert job.place == "a:1"
    job.note_start(0)
    job.note_told(1, told(0, 2, "b:1"), 2)
    job.note_told(2, told(1, 2, "old:1"), 2)
    assert job.place == "old:1"
    job.note_failure(2, failed(2), None, 3)
    assert job.place == "b:1"
    for nonsense in ("", "[]", "{}", told(0, 2, "c:1")[:-1], '{"rank": [], "place": 1}'):
        assert job.note_told(1, nonsense, 4) == ""
    assert (job.place, job.waiting) == ("b:1", [0])
    assert job.note_told(0, told(1, 2, "b:1"), 5) == "rank 0 is in the job again, as rank 1 of 2"
    assert job.waiting == []


def test_a_life_counts_from_when_a_rank_has_joined() -> None:
    job = losses()
    job.note_failure(1, failed(1), None, 1)
    for _ in range(9):  # Each has waited for two minutes, and died in its first step.
        job.note_start(1)
        assert job.note_failure(1, failed(1), None, 200).again_at is not None
    job.note_start(1)
    assert job.note_failure(1, failed(1), None, 300).again_at is None


def test_a_life_of_a_host_counts_from_when_one_of_its_ranks_has_joined() -> None:
    for waited, is_in_vain in ((70, False), (10, True)):
        job, now = losses(), 0.0
        failure = Failure("lost blue", 1, lost=(1, 2))
        times = []
        for life in range(11):
            now += 100  # The others grow late, and this is long in no case.
            if life:
                for rank in (1, 2):
                    job.note_start(rank)
                    job.note_told(rank, told(rank, 3, "a:1"), now)
            at = job.note_host_end("blue", failure, now + waited).again_at
            times.append(None if at is None else round(at - now - waited, 1))
        ends = [5.0, 5.0, 5.0, 5.0, None] if is_in_vain else [0.1] * 5
        assert times[-5:] == ends
    assert job.note_try_end("blue", failure, now).failures[0][0].lost == (1, 2)


def test_ranks_that_are_lost_with_their_host_were_missed_where_the_others_went_on() -> None:
    for has_gone_on in (False, True):
        job = losses()
        job.note_host_end("blue", Failure("lost blue", 1, lost=(1, 2)), 1)
        if has_gone_on:
            job.note_told(0, told(0, 1, "a:1"), 2)
        job.note_end(0)
        why = "lost blue; the others have not gone on without it"
        assert [failure.text for failure in job.unmissed] == ([] if has_gone_on else [why])


def test_who_is_lost_is_named_by_the_number_that_the_launcher_gave_it() -> None:
    job = losses()
    job.note_failure(0, failed(0), None, 1)
    job.note_told(1, told(0, 2, "b:1"), 2)
    job.note_told(2, told(1, 2, "b:1"), 2)
    assert job.note_failure(1, failed(1), 1, 3).again_at is not None
    verdict = job.note_failure(2, failed(2), 0, 4)  # Rank 0 of two was the launcher's rank 1.
    assert [(failure.process, lost) for failure, lost in verdict.failures] == [
        (0, None), (1, 2), (2, 1),
    ]  # fmt: skip


def test_a_newcomer_that_is_heard_to_be_in_after_the_others_have_ended_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each host's messages come on a way of their own."""
    monkeypatch.setattr(restarting, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(Restarts, "FIRST_PAUSE_SECONDS", 0.0)
    for is_heard in (True, False):
        said: list[str] = []
        options = Options(command=("python3",), restart_ranks=True)
        job, outcome = restarting.Restarting(options, 2, said.append), Outcome(2)
        links = [cast(AgentLink, FakeLink())]
        for rank in range(2):
            job.note_told(links, rank, told(rank, 2, "a:1"))
        outcome.end(1, -9)
        assert job.take_rank_end(links, 1, failed(1), None) == ()
        job.start_due(outcome, lambda _: None)
        outcome.end(0, 0)
        assert job.take_rank_end(links, 0, None, None) == ()
        assert (job.awaits(0, outcome), job.awaits(1, outcome)) == (False, True)
        if is_heard:
            job.note_told(links, 1, told(1, 2, "a:1"))
        tried = [job.take_patience(is_holding=held) for held in (True, False, False)]
        assert tried == [False, True, False]
        assert job.awaits(1, outcome) == is_heard
        failures = job.close()
        assert ("rank 1 was not let in again before the others had ended" in said) != is_heard
        assert [failure.process for failure in failures] == ([] if is_heard else [1])


def test_a_rank_that_pauses_when_its_host_is_lost_is_started_when_that_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Restarts, "FIRST_PAUSE_SECONDS", 0.0)
    said: list[str] = []
    options = Options(command=("python3",), restart_ranks=True)
    job, outcome = restarting.Restarting(options, 2, said.append), Outcome(2)
    here, there = (HostPlan(name, (rank,), is_here=False) for rank, name in enumerate("ab"))
    links = [cast(AgentLink, FakeLink(host)) for host in (here, there)]
    for rank in range(2):
        job.note_told(links, rank, told(rank, 2, "a:1"))
    outcome.end(1, -9)
    assert job.take_rank_end(links, 1, failed(1), None) == ()
    assert job.take_host_end(links, links[1], "exit code 255", outcome) == ()
    assert (
        said[-1] == "lost b (rank 1): exit code 255; starting it again in 0.0 s, to join the others"
    )
    job.start_due(outcome, lambda _: None)
    assert job.take_due_hosts() == [there]
    back = FakeLink(there)
    job.begin_try(cast(AgentLink, back))
    job.start_due(outcome, lambda _: None)
    assert back.told == []
    job.take_host_back(cast(AgentLink, back))
    job.start_due(outcome, lambda _: None)
    assert (back.told, cast(FakeLink, links[1]).told) == ([1], [])


def test_a_host_that_is_lost_when_its_ranks_have_ended_is_no_loss_to_the_job() -> None:
    for option in ("keep_going", "restart_ranks"):
        said: list[str] = []
        options = Options(command=("python3",), **{option: True})  # type: ignore[arg-type]
        job, outcome = restarting.Restarting(options, 3, said.append), Outcome(3)
        for rank in (0, 1):
            outcome.end(rank, 0)
        link = cast(AgentLink, FakeLink())
        assert job.take_host_end([link], link, "exit code 255", outcome) == ()
        assert (said, job.take_due_hosts()) == (
            ["lost here, where all ranks had ended: exit code 255"],
            [],
        )


def test_a_variable_without_its_socket_is_no_line_to_a_launcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("wb") as file, socket.socket() as other:
        numbers = (file.fileno(), other.fileno(), 10**6, 10**30)
        for text in (*(f"{number}:1" for number in numbers), "", "1", "x:y"):
            monkeypatch.setenv("GRADRING_LAUNCHER", text)
            our_launcher._line.cache_clear()
            assert not our_launcher.is_led({"GRADRING_NEWCOMER": "1"})
            our_launcher.tell(0, 1, "a:1")
            assert our_launcher.heard_place() is None
    our_launcher._line.cache_clear()
    assert (tmp_path / "file").read_bytes() == b""


def test_a_newcomer_that_waits_long_says_so_once_and_goes_where_the_job_is_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    places = iter([None, "b:1", None, None])

    def join(place: joining.Place, _: Settings) -> str:
        asked.append(place.rendezvous)
        if len(asked) == 4:
            return "let in"
        raise gr.TimedOut("rank 0 does not answer")

    monkeypatch.setattr(joining, "join", join)
    monkeypatch.setattr(our_launcher, "heard_place", lambda: next(places))
    place = joining.Place(-1, 1, "a:1", "s")
    with pytest.warns(UserWarning, match="waits to be let into the job .*not answer") as warned:
        joined = newcomers._come_in(place, Settings(timeout=1e-9), math.inf, is_led=True)
    assert joined == "let in"  # type: ignore[comparison-overlap]
    assert (asked, len(warned)) == (["a:1", "b:1", "b:1", "b:1"], 1)
    assert warned[0].filename == __file__


def test_one_rank_alone_is_not_started_again() -> None:
    with pytest.raises(InvalidArgument, match="--restart-ranks with one rank: nobody would be"):
        make_plan(Options(command=("python3",), count=1, restart_ranks=True), {})
