"""all_reduce of sparse tensors: a wait waits, errors come out of it, and DDP averages with it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradring as gr
from torch_ranks import on_ranks

pytestmark = [pytest.mark.timeout(120)]

IDS = [torch.tensor([0, 2, 0]), torch.tensor([1, 2, 3])]


def asynchronous() -> list[float]:
    rank = dist.get_rank()
    x = torch.sparse_coo_tensor([[rank, 2]], [1.0, 1.0], (4,))
    if rank == 1:
        dist.recv(torch.empty(1), 0)  # Rank 0 has looked.
    work: Any = dist.all_reduce(x, async_op=True)
    if rank == 0:
        assert not work.is_completed()
        with pytest.raises(gr.TimedOut, match="wait again"):
            work.wait(timedelta(seconds=0.01))
        dist.send(torch.ones(1), 1)
    work.wait()
    result: list[float] = x.to_dense().tolist()

    y = torch.sparse_coo_tensor([[0]], [1.0], (2,))
    future = dist.all_reduce(y, async_op=True).get_future()
    assert future.wait()[0].to_dense().tolist() == [2, 0]

    wrong = dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (rank + 1,)), async_op=True)
    with pytest.raises(gr.Mismatch, match="shape"):
        wrong.wait()
    return result


def test_a_sparse_result_is_there_after_wait_and_errors_come_out_of_it() -> None:
    assert on_ranks(2, asynchronous) == [[1, 1, 2, 0]] * 2


class Bags(nn.Module):
    """Rows with sparse gradients under a layer with dense ones; all numbers are dyadic."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(4, 2, sparse=True)
        self.dense = nn.Linear(2, 1)
        with torch.no_grad():
            self.rows.weight.copy_(torch.arange(8.0).view(4, 2))
            self.dense.weight.fill_(0.5)
            self.dense.bias.zero_()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dense(self.rows(ids)).sum()  # type: ignore[no-any-return]


def trained(model: nn.Module, ids: list[torch.Tensor]) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    for _ in range(2):
        optimizer.zero_grad()
        for each in ids:
            (model(each) / len(ids)).backward()
        optimizer.step()
    return list(model.parameters())


def ddp() -> list[Any]:
    return trained(DistributedDataParallel(Bags()), [IDS[dist.get_rank()]])


def test_ddp_with_sparse_gradients_trains_as_one_process() -> None:
    alone = trained(Bags(), IDS)
    for params in on_ranks(2, ddp):
        for ours, theirs in zip(params, alone, strict=True):
            np.testing.assert_array_equal(ours, theirs.detach().numpy())


def repeats(dtype: torch.dtype) -> list[Any]:
    # 2048 + 1 is 2048 in float16, however often; so is 256 + 1 in bfloat16.
    full = 2048.0 if dtype == torch.float16 else 256.0
    ids = [[1] * 9, [0] * 9] if dist.get_rank() == 0 else [[1], [0]]
    values = [full, *[1.0] * 8] if dist.get_rank() == 0 else [0.0]
    x = torch.sparse_coo_tensor(torch.tensor(ids), torch.tensor(values, dtype=dtype), (2, 1))
    dist.all_reduce(x)
    assert x.dtype == dtype
    return [float(x.to_dense()[1, 0]) - full]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_repeated_indices_of_16_bit_floats_are_added_in_float32_too(dtype: torch.dtype) -> None:
    assert on_ranks(2, repeats, dtype) == [[8.0]] * 2
