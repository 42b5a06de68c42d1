"""GEO reports how far apart servers and replicas were, of everything that was brought."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from geo_steps import IDENTITY, exchange, geo
from mode_servers import Servers
from thread_ranks import on_workers


def test_divergence_is_how_far_servers_were_from_what_a_replica_knew(servers: Servers) -> None:
    first, second = (geo([np.zeros(4, np.float32)], servers.client(r), 2) for r in range(2))
    exchange(first, 1.0)
    assert first.report.divergence == 0
    exchange(second, 1.0)
    assert second.report.divergence == 2  # Four elements, each 1 away.
    assert second.report.relative_divergence == 0.5  # Of a norm of 4.


def measured(optimizer: gr.GeoOptimizer) -> list[float]:
    return [optimizer.report.divergence, optimizer.report.relative_divergence]


def with_rows(servers: Servers, params: list[Any], **options: Any) -> Any:
    workers = [
        geo([param.copy() for param in params], servers.client(rank), 2, **options)
        for rank in range(2)
    ]
    tables = [each.sparse_table("t", 1, IDENTITY) for each in workers]
    for table in tables:
        table.pull([5, 6])
    return workers, tables


def test_a_flush_measures_rows_that_others_changed(servers: Servers) -> None:
    workers, tables = with_rows(servers, [], k_steps=100)
    for worker, table, row, progress in zip(workers, tables, (5, 6), (3.0, 4.0), strict=True):
        worker.step(rows=[(table, [row], [[-progress]])])
    on_workers(2, lambda rank: workers[rank].flush())
    assert measured(workers[0]) == [4, 4 / 5]
    assert measured(workers[1]) == [3, 3 / 5]
    on_workers(2, lambda rank: workers[rank].flush())
    for worker in workers:
        assert measured(worker) == [0, 0]
        worker.close()


def test_a_flush_measures_rows_that_two_have_pushed(servers: Servers) -> None:
    workers, tables = with_rows(servers, [], k_steps=100)
    for worker, table, progress in zip(workers, tables, (3.0, 1.0), strict=True):
        worker.step(rows=[(table, [5], [[-progress]])])
    on_workers(2, lambda rank: workers[rank].flush())
    assert measured(workers[0]) == [1, 1 / 4]
    assert measured(workers[1]) == [3, 3 / 4]
    for worker in workers:
        worker.close()


@pytest.mark.parametrize("has_rows", [False, True])
def test_an_exchange_of_nesterov_measures_rows_and_parameters(
    servers: Servers, has_rows: bool
) -> None:
    outer = gr.Nesterov(lr=1.0, momentum=0.5)  # Its first step is 1.5 times the mean.
    workers, tables = with_rows(servers, [np.zeros(1, np.float32)], outer=outer)

    def step(rank: int) -> None:
        rows = [(tables[rank], [5], [[-4.0 * (rank == 0)]])] if has_rows else []
        workers[rank].step([np.full(1, -2.0 * (rank == 0), np.float32)], rows=rows)

    on_workers(2, step)
    # From 2 to 1.5, and from 4 to 3; on the other from 0 to these.
    moved, values = (0.25 + 1, 2.25 + 9) if has_rows else (0.25, 2.25)
    assert measured(workers[0]) == [moved**0.5, (moved / values) ** 0.5]
    assert measured(workers[1]) == [values**0.5, 1]
    on_workers(2, lambda rank: workers[rank].close())
