"""torch.distributed's calls on CUDA tensors through the backend "gradring", and DDP over it.

The ranks share the one GPU, which this backend does not mind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradring.torch as gt
from torch_models import mlp
from torch_ranks import on_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("_cuda")]


def collectives() -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()

    def mine(count: int = 1000) -> torch.Tensor:
        return (torch.arange(count, device="cuda") % 97 + rank).float()

    found: dict[str, Any] = {}
    x = mine()
    dist.all_reduce(x)
    found["all_reduce"] = x
    x = mine()
    dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True).wait()
    found["avg"] = x * 2  # In the stream, after what wait() has ordered.
    x = mine()
    dist.broadcast(x, 1)
    found["broadcast"] = x
    parts = [torch.empty(1000, device="cuda") for _ in range(size)]
    dist.all_gather(parts, mine())
    found["all_gather"] = torch.cat(parts)
    whole = torch.empty(1000 * size, device="cuda")
    dist.all_gather_into_tensor(whole, mine())
    found["all_gather_into_tensor"] = whole
    part = torch.empty(500, device="cuda")
    dist.reduce_scatter_tensor(part, mine(500 * size))
    found["reduce_scatter_tensor"] = part
    out = torch.empty(500 * size, device="cuda")
    dist.all_to_all_single(out, mine(500 * size))
    found["all_to_all_single"] = out
    x = mine()
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(x, 0)
    found["recv"] = x
    dist.barrier()
    assert all(tensor.is_cuda for tensor in found.values())
    return {name: tensor.cpu().numpy() for name, tensor in found.items()}


def test_every_call_gives_what_it_must() -> None:
    size = 2
    base = (np.arange(1000) % 97).astype(np.float32)
    halves = [(np.arange(1000) % 97 + rank).astype(np.float32) for rank in range(size)]
    for rank, found in enumerate(on_ranks(size, collectives)):
        expected = {
            "all_reduce": 2 * base + 1,
            "avg": 2 * base + 1,
            "broadcast": base + 1,
            "all_gather": np.concatenate([base, base + 1]),
            "all_gather_into_tensor": np.concatenate([base, base + 1]),
            "reduce_scatter_tensor": np.split(2 * base + 1, size)[rank],
            "all_to_all_single": np.concatenate([np.split(half, size)[rank] for half in halves]),
            "recv": base,
        }
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=f"{name} on rank {rank}")


def trained(device: str, codec: str | None) -> list[Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(mlp().to(device))
    if codec is not None:
        model.register_comm_hook(gt.CompressedGradients(codec), gt.compressed_gradients)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    width = next(model.parameters()).shape[1]
    for step in range(4):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(5, width, generator=generator).to(device)
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
    return [param.detach().cpu().numpy() for param in model.parameters()]


@pytest.mark.parametrize("codec", [None, "bf16"])
def test_ddp_trains_on_cuda_as_on_the_cpu(codec: str | None) -> None:
    first, second = on_ranks(2, trained, "cuda", codec)
    on_cpu, _ = on_ranks(2, trained, "cpu", codec)
    for one, other, host in zip(first, second, on_cpu, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, host, rtol=1e-3, atol=1e-4)
