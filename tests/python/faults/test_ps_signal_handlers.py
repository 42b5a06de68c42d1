"""What a handler of Python's may ask of parameter servers inside of the call that it interrupts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.modes.bounded import BoundedOptimizer
from ps_servers import SECRET, join, serving
from rank_job import RankProcess, StartJob

pytestmark = pytest.mark.timeout(60)

SOON = 5.0  # Far below the connection's timeout.
SGD = gr.optim.SGD(lr=1.0)

# Worker 0 of 2, whose steps wait for worker 1.
PREPARE = """
from gradring.modes.bounded import BoundedOptimizer
SGD = gr.optim.SGD(lr=1.0)
ps = gr.ps.connect({addresses!r}, secret={secret!r}, client=0, timeout=40)
rows = ps.sparse_table("rows", 2, SGD)
rows.push([1, 2], np.ones((2, 2), np.float32))
params = [np.zeros({floats}, np.float32) for _ in range({params})]
opt = BoundedOptimizer(params, SGD, ps, workers=2, staleness=0, timeout=40)
told = []
def handler(*_):
    try:
        told.append({inside})
    except gr.Error as error:
        told.append(f"{{type(error).__name__}}: {{error}}")
    say("handled")
signal.signal(signal.SIGUSR1, handler)
"""
STEPS = "say('waiting'); [opt.step([p * 0 + 1 for p in params]) for _ in range(2)]; result = told"


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    with serving(2) as found:
        yield found


def prepare(addresses: list[str], inside: str, shapes: tuple[int, int] = (1, 3)) -> str:
    """Return a worker's program; ``shapes``: so many parameters, of so many floats each."""
    params, floats = shapes
    return PREPARE.format(
        addresses=addresses, secret=SECRET, inside=inside, params=params, floats=floats
    )


def interrupted(
    job: StartJob, addresses: list[str], inside: str, shapes: tuple[int, int] = (1, 3)
) -> RankProcess:
    """Return worker 0 in a step that waits, once ``inside`` has been run in a handler there."""
    worker = job(0).spawn(0)
    worker.call(prepare(addresses, inside, shapes))
    worker.begin(STEPS)
    worker.expect("waiting")
    worker.wait_until_it_sleeps()
    asked = time.monotonic()
    os.kill(worker.pid, signal.SIGUSR1)
    assert worker.expect("handled") - asked < SOON
    return worker


def let_it_go_on(addresses: list[str], shapes: tuple[int, int] = (1, 3)) -> None:
    """Do a step as worker 1, and leave: nobody waits any more."""
    count, floats = shapes
    params = [np.zeros(floats, np.float32) for _ in range(count)]
    with (
        join(addresses, client=1) as ps,
        BoundedOptimizer(params, SGD, ps, workers=2, staleness=0) as own,
    ):
        own.step([np.ones_like(param) for param in params])


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("rows.pull([1, 2]).tolist()", [[-1.0, -1.0], [-1.0, -1.0]]),
        ("(rows.push([1], np.ones((1, 2), np.float32)), ps.flush())[1]", None),
        ("rows.pull([1], async_op=True).wait().tolist()", [[-1.0, -1.0]]),
        ("rows.push([1], np.ones((1, 2), np.float32), async_op=True).wait() and None", None),
    ],
)
def test_a_signal_handler_may_pull_and_push_while_a_step_waits(
    job: StartJob, addresses: list[str], inside: str, expected: Any
) -> None:
    worker = interrupted(job, addresses, inside)
    let_it_go_on(addresses)
    assert worker.outcome().result == [expected]


def test_a_signal_handler_may_save_a_checkpoint_while_a_step_waits(
    job: StartJob, addresses: list[str], tmp_path: Path
) -> None:
    place = str(tmp_path / "saved")
    worker = interrupted(job, addresses, f"str(ps.save({place!r}))")
    let_it_go_on(addresses)
    assert worker.outcome().error is None
    gr.ps.checkpoint.verify(place)
    with join(addresses, client=5) as ps:
        ps.load(place)
        assert ps.sparse_table("rows", 2, SGD).pull([1]).tolist() == [[-1.0, -1.0]]


@pytest.mark.parametrize(
    "inside", ["rows.pull(np.arange(8)).tolist()[1:2]", "ps.save({place!r}) and None"]
)
def test_a_signal_handler_may_do_so_while_many_parameters_wait(
    job: StartJob, addresses: list[str], tmp_path: Path, inside: str
) -> None:
    # Each is a request of its own to each server that has some of it: more than may be under way.
    shapes = (300, 16)
    inside = inside.format(place=str(tmp_path / "saved"))
    worker = interrupted(job, addresses, inside, shapes)
    let_it_go_on(addresses, shapes)
    outcome = worker.outcome()
    assert outcome.error is None, outcome
    assert outcome.result in ([[[-1.0, -1.0]]], [None])


def test_a_signal_handler_that_closes_the_connection_ends_the_call(
    job: StartJob, addresses: list[str]
) -> None:
    worker = interrupted(job, addresses, "ps.close()")
    outcome = worker.outcome()
    assert outcome.error == "Closed", outcome


def test_a_second_signal_ends_the_call_that_a_handler_has_begun(
    job: StartJob, addresses: list[str]
) -> None:
    worker = job(0).spawn(0)
    worker.call(prepare(addresses, "None"))
    worker.call(
        """
def handler(*_):
    signal.signal(signal.SIGUSR1, second)
    say("handled")
    opt.store.pull([], opt.gate())  # Of nothing, once worker 1 has come there.
def second(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGUSR1, handler)
"""
    )
    worker.begin(STEPS)
    worker.expect("waiting")
    worker.wait_until_it_sleeps()
    os.kill(worker.pid, signal.SIGUSR1)
    worker.expect("handled")
    worker.wait_until_it_sleeps()
    os.kill(worker.pid, signal.SIGUSR1)
    asked = time.monotonic()
    outcome = worker.outcome()
    assert (outcome.error, outcome.at - asked < SOON) == ("KeyboardInterrupt", True), outcome
