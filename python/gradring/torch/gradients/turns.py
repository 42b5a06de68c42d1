"""`Turns`: a loop over unequally many batches, whose ranks wait for each other's gradients too.

A rank that has run out may come to the next turn before the step: it looks ahead, or steps later.
The others then wait inside their backward for its gradients, and it for them to come to the turn.
So while a rank is out, whoever ends a round of averaging first meets all others where turns begin:
those that have come for the next turn end the round too, and then come again. There a rank is found
out, too, that has not dropped the steps which the others have: it would go on with other averages.
They also hear who has a batch: layers that compute over ranks do so without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np

from gradring.collectives.communicator import Communicator
from gradring.errors import Mismatch

Batch = TypeVar("Batch")

# What ranks tell each other when they meet; the largest counts.
_IS_OUT, _HAS_BATCH, _ENDS_ROUND = range(3)


class _Follower(Protocol):
    def take_turn(self, present: Sequence[int] | None) -> None: ...
    def share_running(self, root: int) -> None: ...


class _Loop:
    def __init__(self, around: _Loop | None) -> None:
        self.is_one_out: bool = around is not None and around.is_one_out
        self.present: list[int] | None = None  # Who has a batch in this turn; None: all.
        # Who has learned in the loop around this one what some have not.
        self.ahead = around.present if around is not None and around.is_one_out else None


class Turns:
    """The turns of one optimizer's loops.

    Attributes:
        steps: That this rank has done.
    """

    steps = 0

    def __init__(self, comm: Communicator, follower: _Follower) -> None:
        """Begin outside of any loop.

        Args:
            comm: The ranks.
            follower: Told who has a batch; where ranks ran out before others did, and the loop has
                ended or another one begins in it, those get what it has learned of the last ones.
        """
        self._comm = comm
        self._follower = follower
        # Of each loop that goes on, the inner ones last: whether a rank is out, as of its last
        # turn, so the same on every rank.
        self._loops: list[_Loop] = []
        self._has_met = False

    def meet_before_a_round_ends(self) -> None:
        """Have every rank end the round; a collective call where one is out."""
        if self._loops and self._loops[-1].is_one_out and not self._has_met:
            self._meet(_ENDS_ROUND)

    def until_all_end(
        self, batches: Iterable[Batch], end_round: Callable[[], None]
    ) -> Iterator[Batch | None]:
        """Yield this rank's batches, then ``None`` while another rank still has some.

        Args:
            batches: This rank's.
            end_round: Called where the others wait for this rank's gradients, or that it has none.
        """
        if self._comm.world_size == 1:
            yield from batches
            return
        loop = _Loop(self._loops[-1] if self._loops else None)
        self._loops.append(loop)
        try:
            yield from self._turns_of(loop, iter(batches), end_round)
        finally:
            # Also where the loop is left early; one that nobody closes may outlive the next.
            self._loops.remove(loop)
            self._follower.take_turn(self._loops[-1].present if self._loops else None)

    def _turns_of(
        self, loop: _Loop, source: Iterator[Batch], end_round: Callable[[], None]
    ) -> Iterator[Batch | None]:
        while True:
            batch: Batch | None = None
            mark = _HAS_BATCH
            try:
                batch = next(source)
            except StopIteration:
                mark = _IS_OUT
            found, present = self._meet(mark)
            if found == _ENDS_ROUND:
                self._has_met = True
                try:
                    end_round()
                finally:
                    self._has_met = False
                found, present = self._meet(mark)
            if loop.ahead:
                # Else one that is behind could be the last in this loop, and all would take its.
                self._follower.share_running(loop.ahead[0])
                loop.ahead = None
            if found == _IS_OUT:
                if loop.is_one_out and loop.present:
                    self._follower.share_running(loop.present[0])
                return
            loop.is_one_out, loop.present = len(present) < self._comm.world_size, present
            self._follower.take_turn(present)
            yield batch

    def _meet(self, mark: int) -> tuple[int, list[int]]:
        marks = np.zeros(3 + self._comm.world_size, np.int64)
        marks[:3] = mark, self.steps, -self.steps
        marks[3 + self._comm.rank] = mark != _IS_OUT
        self._comm.all_reduce(marks, "max")
        found, most, least = int(marks[0]), marks[1], -marks[2]
        if found == _ENDS_ROUND and most != least:
            raise Mismatch(
                f"some ranks are at step {least} and others at step {most}; one without a batch "
                "goes to step() as often as the others, and where they drop a step with "
                "zero_grad() it calls synchronize() before"
            )
        return found, np.flatnonzero(marks[3:]).tolist()
