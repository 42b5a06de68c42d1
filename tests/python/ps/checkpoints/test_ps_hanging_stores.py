"""A store that hangs: who calls is told by the deadline, and what goes elsewhere goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.errors import DeviceError, InvalidArgument, TimedOut
from gradring.ps import ParameterServer, checkpoint
from gradring.ps.saved import asked_jobs, checkpoint_jobs, store_calls
from gradring.ps.saved.asked_jobs import AskedJobs
from gradring.ps.saved.store_calls import Deadline
from ps_servers import connected, start_server
from toy_stores import HangingStore

IDS = np.arange(500)
PLACE = "toyhangs://bucket/1"


@pytest.fixture(autouse=True)
def store() -> Iterator[type[HangingStore]]:
    for event in (HangingStore.hangs, HangingStore.goes_on):
        event.clear()
    HangingStore.contents.clear()
    HangingStore.ending = "nothing"
    yield HangingStore
    let_go()


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the time be over for all once a store hangs, however slow the machine is."""
    begun: list[Deadline] = []
    begin = Deadline.__init__

    def begin_and_note(deadline: Deadline, *seconds: float) -> None:
        begin(deadline, *seconds)
        begun.append(deadline)

    def is_over(call: store_calls.Behind, seconds: float | None = 0.0) -> bool:
        while seconds != 0 and not call._over.wait(0.01):
            if HangingStore.hangs.is_set():
                HangingStore.hangs.clear()
                for deadline in begun:
                    deadline._end = 0
                return False
        return call._over.is_set()

    monkeypatch.setattr(Deadline, "__init__", begin_and_note)
    monkeypatch.setattr(store_calls.Behind, "is_over", is_over)
    monkeypatch.setattr(asked_jobs, "_GRACE_SECONDS", 60)


def hang() -> bool:
    HangingStore.hangs.set()
    return HangingStore.goes_on.wait(60)


def let_go() -> None:
    """Have the store go on, and wait until nothing hangs any more."""
    HangingStore.goes_on.set()
    assert all(call._over.wait(60) for _, call in store_calls._hanging.calls)


def train(ps: ParameterServer) -> Any:
    table = ps.sparse_table("t", 3, gr.optim.Sum())
    table.push(IDS, np.ones((len(IDS), 3), np.float32))
    return table.pull(IDS)


@pytest.mark.usefixtures("deadlines")
@pytest.mark.parametrize(
    ("servers", "threads", "ending"),
    [
        (1, 1, "grps wb"),
        (1, 3, "grps wb"),
        (2, 1, "shard-00001-of-00002.grps end"),
        (1, 1, "manifest.json wb"),
    ],
)
def test_a_save_ends_by_its_deadline_and_the_next_one_goes_elsewhere(
    store: type[HangingStore], tmp_path: Path, servers: int, threads: int, ending: str
) -> None:
    store.ending = ending
    with connected(servers, threads=threads) as ps:
        train(ps)
        with pytest.raises(TimedOut, match=rf"{PLACE} was not done within 60 s: its store") as told:
            ps.save(PLACE, timeout=60)
        assert not re.search("an earlier call|may still appear", str(told.value))
        saved = train(ps)
        ps.save(tmp_path / "2")
        with pytest.raises(InvalidArgument, match=rf"{PLACE}: an earlier call .* still hangs"):
            ps.save(PLACE)
        train(ps)
        ps.load(tmp_path / "2")
        assert (ps.sparse_table("t", 3, gr.optim.Sum()).pull(IDS) == saved).all()
        let_go()
        assert f"{PLACE[11:]}/manifest.json" not in store.contents
        ps.save(PLACE)
        ps.load(PLACE)


@pytest.mark.usefixtures("deadlines")
def test_a_save_whose_manifest_may_still_come_says_so(store: type[HangingStore]) -> None:
    store.ending = "manifest.json end"
    with connected() as ps:
        train(ps)
        with pytest.raises(TimedOut, match=rf"{PLACE} was not done .* may still appear there"):
            ps.save(PLACE, timeout=60)
        let_go()
        with pytest.raises(InvalidArgument, match="there is a checkpoint at"):
            ps.save(PLACE)
        ps.load(PLACE)


@pytest.mark.parametrize("slow", ["cut", "results"])
def test_a_save_whose_time_is_over_before_its_manifest_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    act = getattr(AskedJobs, slow)

    def act_for_long(jobs: AskedJobs, *args: Any) -> Any:
        result = act(jobs, *args)
        jobs._deadline._end = 0
        return result

    with connected() as ps:
        train(ps)
        with monkeypatch.context() as slowly:
            slowly.setattr(AskedJobs, slow, act_for_long)
            slowly.setattr(asked_jobs, "_GRACE_SECONDS", 60)
            with pytest.raises(TimedOut, match=f"{tmp_path}: the 60 s were over"):
                ps.save(tmp_path, timeout=60)
        assert not (tmp_path / "manifest.json").exists()
        ps.save(tmp_path)  # Nobody is in there any more.


