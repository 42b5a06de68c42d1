"""What stands on torch.distributed gives on our backend what it gives on Gloo.

On two ranks a sum has one order only, so the results are equal bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_models import batch, mlp
from torch_ranks import on_ranks, plain

pytestmark = [pytest.mark.timeout(180)]

STEPS = 4


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Take a few steps on this rank's batches; the losses."""
    losses = []
    for step in range(STEPS):
        x, y = batch(10 * step + dist.get_rank(), 8)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def ddp() -> Any:
    model = DistributedDataParallel(mlp(seed=dist.get_rank()), bucket_cap_mb=0.0005)
    return [train(model, sgd(model)), list(model.parameters())]


def ddp_without_sync() -> Any:
    model = DistributedDataParallel(mlp(), gradient_as_bucket_view=True, static_graph=True)
    optimizer = sgd(model)
    for step in range(2 * STEPS):
        x, y = batch(10 * step + dist.get_rank(), 8)
        loss = nn.functional.mse_loss(model(x), y)
        if step % 2 == 0:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


def ddp_in_half() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DistributedDataParallel(mlp())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return [train(model, sgd(model)), list(model.parameters())]


def power_sgd() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = DistributedDataParallel(mlp())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return [train(model, sgd(model)), list(model.parameters())]


def fsdp1() -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    results = []
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        model = FullyShardedDataParallel(
            mlp(), sharding_strategy=strategy, device_id=torch.device("cpu")
        )
        losses = train(model, sgd(model))
        with FullyShardedDataParallel.summon_full_params(model):
            results.append([losses, [p.detach().clone() for p in model.parameters()]])
    return results


def fsdp2() -> Any:
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    losses = train(model, sgd(model))
    return [losses, [p.full_tensor() for p in model.parameters()]]  # type: ignore[attr-defined]


def dtensor() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2,))
    a = distribute_tensor(torch.arange(12.0).reshape(4, 3), mesh, [Shard(0)])
    b = distribute_tensor(torch.arange(6.0).reshape(3, 2), mesh, [Replicate()])
    product = (a @ b).redistribute(mesh, [Shard(1)]).full_tensor()
    whole = a.sum().full_tensor()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x, y = batch(0, 8)
    nn.functional.mse_loss(model(x), y).backward()
    grads = [p.grad.full_tensor() for p in model.parameters()]  # type: ignore[union-attr]
    return [product, whole, grads]


def functional() -> Any:
    from torch.distributed import _functional_collectives as funcol

    group = dist.group.WORLD
    assert group is not None
    x = torch.arange(4.0) + dist.get_rank()
    shares = [1, 3] if dist.get_rank() == 0 else [2, 0]
    got = [1, 2] if dist.get_rank() == 0 else [3, 0]
    rows = torch.arange(float(sum(shares)))
    return [
        funcol.all_reduce(x, "sum", group) + 0,
        funcol.all_gather_tensor(x, 0, group) + 0,
        funcol.reduce_scatter_tensor(x, "avg", 0, group) + 0,
        funcol.broadcast(x, 1, group) + 0,
        funcol.all_to_all_single(rows, got, shares, group) + 0,
        [t + 0 for t in funcol.all_reduce_coalesced([x, x * 2], "max", group)],
        [t + 0 for t in funcol.all_gather_into_tensor_coalesced([x, x * 2], group)],
        [t + 0 for t in funcol.reduce_scatter_tensor_coalesced([x], "sum", [0], group)],
    ]


def compiled() -> Any:
    from torch.distributed import _functional_collectives as funcol

    group = dist.group.WORLD

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        total = funcol.all_reduce(x * 2, "sum", group)
        dist.all_reduce(x)
        return funcol.all_gather_tensor(total + x, 0, group) + 1

    model = DistributedDataParallel(mlp())
    fast = torch.compile(model, backend="aot_eager")
    losses = train(fast, sgd(model))  # type: ignore[arg-type]
    return [step(torch.arange(3.0) + dist.get_rank()), losses, list(model.parameters())]


def join(divides_by_initial: bool = True) -> Any:
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(mlp())
    optimizer = sgd(model)
    with Join([model], divide_by_initial_world_size=divides_by_initial):
        for step in range(2 + 3 * dist.get_rank()):
            x, y = batch(10 * step + dist.get_rank(), 8)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return list(model.parameters())


def join_of_those_that_are_left() -> Any:
    return join(divides_by_initial=False)


def zero() -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    losses = train(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    saved = len(optimizer.state_dict()["state"]) if dist.get_rank() == 0 else 0
    return [losses, list(model.parameters()), saved]


def checkpoint() -> Any:
    import tempfile

    from torch.distributed import checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    model = fully_shard(mlp())
    train(model, sgd(model))
    other = fully_shard(copy.deepcopy(mlp(seed=5)))
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    other.load_state_dict(state["model"])
    return [p.full_tensor() for p in other.parameters()]  # type: ignore[attr-defined]


def several(*jobs: Callable[[], Any]) -> Any:
    """Run jobs one after another in one group."""
    return [plain(job()) for job in jobs]


def assert_same_on_gloo(*jobs: Callable[[], Any]) -> None:
    ours = on_ranks(2, several, *jobs)
    gloo = on_ranks(2, several, *jobs, backend="gloo")
    for mine, theirs in zip(_leaves(ours), _leaves(gloo), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def test_ddp_trains_as_on_gloo() -> None:
    assert_same_on_gloo(ddp, ddp_without_sync)


def test_ddp_communication_hooks_work_as_on_gloo() -> None:
    assert_same_on_gloo(ddp_in_half, power_sgd)


def test_fsdp_trains_as_on_gloo() -> None:
    assert_same_on_gloo(fsdp1, fsdp2)


def test_a_sharded_checkpoint_is_saved_and_loaded_as_on_gloo() -> None:
    assert_same_on_gloo(checkpoint)


def test_dtensor_and_functional_collectives_give_what_they_give_on_gloo() -> None:
    assert_same_on_gloo(dtensor, functional)


def test_compiled_graphs_with_collectives_give_what_they_give_on_gloo() -> None:
    assert_same_on_gloo(compiled)


def test_uneven_inputs_and_sharded_optimizers_train_as_on_gloo() -> None:
    assert_same_on_gloo(join, join_of_those_that_are_left, zero)
