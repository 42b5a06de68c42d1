"""Modes over real servers whose connections break, and beside workers that are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from flaky_proxy import FlakyProxy
from mode_servers import RealServers
from worker_threads import on_workers

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


@pytest.fixture
def real_servers() -> Iterator[RealServers]:
    made = RealServers("tcp")
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("outer", [gr.Sum(), gr.Nesterov(lr=1, momentum=0.5)], ids=str)
def test_broken_connections_leave_no_trace_after_a_flush(
    real_servers: RealServers, seed: int, outer: Any
) -> None:
    proxies = [FlakyProxy(address, seed, 20_000) for address in real_servers.addresses]
    added = np.zeros((WORKERS, SIZE))

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
                optimizer.step([-u], rows=[(table, random.choice(100, 30), -rows)])
            optimizer.flush()
            return param.copy(), table.pull(np.arange(100))

    first, second = on_workers(WORKERS, work)
    assert sum(proxy.broken for proxy in proxies) > 0
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    if outer == gr.Sum():
        np.testing.assert_array_equal(first[0], added.sum(0).astype(np.float32))
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
