"""Prefetched rows are as new as the mode promises, and a prefetch that fails is no failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from exact_server import ExactServer
from gradring.modes.factory import over_servers
from mode_servers import RealServers, Servers

STEP = gr.optim.SGD(lr=1.0)
IDS = np.array([3, 7])
MODES = [gr.Sync(via="ps"), gr.BoundedStaleness(0), gr.Async(), gr.Geo(k_steps=1)]


def rows_of(table: Any) -> Any:
    return -table.pull(IDS)[:, 0]


def ones(table: Any) -> Any:
    return [(table, IDS, np.ones((2, 1), np.float32))]


@pytest.fixture
def trained(servers: Servers, world: GetWorld, mode: Any) -> Iterator[tuple[Any, Any]]:
    """A mode's optimizer and its table."""
    comm = world(1, "tcp").comms[0]
    with gr.distributed([], STEP, mode, ps=servers.client(0), comm=comm) as optimizer:
        yield optimizer, optimizer.sparse_table("t", 1, STEP)


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_rows_that_were_asked_for_before_a_step_have_that_step_in_them(
    trained: tuple[Any, Any],
) -> None:
    optimizer, table = trained
    for step in range(1, 5):
        table.prefetch(IDS)
        optimizer.step(rows=ones(table))
        np.testing.assert_array_equal(rows_of(table), step)
    table.prefetch(IDS)
    for _ in range(2):
        optimizer.step(rows=ones(table))
    np.testing.assert_array_equal(rows_of(table), 6)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_after_a_flush_rows_are_what_servers_have_whatever_was_asked_for_before(
    trained: tuple[Any, Any],
) -> None:
    optimizer, table = trained
    table.prefetch(IDS)
    optimizer.step(rows=ones(table))
    optimizer.flush()
    np.testing.assert_array_equal(rows_of(table), 1)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_after_a_flush_rows_are_what_was_written_between_two_flushes(
    real_servers: RealServers, world: GetWorld, mode: Any
) -> None:
    ps, comm = real_servers.client(0), world(1, "tcp").comms[0]
    with gr.distributed([], STEP, mode, ps=ps, comm=comm) as optimizer:
        table = optimizer.sparse_table("t", 1, STEP)
        table.prefetch(IDS)
        optimizer.step(rows=ones(table))
        optimizer.flush()
        on_servers = ps.sparse_table("t", 1, optimizer.server_rule(STEP))
        saved = on_servers.state_dict()
        on_servers.load_state_dict(saved | {"rows": np.full_like(saved["rows"], -9)})
        optimizer.flush()
        np.testing.assert_array_equal(rows_of(table), 9)


@pytest.mark.parametrize("fails_at_once", [False, True])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_prefetch_that_fails_is_asked_again_and_stops_nothing(
    trained: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, fails_at_once: bool
) -> None:
    optimizer, table = trained
    timed_out = gr.TimedOut("pull from table 't': no progress")

    class Failed:
        def is_done(self) -> bool:
            return True

        def result(self, _: float) -> Any:
            raise timed_out

    def fail(*_: Any) -> Any:
        if fails_at_once:
            raise timed_out
        return Failed()

    with monkeypatch.context() as silent:
        silent.setattr(optimizer.store, "begin_pull", fail)
        table.prefetch(IDS)
        optimizer.step(rows=ones(table))
    for step in range(2, 5):
        table.prefetch(IDS)
        optimizer.step(rows=ones(table))
        optimizer.flush()
        np.testing.assert_array_equal(rows_of(table), step)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_prefetch_of_no_ids_is_one(trained: tuple[Any, Any]) -> None:
    optimizer, table = trained
    table.prefetch(IDS[:0])
    optimizer.step(rows=ones(table))
    assert table.pull(IDS[:0]).shape == (0, 1)
    optimizer.flush()
    np.testing.assert_array_equal(rows_of(table), 1)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_callers_ids_may_be_written_over_while_rows_come(trained: tuple[Any, Any]) -> None:
    optimizer, table = trained
    own = np.array([1, 2], np.uint64)
    optimizer.step(rows=[(table, own, np.array([[1.0], [2.0]]))])
    optimizer.flush()
    table.prefetch(own)
    own[:] = [2, 1]
    np.testing.assert_array_equal(-table.pull(own)[:, 0], [2, 1])


def test_a_push_tells_of_updates_since_its_rows_came_whoever_else_has_pulled(
    real_servers: RealServers,
) -> None:
    ps = real_servers.client(0)
    with gr.AsyncOptimizer([], STEP, ps, workers=1) as optimizer:
        table = optimizer.sparse_table("t", 1, STEP)
        table.prefetch(IDS)
        while table._coming is not None and table._coming.is_under_way:
            os.sched_yield()
        for _ in range(3):
            ps.sparse_table("t", 1, STEP).push(IDS, np.ones((2, 1), np.float32))
        ps.sparse_table("t", 1, STEP).pull(IDS)
        rows_of(table)
        optimizer.step(rows=ones(table))
        optimizer.flush()
        assert optimizer.staleness.max == 3


def test_prefetches_that_nobody_takes_do_not_pile_up(real_servers: RealServers) -> None:
    class Never:
        def is_done(self) -> bool:
            return False

    with gr.AsyncOptimizer([], STEP, real_servers.client(0), workers=1) as optimizer:
        begun = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                optimizer.store, "begin_pull", lambda *asked: (begun.append(asked), Never())[1]
            )
            table = optimizer.sparse_table("t", 1, STEP)
            for _ in range(200):
                table.prefetch(IDS)
        assert len(begun) == 64
        np.testing.assert_array_equal(rows_of(table), 0)


@pytest.mark.parametrize("mode", [gr.Sync(via="ps"), gr.BoundedStaleness(1)], ids=str)
def test_of_prefetches_that_wait_for_a_step_each_table_keeps_the_last(mode: Any) -> None:
    store = ExactServer().client(0)
    with over_servers(mode, [], STEP, store, workers=1) as optimizer:
        tables = [optimizer.sparse_table(name, 1, STEP) for name in "ab"]
        begun = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "begin_pull", lambda pulls, gate: begun.extend(pulls))
            for number in range(200):  # As in an evaluation, which does no steps.
                for table in tables:
                    table.prefetch([number])
                    table.pull([number - 1])
            optimizer.step()
        assert [(pull.table, pull.ids.tolist()) for pull in begun] == [("a", [199]), ("b", [199])]
