"""`torch.amp.GradScaler` around a distributed optimizer, and gradients of other dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from mode_servers import Servers
from torch_models import Dyadic, Tensors, are_same, values

INF = float("inf")
# What each rank's gradients are multiplied by in each step; one overflows on one rank only.
STEPS = [(1.0, 2.0), (INF, 1.0), (2.0, 0.5), (4.0, 4.0), (1.0, INF), (2.0, 2.0)]


def scaler(scale: float = 1024.0) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)


def make(kind: str, params: Any) -> torch.optim.Optimizer:
    if kind == "SGD":
        return torch.optim.SGD(params, lr=0.5, momentum=0.5)
    return torch.optim.SGD(params, lr=0.5, momentum=0.5, fused=True)


def alone(kind: str) -> tuple[Tensors, list[float]]:
    model, scaling, scales = Dyadic(), scaler(), []
    optimizer = make(kind, model.parameters())
    for factors in STEPS:
        optimizer.zero_grad()
        losses = [model(torch.ones(2, 4)).sum() * factor for factor in factors]
        scaling.scale(sum(losses) / 2).backward()
        scaling.step(optimizer)
        scaling.update()
        scales.append(scaling.get_scale())
    return values(model), scales


@pytest.mark.parametrize("kind", ["SGD", "fused SGD"])
@pytest.mark.parametrize("overlap", [True, False])
def test_ranks_leave_out_the_same_steps_and_have_the_scale_of_one_process(
    world: GetWorld, kind: str, overlap: bool
) -> None:
    def train(comm: Any) -> tuple[Tensors, list[float]]:
        model, scaling, scales = Dyadic(), scaler(), []
        optimizer = gt.distributed(make(kind, model.parameters()), comm=comm, overlap=overlap)
        for factors in STEPS:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).sum() * factors[comm.rank]
            scaling.scale(loss).backward()
            scaling.step(optimizer)
            scaling.update()
            scales.append(scaling.get_scale())
        return values(model), scales

    expected, scales = alone(kind)
    for parameters, own in world(2, "shm").run(train):
        assert are_same(parameters, expected)
        assert own == scales


def linear() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    return model


def test_a_rank_without_a_batch_and_batches_of_other_sizes_after_an_overflow_are_no_trouble(
    world: GetWorld,
) -> None:
    batches = [[(4, 2.0), (4, INF), (3, 2.0), (1, 3.0)], [(4, 4.0), (2, 1.0), (1, 6.0)]]

    def train(comm: Any) -> tuple[float, float]:
        model, scaling = linear(), scaler()
        optimizer = gt.distributed(torch.optim.SGD(model.parameters(), lr=1), comm=comm)
        for batch in optimizer.uneven(batches[comm.rank], weight=lambda batch: batch[0]):
            optimizer.zero_grad()
            if batch is not None:
                scaling.scale((model(torch.ones(1, 1)) * batch[1]).sum()).backward()
            scaling.step(optimizer)
            scaling.update()
        return model.weight.item(), scaling.get_scale()

    # 3, nothing, (3 * 2 + 6) / 4, and 3; one step out, then two done.
    assert world(2, "shm").run(train) == [(-9, 1024)] * 2


def test_gradients_are_unscaled_whatever_the_default_dtype_is(world: GetWorld) -> None:
    model, scaling = linear(), scaler()
    optimizer = gt.distributed(
        torch.optim.SGD(model.parameters(), lr=1), comm=world(1, "tcp").comms[0]
    )
    scaling.scale(model(torch.ones(1, 1)).sum()).backward()
    torch.set_default_dtype(torch.float64)
    try:
        scaling.step(optimizer)
    finally:
        torch.set_default_dtype(torch.float32)
    assert model.weight.item() == -1


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_are_clipped_after_they_are_unscaled(world: GetWorld, overlap: bool) -> None:
    def train(comm: Any) -> tuple[float, ...]:
        model, scaling = linear(), scaler()
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=1), comm=comm, overlap=overlap, clip_norm=1.5
        )
        scaling.scale(model(torch.ones(1, 1)).sum() * 4 * comm.rank).backward()
        scaling.step(optimizer)
        scaling.update()
        assert optimizer.grad_norm is not None
        by_option = model.weight.item()
        optimizer.zero_grad()
        scaling.scale(model(torch.ones(1, 1)).sum() * 4 * comm.rank).backward()
        optimizer.synchronize()
        scaling.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaling.step(optimizer)
        scaling.update()
        return tuple(round(x, 3) for x in (optimizer.grad_norm.item(), by_option, norm.item()))

    assert world(2, "shm").run(train) == [(0.5, -1.5, 2)] * 2


def test_looking_at_a_rank_s_own_gradients_is_refused_with_the_way_out(world: GetWorld) -> None:
    def train(comm: Any) -> float:
        model, scaling = linear(), scaler()
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=1), comm=comm, overlap=False
        )
        scaling.scale(model(torch.ones(1, 1)).sum()).backward()
        scaling.unscale_(optimizer)
        with pytest.raises(gr.InvalidArgument, match=r"optimizer\.synchronize\(\) before"):
            scaling.step(optimizer)
        # Without the scaler it goes on as if that had not been.
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        return model.weight.item()

    assert world(2, "shm").run(train) == [-1, -1]


@pytest.mark.parametrize("size", [1, 2])
def test_half_precision_parameters_and_closures_are_refused(world: GetWorld, size: int) -> None:
    def train(comm: Any) -> None:
        model, scaling = linear().half(), scaler()
        optimizer = gt.distributed(torch.optim.SGD(model.parameters(), lr=1), comm=comm)
        scaling.scale(model(torch.ones(1, 1).half()).sum()).backward()
        with pytest.raises(gr.InvalidArgument, match="cannot unscale float16"):
            scaling.step(optimizer)
        with pytest.raises(gr.InvalidArgument, match="no closure"):
            scaling.step(optimizer, lambda: None)

    world(size, "shm").run(train)


@pytest.mark.parametrize("mode", [gr.Sync(), gr.Async()], ids=str)
def test_a_step_whose_weight_is_refused_leaves_the_scale_as_it_was(
    world: GetWorld, servers: Servers, mode: Any
) -> None:
    model, scaling = linear(), scaler()
    optimizer = gt.distributed(
        torch.optim.SGD(model.parameters(), lr=1), mode, comm=world(1, "tcp").comms[0],
        ps=servers.client(0),
    )  # fmt: skip
    scaling.scale(model(torch.ones(1, 1)).sum()).backward()
    with pytest.raises(gr.InvalidArgument, match="weight"):
        scaling.step(optimizer, weight=-1)
    scaling.step(optimizer)
    optimizer.flush()
    assert model.weight.item() == -1
    optimizer.close()


def test_workers_of_servers_in_rounds_leave_out_the_same_steps(
    world: GetWorld, servers: Servers
) -> None:
    def train(comm: Any) -> tuple[Tensors, list[float]]:
        model, scaling, scales = Dyadic(), scaler(), []
        scaling.scale(torch.zeros(1))  # For a rank that never has a batch.
        optimizer = gt.distributed(
            make("SGD", model.parameters()), gr.Sync(via="ps"),
            model=model, comm=comm, ps=servers.client(comm.rank),
        )  # fmt: skip
        factors = [] if comm.rank == 2 else [each[comm.rank] for each in STEPS]
        for factor in optimizer.uneven(factors):
            optimizer.zero_grad()
            if factor is not None:
                scaling.scale(model(torch.ones(2, 4)).sum() * factor).backward()
            scaling.step(optimizer)
            scaling.update()
            scales.append(scaling.get_scale())
        optimizer.flush()
        result = values(model), scales
        comm.barrier()
        optimizer.close()
        return result

    expected, scales = alone("SGD")
    for parameters, own in world(3, "tcp").run(train):
        assert are_same(parameters, expected)
        assert own == scales


def test_workers_that_go_their_own_way_leave_out_their_own_steps(
    world: GetWorld, servers: Servers
) -> None:
    def train(comm: Any) -> float:
        model, scaling = linear(), scaler()
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=1), gr.Async(),
            model=model, comm=comm, ps=servers.client(comm.rank),
        )  # fmt: skip
        for factor in (1.0, INF if comm.rank else 1.0, 1.0):
            optimizer.zero_grad()
            scaling.scale(model(torch.ones(1, 1)).sum() * factor).backward()
            scaling.unscale_(optimizer)
            scaling.step(optimizer)
            scaling.update()
        optimizer.flush()
        comm.barrier()
        optimizer.flush()
        comm.barrier()
        optimizer.close()
        assert scaling.get_scale() == (512 if comm.rank else 2048)
        return model.weight.item()

    assert world(2, "tcp").run(train) == [-5, -5]


def test_workers_in_rounds_may_not_look_at_their_own_gradients(
    world: GetWorld, servers: Servers
) -> None:
    def train(comm: Any) -> None:
        model, scaling = linear(), scaler()
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=1), gr.Sync(via="ps"),
            model=model, comm=comm, ps=servers.client(comm.rank),
        )  # fmt: skip
        scaling.scale(model(torch.ones(1, 1)).sum()).backward()
        scaling.unscale_(optimizer)
        with pytest.raises(gr.InvalidArgument, match="this worker only"):
            scaling.step(optimizer)
        comm.barrier()
        optimizer.close()

    world(2, "tcp").run(train)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="newer than this torch")
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("dtype", "grad_dtype"),
    [
        (torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16),
        (torch.float32, torch.float64), (torch.bfloat16, None),
    ],
)  # fmt: skip
def test_gradients_may_have_another_dtype_than_their_parameters(
    world: GetWorld, overlap: bool, dtype: torch.dtype, grad_dtype: torch.dtype | None
) -> None:
    def train(comm: Any) -> tuple[list[float], Any]:
        params: Any = [nn.Parameter(torch.zeros(2, dtype=dtype)) for _ in range(2)]
        for param in params:
            param.grad_dtype = grad_dtype
        optimizer = gt.distributed(torch.optim.SGD(params, lr=1), comm=comm, overlap=overlap)
        # Each rank has one gradient and is given the other.
        (params[comm.rank] * 2).sum().backward()
        optimizer.synchronize()
        found = [param.grad.dtype for param in params]
        return [value for param in params for value in param.grad.tolist()], found

    for averages, found in world(2, "shm").run(train):
        assert averages == [1] * 4
        assert found == [grad_dtype or dtype] * 2


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="newer than this torch")
def test_servers_take_gradients_of_another_dtype_than_their_parameters(
    world: GetWorld, servers: Servers
) -> None:
    param: Any = nn.Parameter(torch.zeros(2))
    param.grad_dtype = torch.bfloat16
    optimizer = gt.distributed(
        torch.optim.SGD([param], lr=1), gr.Async(), comm=world(1, "tcp").comms[0],
        ps=servers.client(0),
    )  # fmt: skip
    (param * 2).sum().backward()
    optimizer.step()
    optimizer.flush()
    assert param.tolist() == [-2, -2]
    optimizer.close()


def test_listing_what_an_optimizer_has_sends_nothing(world: GetWorld) -> None:
    def train(comm: Any) -> None:
        optimizer = gt.distributed(torch.optim.SGD(linear().parameters(), lr=1), comm=comm)
        if comm.rank == 0:
            for name in dir(optimizer):
                getattr(optimizer, name, None)
        assert not optimizer._averager.is_done
        assert not optimizer._averager.is_open

    world(2, "shm").run(train)
