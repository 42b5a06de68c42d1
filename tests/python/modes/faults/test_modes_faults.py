"""Modes over real servers whose connections break, and beside workers that are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from flaky_proxy import FlakyProxy
from gradring.modes.bounded import BoundedOptimizer
from gradring.modes.rounds import RoundOptimizer
from mode_servers import RealServers
from thread_ranks import on_workers

IDENTITY = gr.optim.SGD(lr=1.0)
WORKERS, SIZE = 2, 3000

# Counts 1024 per exchange until it is killed.
DOOMED = """
import sys
import numpy as np
import gradring as gr

servers, secret = sys.argv[1:]
ps = gr.ps.connect(servers, secret=secret, client=2, transport="tcp")
param = np.zeros(4, np.float32)
optimizer = gr.GeoOptimizer([param], gr.optim.SGD(lr=1.0), ps, k_steps=1, workers=3)
while True:
    optimizer.step([np.full(4, -1024, np.float32)])
    if optimizer.report.exchanges == 20:
        print("well under way", flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("outer", [gr.Sum(), gr.Nesterov(lr=1, momentum=0.5)], ids=str)
def test_broken_connections_leave_no_trace_after_a_flush(
    real_servers: RealServers, seed: int, outer: Any
) -> None:
    proxies = [FlakyProxy(address, seed, 20_000) for address in real_servers.addresses]
    added, rows_added = np.zeros((WORKERS, SIZE)), np.zeros((WORKERS, 100, 8))

    def work(rank: int) -> Any:
        random = np.random.default_rng([seed, rank])
        param = np.zeros(SIZE, np.float32)
        ps = real_servers.client(rank, addresses=[proxy.address for proxy in proxies])
        with gr.GeoOptimizer([param], IDENTITY, ps, k_steps=2, outer=outer,
                             workers=WORKERS) as optimizer:  # fmt: skip
            table = optimizer.sparse_table("rows", 8, IDENTITY)
            table.pull(np.arange(100))
            for _ in range(20):
                u = random.integers(-8, 8, SIZE) / 4
                added[rank] += u
                rows = random.integers(-8, 8, (30, 8)) / 4
                ids = random.choice(100, 30)
                np.add.at(rows_added[rank], ids, rows)
                optimizer.step([-u], rows=[(table, ids, -rows)])
            optimizer.flush()
            return param.copy(), table.pull(np.arange(100))

    first, second = on_workers(WORKERS, work)
    assert sum(proxy.broken for proxy in proxies) > 0
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    if outer == gr.Sum():
        np.testing.assert_array_equal(first[0], added.sum(0).astype(np.float32))
        np.testing.assert_array_equal(first[1], rows_added.sum(0).astype(np.float32))
    for proxy in proxies:
        proxy.close()


def test_a_killed_worker_leaves_the_others_equal_with_whole_updates_of_its_own(
    real_servers: RealServers, tmp_path: Path
) -> None:
    params = [np.zeros(4, np.float32) for _ in range(2)]
    doomed: list[subprocess.Popen[str]] = []

    def work(rank: int) -> Any:
        ps = real_servers.client(rank)
        if rank == 0:
            script = tmp_path / "doomed.py"
            script.write_text(DOOMED)
            arguments = [",".join(real_servers.addresses), real_servers.secret]
            doomed.append(
                subprocess.Popen(
                    [sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True
                )
            )
        with gr.GeoOptimizer([params[rank]], IDENTITY, ps, k_steps=1, workers=3) as optimizer:
            if rank == 0:
                assert doomed[0].stdout is not None
                assert "under way" in doomed[0].stdout.readline()
            for _ in range(10):
                optimizer.step([np.full(4, -(rank + 1), np.float32)])
            if rank == 0:
                doomed[0].kill()
                doomed[0].communicate()
            optimizer.flush()  # Waits until servers give it up, and no longer.
            return params[rank].copy()

    first, second = on_workers(2, work)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first % 1024, np.float32(10 * 1 + 10 * 2))
    assert (first // 1024 >= 20).all()
    assert len(set((first // 1024).tolist())) == 1


def test_gradients_that_are_not_finite_are_refused_and_counted(real_servers: RealServers) -> None:
    for kind, options in (
        (gr.AsyncOptimizer, {}),
        (RoundOptimizer, {}),
        (BoundedOptimizer, {"staleness": 1}),
        (gr.GeoOptimizer, {"k_steps": 1}),
        (gr.GeoOptimizer, {"k_steps": 100}),  # The flush is the first to push.
    ):
        ps, name = real_servers.client(0), f"{kind.__name__}{options}"
        with kind([], IDENTITY, ps, name=name, workers=1, **options) as optimizer:
            table = optimizer.sparse_table(f"{name}/rows", 1, IDENTITY)
            optimizer.step(rows=[(table, [1, 2], [[1.0], [np.nan]])])
            optimizer.flush()
            assert table.pull([1, 2])[:, 0].tolist() == [-1, 0]
            if kind is not RoundOptimizer:  # There servers refuse after they have answered.
                report = optimizer.report if kind is gr.GeoOptimizer else optimizer
                assert report.refused == 1
        stats = [t for shard in ps.stats() for t in shard["tables"] if t["name"] == f"{name}/rows"]
        # In GEO the worker's own rule has refused it.
        assert sum(table["refused"] for table in stats) == int(kind is not gr.GeoOptimizer)


def test_waiting_for_others_ends_at_the_optimizers_own_timeout(real_servers: RealServers) -> None:
    optimizer = RoundOptimizer([np.zeros(2, np.float32)], IDENTITY, real_servers.client(0),
                               workers=2, timeout=0.3)  # fmt: skip
    with pytest.raises(gr.TimedOut, match="worker 1"):
        optimizer.step([np.ones(2, np.float32)])
    optimizer.abandon()


def test_what_a_step_raised_does_not_come_out_of_the_connections_end_again(
    real_servers: RealServers,
) -> None:
    ps = real_servers.client(0)
    params = [np.zeros(2, np.float32), np.zeros(3, np.float32)]
    optimizer = BoundedOptimizer(params, IDENTITY, ps, staleness=0, workers=2, timeout=0.3)
    with pytest.raises(gr.TimedOut, match="worker 1"):
        optimizer.step([np.ones(2, np.float32), np.ones(3, np.float32)])
    optimizer.close()
    ps.close(timeout=20)


def test_a_worker_that_leaves_a_round_is_named(real_servers: RealServers) -> None:
    def work(rank: int) -> None:
        param = np.zeros(2, np.float32)
        optimizer = RoundOptimizer([param], IDENTITY, real_servers.client(rank), workers=2)
        optimizer.step([np.ones(2, np.float32)])
        if rank == 1:
            optimizer.close()
            return
        with pytest.raises(gr.PeerLost, match="worker 1 left") as lost:
            optimizer.step([np.ones(2, np.float32)])
        assert lost.value.rank == 1
        optimizer.abandon()

    on_workers(2, work)
