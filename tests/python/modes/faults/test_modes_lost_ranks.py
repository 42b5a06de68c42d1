"""gr.Sync() with rows after a rank was lost: the step says who, and close() waits for nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from mode_servers import RealServers
from rank_job import StartJob

NUMPY = """
ps = gr.ps.connect({servers!r}, secret={secret!r}, client=comm.rank, transport="tcp")
optimizer = gr.distributed([np.zeros(4, np.float32)], gr.optim.SGD(lr=1.0), ps=ps, comm=comm)
rows = optimizer.sparse_table("t", 2, gr.optim.SGD(lr=1.0))
def step():
    ones = np.ones((2, 2), np.float32)
    optimizer.step([np.ones(4, np.float32)], rows=[(rows, [1, 2], ones)])
step()
"""
TORCH = """
import torch, gradring.torch
ps = gr.ps.connect({servers!r}, secret={secret!r}, client=comm.rank, transport="tcp")
layer = gradring.torch.Embedding("t", 2, optimizer=gr.optim.SGD(lr=1.0), pooling="sum")
model = torch.nn.Sequential(layer, torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
optimizer = gradring.torch.distributed(optimizer, model=model, ps=ps, comm=comm)
def average():
    optimizer.zero_grad()
    model(torch.tensor([[1, 2]])).sum().backward()
def step():
    average()
    optimizer.step()
step()
"""
TRAIN = """
def connect():
    return gr.ps.connect({servers!r}, secret={secret!r}, client=comm.rank, transport="tcp")
ps = connect()
def train():
    ones = np.ones(2, np.float32)
    mode, param, rule = {mode}, np.zeros(2, np.float32), gr.optim.SGD(lr=1.0)
    with gr.distributed([param], rule, mode, ps=ps, comm=comm) as optimizer:
        rows = optimizer.sparse_table("t", 1, rule)
        optimizer.step([ones], rows=[(rows, [1], ones[:1, None])])
"""
SHRINK = """
try:
    comm.barrier()
except gr.PeerLost:
    comm = comm.shrink()
ps.close()
comm.barrier()
ps = connect()
train()
"""


@pytest.fixture
def servers() -> Any:
    servers = RealServers("tcp")
    yield servers
    servers.close()


@pytest.mark.timeout(90)
@pytest.mark.parametrize("library", [NUMPY, TORCH], ids=["numpy", "torch"])
def test_who_was_lost_is_said_once_and_close_returns(
    job: StartJob, servers: RealServers, library: str
) -> None:
    if library is TORCH:
        pytest.importorskip("torch")
    ranks = job(3)
    ranks.call(library.format(servers=servers.addresses, secret=servers.secret))
    if library is TORCH:  # Lost between its averages and its rows: the others' rows are ahead.
        for rank in ranks.ranks:
            rank.begin("average()" if rank.rank == 1 else "step()")
        for outcome in ranks.outcomes():
            assert outcome.error is None, outcome
    for rank in ranks.others(1):
        rank.begin("say('steps'); step()")
    for rank in ranks.others(1):
        rank.expect("steps")
    ranks.ranks[1].kill()
    for outcome in ranks.outcomes(ranks.others(1)):
        assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome
    for rank in ranks.others(1):
        rank.call("optimizer.close()")


def test_rounds_beside_a_communicator_that_its_user_has_closed_are_waited_for() -> None:
    comms = gr.init(rank=0, world_size=1)
    comms.close()
    with gr.ps.connect() as ps:
        optimizer = gr.distributed([], gr.optim.SGD(lr=1.0), ps=ps, comm=comms)
        rows = optimizer.sparse_table("t", 2, gr.optim.SGD(lr=1.0))
        optimizer.step(None, rows=[(rows, [1], np.ones((1, 2), np.float32))])
        optimizer.close()
        table = ps.sparse_table("t", 2, gr.optim.SGD(lr=1.0))
        assert table.pull([1]).tolist() == [[-1, -1]]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("mode", ["gr.Sync()", "gr.Sync(via='ps')"])
def test_who_is_left_trains_on_over_a_connection_of_its_new_rank(
    job: StartJob, servers: RealServers, mode: str
) -> None:
    ranks = job(3)
    ranks.call(TRAIN.format(servers=servers.addresses, secret=servers.secret, mode=mode))
    ranks.call("train()")
    ranks.ranks[1].kill()
    for rank in ranks.others(1):
        rank.begin(SHRINK)
    for outcome in ranks.outcomes(ranks.others(1)):
        assert outcome.error is None, outcome
    np.testing.assert_array_equal(servers.sparse("t", 1, gr.optim.SGD(lr=1.0))[1], [-2])
