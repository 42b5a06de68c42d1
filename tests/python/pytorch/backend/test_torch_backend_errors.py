"""What goes wrong under torch.distributed is said as everywhere else, in kinds that torch knows."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gradring as gr
from gradring.torch.c10d.calls.lanes import Watch
from gradring.torch.c10d.calls.work import Flight
from torch_ranks import on_ranks

pytestmark = [pytest.mark.timeout(120)]


def wrong_calls() -> list[str]:
    rank = dist.get_rank()
    with pytest.raises(gr.InvalidArgument, match="dtypes"):
        dist.all_gather_single(torch.empty(6), torch.empty(2, dtype=torch.int32))
    with pytest.raises(gr.InvalidArgument, match="2 ranks"):
        dist.all_gather_single(torch.empty(5), torch.empty(2))
    with pytest.raises(gr.InvalidArgument, match="sparse"):
        dist.broadcast(torch.sparse_coo_tensor([[0]], [1.0], (2,)), 0)
    group = dist.new_group([0, 1])
    with pytest.raises(gr.Mismatch, match="all_reduce") as caught:
        dist.all_reduce(torch.ones(rank + 1), group=group)
    assert isinstance(caught.value, dist.DistBackendError)
    with pytest.raises(RuntimeError, match="closed since") as after:
        dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
    dist.all_reduce(torch.ones(1))  # The other group goes on.
    return [type(caught.value).__name__, type(after.value).__name__]


def test_wrong_calls_are_errors_that_torch_users_catch_too() -> None:
    assert on_ranks(2, wrong_calls) == [["Mismatch", "Closed"]] * 2


def unequal_entries() -> None:
    rank = dist.get_rank()
    entries = [torch.zeros(3), torch.zeros(5)] if rank == 0 else None
    if rank == 0:
        with pytest.raises(
            gr.InvalidArgument, match="gather: entry 0 has 3 elements, the tensor 4"
        ):
            dist.gather(torch.zeros(4), entries, 0)
        with pytest.raises(gr.InvalidArgument, match="scatter: entry 0 has 3 elements"):
            dist.scatter(torch.zeros(4), entries, 0)
    dist.barrier()


def test_entries_that_are_not_all_of_one_size_are_refused_before_anything_is_sent() -> None:
    on_ranks(2, unequal_entries)


def late() -> str:
    rank = dist.get_rank()
    group = dist.new_group([0, 1, 2], timeout=timedelta(seconds=1.5))
    text = ""
    if rank == 0:
        with pytest.raises(gr.TimedOut) as caught:
            dist.barrier(group)
        text = str(caught.value)
    monitored: Any = dist.group.WORLD
    if rank == 0:
        with pytest.raises(gr.TimedOut, match="Ranks 1, 2 failed"):
            monitored.monitored_barrier(timedelta(seconds=0.1), wait_all_ranks=True)
    dist.barrier()
    second = dist.new_group([0, 1, 2])
    second.monitored_barrier(timedelta(seconds=20))
    return text


def test_a_late_rank_is_named() -> None:
    text = on_ranks(3, late)[0]
    assert "barrier #1: not finished within its timeout of 1.5 s; waiting for rank" in text
    assert "rank 1, 2" in text


def take_slowly(x: torch.Tensor) -> None:
    for _ in range(1000):
        dist.recv(x, 0)
        time.sleep(0.05)


def abort_with_a_message_under_way() -> float:
    group: Any = dist.group.WORLD
    x = torch.ones(1 << 18)
    dist.barrier()
    if dist.get_rank() == 1:
        with pytest.raises(gr.PeerLost, match=r"rank 0 .*left"):
            take_slowly(x)
        return 0.0
    works = [dist.isend(x, 1) for _ in range(1000)]
    before = time.monotonic()
    group.abort()
    seconds = time.monotonic() - before
    with pytest.raises(gr.Closed):
        works[-1].wait()
    return seconds


def test_abort_waits_for_no_message() -> None:
    assert on_ranks(2, abort_with_a_message_under_way)[0] < 5  # shutdown() would wait for 10 s.


def variables_that_are_no_seconds() -> None:
    for text in ("abc", "nan", "0", "-1"):
        os.environ["GRADRING_TIMEOUT"] = text
        with pytest.raises(gr.InvalidArgument, match=f"GRADRING_TIMEOUT='{text}'"):
            dist.new_group([0])


def test_a_timeout_in_the_variable_that_is_none_is_refused_by_name() -> None:
    on_ranks(1, variables_that_are_no_seconds)


def under_other_versions() -> list[int]:
    for version in ("2.4.1+cpu", "1.13.1", "2.10.0"):
        torch.__version__ = version
        with pytest.raises(gr.InvalidArgument, match=rf"2\.11 or newer, this is {version[:4]}"):
            dist.new_group()
    sizes = []
    for version in ("2.11.0", "3.0.0.dev20270101", "none that anybody knows"):
        torch.__version__ = version
        sizes.append(dist.get_world_size(dist.new_group()))
    return sizes


def test_a_torch_too_old_for_the_backend_is_refused_and_not_waited_for() -> None:
    assert on_ranks(1, under_other_versions) == [[1, 1, 1]]


class NeverDone:
    """An operation that nobody answers; keeps how long it was waited for."""

    source = None

    def __init__(self) -> None:
        self.waits: list[float] = []

    def done(self) -> bool:
        return False

    def wait(self, timeout: float) -> None:
        self.waits.append(timeout)
        raise gr.TimedOut("nobody came")


def test_a_message_that_has_had_its_time_is_given_no_more_of_it() -> None:
    watch, operation = Watch("watch"), NeverDone()
    flight = Flight(
        [operation],  # type: ignore[list-item]
        [], None, patience=60, watcher=lambda flight: watch.add(flight, 0.01),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="nobody came"):
        flight.future().wait()
    watch.stop()
    assert max(operation.waits) < 1
