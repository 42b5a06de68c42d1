"""A signal handler of Python runs inside of the call that it interrupts, on the same thread."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rank_job import Outcome, StartJob
from thread_ranks import TRANSPORTS

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.parametrize("transport", TRANSPORTS),
]

SOON = 5.0  # Far below a job's timeout.


def interrupted(job: StartJob, transport: str, call: str, handler: str) -> tuple[Outcome, Outcome]:
    """Run ``handler`` inside of rank 0's call; what rank 1 hears that then waits for rank 0."""
    ranks = job(2, transport=transport)
    ranks.call("comm.barrier()")
    first, second = ranks.ranks
    first.call(f"signal.signal(signal.SIGUSR1, lambda *_: {handler})")
    first.begin(f"say('waiting'); {call}")
    first.expect("waiting")
    first.wait_until_it_sleeps()
    asked = time.monotonic()
    os.kill(first.pid, signal.SIGUSR1)
    outcome = first.outcome()
    assert outcome.at - asked < SOON, outcome
    second.begin("comm.recv(np.zeros(100 << 20, np.uint8), 0)")
    return outcome, second.outcome()


@pytest.mark.parametrize(
    "call",
    [
        "comm.all_reduce(np.ones(1000))",
        "comm.all_reduce(np.ones(1_000_000))",
        "comm.all_reduce(np.ones(3), async_op=True).wait()",
        "comm.all_reduce_compressed(np.ones(1000, np.float32), 'bf16')",
        "comm.split(0)",
        "comm.empty(10)",
        "comm.recv(np.ones(3), 1)",
        "comm.recv(np.ones(3), 1, async_op=True).wait()",
        "comm.send(np.zeros(100 << 20, np.uint8), 1)",
    ],
)
def test_a_signal_handler_that_closes_ends_the_call_that_it_interrupted(
    job: StartJob, transport: str, call: str
) -> None:
    outcome, other = interrupted(job, transport, call, "comm.close()")
    assert outcome.error == "Closed", outcome
    assert "close() was called" in outcome.text
    assert (other.error, other.lost) == ("PeerLost", 0), other
    assert "has left" in other.text


def test_a_signal_handler_that_closes_may_end_the_script(job: StartJob, transport: str) -> None:
    handler = "(comm.close(), sys.exit(3))"
    outcome, other = interrupted(job, transport, "comm.all_reduce(np.ones(1000))", handler)
    assert outcome.error == "SystemExit", outcome
    assert (other.error, other.lost) == ("PeerLost", 0), other


HANDLER = """
def handler(*_):
    global later
    try:
        {inside}
    except gr.InvalidArgument as error:
        told.append(str(error))
    say("handled")
told = []
signal.signal(signal.SIGUSR1, handler)
"""


@pytest.mark.parametrize(
    ("call", "inside", "answer"),
    [
        ("comm.all_reduce(np.ones(9))", "comm.barrier()", "comm.all_reduce(np.ones(9))"),
        ("comm.all_reduce(np.ones(9))", "comm.split(0)", "comm.all_reduce(np.ones(9))"),
        ("comm.recv(np.ones(9), 1)", "comm.send(np.ones(9), 1)", "comm.send(np.ones(9), 0)"),
    ],
)
def test_a_call_that_would_wait_for_the_one_around_it_is_refused_at_once(
    job: StartJob, transport: str, call: str, inside: str, answer: str
) -> None:
    ranks = job(2, transport=transport)
    first, second = ranks.ranks
    first.call(HANDLER.format(inside=inside))
    first.begin(f"say('waiting'); {call}; result = told")
    first.expect("waiting")
    first.wait_until_it_sleeps()
    asked = time.monotonic()
    os.kill(first.pid, signal.SIGUSR1)
    assert first.expect("handled") - asked < SOON
    second.call(answer)
    (told,) = first.outcome().result
    assert "signal handler" in told
    assert ranks.call("result = comm.all_reduce(np.ones(1)).tolist()") == [[2.0]] * 2


@pytest.mark.parametrize(
    ("call", "inside", "answers"),
    [
        (
            "comm.all_reduce(np.ones(9))",
            "comm.all_reduce(np.full(1, 7.0), async_op=True)",
            ["comm.all_reduce(np.ones(9))", "comm.all_reduce(np.zeros(1))"],
        ),
        (
            "comm.recv(np.ones(9), 1)",
            "comm.recv(np.zeros(1), 1, 5, async_op=True)",
            ["comm.send(np.ones(9), 0)", "comm.send(np.full(1, 7.0), 0, 5)"],
        ),
    ],
)
def test_what_a_signal_handler_has_started_may_be_waited_for_after_it(
    job: StartJob, transport: str, call: str, inside: str, answers: list[str]
) -> None:
    ranks = job(2, transport=transport)
    first, second = ranks.ranks
    first.call(HANDLER.format(inside=f"later = {inside}; later.wait()"))
    first.begin(f"say('waiting'); {call}; result = told, later.wait().tolist()")
    first.expect("waiting")
    first.wait_until_it_sleeps()
    asked = time.monotonic()
    os.kill(first.pid, signal.SIGUSR1)
    assert first.expect("handled") - asked < SOON
    second.call("; ".join(answers))
    (told,), received = first.outcome().result
    assert "signal handler" in told
    assert received == [7.0]


def test_a_signal_handler_may_send_a_message_while_its_rank_is_in_a_collective(
    job: StartJob, transport: str
) -> None:
    ranks = job(2, transport=transport)
    first, second = ranks.ranks
    first.call("signal.signal(signal.SIGUSR1, lambda *_: comm.send(np.full(2, 7.0), 1))")
    first.begin("say('waiting'); result = comm.all_reduce(np.ones(9)).tolist()")
    first.expect("waiting")
    first.wait_until_it_sleeps()
    os.kill(first.pid, signal.SIGUSR1)
    assert second.call("result = comm.recv(np.zeros(2), 0).tolist()") == [7.0] * 2
    second.call("comm.all_reduce(np.ones(9))")
    assert first.outcome().result == [2.0] * 9


def test_what_was_sent_in_the_background_still_goes_when_a_signal_handler_closes(
    job: StartJob, transport: str
) -> None:
    ranks = job(2, transport=transport)
    first, second = ranks.ranks
    first.call("""
comm.send(np.full(4_000_000, 7.0), 1, async_op=True)
signal.signal(signal.SIGUSR1, lambda *_: (say("closing"), comm.close()))
""")
    first.begin("say('waiting'); comm.recv(np.ones(3), 1)")
    first.expect("waiting")
    first.wait_until_it_sleeps()
    os.kill(first.pid, signal.SIGUSR1)
    first.expect("closing")
    code = "x = comm.recv(np.zeros(4_000_000), 0); result = [x.min(), x.max()]"
    assert second.call(code) == [7.0, 7.0]
    assert first.outcome().error == "Closed"
