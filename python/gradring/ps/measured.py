"""What clients and servers of this process tell metrics; read by a scrape, from its own thread."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gradring.prometheus import sources
from gradring.prometheus.sources import Reading

if TYPE_CHECKING:
    from gradring import _core
    from gradring.ps.client import ParameterServer

# What a shard says of a table, by the metric that tells it.
_OF_TABLE = {
    "gradring_table_rows": "rows",
    "gradring_table_memory_bytes": "bytes",
    "gradring_table_pushes_total": "pushes",
    "gradring_table_pushed_rows_total": "rows_pushed",
    "gradring_table_pulled_rows_total": "rows_pulled",
    "gradring_table_refused_rows_total": "refused",
    "gradring_table_not_admitted_rows_total": "not_admitted",
}


def begin_clients(clients: Callable[[], Sequence[ParameterServer]]) -> None:
    """Have the connections read that this returns, those that are open then."""
    sources.add("clients", lambda: _of_clients(clients()))


def begin_server(core: _core.PsServer, index: int) -> None:
    """Have a server's shards asked, until `end_server`."""
    sources.add("server", lambda: _of_server(core, index))


def end_server() -> None:
    """Ask it no more."""
    sources.remove("server")


def _of_clients(clients: Sequence[ParameterServer]) -> Iterator[Reading]:
    for client in clients:
        if client.is_closed:
            continue
        core, labels = client.calls.core, (str(client.client),)
        yield Reading("gradring_client_sent_bytes_total", labels, core.bytes_sent)
        yield Reading("gradring_client_received_bytes_total", labels, core.bytes_received)


def _of_server(core: _core.PsServer, index: int) -> Iterator[Reading]:
    for shard in range(core.first_shard, core.first_shard + core.shards):
        yield from _of_shard(json.loads(core.stats(shard)), (str(index), str(shard)))


def _of_shard(said: dict[str, Any], labels: tuple[str, str]) -> Iterator[Reading]:
    for table in said["tables"]:
        of_table = (*labels, table["name"])
        for metric, key in _OF_TABLE.items():
            yield Reading(metric, of_table, table[key])
        seen = sources.buckets(list(enumerate(table["staleness"])))
        yield Reading("gradring_table_staleness_updates", of_table, seen)
    states = Counter(_state(client) for client in said["clients"])
    for state in ("connected", "away", "given_up"):
        yield Reading("gradring_server_clients", (*labels, state), states[state])
    for domain in said["domains"]:
        of_domain = (*labels, str(domain["domain"]))
        here = Counter(worker["presence"] for worker in domain["workers"])
        for presence in ("here", "left", "lost"):
            yield Reading("gradring_domain_workers", (*of_domain, presence), here[presence])
        yield Reading("gradring_domain_rounds_total", of_domain, domain["applied"])


def _state(client: dict[str, Any]) -> str:
    if client["given_up"]:
        return "given_up"
    return "connected" if client["connected"] else "away"
