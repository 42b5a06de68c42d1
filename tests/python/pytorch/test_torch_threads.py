"""A backward over several devices has a thread for each, and their hooks come at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import gradring.torch as gt
from conftest import GetWorld
from gradring.torch.gradients import averaging

SECONDS = 20.0


class Meeting:
    """Holds the first thread at a place until the second has gone on from there, or has to wait."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.has_met = threading.Event()

    def hold(self) -> None:
        self.has_begun.set()
        assert self.has_met.wait(SECONDS)

    def watched(self, lock: Any) -> Any:
        """A lock that says that a thread has to wait for it."""
        meeting = self

        class Watched:
            def __enter__(self) -> None:
                if not lock.acquire(blocking=False):
                    meeting.has_met.set()
                    assert lock.acquire(timeout=SECONDS)

            def __exit__(self, *_: Any) -> None:
                lock.release()

        return Watched()


def stop_in_copy(averager: Any, meeting: Meeting) -> None:
    bucket, sender = averager._layout._bucket_of[0], averager._sender
    copy, send = bucket._copy, sender.send

    def slow_copy(index: int, *arguments: Any) -> None:
        if index == 0:
            meeting.hold()
        copy(index, *arguments)

    def send_and_wait(full: Any) -> None:
        send(full)
        sender._works[-1][0].wait()
        meeting.has_met.set()  # Before the copy was done.

    bucket._copy, sender.send = slow_copy, send_and_wait


def stop_in_open(averager: Any, meeting: Meeting) -> None:
    start = averager.comm.all_reduce

    def all_reduce(*arguments: Any, **options: Any) -> Any:
        if meeting.has_begun.is_set():
            meeting.has_met.set()  # The round was begun twice.
        else:
            meeting.hold()
        return start(*arguments, **options)

    averager.comm.all_reduce = all_reduce


@pytest.mark.parametrize("stop", [stop_in_copy, stop_in_open])
def test_gradients_that_come_from_two_threads_at_once_are_averaged(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch, stop: Any
) -> None:
    # Whoever calls the hooks here is in no backward that could end; `synchronize` ends the round.
    monkeypatch.setattr(averaging, "at_the_end_of_backward", lambda _: None)

    def averages(comm: Any) -> list[Any]:
        params = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
        optimizer: Any = gt.distributed(torch.optim.SGD(params, lr=1), comm=comm)
        averager, meeting = optimizer._averager, Meeting()
        averager._lock = meeting.watched(averager._lock)
        stop(averager, meeting)
        for index, param in enumerate(params):
            param.grad = torch.full((3,), 10.0 * index + 2 * comm.rank)

        def second() -> None:
            assert meeting.has_begun.wait(SECONDS)
            averager.take_gradient(1)

        with ThreadPoolExecutor() as threads:
            other = threads.submit(second)
            averager.take_gradient(0)
            other.result(SECONDS)
        optimizer.synchronize()
        return [param.grad.tolist() for param in params]  # type: ignore[union-attr]

    assert world(2, "tcp").run(averages) == [[[1] * 3, [11] * 3]] * 2
