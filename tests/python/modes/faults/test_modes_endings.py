"""What comes after the end: closed optimizers take no steps, forgotten ones say what is missing."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from exact_server import ExactServer
from geo_steps import exchange, geo
from mode_servers import Servers
from ps_servers import connected

MODES = [
    gr.Sync(),
    gr.Sync(via="ps"),
    gr.BoundedStaleness(1),
    gr.Async(),
    gr.Geo(k_steps=3),
    gr.Hybrid(),
]
SGD = gr.optim.SGD(lr=1.0)
ONE = np.ones(1, np.float32)

FORGETFUL = """
import numpy as np, gradring as gr
optimizer = gr.distributed([np.zeros(1, np.float32)], gr.optim.SGD(lr=1.0), gr.Geo(k_steps=10))
for step in range(14):
    optimizer.step([np.ones(1, np.float32)])
{ending}
"""

# Its exception has said what went wrong; the script knows of close().
CLOSE_FAILS = """
def fail():
    raise gr.TimedOut("servers did not answer")
optimizer.replicas.leave = fail
try:
    optimizer.close()
except gr.TimedOut:
    pass
"""


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_closed_optimizer_takes_no_further_step_and_is_closed_twice(
    world: GetWorld, servers: Servers, mode: Any
) -> None:
    params, comm = [np.zeros(1, np.float32)], world(1, "tcp").comms[0]
    with gr.distributed(params, SGD, mode, ps=servers.client(0), comm=comm) as optimizer:
        table = optimizer.sparse_table("t", 1, SGD)
        optimizer.step([ONE], rows=[(table, [3], ONE[None])])
        optimizer.close()
        optimizer.close()
        assert optimizer.is_closed
        values = params[0].copy()
        with pytest.raises(gr.Closed, match="'model' is closed"):
            optimizer.step([ONE], rows=[(table, [3], ONE[None])])
        assert params[0] == values
        with pytest.raises(gr.Closed, match="closed"):
            optimizer.set_rule(gr.optim.SGD(lr=2.0))
        for name in ("t", "another"):
            with pytest.raises(gr.Closed, match="'model' is closed"):
                optimizer.sparse_table(name, 1, SGD)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_flush_of_a_closed_optimizer_says_that_it_is_closed(
    world: GetWorld, servers: Servers, mode: Any
) -> None:
    params, comm = [np.zeros(1, np.float32)], world(1, "tcp").comms[0]
    optimizer = gr.distributed(params, SGD, mode, ps=servers.client(0), comm=comm)
    table = optimizer.sparse_table("t", 1, SGD)
    optimizer.step([ONE], rows=[(table, [3], ONE[None])])
    optimizer.close()
    with pytest.raises(gr.Closed, match=r"optimizer .*is closed: it takes no further steps"):
        optimizer.flush()


@pytest.mark.parametrize("mode", [gr.Sync(), gr.Hybrid(gr.Async(), gr.Async())], ids=str)
def test_a_hybrid_that_was_closed_without_a_table_connects_for_none(
    world: GetWorld, mode: Any
) -> None:
    comm, store = world(1, "tcp").comms[0], ExactServer().client(0)
    optimizer = gr.distributed([np.zeros(1, np.float32)], SGD, mode, ps=store, comm=comm)
    optimizer.close()
    with pytest.raises(gr.Closed, match="'model' is closed"):
        optimizer.sparse_table("t", 1, SGD)
    with pytest.raises(gr.Closed, match="is closed"):
        optimizer.flush()
    assert optimizer.sparse_side is None


def test_who_forgot_to_close_hears_it_while_connections_are_open() -> None:
    program = (
        "import numpy as np, gradring as gr\n"
        "optimizer = gr.distributed([np.zeros(1, np.float32)], gr.optim.SGD(lr=1.0), gr.Async())\n"
        "optimizer.left_behind = lambda: f'closed={optimizer.store._ps.is_closed}'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "may lack closed=False" in done.stderr


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("", "may lack what its last 4 steps have learned"),
        ("optimizer.flush()", ""),
        ("optimizer.close()", ""),
        (CLOSE_FAILS, ""),
    ],
)
def test_an_optimizer_that_was_not_closed_says_what_servers_may_lack(
    ending: str, words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL.format(ending=ending)], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert words in done.stderr if words else not done.stderr


def test_a_layer_without_an_optimizer_is_named_as_the_user_has_it() -> None:
    pytest.importorskip("torch")
    program = (
        "import torch, gradring as gr, gradring.torch as gt\n"
        "layer = gt.Embedding('w', 4, optimizer=gr.optim.SGD(lr=0.1))\n"
        "layer(torch.tensor([3])).sum().backward()\n"
        "layer._driver.left_behind = lambda: 'a step'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Embedding 'w', which has no optimizer, was not closed" in done.stderr
    assert "in the end call its flush(), or gr.ps.current().close()" in done.stderr


def test_what_mean_has_held_back_is_missing_until_a_flush() -> None:
    optimizer = geo([np.zeros(1, np.float32)], ExactServer().client(0), 2, outer=gr.Mean())
    exchange(optimizer, 1.0)
    assert optimizer.residual_norm() == 0.5
    assert optimizer.left_behind() == "what it has held back of its progress"
    optimizer.close()
    assert optimizer.left_behind() == ""


@pytest.mark.parametrize(
    ("mode", "rule"), [(gr.Async(), SGD), (gr.Geo(k_steps=1), gr.optim.Sum())], ids=["async", "geo"]
)
def test_an_optimizer_that_nobody_has_any_more_ends_its_threads_and_gives_its_name_back(
    world: GetWorld, mode: Any, rule: Any
) -> None:
    comm, deadline = world(1, "tcp").comms[0], time.monotonic() + 60
    with connected() as ps:
        before = set(threading.enumerate())
        for steps in (1, 2):
            optimizer = gr.distributed([np.zeros(1, np.float32)], SGD, mode, ps=ps, comm=comm)
            optimizer.step([ONE])
            table = ps.dense_table("model/0", 1, rule)
            while table.pull()[0] != -steps or (mode == gr.Async() and optimizer.left_behind()):
                assert time.monotonic() < deadline, "its last step is not done"
            del optimizer
        gc.collect()
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
            assert not thread.is_alive(), thread.name


def test_one_that_has_failed_and_that_nobody_has_any_more_does_so_too(world: GetWorld) -> None:
    comm = world(1, "tcp").comms[0]
    with connected() as ps:
        before = set(threading.enumerate())
        fail(gr.distributed([np.zeros(1, np.float32)], SGD, gr.Async(), ps=ps, comm=comm))
        deadline = time.monotonic() + 60
        while left := set(threading.enumerate()) - before:
            assert time.monotonic() < deadline, left
            gc.collect()  # What it has raised goes first.
            left.pop().join(0.1)
        gr.distributed([np.zeros(1, np.float32)], SGD, gr.Async(), ps=ps, comm=comm).close()


def fail(optimizer: Any) -> None:
    """Have a task of its thread fail, and hear of it from the optimizer."""

    def task() -> None:
        raise gr.PeerLost(f"server 1, of {optimizer}")

    optimizer._sender.submit(task, 10)
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            optimizer.step([ONE])
    except gr.PeerLost:
        return
    raise AssertionError("steps go on")
