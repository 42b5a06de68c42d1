"""gradring.torch: servers go on from the state that an optimizer has, and keep it from then on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from mode_servers import Servers
from torch_models import OPTIMIZERS


@pytest.fixture
def comm(world: GetWorld) -> Any:
    """A communicator of one."""
    return world(1, "tcp").comms[0]


RULE = gr.optim.SGD(lr=0.5)
SERVED_MODES = [
    gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Hybrid(gr.Async(), gr.Async()),
]  # fmt: skip


def steps_along(optimizer: Any, params: list[Any], seed: int, steps: int = 6) -> list[Any]:
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=random)
        optimizer.step()
        if hasattr(optimizer, "flush"):
            optimizer.flush()
    return [param.detach().numpy().copy() for param in params]


def begun(kind: str, steps: int = 6) -> tuple[list[Any], Any]:
    """An optimizer that has trained; its last parameter never had a gradient."""
    params = [torch.nn.Parameter(torch.ones(shape)) for shape in ((3, 40), (), (2,))]
    optimizer = OPTIMIZERS[kind](params)
    steps_along(optimizer, params[:2], 1, steps)
    return params, optimizer


@pytest.mark.parametrize("mode", SERVED_MODES)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_servers_go_on_from_the_state_that_an_optimizer_has(
    comm: Any, servers: Servers, mode: Any, kind: str
) -> None:
    params, optimizer = begun(kind)
    expected = steps_along(optimizer, params, 2)
    params, optimizer = begun(kind)
    optimizer = gt.distributed(optimizer, mode, comm=comm, ps=servers.client(0))
    results = steps_along(optimizer, params, 2)
    optimizer.close()
    for one, other in zip(results, expected, strict=True):
        if kind == "SGD":
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)


def test_the_state_of_worker_0_counts_and_that_of_servers_more(
    world: GetWorld, servers: Servers
) -> None:
    params, optimizer = begun("SGD")
    expected = steps_along(optimizer, params, 2, 1)

    def work(comm: Any) -> list[Any]:
        params, optimizer = begun("SGD", steps=6 if comm.rank == 0 else 2)
        optimizer = gt.distributed(
            optimizer, gr.Sync(via="ps"), comm=comm, ps=servers.client(comm.rank)
        )
        result = steps_along(optimizer, params, 2, 1)
        optimizer.close()
        return result

    for result in world(2, "tcp").run(work):
        for one, other in zip(result, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    late = world(1, "tcp").comms[0]
    params, optimizer = begun("SGD", steps=3)
    optimizer = gt.distributed(optimizer, gr.Async(), comm=late, ps=servers.client(2))
    for param, other in zip(params, expected, strict=True):
        np.testing.assert_array_equal(param.detach().numpy(), other)
    optimizer.close()


class _NoServers:
    """What a connection is when nothing can be reached."""

    dense_table: Any = None

    @property
    def calls(self) -> Any:
        raise gr.TimedOut("no server answers")


def test_an_optimizer_whose_servers_are_missing_is_as_it_was(world: GetWorld) -> None:
    server = ExactServer()

    def work(comm: Any) -> Any:
        model = torch.nn.Sequential(gt.Embedding("rows", 2, optimizer=RULE), torch.nn.Linear(4, 1))
        linear = model[1]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with pytest.raises(gr.TimedOut, match="no server answers"):
            gt.distributed(optimizer, model=model, comm=comm, ps=_NoServers())
        assert type(optimizer) is torch.optim.SGD
        loss = linear(torch.full((1, 4), float(comm.rank + 1))).sum()
        loss.backward()
        own = linear.weight.grad.clone()  # Of this rank alone.
        gt.distributed(optimizer, model=model, comm=comm, ps=server.client(comm.rank))
        optimizer.zero_grad()
        linear(torch.full((1, 4), float(comm.rank + 1))).sum().backward()
        averaged = linear.weight.grad.clone()
        comm.barrier()
        optimizer.close()
        return own[0, 0].item(), averaged[0, 0].item()

    assert world(2, "tcp").run(work) == [(1, 1.5), (2, 1.5)]
