"""gradring.torch: what was refused leaves nothing open, and every part of an optimizer ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from mode_servers import Servers

SGD = gr.optim.SGD(lr=1.0)
SERVED_MODES = [
    gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=9),
    gr.Hybrid(gr.Async(), gr.Async()), gr.Hybrid(gr.Geo(), gr.Async()),
]  # fmt: skip
MODES = [gr.Sync(), gr.Hybrid(gr.Sync(), gr.Async()), *SERVED_MODES]


@pytest.fixture
def comm(world: GetWorld) -> Any:
    """A communicator of one."""
    return world(1, "tcp").comms[0]


class Model(nn.Module):
    """A linear layer over rows."""

    def __init__(self, name: str = "e", **settings: Any) -> None:
        super().__init__()
        self.rows = gt.Embedding(name, 2, optimizer=SGD, **settings)
        self.linear = nn.Linear(2, 1)
        nn.init.ones_(self.linear.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.linear(self.rows(ids)).sum()


def make(model: Model, mode: Any, comm: Any, ps: Any, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.linear.parameters(), lr=1.0)
    return gt.distributed(optimizer, mode, model=model, comm=comm, ps=ps, **options)


def train(model: Model, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.tensor([3])).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("refused", "settings", "words"),
    [
        (gr.Geo(10), {"codec": "bf16"}, "codec: not with GEO"),
        (gr.Hybrid(gr.Async(), gr.Geo(10)), {"codec": "bf16"}, "codec: not with GEO"),
        (gr.Geo(10), {"device": "cpu", "cache_age": 4}, "cache_age=4"),
        (gr.Sync(via="ps"), {"device": "cpu", "cache_age": 4}, "cache_age=4"),
        (gr.Sync(), {"device": "cpu", "cache_age": 4}, "cache_age=4"),
    ],
    ids=str,
)
def test_a_mode_that_an_embedding_refuses_leaves_the_next_one_free(
    comm: Any, real_servers: Servers, refused: Any, settings: dict[str, Any], words: str
) -> None:
    model, ps = Model(**settings), real_servers.client(0)
    optimizer: Any = torch.optim.SGD(model.linear.parameters(), lr=1.0)
    before = dict(vars(optimizer))
    with pytest.raises(gr.InvalidArgument, match=words):
        gt.distributed(optimizer, refused, model=model, comm=comm, ps=ps)
    assert type(optimizer) is torch.optim.SGD
    assert vars(optimizer) == before
    optimizer = gt.distributed(optimizer, gr.Async(), model=model, comm=comm, ps=ps)
    train(model, optimizer)
    optimizer.close()
    assert model.rows.table.pull([3]).tolist() == [[-1, -1]]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_table_that_servers_have_otherwise_leaves_the_layers_to_the_next_optimizer(
    comm: Any, mode: Any
) -> None:
    ps: Any = ExactServer().client(0)
    make_table = ps.sparse_table

    def refuse_the_second(name: str, *settings: Any, **more: Any) -> Any:
        if name == "second":
            raise gr.Mismatch("servers have it with dim=5")
        return make_table(name, *settings, **more)

    ps.sparse_table = refuse_the_second
    model = Model("first")
    model.second = gt.Embedding("second", 2, optimizer=SGD)
    with pytest.raises(gr.Mismatch):
        make(model, mode, comm, ps)
    assert model.rows._table is model.rows._driver is None  # The first layer was given a table.
    del model.second
    optimizer = make(model, mode, comm, ps)
    train(model, optimizer)
    optimizer.flush()
    assert model.rows.table.pull([3]).tolist() == [[-1, -1]]
    optimizer.close()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_an_abandoned_optimizer_waits_for_nobody_and_gives_its_name_back(
    world: GetWorld, mode: Any
) -> None:
    server = ExactServer()

    def work(comm: Any) -> None:
        ps, model = server.client(comm.rank), Model()
        optimizer = make(model, mode, comm, ps, timeout=5)
        train(model, optimizer)
        comm.barrier()
        if comm.rank == 0:
            # The other one flushes or closes nothing: whoever waited would wait in vain.
            store = optimizer.rows.driver.store
            optimizer.rows.driver.flush = store.wait = None
            optimizer.abandon()
            del store.wait
            optimizer.abandon()
            optimizer.close()  # Nothing is left to close.
            with pytest.raises(gr.Closed):
                train(model, optimizer)
        comm.barrier()
        optimizer.abandon()
        comm.barrier()
        again = make(Model(), mode, comm, ps, timeout=5)
        comm.barrier()
        again.abandon()

    world(2, "tcp").run(work)


def test_backward_averages_no_more_after_it_was_abandoned(world: GetWorld) -> None:
    def work(comm: Any) -> Any:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1.0), comm=comm)
        optimizer.abandon()
        (param * (1 + comm.rank)).backward()
        assert param.grad is not None
        return param.grad.item()

    assert world(2, "shm").run(work) == [1, 2]


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_step_whose_averages_are_out_is_not_done_after_the_end(world: GetWorld, end: str) -> None:
    def work(comm: Any) -> float:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1.0), comm=comm)
        param.sum().backward()
        getattr(optimizer, end)()
        with pytest.raises(gr.Closed, match="this optimizer is closed"):
            optimizer.step()
        return param.item()

    assert world(2, "shm").run(work) == [0, 0]


def fail() -> None:
    raise gr.PeerLost("server 1 is gone")


@pytest.mark.parametrize("end", ["flush", "close"])
@pytest.mark.parametrize("dense", [gr.Async(), gr.Geo(k_steps=9)], ids=str)
def test_dense_parameters_end_well_where_rows_do_not(comm: Any, dense: Any, end: str) -> None:
    server, model = ExactServer(), Model()
    optimizer = make(model, gr.Hybrid(dense, gr.Async()), comm, server.client(0))
    train(model, optimizer)
    optimizer.rows.driver.flush = fail
    with pytest.raises(gr.PeerLost, match="server 1"):
        getattr(optimizer, end)()
    assert server.values("model/1").tolist() == model.linear.bias.tolist()
    assert optimizer.driver.is_closed == (end == "close")
    optimizer.abandon()


def test_gradients_travel_no_more_where_rows_could_not_be_closed(world: GetWorld) -> None:
    server = ExactServer()

    def work(comm: Any) -> None:
        model = Model()
        optimizer = make(model, gr.Hybrid(gr.Sync(), gr.Async()), comm, server.client(comm.rank))
        train(model, optimizer)
        optimizer.rows.driver.flush = fail
        with pytest.raises(gr.PeerLost, match="server 1"):
            optimizer.close()
        model.linear.weight.grad = None
        (model.linear.weight.sum() * (1 + comm.rank)).backward()
        assert model.linear.weight.grad.tolist() == [[1 + comm.rank] * 2]
        del optimizer.rows.driver.flush
        optimizer.close()  # Again, as `close` says.
        with pytest.raises(gr.Closed):
            optimizer.step()

    world(2, "tcp").run(work)
