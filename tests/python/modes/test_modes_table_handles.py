"""A mode's table is one thing: opened again it is the same, and no other optimizer's is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from exact_server import ExactServer
from mode_servers import RealServers, Servers

SGD = gr.optim.SGD(lr=1.0)
ONE = np.ones((1, 2), np.float32)
MODES = [
    gr.Sync(), gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=3),
    gr.Geo(k_steps=3, outer=gr.Nesterov()), gr.Hybrid(),
]  # fmt: skip


@pytest.fixture
def server() -> ExactServer:
    return ExactServer()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_table_opened_again_is_the_same_one(
    world: GetWorld, server: ExactServer, mode: Any
) -> None:
    comm = world(1, "tcp").comms[0]
    with gr.distributed([], SGD, mode, ps=server.client(0), comm=comm) as optimizer:
        table = optimizer.sparse_table("t", 2, SGD)
        assert optimizer.sparse_table("t", 2, SGD) is table
        table.set_rule(gr.optim.SGD(lr=0.5))
        for rule in (SGD, gr.optim.SGD(lr=0.5)):  # What it began with, and what is in force.
            assert optimizer.sparse_table("t", 2, rule) is table
        assert table.rule == gr.optim.SGD(lr=0.5)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_table_opened_again_with_other_settings_is_a_mismatch_that_shows_both(
    world: GetWorld, server: ExactServer, mode: Any
) -> None:
    comm = world(1, "tcp").comms[0]
    with gr.distributed([], SGD, mode, ps=server.client(0), comm=comm) as optimizer:
        optimizer.sparse_table("t", 2, SGD)
        with pytest.raises(gr.Mismatch, match=r"'t' is open already .* dim=2, .* now with dim=3"):
            optimizer.sparse_table("t", 3, SGD)
        with pytest.raises(gr.Mismatch, match=r"lr=1.0.* now with .*lr=2.0"):
            optimizer.sparse_table("t", 2, gr.optim.SGD(lr=2.0))
        with pytest.raises(gr.Mismatch, match=r"seed=0, and now with .*seed=1"):
            optimizer.sparse_table("t", 2, SGD, seed=1)


def test_geo_goes_on_with_what_it_knows_of_a_table_opened_again(servers: Servers) -> None:
    rule = gr.optim.Adagrad(lr=1.0)
    optimizer = gr.GeoOptimizer([], None, servers.client(0), k_steps=2, workers=1)
    expected, state = np.zeros((1, 2), np.float32), {}
    for _ in range(5):
        table = optimizer.sparse_table("t", 2, rule)
        optimizer.step(rows=[(table, [1], ONE)])
        rule.update(expected, ONE, state)
    np.testing.assert_array_equal(table.pull([1]), expected)
    optimizer.close()
    np.testing.assert_array_equal(servers.sparse("t", 2, gr.optim.Sum())[1], expected[0])


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_table_of_another_optimizer_is_refused_by_name(
    world: GetWorld, server: ExactServer, mode: Any
) -> None:
    comm = world(1, "tcp").comms[0]
    param = np.zeros(1, np.float32)
    with (
        gr.AsyncOptimizer([], None, ExactServer().client(0), workers=1, name="other") as other,
        gr.distributed([param], SGD, mode, ps=server.client(0), comm=comm) as optimizer,
    ):
        foreign = [other.sparse_table("t", 2, SGD), other.sparse_table("u", 2, SGD)]
        grads = [np.ones(1, np.float32)]
        with pytest.raises(gr.InvalidArgument, match="table 't' is none of optimizer"):
            optimizer.step(grads, rows=[(foreign[0], [1], ONE)])
        # One of the same name is another table all the same.
        own = optimizer.sparse_table("t", 2, gr.optim.Sum() if "Geo" in str(mode) else SGD)
        for table in foreign:
            with pytest.raises(
                gr.InvalidArgument, match=f"table '{table.name}' is none of .*'{table.name}', "
            ):
                optimizer.step(grads, rows=[(own, [1], ONE), (table, [1], ONE)])
        for rows in (None, own, [own], [(own, [1])]):
            with pytest.raises(gr.InvalidArgument, match=r"rows: entries \(table, ids"):
                optimizer.step(grads, rows=rows)  # type: ignore[arg-type]
        optimizer.flush()
        assert not own.pull([1]).any()
        assert not param.any()


def test_a_connections_own_table_is_no_table_of_a_mode(real_servers: RealServers) -> None:
    ps = real_servers.client(0)
    plain = ps.sparse_table("plain", 2, SGD)
    with gr.GeoOptimizer([], None, ps, workers=1) as optimizer:
        for take in (lambda: optimizer.step(rows=[(plain, [1], ONE)]),
                     lambda: optimizer.step(rows=[("plain", [1], ONE)]),  # type: ignore[list-item]
                     lambda: optimizer.replica(plain)):  # fmt: skip
            with pytest.raises(gr.InvalidArgument, match="'plain' is none of optimizer 'model'"):
                take()
    assert not plain.pull([1]).any()