@pytest.mark.parametrize("slow", ["stage", "prepare"])
def test_a_load_whose_time_is_over_before_anything_is_replaced_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    act = checkpoint_jobs._ACTIONS[slow]

    def act_for_long(task: Any) -> Any:
        result = act(task)
        for deadline in begun:
            deadline._end = 0
        return result

    begun: list[Deadline] = []
    make = checkpoint._deadline
    monkeypatch.setattr(
        checkpoint, "_deadline", lambda given: begun.append(make(given)) or begun[-1]
    )
    with connected() as ps:
        train(ps)
        ps.save(tmp_path)
        before = train(ps)
        with monkeypatch.context() as slowly:
            slowly.setitem(checkpoint_jobs._ACTIONS, slow, act_for_long)
            slowly.setattr(asked_jobs, "_GRACE_SECONDS", 60)
            with pytest.raises(TimedOut, match=f"{tmp_path}: the 60 s were over"):
                ps.load(tmp_path, timeout=60)
        assert (ps.sparse_table("t", 3, gr.optim.Sum()).pull(IDS) == before).all()
        ps.load(tmp_path)


def test_servers_are_asked_for_no_longer_than_is_left() -> None:
    class Core:
        def freeze_and_cut(self, *_: Any, timeout_ms: int) -> int:
            return timeout_ms

        def begin_load(self, _: Any, timeout_ms: int) -> int:
            return timeout_ms

        go_on_with_load = begin_load

    for timeout, left, least, most in ((20, 600, 20_000, 20_000), (600, 20, 1000, 20_000)):
        jobs = AskedJobs(Core(), timeout, Deadline(left))
        for asked in (jobs.cut([], []), jobs.begin_load([]), jobs.tell("prepare", 1)):
            assert least <= asked <= most  # type: ignore[operator]


def test_a_save_during_one_that_hangs_names_it(store: type[HangingStore], tmp_path: Path) -> None:
    store.ending = "grps wb"
    with connected() as ps:
        train(ps)
        other = threading.Thread(target=ps.save, args=(PLACE,))
        other.start()
        assert store.hangs.wait(60)
        with pytest.raises(InvalidArgument, match=f"{PLACE} is still being written"):
            ps.save(tmp_path / "2")
        let_go()
        other.join(60)
        ps.load(PLACE)


@pytest.mark.usefixtures("deadlines")
@pytest.mark.parametrize("ending", ["grps rb", "manifest.json rb"])
def test_a_load_ends_by_its_deadline_and_changes_nothing(
    store: type[HangingStore], tmp_path: Path, ending: str
) -> None:
    with connected() as ps:
        train(ps)
        ps.save(PLACE)
        before = train(ps)
        store.ending = ending
        with pytest.raises(TimedOut, match=rf"{PLACE} was not done"):
            ps.load(PLACE, timeout=60)
        assert (ps.sparse_table("t", 3, gr.optim.Sum()).pull(IDS) == before).all()
        ps.save(tmp_path / "2")  # The server is free, too.
        ps.load(tmp_path / "2")


@pytest.mark.usefixtures("deadlines")
@pytest.mark.parametrize("ending", ["grps rb", "manifest.json rb"])
def test_a_load_names_which_of_its_checkpoints_cannot_be_read(
    store: type[HangingStore], tmp_path: Path, ending: str
) -> None:
    with connected() as ps:
        train(ps)
        ps.save(PLACE)
        train(ps)
        ps.save(tmp_path / "2", base=PLACE)
        store.ending = ending
        with pytest.raises(TimedOut, match=rf"{PLACE} was not done"):
            ps.load(tmp_path / "2")
        with pytest.raises(InvalidArgument, match=f"{PLACE}: an earlier call .* still hangs"):
            ps.save(tmp_path / "3", base=tmp_path / "2")
        ps.save(tmp_path / "3")


@pytest.mark.parametrize("ending", ["grps rb", "manifest.json rb"])
def test_who_reads_a_checkpoint_without_servers_is_told_by_the_deadline_whose_store_hangs(
    store: type[HangingStore], tmp_path: Path, ending: str
) -> None:
    with connected() as ps:
        train(ps)
        ps.save(PLACE)
    store.ending = ending
    with start_server(waits_to_open=True) as server:
        for asked, call in (
            (f"verify {PLACE}", lambda: checkpoint.verify(PLACE, timeout=0.3)),
            (
                "export of table 't'",
                lambda: checkpoint.export_checkpoint(PLACE, "t", tmp_path / "t.npz", timeout=0.3),
            ),
            (f"load {PLACE}", lambda: checkpoint.load_server(server.core, PLACE, 1, 0.3)),
        ):
            # A slow machine may not even come to where it hangs.
            with pytest.raises(
                TimedOut, match=rf"^{asked}: {PLACE}(: the| was not done .*) 0\.3 s"
            ):
                call()
            let_go()
            store.goes_on.clear()
    assert not list(tmp_path.iterdir())


