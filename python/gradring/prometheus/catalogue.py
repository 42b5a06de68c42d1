"""Every metric there is: its name, kind, labels and meaning; docs/metrics.md has the same table.

Names are Prometheus': the unit is the last word, but for the ``_total`` of what only grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

COUNTER: Literal["counter"] = "counter"
GAUGE: Literal["gauge"] = "gauge"
HISTOGRAM: Literal["histogram"] = "histogram"

_COMMUNICATOR = ("rank", "communicator")
_OPTIMIZER = ("optimizer",)
_SHARD = ("server", "shard")
_TABLE = (*_SHARD, "table")


@dataclass(frozen=True)
class Metric:
    """What a metric says.

    Attributes:
        kind: ``counter``, ``gauge`` or ``histogram``.
        labels: What tells its values apart.
        text: With the unit.
    """

    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str


METRICS: Mapping[str, Metric] = {
    "gradring_up": Metric(
        GAUGE, ("source",),
        "1: what this source says is here; 0: it could not be read, or not in time",
    ),
    "gradring_sent_bytes_total": Metric(
        COUNTER, ("transport",),
        "bytes of messages sent to other ranks, servers and clients, headers included",
    ),
    "gradring_received_bytes_total": Metric(
        COUNTER, ("transport",),
        "bytes of messages received from other ranks, servers and clients, headers included",
    ),
    "gradring_operations_total": Metric(
        COUNTER, ("operation",),
        "collectives, sends and receives that have ended since the first scrape",
    ),
    "gradring_operation_bytes_total": Metric(
        COUNTER, ("operation",), "bytes of the arrays that they were called with"
    ),
    "gradring_operation_seconds_total": Metric(
        COUNTER, ("operation",), "seconds from their beginning to their end, waits included"
    ),
    "gradring_communicator_ranks": Metric(GAUGE, _COMMUNICATOR, "ranks of an open communicator"),
    "gradring_collectives_total": Metric(
        COUNTER, _COMMUNICATOR, "collectives that this rank has begun"
    ),
    "gradring_messages_total": Metric(
        COUNTER, _COMMUNICATOR, "sends and receives that this rank has begun"
    ),
    "gradring_collective_under_way_seconds": Metric(
        GAUGE, _COMMUNICATOR,
        "seconds that the oldest collective under way has taken so far; 0: none is",
    ),
    "gradring_client_sent_bytes_total": Metric(
        COUNTER, ("client",), "bytes that this client has sent to parameter servers"
    ),
    "gradring_client_received_bytes_total": Metric(
        COUNTER, ("client",), "bytes that this client has received from parameter servers"
    ),
    "gradring_optimizer_staleness": Metric(
        HISTOGRAM, _OPTIMIZER,
        "updates between a push and the pull that it was computed on; with BoundedStaleness steps "
        "that the slowest worker was behind",
    ),
    "gradring_optimizer_refused_total": Metric(
        COUNTER, _OPTIMIZER, "rows and parameters left alone as their gradients were not finite"
    ),
    "gradring_geo_exchanges_total": Metric(
        COUNTER, _OPTIMIZER, "exchanges with servers that have ended, flushes among them"
    ),
    "gradring_geo_exposed_seconds_total": Metric(
        COUNTER, _OPTIMIZER, "seconds of the training thread that exchanges have cost it"
    ),
    "gradring_geo_stalled_seconds_total": Metric(
        COUNTER, _OPTIMIZER, "seconds that steps and flushes have waited for an exchange to end"
    ),
    "gradring_geo_pushed_rows_total": Metric(COUNTER, _OPTIMIZER, "rows sent to servers"),
    "gradring_geo_taken_rows_total": Metric(
        COUNTER, _OPTIMIZER, "rows that others changed, received"
    ),
    "gradring_geo_divergence_ratio": Metric(
        GAUGE, _OPTIMIZER,
        "how far servers' values were from what this replica knew of them, by their norm",
    ),
    "gradring_geo_workers": Metric(GAUGE, _OPTIMIZER, "living workers as of the last exchange"),
    "gradring_table_rows": Metric(GAUGE, _TABLE, "rows of a shard; of a dense table, its floats"),
    "gradring_table_memory_bytes": Metric(GAUGE, _TABLE, "bytes of memory that a table takes"),
    "gradring_table_pushes_total": Metric(COUNTER, _TABLE, "pushes done; a round is one"),
    "gradring_table_pushed_rows_total": Metric(
        COUNTER, _TABLE, "rows pushed, with those refused or not admitted"
    ),
    "gradring_table_pulled_rows_total": Metric(COUNTER, _TABLE, "rows pulled"),
    "gradring_table_refused_rows_total": Metric(
        COUNTER, _TABLE, "rows whose gradients were refused as not finite"
    ),
    "gradring_table_not_admitted_rows_total": Metric(
        COUNTER, _TABLE, "rows pushed that their table's entry rule has not let in"
    ),
    "gradring_table_staleness_updates": Metric(
        HISTOGRAM, _TABLE, "updates of a table between a push and the pull that it came from"
    ),
    "gradring_server_clients": Metric(GAUGE, (*_SHARD, "state"), "clients that a shard knows"),
    "gradring_domain_workers": Metric(
        GAUGE, (*_SHARD, "domain", "presence"), "workers that wait for each other"
    ),
    "gradring_domain_rounds_total": Metric(
        COUNTER, (*_SHARD, "domain"), "rounds that were applied"
    ),
}  # fmt: skip
