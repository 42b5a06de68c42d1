"""Metrics of operations: what they took, by kind, added up once somebody has asked."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.prometheus import sources
from gradring.prometheus.sources import Reading
from thread_ranks import ThreadWorld

pytestmark = pytest.mark.timeout(60)
METRICS = [f"gradring_operation{what}_total" for what in ("s", "_bytes", "_seconds")]


@pytest.fixture
def registry() -> Any:
    client = pytest.importorskip(
        "prometheus_client", reason="prometheus-client (gradring[metrics]) is not installed"
    )
    registry = client.CollectorRegistry()
    gr.prometheus.register(registry)
    return registry


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_metrics_tell_what_operations_took_by_kind_since_they_were_first_asked(
    registry: Any, transport: str
) -> None:
    def tell() -> dict[str, list[float]]:
        return {
            operation: [
                registry.get_sample_value(name, {"operation": operation}) or 0.0 for name in METRICS
            ]
            for operation in ("all_reduce", "recv", "all_to_all")
        }

    world = ThreadWorld(2, transport)
    before = tell()
    begins = time.monotonic()
    world.run(lambda comm: [comm.all_reduce(np.ones(1 << 16)) for _ in range(3)])
    sent = np.ones(4)
    world.run(lambda comm: comm.send(sent, 1) if comm.rank == 0 else comm.recv(sent.copy(), 0))
    seconds = time.monotonic() - begins
    world.close()
    after = tell()
    told = {
        operation: [
            now - then for then, now in zip(before[operation], after[operation], strict=True)
        ]
        for operation in after
    }
    assert told["all_reduce"][:2] == [2 * 3, 2 * 3 * (1 << 16) * 8]  # Two ranks, one process.
    assert 0 < told["all_reduce"][2] < 2 * seconds
    assert told["recv"][:2] == [1, 4 * 8]
    assert 0 < told["recv"][2] < seconds
    assert told["all_to_all"] == [0, 0, 0]
    assert tell() == after  # Also of communicators that are closed.


def test_the_same_numbers_are_had_plainly_for_what_logs_by_step() -> None:
    gr.prometheus.scalars()  # Operations are counted from now on.
    world = ThreadWorld(2, "shm")
    before = gr.prometheus.scalars()
    world.run(lambda comm: comm.all_reduce(np.ones(1 << 10)))
    after = gr.prometheus.scalars()
    name = "gradring_operation_bytes_total/all_reduce"
    assert after[name] - before.get(name, 0.0) == 2 * 8 << 10
    assert after["gradring_up/communicators"] == 1.0
    assert {type(value) for value in after.values()} == {float}
    world.run(lambda comm: comm.close())


def test_a_histogram_is_its_mean_and_what_cannot_be_read_is_down() -> None:
    def fails() -> Any:
        raise OSError

    counted = Reading("gradring_optimizer_staleness", ("a",), sources.buckets([(0, 1), (4, 3)]))
    none = Reading("gradring_optimizer_staleness", ("b",), sources.buckets([]))
    sources.add("test", lambda: [counted, none])
    sources.add("lost", fails)
    try:
        told = gr.prometheus.scalars()
    finally:
        sources.remove("test")
        sources.remove("lost")
    assert told["gradring_optimizer_staleness_mean/a"] == 3.0
    assert "gradring_optimizer_staleness_mean/b" not in told
    assert (told["gradring_up/test"], told["gradring_up/lost"]) == (1.0, 0.0)
