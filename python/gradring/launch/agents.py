"""The agents of a job's hosts: started, read, and let go.

Launcher's thread only.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Mapping

from gradring.launch import agent, processes
from gradring.launch.hosts import HostPlan
from gradring.launch.link import AgentLink
from gradring.launch.options import Options
from gradring.launch.outcome import describe
from gradring.launch.watch import Watch


class Agents:
    """One agent a host, or none where it is lost."""

    def __init__(self, options: Options, watch: Watch, say: Callable[[str], None]) -> None:
        """None is started yet; ``watch`` reads them, ``say`` tells the user what they complain."""
        self._last: dict[HostPlan, AgentLink] = {}  # Of each host.
        self.orphans = processes.Orphans(frozenset())  # What comes to this process.
        self._options = options
        self._watch = watch
        self._say = say
        self._mark = secrets.token_hex(16)  # Of this job's agents on their hosts.

    @property
    def links(self) -> list[AgentLink]:
        """The last one of each host, in the hosts' order."""
        return list(self._last.values())

    @property
    def open_links(self) -> list[AgentLink]:
        """Those of them that are there."""
        return [link for link in self.links if link.is_open]

    def start(self, host: HostPlan, read: Callable[[AgentLink], None]) -> AgentLink:
        """Start the agent of a host, in the place of the one before it if there was one.

        Args:
            host: Which one.
            read: Called with it whenever it has said something.

        Raises:
            OSError: The ssh command cannot be run.
        """
        link = AgentLink(host, self._options)
        # The job began with the first one; no others are waited for, and hosts go on without them.
        link.has_started = host in self._last
        self._last[host] = link
        self._watch.add_commands(link)
        self._watch.add(link.frames, functools.partial(read, link))
        self._watch.add(link.complaints, functools.partial(self._read_complaints, link))
        return link

    def begin(self, link: AgentLink, start: Mapping[str, object], *, again: bool) -> None:
        """Have an agent begin with its part of the job.

        Args:
            link: Which one.
            start: From `Plan.start_of`.
            again: It has the place of a lost one: it ends what that one has left, and waits to be
                told which ranks to start.
        """
        link.send(
            do="come back" if again else "start",
            **start,
            grace=self._options.grace,
            bind=self._options.bind,
            restarts=self._options.restart_ranks,
            mark=f"{self._mark}-{link.host.ranks[0]}",
        )

    def let_go(self, link: AgentLink, timeout: float) -> str:
        """Read an agent no more, and return how it (or its ssh) ended, if need be by force.

        Args:
            link: Which one.
            timeout: Seconds that it has; hardly any once a signal was caught.
        """
        for stream in (link.frames, link.complaints):
            self._watch.remove(stream)
        for line in link.last_complaints():
            self._say(f"{link.host.name}: {line}")
        # An ssh may linger; signals are heard all the same.
        return describe(link.close(timeout, lambda: bool(self._watch.caught)))

    def end_orphans(self, lost: AgentLink) -> None:
        """End what an agent of this machine has left: its ranks die with it, their children not."""
        # Behind an ssh of ours others may have come to us too: it can leave a master behind.
        is_alone = all(link.host.is_here for link in self.links)
        if lost.host.is_here:
            self.orphans.end(
                except_for={link.pid for link in self.links},
                session=None if is_alone else lost.pid,
            )

    def _read_complaints(self, link: AgentLink) -> None:
        data = os.read(link.complaints.fileno(), agent.READ_BYTES)
        if not data:
            self._watch.remove(link.complaints)
        for line in link.complain(data):
            self._say(f"{link.host.name}: {line}")
