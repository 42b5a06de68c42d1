"""Starts servers, lost ranks and lost hosts again: which, when, and where newcomers find the job.

Launcher's thread only.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from gradring.launch.hosts import HostPlan
from gradring.launch.link import AgentLink
from gradring.launch.lost.away import AwayHosts
from gradring.launch.lost.losses import Losses, Verdict
from gradring.launch.numbers import is_server, name
from gradring.launch.options import Options
from gradring.launch.outcome import Failure, Outcome, Restarts, name_ranks
from gradring.launch.processes import UNKILLABLE_SECONDS

USAGE_ERROR = 2  # The exit code of a command line that makes no sense.

# The last others may be heard to have ended before a newcomer of another host is heard to be in.
PATIENCE_SECONDS = 1.0


class Restarting:
    """What is to be started again in a job."""

    def __init__(self, options: Options, ranks: int, say: Callable[[str], None]) -> None:
        """Nothing is, yet; ``say`` tells the user."""
        self._say = say
        self._restarts_servers = options.restart_servers
        self._restarts = Restarts(time.monotonic())
        self._losses = Losses(range(ranks), self._restarts) if options.restart_ranks else None
        self._coming: dict[int, tuple[float, AgentLink]] = {}  # When and where.
        # An agent may have to end the one before it first.
        self._away = AwayHosts(options.start_timeout + UNKILLABLE_SECONDS)
        self._greeted: set[int] = set()  # Servers that have started at least once.
        self._left_out: set[int] = set()  # Ranks that were to be started when the others had ended.
        self._patient_until: float | None = None  # With newcomers, whom nobody seems to let in.
        self._is_over = False

    @property
    def of_ranks(self) -> bool:
        """Whether lost ranks are started again at all."""
        return self._losses is not None

    @property
    def waits(self) -> list[float]:
        """Seconds until something is to be started; empty where nothing is."""
        times = [at for at, _ in self._coming.values()] + self._away.times
        times += [] if self._patient_until is None else [self._patient_until]
        return [max(0.0, at - time.monotonic()) for at in times]

    def note_output(self, number: int) -> None:
        """Note that a process has written to its standard output: a server serves then."""
        if is_server(number):
            self._greeted.add(number)

    def note_told(self, links: Sequence[AgentLink], number: int, text: str) -> None:
        """Take what a rank tells of itself, and tell newcomers where the job has moved."""
        assert self._losses is not None
        before = self._losses.place
        if news := self._losses.note_told(number, text, time.monotonic()):
            self._say(news)
        self._tell_place(links, before)

    def take_server_end(self, link: AgentLink, number: int, status: int, how: str) -> bool:
        """Take the end of a server; whether it will be started again."""
        # One that refuses its options, or fails before it says where it is, would do so again.
        could_start = number in self._greeted and status != USAGE_ERROR
        at = self._restarts.note_end(number, time.monotonic())
        if not (self._restarts_servers and could_start and at is not None):
            return False
        again = f"starting it again from its log in {at - time.monotonic():.1f} s"
        self._say(f"{name(number)}: {how}; {again}")
        self._coming[number] = (at, link)
        return True

    def take_rank_end(
        self, links: Sequence[AgentLink], number: int, failure: Failure | None, lost: int | None
    ) -> tuple[tuple[Failure, int | None], ...]:
        """Take the end of a rank, and have it started again where it failed and that may help.

        Args:
            links: Of all hosts.
            number: Of the rank.
            failure: How it failed; ``None``: it ended well, or was asked to end.
            lost: The rank that it says it has lost.

        Returns:
            What has failed for good by it, in order, each with the rank that it has lost.
        """
        if self._losses is None:
            return () if failure is None else ((failure, lost),)
        before = self._losses.place
        if failure is None:
            verdict = Verdict()
            self._losses.note_end(number)
        else:
            verdict = self._losses.note_failure(number, failure, lost, time.monotonic())
        self._tell_place(links, before)
        if failure is not None and verdict.again_at is not None:
            link = next(link for link in links if number in link.host.ranks)
            self._coming[number] = (verdict.again_at, link)
            again = f"starting it again{self._when(verdict.again_at)}"
            self._say(f"{name(number)}: {failure.how}; {again}")
        if failure is not None and verdict == Verdict():
            self._left_out.add(number)
            self._say(f"{name(number)}: {failure.how}")
        self._heed_nobody_left()
        return verdict.failures

    def take_host_end(
        self, links: Sequence[AgentLink], link: AgentLink, how: str, outcome: Outcome
    ) -> tuple[tuple[Failure, int | None], ...]:
        """Take the loss of a host that the others go on without, and have it started again.

        Args:
            links: Of all hosts.
            link: Its agent, which has ended.
            how: In which way.
            outcome: Hears which ranks are lost with it.

        Returns:
            As `take_rank_end`.
        """
        coming = [rank for rank, (_, there) in self._coming.items() if there is link]
        ended = [rank for rank in link.host.ranks if outcome.has_ended(rank)]
        lost = tuple(rank for rank in link.host.ranks if rank not in ended or rank in coming)
        if not lost:
            self._say(f"lost {link.host.name}, where all ranks had ended: {how}")
            return ()
        for rank in coming:
            del self._coming[rank]
        outcome.lose(lost)
        text = f"lost {link.host.name} ({name_ranks(list(lost))}): {how}"
        if self._losses is None:
            text += "; the others go on" if outcome.running else ""
            self._say(text)
            return ((Failure(text, 1, lost=lost, is_told=True), None),)
        failure, before = Failure(text, 1, lost=lost), self._losses.place
        verdict = self._losses.note_host_end(link.host.name, failure, time.monotonic())
        self._tell_place(links, before)
        return self._try_again(link.host, failure, verdict)

    def take_due_hosts(self) -> list[HostPlan]:
        """Return the lost hosts that are to be started again now, once."""
        return self._away.take_due()

    def begin_try(self, link: AgentLink) -> None:
        """Note that the agent of a lost host was started again; it has not answered yet."""
        self._away.begin(link)

    def is_try(self, link: AgentLink) -> bool:
        """Tell whether an agent is one that has not answered yet on a host that was lost."""
        return self._away.is_try(link)

    def late_tries(self, *, is_holding: bool) -> list[AgentLink]:
        """Return those agents that have not answered in time; as `take_patience`."""
        return self._away.late(is_holding=is_holding)

    def take_tries(self) -> list[AgentLink]:
        """Return those agents, once: the job ends, and nothing has been started by them."""
        return self._away.take_tries()

    def take_try_end(self, host: HostPlan, how: str) -> tuple[tuple[Failure, int | None], ...]:
        """Take that a lost host could not be had again, and have it tried once more.

        Args:
            host: The host.
            how: What came of the try.

        Returns:
            As `take_rank_end`.
        """
        lost = self._away.take(host)
        if self._losses is None or not lost:  # Nobody needs it any more.
            return ()
        text = f"could not start anything on {host.name} ({name_ranks(list(lost))}): {how}"
        failure = Failure(text, 1, lost=lost)
        verdict = self._losses.note_try_end(host.name, failure, time.monotonic())
        return self._try_again(host, failure, verdict)

    def take_host_back(self, link: AgentLink) -> None:
        """Take that the agent of a lost host has answered, and have its ranks started by it."""
        if ranks := self._away.take(link.host):
            self._say(f"{link.host.name} is back; starting {name_ranks(list(ranks))} again")
            self._coming.update(dict.fromkeys(ranks, (time.monotonic(), link)))

    def start_due(self, outcome: Outcome, begin: Callable[[int], None]) -> None:
        """Start what has had its pause; ``begin`` hears which processes have a new life."""
        for number, (at, link) in list(self._coming.items()):
            if time.monotonic() < at:
                continue
            del self._coming[number]
            if not link.is_open:
                continue
            begin(number)
            place = None
            if not is_server(number) and self._losses is not None:
                place = self._losses.place
                self._losses.note_start(number)
                outcome.begin_again(number)
            link.send(do="restart", number=number, place=place)

    def drop(self) -> None:
        """Start nothing any more: the job ends, and newcomers are ranks like others."""
        self._coming.clear()
        self._away.give_up()
        self._patient_until = None
        self._is_over = True

    def awaits(self, rank: int, outcome: Outcome) -> bool:
        """Tell whether the job goes on for the sake of a rank."""
        if self._losses is not None and rank in self._losses.waiting and not self._is_over:
            return self._losses.can_take_in or self._patient_until is not None
        return rank in self._coming or not outcome.has_ended(rank)

    def take_patience(self, *, is_holding: bool) -> bool:
        """Tell, once, that newcomers are not waited for any longer.

        Args:
            is_holding: Hosts are not read now, and so are not late: their time begins anew.
        """
        if self._patient_until is None or time.monotonic() < self._patient_until:
            return False
        if is_holding:
            self._patient_until = time.monotonic() + PATIENCE_SECONDS
            return False
        self._patient_until = None
        return True

    def close(self) -> list[Failure]:
        """Tell which lost ranks the others have not let in before they ended.

        Returns:
            What has failed for good, although the others have ended well.
        """
        if self._losses is None:
            return []
        if left := sorted({*self._losses.waiting, *self._left_out}):
            verb = "was" if len(left) == 1 else "were"
            self._say(f"{name_ranks(left)} {verb} not let in again before the others had ended")
        return self._losses.unmissed

    def _try_again(
        self, host: HostPlan, failure: Failure, verdict: Verdict
    ) -> tuple[tuple[Failure, int | None], ...]:
        if verdict.again_at is not None:
            self._away.add(host, failure.lost, verdict.again_at)
            them = "it" if len(failure.lost) == 1 else "them"
            self._say(f"{failure.text}; starting {them} again{self._when(verdict.again_at)}")
        elif verdict == Verdict():
            self._left_out.update(failure.lost)
            self._say(failure.text)
        elif verdict.failures[0][0].lost != failure.lost:  # Another one is the first cause.
            self._say(failure.text)
        self._heed_nobody_left()
        return verdict.failures

    def _when(self, at: float) -> str:
        what_for = ", to join the others" if self._losses and self._losses.place else ""
        return f" in {max(0.0, at - time.monotonic()):.1f} s{what_for}"

    def _heed_nobody_left(self) -> None:
        """Start no rank any more where nobody is left to let it in."""
        assert self._losses is not None
        if self._losses.can_take_in:
            return
        self._left_out |= {rank for rank in self._coming if not is_server(rank)} | self._away.ranks
        self._away.give_up()
        for rank in self._left_out & self._coming.keys():
            del self._coming[rank]
        if self._losses.waiting and self._patient_until is None and not self._is_over:
            self._patient_until = time.monotonic() + PATIENCE_SECONDS

    def _tell_place(self, links: Sequence[AgentLink], before: str) -> None:
        assert self._losses is not None
        if self._losses.place != before and self._losses.waiting:
            for link in links:
                link.send(do="place", place=self._losses.place)


def is_bad_end(status: int) -> bool:
    """Tell whether a server that was asked to end has ended in another way."""
    return status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
