"""Hosts that a job has lost and wants back: when to try, who tries, and what is to start there.

Pure but for the clock; launcher's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from gradring.launch.hosts import HostPlan
from gradring.launch.link import AgentLink


class AwayHosts:
    """Those hosts."""

    def __init__(self, patience: float) -> None:
        """None is away; an agent has ``patience`` seconds to answer."""
        self._patience = patience
        self._ranks: dict[HostPlan, tuple[int, ...]] = {}
        self._due: dict[HostPlan, float] = {}  # Those that pause, and until when.
        self._tries: dict[AgentLink, float] = {}  # Agents that have not answered: until when.

    @property
    def ranks(self) -> set[int]:
        """All that are to be started again once their host is back."""
        return {rank for ranks in self._ranks.values() for rank in ranks}

    @property
    def times(self) -> list[float]:
        """When there is something to do."""
        return [*self._due.values(), *self._tries.values()]

    def add(self, host: HostPlan, ranks: Iterable[int], at: float) -> None:
        """Have a host tried at that time, for these ranks."""
        self._ranks[host] = tuple(ranks)
        self._due[host] = at

    def take_due(self) -> list[HostPlan]:
        """Return the hosts whose pause is over, once."""
        found = [host for host, at in self._due.items() if time.monotonic() >= at]
        for host in found:
            del self._due[host]
        return found

    def begin(self, link: AgentLink) -> None:
        """Note that an agent was started on a host."""
        self._tries[link] = time.monotonic() + self._patience

    def is_try(self, link: AgentLink) -> bool:
        """Tell whether an agent is one that has not answered yet."""
        return link in self._tries

    def take(self, host: HostPlan) -> tuple[int, ...]:
        """Note that a host is back, or could not be had; return its ranks, if they are wanted."""
        self._tries = {link: at for link, at in self._tries.items() if link.host != host}
        return self._ranks.pop(host, ())

    def late(self, *, is_holding: bool) -> list[AgentLink]:
        """Return the agents that have not answered in time.

        Args:
            is_holding: They are not read now, and so are not late: their time begins anew.
        """
        if is_holding:
            self._tries = dict.fromkeys(self._tries, time.monotonic() + self._patience)
        return [link for link, until in self._tries.items() if time.monotonic() >= until]

    def give_up(self) -> None:
        """Want none back any more; agents that have not answered yet stay until `take_tries`."""
        self._ranks.clear()
        self._due.clear()

    def take_tries(self) -> list[AgentLink]:
        """Return the agents that have not answered, once."""
        links = list(self._tries)
        self._tries.clear()
        return links
