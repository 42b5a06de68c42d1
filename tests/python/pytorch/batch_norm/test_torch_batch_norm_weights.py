"""What batch norm over ranks says in backward counts as the gradients do that come after it.

The models end in a batch norm, so that its backward runs before there is any gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import gradring.torch as gt
from conftest import GetWorld
from torch_models import values

CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def projector() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False)).double()
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.arange(1.0, param.numel() + 1).view(param.shape).sin())
    return model


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(x) - torch.tensor([1.0, -1.0])).pow(3).mean()
    return loss


def rows(step: int, rank: int, count: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(count, 3, generator=random, dtype=torch.float64)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.25)


def alone(batches: Iterator[torch.Tensor], skipped: int = -1) -> list[torch.Tensor]:
    model = projector()
    optimizer = sgd(model)
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if step != skipped:
            optimizer.step()
    return values(model)


def test_a_rank_that_had_nothing_to_evaluate_counts_in_the_next_step(world: GetWorld) -> None:
    def job(comm: Any) -> list[torch.Tensor]:
        model = gt.sync_batch_norm(projector(), comm)
        optimizer = gt.distributed(sgd(model), model=model, comm=comm)
        for step in range(2):
            for _ in optimizer.uneven(range(1 - comm.rank)):
                pass
            optimizer.zero_grad()
            loss_of(model, rows(step, comm.rank, 4)).backward()
            optimizer.step()
        optimizer.close()
        return values(model)

    expected = alone(torch.cat([rows(step, rank, 4) for rank in range(2)]) for step in range(2))
    for found in world(2, "shm").run(job):
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_batch_whose_gradients_were_forgotten_does_not_count(
    world: GetWorld, overlap: bool
) -> None:
    counts = [[3, 5], [5, 3], [2, 6]]

    def job(comm: Any) -> list[torch.Tensor]:
        model = gt.sync_batch_norm(projector(), comm)
        optimizer = gt.distributed(sgd(model), model=model, comm=comm, overlap=overlap)
        batches = [rows(step, comm.rank, each[comm.rank]) for step, each in enumerate(counts)]
        for step, batch in enumerate(optimizer.uneven(batches, weight=len)):
            model.zero_grad()
            assert batch is not None
            loss_of(model, batch).backward()
            if step != 0:
                optimizer.step()
        optimizer.close()
        return values(model)

    whole = (
        torch.cat([rows(step, rank, count) for rank, count in enumerate(each)])
        for step, each in enumerate(counts)
    )
    expected = alone(whole, skipped=0)
    for found in world(2, "shm").run(job):
        torch.testing.assert_close(found, expected, **CLOSE)