def test_a_signal_s_handler_ends_who_reads_from_a_store_that_hangs(
    store: type[HangingStore],
) -> None:
    def send() -> None:
        assert store.hangs.wait(60)
        os.kill(os.getpid(), signal.SIGALRM)

    def interrupt(*_: object) -> None:
        raise InterruptedError

    with connected() as ps:
        ps.save(PLACE)
    store.ending = "grps rb"
    other, previous = threading.Thread(target=send), signal.signal(signal.SIGALRM, interrupt)
    other.start()
    try:
        with pytest.raises(InterruptedError):
            checkpoint.verify(PLACE)
    finally:
        signal.signal(signal.SIGALRM, previous)
        other.join(60)


@pytest.mark.usefixtures("deadlines")
@pytest.mark.parametrize("ending", ["npz wb", "npz end"])
def test_an_export_to_a_store_that_hangs_ends_by_its_deadline_and_no_file_is_begun_later(
    store: type[HangingStore], ending: str
) -> None:
    to, asked = f"{PLACE}/t.npz", "export of table 't'"
    with connected() as ps:
        train(ps)
        table = ps.sparse_table("t", 3, gr.optim.Sum())
        store.ending = ending
        with pytest.raises(TimedOut, match=rf"^{asked}: {to} was not done within 60 s"):
            table.export(to, timeout=60)
        let_go()
        assert (to.partition("://")[2] in store.contents) == (ending == "npz end")
        assert table.export(to) == to


@pytest.mark.usefixtures("deadlines")
def test_a_save_whose_base_cannot_be_read_ends_by_its_deadline(
    store: type[HangingStore], tmp_path: Path
) -> None:
    with connected() as ps:
        ps.save(PLACE)
        store.ending = "manifest.json rb"
        with pytest.raises(TimedOut, match=rf"{PLACE} was not done"):
            ps.save(tmp_path / "2", base=PLACE, timeout=60)
    assert not (tmp_path / "2").exists()


def test_a_timeout_that_is_none_is_refused(tmp_path: Path) -> None:
    with connected() as ps:
        for call in (ps.save, ps.load):
            with pytest.raises(InvalidArgument, match="timeout must be positive seconds"):
                call(tmp_path / "2", timeout=0)
    assert not (tmp_path / "2").exists()


@pytest.mark.usefixtures("deadlines")
def test_so_many_calls_that_hang_are_left_alone_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_calls, "MOST_HANGING", 2)
    for place in ("/a", "/b"):
        with pytest.raises(TimedOut, match=place):
            store_calls.within(Deadline(60), place, hang)
    with pytest.raises(InvalidArgument, match=r"/c: 2 calls .* still hang in stores.*/a, /b"):
        store_calls.within(Deadline(60), "/c", print)
    let_go()
    assert store_calls.within(Deadline(60), "/c", abs, -1) == 1


def test_where_the_time_is_over_nothing_is_begun_and_nothing_else_is_said() -> None:
    came: list[Any] = []
    with pytest.raises(TimedOut, match="/a: the 5 s were over"):
        store_calls.within(Deadline(0, 5), "/a", came.append, 1)
    assert not came


@pytest.mark.usefixtures("deadlines")
def test_what_comes_late_is_cleared_away() -> None:
    came: list[Any] = []
    with pytest.raises(TimedOut):
        store_calls.within(Deadline(60), "/a", hang, late=came.append)
    let_go()
    store_calls.within(Deadline(60), "/a", print, late=came.append)
    assert came == [True]


def test_a_call_without_a_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", none_left)
        with pytest.raises(DeviceError, match="no thread to call a store on"):
            store_calls.within(Deadline(60), "/a", print)


def test_a_program_ends_although_its_store_hangs(tmp_path: Path) -> None:
    program = (
        "import sys, threading\n"
        "import gradring as gr\n"
        "from gradring.ps.saved import files\n"
        "files._LocalFolder.create = lambda *_: threading.Event().wait()\n"
        "with gr.ps.connect() as ps:\n"
        "    try:\n"
        "        ps.save(sys.argv[1], timeout=0.1)\n"
        "    except gr.Error as error:\n"
        "        print(type(error).__name__)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "TimedOut\n"
