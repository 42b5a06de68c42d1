"""The collector that a registry of prometheus-client asks: readings become metric families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradring.prometheus import sources
from gradring.prometheus.catalogue import COUNTER, HISTOGRAM, METRICS
from gradring.prometheus.sources import Buckets, Reading


class SourceCollector:
    """Reads all sources when it is asked. One a registry."""

    def describe(self) -> Iterator[Any]:
        """Yield every family, empty: a registry compares names, and nothing is read for that."""
        yield from (_family(name) for name in METRICS)

    def collect(self) -> Iterator[Any]:
        """Read every source; returns within `sources.LONGEST_SECONDS` for each."""
        families: dict[str, Any] = {}
        # A scrape that tells one twice would be refused, with all that is in it.
        told: set[tuple[str, tuple[str, ...]]] = set()
        for source in sources.everybody():
            said = source.readings(sources.LONGEST_SECONDS)
            up = Reading("gradring_up", (source.name,), 0.0 if said is None else 1.0)
            for reading in (up, *(said or ())):
                if reading.metric not in families:
                    families[reading.metric] = _family(reading.metric)
                if reading[:2] not in told:
                    told.add(reading[:2])
                    _add(families[reading.metric], reading)
        yield from families.values()


def _family(name: str) -> Any:
    from prometheus_client import core

    metric = METRICS[name]
    kinds = {COUNTER: core.CounterMetricFamily, HISTOGRAM: core.HistogramMetricFamily}
    return kinds.get(metric.kind, core.GaugeMetricFamily)(name, metric.text, labels=metric.labels)


def _add(family: Any, reading: Reading) -> None:
    if isinstance(reading.value, Buckets):
        family.add_metric(reading.labels, list(reading.value.counts), reading.value.total)
    else:
        family.add_metric(reading.labels, reading.value)
