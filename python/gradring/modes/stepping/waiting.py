"""What a step's `TimedOut` says where the push goes before the wait: it must not be repeated.

A step of `Sync(via="ps")` or `BoundedStaleness` pushes, moves its clock, and then waits for other
workers. When that wait fails the step is done, and only its wait is left: the next `step`, or
`flush`, takes it up before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from gradring.errors import TimedOut


class StepTimedOut(TimedOut):
    """Others did not come in time to a step that is done: its gradients were sent."""


def lateness_of(step: Callable[[], object]) -> StepTimedOut | None:
    """Do one part of a step; return what to raise once the other parts are done too.

    A late part is done all the same: left out, the others would be lost, since nobody may repeat
    the step.
    """
    try:
        step()
    except StepTimedOut as error:
        return error
    return None


def after_the_push(clock: int) -> AbstractContextManager[None]:
    """Wait for what the step has pushed that made the clock ``clock``.

    Raises:
        StepTimedOut: What timed out inside, and that the step is done.
    """
    return _after(
        f"Step {clock} is done all the same: its gradients were sent, so do not repeat it. Call "
        "flush() to wait again, or go on with the next step, which first waits for this one"
    )


def after_the_local_step() -> AbstractContextManager[None]:
    """Wait for other workers, or for servers, behind a local step.

    Raises:
        StepTimedOut: What timed out inside, and that the step is done.
    """
    return _after(
        "The local step is done all the same: do not repeat it. The next one first waits for the "
        "exchange again"
    )


@contextmanager
def _after(what_is_done: str) -> Iterator[None]:
    try:
        yield
    except TimedOut as error:
        raise StepTimedOut(f"{error}. {what_is_done}") from error


def before_the_push(clock: int) -> AbstractContextManager[None]:
    """Wait, in the step after it or in a flush, for what step ``clock`` has pushed.

    Raises:
        TimedOut: As inside, and that nothing new was sent.
    """
    return _before(f"step {clock}", "sent")


def before_the_local_step() -> AbstractContextManager[None]:
    """Wait, in a step after it, for the exchange that a step before has begun.

    Raises:
        TimedOut: As inside, and that nothing was trained.
    """
    return _before("the exchange of a step", "trained or sent")


@contextmanager
def _before(what: str, done: str) -> Iterator[None]:
    try:
        yield
    except TimedOut as error:
        raise TimedOut(
            f"{error}. That is what {what}, which has timed out before, still waits for; "
            f"nothing new was {done}: make the same call again, or look at who is missing"
        ) from error
