"""A script on the backend ends well, whatever operations it has started and not waited for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gradring.torch.c10d.calls import lanes, work

SECONDS = 60.0

PROGRAM = """
import sys, torch, torch.distributed as dist, gradring.torch
rank = int(sys.argv[1])
dist.init_process_group("gradring", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
{operations}
{end}
print("done")
"""

OPERATIONS = {
    "collectives": (
        "works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]\n"
        "works[-1].wait()"
    ),
    "collective under way": "work = dist.all_reduce(torch.ones(1 << 20), async_op=True)",
    "message": (
        "works = [dist.isend(torch.ones(1 << 20), 1 - rank)]\n"
        "dist.recv(torch.zeros(1 << 20), 1 - rank)"
    ),
}


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("end", ["", "dist.destroy_process_group()"], ids=["left", "destroyed"])
@pytest.mark.parametrize("operations", OPERATIONS.values(), ids=OPERATIONS)
def test_a_script_ends_with_operations_that_nobody_has_waited_for(
    tmp_path: Path, operations: str, end: str
) -> None:
    program = PROGRAM.format(operations=operations, end=end)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank in ranks:
            output, errors = rank.communicate(timeout=SECONDS)
            assert (rank.returncode, output) == (0, "done\n"), errors
            assert "Exception ignored" not in errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


class _Operation:
    """What is under way, as a `Flight` sees it."""

    source = None

    def __init__(self, *, is_done: bool) -> None:
        self._is_done = is_done

    def wait(self, *_: Any) -> None:
        assert self._is_done

    def done(self) -> bool:
        return self._is_done


@contextmanager
def ending_interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What Python is when it has begun to end: a thread that is started never runs."""
    with monkeypatch.context() as ending:
        ending.setattr(sys, "is_finalizing", lambda: True)
        ending.setattr(lanes.threading.Thread, "start", lambda _: pytest.fail("a thread started"))
        yield


def test_no_lane_starts_a_thread_when_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lane, watch = lanes.Lane("lane"), lanes.Watch("watch")
    has_run: list[int] = []
    flight = work.Flight([], [], None, patience=1, watcher=lambda _: None)
    with ending_interpreter(monkeypatch):
        with pytest.raises(RuntimeError, match="the interpreter ends"):
            lane.add(lambda: has_run.append(1))
        with pytest.raises(RuntimeError, match="the interpreter ends"):
            watch.add(flight, 1)
    assert has_run == []


@pytest.mark.parametrize("is_done", [True, False])
def test_a_handle_dropped_where_no_thread_can_start_finishes_what_has_ended(
    monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    finished: list[int] = []
    operation: Any = _Operation(is_done=is_done)
    flight = work.Flight(
        [operation], [lambda: finished.append(1)], None,
        patience=1, watcher=lanes.Completion().in_order,
    )  # fmt: skip
    with ending_interpreter(monkeypatch):
        if is_done:
            flight.abandon()
        else:
            with pytest.raises(RuntimeError, match="the interpreter ends"):
                flight.abandon()
    assert finished == [1] * is_done
