"""Which ranks of a job were lost, whether others can take them in again, and where the job is.

A rank that has said that it joined, or works with the servers, is a member. What was started for a
lost one is a newcomer until it says so too. Members let newcomers in, so these are waited for only
while there are members, or ranks of the start that may become some. Pure bookkeeping; the job loop
tells it what happened.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gradring.launch.numbers import name
from gradring.launch.outcome import Failure, Restarts


@dataclass(frozen=True)
class Member:
    """What a process says of itself since it has joined.

    Attributes:
        rank: In its communicator, which shrinks and grows.
        world_size: Of that communicator.
        place: Where newcomers find the job; empty: it only works with servers.
        since: When it has joined first.
        order: Of this saying among all.
    """

    rank: int
    world_size: int
    place: str
    since: float
    order: int


@dataclass(frozen=True)
class Verdict:
    """What follows from the end of a rank, or of a host.

    Attributes:
        again_at: When it is to be started again; ``None``: it is not.
        failures: What has failed for good, in order, each with the rank that it says it has lost.
    """

    again_at: float | None = None
    failures: tuple[tuple[Failure, int | None], ...] = ()


class Losses:
    """The state of all ranks of a job that starts lost ones again."""

    def __init__(self, ranks: Iterable[int], restarts: Restarts) -> None:
        """All ranks have just been started; ``restarts`` says how often one may be again."""
        self.place = ""
        self._restarts = restarts
        self._ranks = frozenset(ranks)
        self._running = set(self._ranks)
        self._newcomers: set[int] = set()  # Running, and not let in yet.
        self._silent: set[int] = set()  # Those of them that cannot say when they are.
        self._sayings = 0
        self._members: dict[int, Member] = {}  # Running.
        self._before: dict[int, Member] = {}  # What those that have ended were.
        self._lost: dict[int, tuple[Failure, int | None]] = {}  # Not made good yet.
        self._owing: set[int] = set()  # Of those: had joined, and are to be missed.

    def note_told(self, number: int, text: str, now: float) -> str:
        """Take what a rank tells of itself.

        Args:
            number: Its number.
            text: As `gradring.launchers.our_launcher.tell` writes it; nonsense is nothing. Empty:
                it has let go of what it could tell us by.
            now: Seconds.

        Returns:
            What to tell of a newcomer that has just been let in; empty otherwise.
        """
        if not text and number in self._newcomers:
            self._silent.add(number)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = json.loads(text)
            since = self._members[number].since if number in self._members else now
            rank, size, place = int(said["rank"]), int(said["world_size"]), str(said["place"])
            if self.place and not place:
                return ""  # It works with the servers by now; the ranks still wait for it.
            # Behind those before it: the last one said counts.
            self._members.pop(number, None)
            self._sayings += 1
            self._members[number] = Member(rank, size, place, since, self._sayings)
            self._before.pop(number, None)
            self._choose_place()
            if number in self._newcomers:
                self._newcomers.discard(number)
                self._lost.pop(number, None)
                return f"{name(number)} is in the job again, as rank {rank} of {size}"
        return ""

    def note_start(self, number: int) -> None:
        """Note that a lost rank was started again."""
        self._running.add(number)
        self._newcomers.add(number)

    def note_end(self, number: int) -> None:
        """Note that a rank has ended well, or was asked to end."""
        self._owing.discard(number)
        self._forget(number)

    def note_failure(self, number: int, failure: Failure, lost: int | None, now: float) -> Verdict:
        """Note that a rank has failed.

        Args:
            number: Its number.
            failure: What to tell where it stays lost.
            lost: The rank that it says it has lost, as its communicator has them; None: none.
            now: Seconds.
        """
        return self._lose(number, (number,), (failure, self._number_of(lost, number)), now)

    def note_host_end(self, host: str, failure: Failure, now: float) -> Verdict:
        """Note that a host was lost, with all ranks that ran there or were to be started again.

        Args:
            host: Its name.
            failure: What to tell where it stays lost; it names the ranks.
            now: Seconds.
        """
        return self._lose(host, failure.lost, (failure, None), now)

    def note_try_end(self, host: str, failure: Failure, now: float) -> Verdict:
        """Note that a lost host could not be had again; as `note_host_end`."""
        return self._start_again(host, failure, now, began=now)

    def _lose(
        self,
        who: int | str,
        numbers: tuple[int, ...],
        held: tuple[Failure, int | None],
        now: float,
    ) -> Verdict:
        ran = self._running.intersection(numbers)
        were_newcomers = ran <= self._newcomers
        members = {each: self._members[each] for each in numbers if each in self._members}
        for number in numbers:
            self._forget(number)
        if were_newcomers and not self.can_take_in:
            return Verdict()  # The others have ended, and what came of the job is theirs to say.
        if ran and not members and not self._members:
            why = "; not started again: no rank had said by then that it joined, as gr.init() does"
            return Verdict(failures=((_with(held[0], why), held[1]),))
        for number in numbers:  # Behind those that were lost since.
            self._lost[number] = self._lost.pop(number, held)
        were_missed = all(self._is_missed(number) for number in numbers)
        self._owing.update(number for number, member in members.items() if member.place)
        if not self.can_take_in:
            # Who froze, or takes long to end, may do so when the others have done the rest.
            failures = () if were_missed else tuple(dict.fromkeys(self._lost.values()))
            return Verdict(failures=failures)
        # A life begins with the first step: who waits long, or loads long, is no better for it.
        began = min((member.since for member in members.values()), default=now)
        return self._start_again(who, held[0], now, began)

    def _start_again(self, who: int | str, failure: Failure, now: float, began: float) -> Verdict:
        at = self._restarts.note_end(who, now, began)
        if at is None:
            why = f"; not started again: {self._restarts.MOST} starts in a row were in vain"
            return Verdict(failures=((_with(failure, why), None),))
        return Verdict(again_at=at)

    @property
    def can_take_in(self) -> bool:
        """Whether a rank runs that is a member, or may become one with those of the start."""
        return bool(self._running - self._newcomers)

    @property
    def waiting(self) -> list[int]:
        """Newcomers that nobody has let in yet, as far as we can know."""
        return sorted(self._newcomers - self._silent)

    @property
    def unmissed(self) -> list[Failure]:
        """What nobody has made good: of ranks that are lost, and that no other one has missed.

        Others that went on have told of a communicator without the lost rank. Where none has, it
        was lost behind the last step, or they ended because of it.
        """
        why = "; the others have not gone on without it"
        failures = [
            failure
            for number, (failure, _) in self._lost.items()
            if number in self._owing and not self._is_missed(number)
        ]
        return [_with(failure, why) for failure in dict.fromkeys(failures)]

    def _is_missed(self, number: int) -> bool:
        """Tell whether one that runs, or has ended well, went on without a lost rank."""
        everybody = {**self._before, **self._members}
        gone = everybody.get(number)
        return gone is not None and any(
            other.order > gone.order
            and (other.world_size != gone.world_size or other.rank == gone.rank)
            for each, other in everybody.items()
            if each not in self._lost
        )

    def _forget(self, number: int) -> None:
        for those in (self._running, self._newcomers, self._silent):
            those.discard(number)
        was = self._members.pop(number, None)
        if was is not None:
            self._before[number] = was
            self._choose_place()

    def _choose_place(self) -> None:
        # After a loss the survivors come to another place one by one, a message of a rank that is
        # lost as well may be late, and one that was cut off may have gone on alone: what most of
        # those who live have said counts, and of several places the one that was said last.
        places = [member.place for member in self._members.values() if member.place]
        said = {place: (places.count(place), last) for last, place in enumerate(places)}
        self.place = max(said, key=lambda place: said[place], default=self.place)

    def _number_of(self, rank: int | None, by: int) -> int | None:
        """Return who was a rank of a process's communicator, as we number them."""
        everybody = {**self._before, **self._members}
        if by not in everybody:
            return rank if rank in self._ranks else None
        size = everybody[by].world_size
        found = [
            number
            for number, member in everybody.items()
            if (member.rank, member.world_size) == (rank, size)
        ]
        return found[0] if len(found) == 1 else None


def _with(failure: Failure, text: str) -> Failure:
    return replace(failure, text=failure.text + text)
