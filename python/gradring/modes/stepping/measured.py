"""What optimizers of this process tell metrics; read by a scrape, from a thread of its own."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from gradring.modes.stepping.staleness import Histogram
from gradring.prometheus import sources
from gradring.prometheus.sources import Reading

# What a report of GEO says, by the metric that tells it.
_OF_GEO = {
    "gradring_geo_exchanges_total": "exchanges",
    "gradring_geo_exposed_seconds_total": "exposed_seconds",
    "gradring_geo_stalled_seconds_total": "stalled_seconds",
    "gradring_geo_pushed_rows_total": "pushed_rows",
    "gradring_geo_taken_rows_total": "taken_rows",
    "gradring_geo_divergence_ratio": "relative_divergence",
    "gradring_geo_workers": "workers",
}


def begin(optimizers: weakref.WeakSet[Any]) -> None:
    """Have these read, those that are open then."""
    sources.add("optimizers", lambda: _readings(optimizers))


def _readings(optimizers: weakref.WeakSet[Any]) -> Iterator[Reading]:
    named = {each.name: each for each in sources.members(optimizers) if not each.is_closed}
    for name, optimizer in sorted(named.items()):
        labels = (name,)
        staleness = getattr(optimizer, "staleness", None)
        if isinstance(staleness, Histogram):
            seen = sources.buckets(list(staleness.counts.copy().items()))
            yield Reading("gradring_optimizer_staleness", labels, seen)
        report = getattr(optimizer, "report", None)
        refused = getattr(optimizer if report is None else report, "refused", None)
        if refused is not None:
            yield Reading("gradring_optimizer_refused_total", labels, refused)
        if report is not None:
            for metric, key in _OF_GEO.items():
                yield Reading(metric, labels, getattr(report, key))
