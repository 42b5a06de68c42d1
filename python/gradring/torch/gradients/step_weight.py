"""`StepWeight`: how many examples stand behind the gradients of a step, and who has said so.

A loop over `uneven` is told a number with every turn, and it may take several turns for one step
(accumulation), or the next turn before this step (it looks ahead, or steps later). What a turn
belongs to is seen from the backward passes: its number is that of the gradients which come between
it and the next turn. Where it brings none before a step it is the next step's, if that step has had
another turn; else it is this one's, with zeros for gradients. A loop that brings none at all, an
evaluation, is as if it had not been. Pure; on the thread of the training loop, or that of its
backward.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from gradring.errors import InvalidArgument
from gradring.optim.averaging import require_weight


class StepWeight:
    """The weight of one rank in the step that it computes.

    Attributes:
        are_forgotten: Tells whether the script has forgotten the gradients that were counted.
    """

    are_forgotten: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self) -> None:
        """Begin with a step of which nothing is known."""
        self._said: float | None = None  # Of the whole step, by `say`.
        self._counted: float | None = None  # Of turns that gave gradients, added up.
        self._last: float | None = None  # The last of these turns.
        # Turns that gave none yet; a rank that has run out tells None. Who skips batches may leave
        # any number of them, and of those only the last matters.
        self._turns: deque[float | None] = deque(maxlen=2)
        self._has_ended = False  # The loop that told the turns.
        self._around: tuple[float | None, ...] = ()  # Turns of the loop in which that one was.
        self._loops = self._batches = self._uses = 0  # Begun, told, and of turns for a step.

    @property
    def weight(self) -> float:
        """The weight if the step were sent now."""
        if self._said is not None:
            return self._said
        return self._of_turns()

    @property
    def weight_in_backward(self) -> float:
        """The weight for what runs in a backward pass, whose gradients may be still to come."""
        # Forgotten ones are dropped when the first of this pass comes.
        is_dropped = self._counted is not None and self.are_forgotten()
        if self._said is not None and not (is_dropped and self._turns):
            return self._said
        turns, counted = self._turns_with_gradients(), None if is_dropped else self._counted
        if turns:
            return (counted or 0.0) + (turns[-1] or 0.0)
        if counted is not None:
            return counted
        return 1.0 if self._last is None else self._last

    def _turns_with_gradients(self) -> Sequence[float | None]:
        if self._has_ended and self._turns and self._turns[-1] is None:
            return self._around  # They are of no turn in which this rank had none.
        return self._turns

    def _of_turns(self) -> float:
        if self._counted is not None:
            return self._counted
        if self._turns:
            has_run_out = self._turns[-1] is None
            return 0.0 if has_run_out else self._turns[0] or 0.0
        return 1.0 if self._last is None else self._last

    def say(self, weight: float) -> None:
        """Take what the user says of the whole step, whatever turns have told."""
        self._said = require_weight(weight)

    @contextlib.contextmanager
    def said_for_a_step(self, weight: float | None) -> Iterator[None]:
        """Take what `step` is called with; it is forgotten where that refuses the step."""
        before = self._said
        if weight is not None:
            self.say(weight)
        try:
            yield
        except InvalidArgument:
            self._said = before
            raise

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """Count the turns that are told in here, unless they bring no gradients."""
        turns, said, was_between = tuple(self._turns), self._said, self._has_ended
        self._loops += 1
        begun = self._loops, self._uses
        batches, is_over = self._batches, False
        try:
            yield
            is_over = True
        finally:
            # One that is left, and closed when another has begun, has nothing to say any more.
            if is_over or begun[0] == self._loops:
                self._has_ended = True
                self._around = () if was_between else turns
            if begun == (self._loops, self._uses) and batches < self._batches:
                self._turns = deque(turns, maxlen=2)
                self._said, self._has_ended = said, was_between

    def tell(self, weight: float | None) -> None:
        """Begin a turn with so many examples, or ``None``: this rank has run out."""
        told = None if weight is None else require_weight(weight)
        if self._counted is None:
            self._said = None  # It was said of a batch that nobody has trained.
        self._turns.append(told)
        self._has_ended = False
        self._batches += told is not None

    def see_backward(self) -> None:
        """Count the turn that runs, where it is not yet: a backward pass brings gradients."""
        self._uses += 1
        turns = tuple(self._turns_with_gradients())
        self._turns.clear()
        if turns:
            self._last = turns[-1] or 0.0
            self._counted = (self._counted or 0.0) + self._last
        elif self._counted is None:
            self._counted = 1.0 if self._last is None else self._last

    def hold(self) -> float:
        """Return the weight; turns to come change it no more, unless they give gradients."""
        self._uses += 1
        if self._counted is None:
            self._counted = self._last = self._of_turns()
            if self._turns:
                self._turns.popleft()
        return self.weight

    def drop(self) -> None:
        """Begin the step anew without the gradients so far: those to come may be of the same turn.

        So a closure that is called several times in one step keeps that step's weight.
        """
        if self._counted is not None and self._turns:
            self._said = None  # It was said of an earlier batch.
        self._counted = None

    def end_step(self) -> None:
        """Begin the next step."""
        self.hold()
        self._said = self._counted = self._last = None
