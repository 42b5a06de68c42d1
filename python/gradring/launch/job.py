"""Carries out a plan: starts the agents, shows what is written, and ends the job as a whole.

The first rank (see `lost.blame`) or server that fails decides: it is named with how it ended, all
others are stopped, and its exit code becomes the launcher's, unless ranks that fail are started
again (`lost.restarting`). A host that is lost counts as all its ranks, where others may go on.
Servers stop when the last rank has ended.
One thread, which never waits but in its `Watch`: whoever reads our output may stall, and signals
are heard all the same.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from typing import Any

from gradring.errors import ProtocolError
from gradring.launch import agent, processes
from gradring.launch.agents import Agents
from gradring.launch.children import STDOUT
from gradring.launch.deadline import Deadline
from gradring.launch.hosts import HostPlan
from gradring.launch.link import AgentLink, Frame
from gradring.launch.lost.blame import Blame
from gradring.launch.lost.restarting import Restarting, is_bad_end
from gradring.launch.numbers import is_server, name, server_index, server_number
from gradring.launch.options import Options
from gradring.launch.outcome import Failure, Outcome, describe, exit_code
from gradring.launch.output import RankOutput
from gradring.launch.plan import Plan, make_plan
from gradring.launch.screen import STREAM_NAMES, Screen
from gradring.launch.watch import Watch

# What an agent may take beyond the grace before the launcher gives it up.
_TEARDOWN_SECONDS = processes.UNKILLABLE_SECONDS + 5.0

_STATUS_SECONDS = 1.0


def run(options: Options) -> int:
    """Run a job to its end, on the main thread.

    Returns:
        0, the exit code of the rank that failed first, or 128 + signal.

    Raises:
        InvalidArgument: An option makes no sense; nothing was started.
    """
    plan = make_plan(options, os.environ)
    screen = Screen.of_process(os.environ)
    with contextlib.closing(screen.outlets):
        return Job(plan, options, screen).run()


class Job:
    """One `gradring run`. Build it and call `run` once, on the main thread."""

    def __init__(self, plan: Plan, options: Options, screen: Screen) -> None:
        """Keep what is needed; nothing is started yet."""
        self._plan = plan
        self._options = options
        self._screen = screen
        self._output = RankOutput(screen, has_prefix=options.prefix)
        self._outcome = Outcome(plan.world_size)
        self._blame = Blame()
        self._is_stopping = False
        self._is_killing = False
        self._spares_servers = False  # Of the stop that is under way.
        self._ports: dict[int, int] = {}  # Of rank 0 and of each server, by number.
        self._started_at = time.monotonic()
        self._restarting = Restarting(options, plan.world_size, screen.say)
        self._deadline = Deadline()  # For the agents to start, later for them to end.
        self._watch = Watch(screen.outlets)
        self._agents = Agents(options, self._watch, screen.say)

    def run(self) -> int:
        """Run to the end and return the exit code: 0, the first failed rank's, or 128 + signal."""
        with (
            contextlib.closing(self._watch),
            self._watch.catching_signals(),
            processes.adopting_orphans() as orphans,
        ):
            self._agents.orphans = orphans
            try:
                self._start()
                self._loop()
            finally:
                for link in self._agents.open_links:  # Its ranks have their grace here too.
                    link.close(timeout=self._options.grace + _TEARDOWN_SECONDS)
            self._output.finish_all()
            self._screen.set_bottom(b"")
            aftermath = self._outcome.aftermath()
            if aftermath:
                self._screen.say(f"after that: {aftermath}")
            self._drain()
        return self._outcome.exit_code

    # Starting.

    def _start(self) -> None:
        self._deadline.set(self._options.start_timeout)
        for host in self._plan.hosts:
            try:
                self._agents.start(host, self._read_frames)
            except OSError as error:
                self._fail(Failure(f"cannot start anything on {host.name}: {error}", 1))
                return
        plan = self._plan
        self._listen(self._agents.links[0], 0, plan.listen_host, plan.listen_port)
        for link in self._agents.links:
            address = plan.server_listen_host(link.host)
            for index in link.host.servers:
                self._listen(link, server_number(index), address, 0)

    def _listen(self, link: AgentLink, number: int, host: str, port: int) -> None:
        link.send(do="listen", number=number, host=host, port=port, ports=self._plan.ports)

    def _note_port(self, number: int, port: int) -> None:
        self._ports[number] = port
        if len(self._ports) == 1 + self._plan.servers and not self._is_stopping:
            self._outcome.has_begun = True
            for link in self._agents.links:
                self._begin(link)

    def _begin(self, link: AgentLink, *, again: bool = False) -> None:
        servers = {server_index(n): port for n, port in self._ports.items() if is_server(n)}
        environ = self._plan.environ_at(self._ports[0], servers)
        self._agents.begin(link, self._plan.start_of(link.host, environ), again=again)

    def _start_again(self, host: HostPlan) -> None:
        """Start the agent of a host that was lost, and no ranks before it has answered."""
        try:
            link = self._agents.start(host, self._read_frames)
        except OSError as error:
            self._hold(self._restarting.take_try_end(host, str(error)))
            return
        self._restarting.begin_try(link)
        self._begin(link, again=True)

    def _note_start(self, link: AgentLink, pids: dict[str, int], threads: int | None) -> None:
        link.has_started = True
        if all(other.has_started for other in self._agents.links) and not self._is_stopping:
            self._deadline.clear()
        if self._restarting.is_try(link):
            self._restarting.take_host_back(link)
        if self._options.verbose:
            for number, pid in pids.items():
                self._screen.say(f"{name(int(number))}: process {pid} on {link.host.name}")
            if threads:
                self._screen.say(f"{link.host.name}: OMP_NUM_THREADS={threads}")

    # The loop.

    def _loop(self) -> None:
        while self._agents.open_links:
            # Those that are killed leave no more to read than fits.
            self._watch.wait(self._seconds_to_wait(), may_hold=not self._is_killing)
            self._take_signals()
            self._heed_lost_streams()
            if cause := self._blame.settled(self._outcome):
                self._fail(cause)
            if self._is_stopping:
                self._restarting.drop()
            for host in self._restarting.take_due_hosts():
                self._start_again(host)
            self._restarting.start_due(self._outcome, self._output.begin_again)
            is_holding = self._watch.is_holding
            for link in self._restarting.late_tries(is_holding=is_holding):
                self._close(link, self._no_answer)
            if self._restarting.take_patience(is_holding=is_holding):
                self._release()
            self._heed_deadline()
            self._show_status()

    def _drain(self) -> None:
        """Let whoever reads our output have the rest of it; the second signal ends that too."""
        self._heed_lost_streams()
        while self._screen.outlets.stalled is not None:
            left = self._deadline.left if self._is_killing else None
            if left == 0:
                self._screen.outlets.drop()
                return
            self._watch.wait(left, may_hold=False)
            self._take_signals()
            self._heed_lost_streams()

    def _heed_deadline(self) -> None:
        is_full = self._screen.outlets.are_full and not self._is_killing
        # An agent that we do not read is not late.
        if self._deadline.has_passed(is_held=self._watch.is_holding or is_full):
            self._give_up_waiting()

    def _seconds_to_wait(self) -> float | None:
        waits = self._blame.waits
        waits += [] if self._deadline.left is None else [self._deadline.left]
        waits += self._restarting.waits
        if self._screen.has_bottom and not self._options.quiet:
            waits.append(_STATUS_SECONDS)
        return min(waits, default=None)

    def _show_status(self) -> None:
        text = self._output.bar
        if not text and not self._options.quiet:
            seconds = int(time.monotonic() - self._started_at)
            text = self._outcome.status_line(seconds, is_stopping=self._is_stopping).encode()
        self._screen.set_bottom(text)

    def _read_frames(self, link: AgentLink) -> None:
        data = link.read()
        try:
            for frame in link.reader.feed(data):
                self._take(link, frame)
        except ProtocolError as error:
            self._refuse(link, str(error))
            data = b""
        if not data and link.is_open:
            self._close(link)

    def _take(self, link: AgentLink, frame: Frame) -> None:
        if frame.kind == agent.EVENT:
            self._take_event(link, json.loads(frame.payload))
        else:
            stream = 1 if frame.kind == STDOUT else 2
            if stream == 1:
                self._restarting.note_output(frame.number)
            self._output.take(frame.number, stream, frame.payload)

    def _take_event(self, link: AgentLink, event: dict[str, Any]) -> None:
        match event.pop("event"):
            case "listening":
                self._note_port(event["number"], event["port"])
            case "started":
                self._note_start(link, event["pids"], event["threads"])
            case "exited":
                self._note_end(link, event["number"], event["status"])
            case "told":
                self._restarting.note_told(self._agents.links, event["number"], event["text"])
            case "refused":
                self._refuse(link, event["text"])
            case "done":
                link.is_done = True
                if left := event["left"]:
                    self._screen.say(f"{link.host.name}: processes {left} would not die")

    # How it ends.

    def _refuse(self, link: AgentLink, why: str) -> None:
        if self._restarting.is_try(link):
            self._close(link, why)
        else:
            self._fail(Failure(f"{link.host.name}: {why}", 1))

    def _note_end(self, link: AgentLink, number: int, status: int) -> None:
        self._output.finish(number)
        seconds = time.monotonic() - self._started_at
        how = f"{describe(status)}, on {link.host.name} after {seconds:.1f} s"
        if is_server(number):
            self._note_server_end(link, number, status, how)
            return
        self._outcome.end(number, status)
        failure = None
        if status != 0 and not self._is_stopping:
            failure = Failure(self._outcome.told(number, how), exit_code(status), number, how)
        lost = self._output.lost_by(number)
        links = self._agents.links
        self._hold(self._restarting.take_rank_end(links, number, failure, lost))

    def _hold(self, failures: tuple[tuple[Failure, int | None], ...]) -> None:
        for failure, lost in failures:
            self._blame.hold(failure, lost)
        self._release()

    def _note_server_end(self, link: AgentLink, number: int, status: int, how: str) -> None:
        if self._is_stopping:
            # The last one: it was only about to start.
            if is_bad_end(status):
                self._screen.say(f"{name(number)}: {how}")
        elif not self._restarting.take_server_end(link, number, status, how):
            text = self._outcome.told(number, how)
            self._fail(Failure(text, exit_code(status) or 1, number))

    def _release(self) -> None:
        """Stop servers, and who still waits to be let in, once nobody is left who needs them."""
        waits = any(
            self._restarting.awaits(rank, self._outcome)
            for link in self._agents.open_links
            for rank in link.host.ranks
        )
        if waits or not (self._plan.servers or self._restarting.of_ranks):
            return
        if not self._is_stopping and not self._blame.waits:
            for failure in self._restarting.close():
                self._fail(failure)
        self._stop(signal.SIGTERM, servers=True)

    def _fail(self, failure: Failure) -> None:
        ends_job = failure.is_of_job or not self._options.keep_going
        is_first = self._outcome.fail(failure)
        # Also what ends a job that has gone on without a rank.
        is_end = ends_job and not self._is_stopping and self._outcome.interrupt is None
        # That a rank or host is to be started again was said; nobody else says that it is not.
        is_end |= self._options.restart_ranks and not ends_job
        if (is_first or is_end) and not failure.is_told:
            self._screen.say(failure.text)
            if failure.process is not None:
                self._output.repeat_last_errors(failure.process)
        if ends_job:
            self._stop(signal.SIGTERM)

    def _heed_lost_streams(self) -> None:
        for stream, error in self._screen.take_lost():
            if isinstance(error, BrokenPipeError):
                # As a program in a pipe whose reader left: no message, and SIGPIPE's code.
                self._outcome.fail(Failure("", 128 + signal.SIGPIPE))
                self._stop(signal.SIGTERM)
            elif error.errno == errno.EIO and self._screen.is_terminal(stream):
                # The terminal was closed, which SIGHUP tells too, before or after; nohup ignores.
                if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                    self._take_signal(signal.SIGHUP)
            else:
                why = f"cannot write {STREAM_NAMES[stream]}: {error.strerror}"
                self._fail(Failure(why, 1))

    def _take_signals(self) -> None:
        while self._watch.caught:
            self._take_signal(self._watch.caught.pop(0))

    def _take_signal(self, number: int) -> None:
        # The first one gives the ranks the chance that Ctrl-C gives a program; the second kills.
        name = signal.Signals(number).name
        if number == signal.SIGHUP and self._outcome.interrupt == number:
            return  # Kernel and shell both tell of a closed terminal; that is no impatience.
        if self._outcome.interrupt is None:
            self._screen.say(f"{name}: stopping all ranks (once more kills them)")
            self._stop(self._outcome.interrupt_by(number))
        else:
            self._screen.say(f"{name}: killing all ranks")
            self._is_stopping, self._is_killing = False, True
            self._stop(signal.SIGKILL)
            if not self._agents.open_links:
                self._screen.outlets.drop()

    def _stop(self, number: int, *, servers: bool = False) -> None:
        if self._is_stopping and not (servers and self._spares_servers):
            return
        self._is_stopping = True
        self._spares_servers = not servers
        grace = 0.0 if number == signal.SIGKILL else self._options.grace
        self._deadline.set(grace + _TEARDOWN_SECONDS)
        for link in self._restarting.take_tries():  # Nothing runs there yet.
            self._agents.let_go(link, timeout=0.0)
        for link in self._agents.links:
            link.send(do="stop", signal=number, servers=servers)

    def _close(self, link: AgentLink, why: str = "") -> None:
        ending = self._agents.let_go(link, 0.0 if why else _TEARDOWN_SECONDS)
        # Where ranks may come again it ends when we say so, not when its last process has ended.
        is_early = self._restarting.of_ranks and not self._is_stopping
        if not link.is_done or is_early:
            self._agents.end_orphans(link)
            ending = "what had started its ranks was asked to end" if link.is_done else ending
            self._take_host_end(link, why or ending)
        if self._is_stopping:
            self._release()

    def _take_host_end(self, link: AgentLink, how: str) -> None:
        host = link.host
        if self._restarting.is_try(link):
            self._hold(self._restarting.take_try_end(host, how))
            return
        goes_on = self._options.keep_going or self._options.restart_ranks
        if goes_on and link.has_started and not (host.servers or self._is_stopping):
            for rank in host.ranks:
                self._output.finish(rank)
            links = self._agents.links
            self._hold(self._restarting.take_host_end(links, link, how, self._outcome))
            return
        self._fail(Failure(link.loss(how), 1))

    @property
    def _no_answer(self) -> str:
        return f"no answer within {self._options.start_timeout:g} s"

    def _give_up_waiting(self) -> None:
        self._deadline.clear()
        if self._is_killing:
            self._screen.outlets.drop()
        late = self._agents.open_links
        if not self._is_stopping:
            late = [link for link in late if not link.has_started]
            hosts = ", ".join(link.host.name for link in late)
            self._fail(Failure(f"{hosts}: {self._no_answer}", 1))
        for link in late:
            self._agents.let_go(link, timeout=0.0)
            self._agents.end_orphans(link)
