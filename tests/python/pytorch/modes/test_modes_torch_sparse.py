"""Sparse gradients of torch's own embeddings beside rows of servers, in every mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from torch_models import Tensors, are_same, values

IDS = [[[0, 2, 2], [2, 1, 0]], [[3, 3, 0], [5, 2, 2]]]  # By step and rank.


class Tables(nn.Module):
    """A row of servers and a table here; the gradients are quarters, and nothing is rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = gt.Embedding("rows", 2, optimizer=gr.optim.SGD(lr=1.0))
        self.table = nn.Embedding(6, 2, sparse=True)
        with torch.no_grad():
            self.table.weight.copy_(torch.arange(12.0).view(6, 2))

    def forward(self, ids: list[int]) -> torch.Tensor:
        places = torch.tensor(ids)
        return ((self.rows(places) + self.table(places)).sum(1) * torch.tensor([1, 2, 4])).sum()


def table_alone(clip_norm: float | None = None, ranks: int = 2) -> Tensors:
    table = nn.Embedding.from_pretrained(torch.arange(12.0).view(6, 2), freeze=False)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    for step in IDS:
        optimizer.zero_grad()
        for ids in step[:ranks]:
            out = table(torch.tensor(ids)).sum(1) * torch.tensor([1, 2, 4])
            (out.sum() / ranks).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(table.parameters(), clip_norm)
        optimizer.step()
    return values(table)


def trained(comm: Any, mode: Any, server: ExactServer, **options: Any) -> tuple[Tensors, Any]:
    model = Tables()
    optimizer = gt.distributed(
        torch.optim.SGD(model.parameters(), lr=0.5), mode, model=model, comm=comm,
        ps=server.client(comm.rank), **options,
    )  # fmt: skip
    for step in IDS:
        optimizer.zero_grad()
        model(step[comm.rank]).backward()
        optimizer.step()
    optimizer.flush()
    comm.barrier()
    rows = model.rows.eval()(torch.arange(6)).detach()
    optimizer.close()
    return values(model.table), rows


SPARSE = [gr.Async(), gr.Sync(via="ps"), gr.BoundedStaleness(1)]


@pytest.mark.parametrize("mode", [gr.Sync(), *[gr.Hybrid(gr.Sync(), each) for each in SPARSE]],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("clip_norm", [None, 2.0])
def test_where_dense_parameters_are_averaged_so_are_sparse_gradients_beside_rows(
    world: GetWorld, mode: Any, clip_norm: float | None
) -> None:
    server = ExactServer()
    results = world(2, "shm").run(lambda comm: trained(comm, mode, server, clip_norm=clip_norm))
    for table, rows in results:
        torch.testing.assert_close(table, table_alone(clip_norm))
        assert are_same(table, results[0][0])
        assert torch.equal(rows, results[0][1])
        assert rows[0].any()
        assert not rows[4].any()


@pytest.mark.parametrize("mode", [gr.Async(), gr.Sync(via="ps"), gr.BoundedStaleness(1),
                                  gr.Hybrid(gr.Async(), gr.Async())], ids=str)  # fmt: skip
def test_servers_refuse_a_sparse_gradient_by_name_and_take_the_step_again(
    world: GetWorld, mode: Any
) -> None:
    clip_norm = None if mode == gr.Sync(via="ps") else 2.0

    def job(comm: Any) -> None:
        model = Tables()
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=0.5), mode, model=model, comm=comm,
            ps=ExactServer().client(0), clip_norm=clip_norm,
        )  # fmt: skip
        model([0, 1, 2]).backward()
        with pytest.raises(gr.InvalidArgument, match=r"table\.weight has a sparse .* sparse=False"):
            optimizer.step()
        grad = model.table.weight.grad
        assert grad is not None
        model.table.weight.grad = grad.to_dense()
        optimizer.step()
        optimizer.flush()
        assert model.rows.eval()(torch.tensor([2])).tolist() == [[-4, -4]]
        optimizer.close()

    world(1, "tcp").run(job)


@pytest.mark.parametrize("clip_norm", [None, 2.0])
def test_a_worker_that_steps_by_itself_takes_and_clips_its_sparse_gradients(
    world: GetWorld, clip_norm: float | None
) -> None:
    def job(comm: Any) -> None:
        table, _ = trained(comm, gr.Geo(2), ExactServer(), clip_norm=clip_norm)
        torch.testing.assert_close(table, table_alone(clip_norm, ranks=1))

    world(1, "tcp").run(job)
