"""Sparse tables of an optimizer have all that tables have, where servers train the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from mode_servers import RealServers

MODES = [gr.Sync(), gr.Sync(via="ps"), gr.BoundedStaleness(0), gr.Async(), gr.Hybrid()]
SGD = gr.optim.SGD(lr=1.0)


@pytest.fixture
def servers() -> Iterator[RealServers]:
    made = RealServers("shm")
    yield made
    made.close()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_entry_expiry_slots_and_codec_hold_in_every_mode_in_which_servers_train_rows(
    world: GetWorld, servers: RealServers, mode: Any
) -> None:
    ps, comm = servers.client(0), world(1, "tcp").comms[0]
    with gr.distributed([], SGD, mode, ps=ps, comm=comm) as optimizer:
        table = optimizer.sparse_table(
            "t", 64, SGD, entry=gr.ps.Count(2), expire_after=1, codec="bf16",
            slots=gr.ps.Slots(48, {7: gr.ps.Slot(lr_scale=0.5)}),
        )  # fmt: skip
        plain = optimizer.sparse_table("plain", 64, SGD)
        often, once, slow = np.arange(300), [1000], [7 << 48]

        def step(ids: Any, table: Any = table) -> int:
            before = ps.calls.core.bytes_sent
            optimizer.step(rows=[(table, ids, np.ones((len(ids), 64), np.float32))])
            optimizer.flush()
            return int(ps.calls.core.bytes_sent - before)

        ps.tick(1)
        step(once)
        step(slow)
        assert step(often) < 0.7 * step(often, plain)
        assert not table.pull([*often, *once]).any()  # They were only counted.
        assert (table.pull(slow) == -0.5).all()  # A slot's own entry is the first push.
        step(often)
        step(slow)
        assert (table.pull(often) == -1).all()
        assert (table.pull(slow) == -1).all()
        assert len(table.table) == 301
        ps.tick(9)
        assert (table.pull(often) == 0).all()
        assert (table.pull(slow) == -1).all()


@pytest.mark.parametrize("mode", [*MODES, gr.Geo(1)], ids=str)
def test_equal_ids_are_added_up_in_order_and_arrays_are_the_callers_again_after_the_step(
    world: GetWorld, servers: RealServers, mode: Any
) -> None:
    comm = world(1, "tcp").comms[0]
    with gr.distributed([], SGD, mode, ps=servers.client(0), comm=comm) as optimizer:
        table = optimizer.sparse_table("t", 3, SGD)
        wide_ids = np.repeat(np.array([7, 2**63, 7, 5, 7], np.uint64), 2)
        wide = np.repeat(np.float32([1e8, 4, 1, 8, -1e8]), 6).reshape(5, 6)
        optimizer.step(rows=[(table, wide_ids[::2], wide[:, ::2])])
        wide_ids[:] = 9
        wide[:] = 99
        optimizer.flush()
        summed = -(np.float32(1e8) + np.float32(1) - np.float32(1e8))
        assert table.pull([7, 2**63, 5, 9]).tolist() == [[summed] * 3, [-4] * 3, [-8] * 3, [0] * 3]


def test_geo_refuses_what_would_make_replicas_differ(servers: RealServers) -> None:
    with gr.GeoOptimizer([], SGD, servers.client(0), k_steps=2, workers=1) as optimizer:
        for settings in ({"entry": gr.ps.Count(2)}, {"codec": "int8"}, {"expire_after": 3}):
            with pytest.raises(gr.InvalidArgument, match=f"'t': {next(iter(settings))}: not with"):
                optimizer.sparse_table("t", 4, SGD, **settings)


def test_embeddings_have_settings_of_tables(servers: RealServers) -> None:
    torch = pytest.importorskip("torch")
    gt = pytest.importorskip("gradring.torch")
    layer = gt.Embedding("e", 4, optimizer=SGD, entry=gr.ps.Count(2), ps=servers.client(0))
    for expected in (0, -1):
        layer(torch.tensor([5])).sum().backward()
        layer.flush()
        assert layer.table.pull([5]).tolist() == [[expected] * 4]
    kept = gt.Embedding("k", 4, optimizer=SGD, entry=gr.ps.Count(2), ps=servers.client(0),
                        device="cpu", cache_age=9)  # fmt: skip
    kept(torch.tensor([5])).sum().backward()
    assert not kept(torch.tensor([5])).any()  # What servers only counted is not taken off here.
    with pytest.raises(gr.InvalidArgument, match="size: there is no such setting"):
        gt.Embedding("f", 4, optimizer=SGD, size=3, ps=servers.client(1)).table  # noqa: B018
