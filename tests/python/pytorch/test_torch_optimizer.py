"""gradring.torch.distributed: ranks train as one process does on all their batches put together."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from thread_ranks import TRANSPORTS
from torch_models import Dyadic, Tensors, are_same, batch, mlp, part, quarters, values

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
}


def train_alone(make: Any, steps: int, count: int, dtype: torch.dtype) -> Tensors:
    model = mlp(0, dtype)
    optimizer = make(model.parameters())
    for step in range(steps):
        x, y = batch(step, count, dtype)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return values(model)


def train_on(comm: Any, make: Any, steps: int, counts: list[int], dtype: torch.dtype) -> Any:
    model = mlp(comm.rank, dtype)  # Other values on every rank, to begin with.
    optimizer = gt.distributed(make(model.parameters()), gr.Sync(), comm=comm, bucket_bytes=256)
    for step in range(steps):
        x, y = (part(comm, counts, t) for t in batch(step, sum(counts), dtype))
        optimizer.zero_grad()
        optimizer.set_weight(len(x))
        if len(x):
            F.mse_loss(model(x), y).backward()
        optimizer.step()
    return values(model), optimizer.state_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("counts", [[12], [6, 6], [7, 5], [5, 0, 7], [1, 2, 3, 6]])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_ranks_equal_one_process_and_each_other(
    world: GetWorld, name: str, counts: list[int], dtype: torch.dtype
) -> None:
    make = OPTIMIZERS[name]
    alone = train_alone(make, 10, 12, dtype)
    results = world(len(counts), "shm").run(lambda c: train_on(c, make, 10, counts, dtype))
    tolerance = 2e-5 if dtype == torch.float32 else 1e-9
    for parameters, state in results:
        assert are_same(parameters, results[0][0]), "ranks differ in bits"
        for key, slots in state["state"].items():
            for slot, value in slots.items():
                assert torch.equal(value, results[0][1]["state"][key][slot])
        for ours, theirs in zip(parameters, alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("counts", [[4, 4], [2, 4, 2], [4, 0, 2, 2]])
def test_ranks_equal_one_process_bit_for_bit_where_nothing_is_rounded(
    world: GetWorld, counts: list[int], transport: str
) -> None:
    random = np.random.default_rng(1)
    steps = [(quarters(random, (8, 4)), quarters(random, (8, 3))) for _ in range(2)]

    def train(model: Dyadic, optimizer: Any, cut: Any) -> Tensors:
        for whole_x, whole_y in steps:
            x, y = cut(whole_x), cut(whole_y)
            optimizer.zero_grad()
            if isinstance(optimizer, gt.DistributedOptimizer):
                optimizer.set_weight(len(x))
            if len(x):
                (0.5 * (model(x) - y) ** 2).sum(1).mean().backward()
            optimizer.step()
        return values(model)

    def together(comm: Any) -> Tensors:
        model = Dyadic(comm.rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
        gt.distributed(optimizer, comm=comm)
        return train(model, optimizer, lambda t: part(comm, counts, t))

    model = Dyadic(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    alone = train(model, optimizer, lambda t: t)
    assert not are_same(alone, values(Dyadic(0)))
    for parameters in world(len(counts), transport).run(together):
        assert are_same(parameters, alone)


def test_a_world_of_one_is_the_optimizer_itself_and_listens_to_nothing(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    (parameters, _), alone = (
        train_on(comm, OPTIMIZERS["adam"], 5, [8], torch.float32),
        train_alone(OPTIMIZERS["adam"], 5, 8, torch.float32),
    )
    assert are_same(parameters, alone)
    model = mlp()
    optimizer = gt.distributed(torch.optim.SGD(model.parameters(), lr=1), comm=comm)
    assert not any(param._post_accumulate_grad_hooks for param in model.parameters())
    with optimizer.no_sync():
        model(batch(0, 2)[0]).sum().backward()
    optimizer.synchronize()
    optimizer.step(weight=2)


def test_the_optimizer_stays_what_it_was(world: GetWorld) -> None:
    def check(comm: Any) -> None:
        model = mlp()
        original = torch.optim.Adam(model.parameters(), lr=0.5)
        optimizer = gt.distributed(original, comm=comm)
        assert optimizer is original
        assert isinstance(optimizer, torch.optim.Adam)
        assert isinstance(optimizer, gt.DistributedOptimizer)
        assert optimizer.param_groups[0]["lr"] == 0.5
        assert "DistributedAdam" in repr(optimizer)
        with pytest.raises(TypeError, match="state_dict"):
            torch.save(optimizer, io.BytesIO())

    world(2, "shm").run(check)


def test_rank_0_gives_the_initial_parameters_and_buffers_to_all(world: GetWorld) -> None:
    def start(comm: Any) -> Tensors:
        torch.manual_seed(comm.rank)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2))
        model[0].to(memory_format=torch.channels_last)
        assert model[1].running_mean is not None
        model[1].running_mean += comm.rank
        model[2].requires_grad_(False).bfloat16()
        gt.distributed(torch.optim.SGD(model[0].parameters(), lr=1), model=model, comm=comm)
        return values(model)

    first, *others = world(3, "shm").run(start)
    assert all(are_same(first, other) for other in others)
    assert float(first[4].abs().sum()) == 0  # The running mean of rank 0.


def test_schedulers_take_it_for_an_optimizer_and_ranks_follow_the_schedule(world: GetWorld) -> None:
    def alone(wrap: Any) -> Tensors:
        model = mlp()
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.5))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        for step in range(6):
            x, y = batch(step, 4)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            scheduler.step()
        assert scheduler.get_last_lr() == [0.5 / 8]
        return values(model)

    expected = alone(lambda optimizer: optimizer)
    for ours in world(2, "shm").run(lambda comm: alone(lambda o: gt.distributed(o, comm=comm))):
        assert are_same(ours, expected)  # (g + g) / 2 is g, bit for bit.


@pytest.mark.parametrize("overlap", [True, False])
def test_a_rate_that_changes_on_one_rank_alone_is_told_by_the_next_round(
    world: GetWorld, overlap: bool
) -> None:
    def backward(model: nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.synchronize()

    def train(comm: Any) -> Tensors:
        model = mlp()
        rate = torch.tensor(0.5) if comm.rank else 0.5  # One number.
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=rate), comm=comm, overlap=overlap
        )
        for _ in range(2):
            backward(model, optimizer)
            optimizer.step()
        if comm.rank:
            rate.fill_(0.25)
        backward(model, optimizer)
        optimizer.step()
        told = "rank 0 has lr=0.5 in group 0, and rank 1 has lr=0.25 in group 0; their last step"
        with pytest.raises(gr.Mismatch, match=told):
            backward(model, optimizer)
        rate.fill_(0.5) if comm.rank else None
        for param in model.parameters():  # As from a checkpoint.
            nn.init.ones_(param)
        for _ in range(2):
            backward(model, optimizer)
            optimizer.step()
        return values(model)

    first, other = world(2, "shm").run(train)
    assert are_same(first, other)


def test_a_rate_that_is_a_tensor_on_one_rank_may_follow_the_same_schedule(world: GetWorld) -> None:
    def train(comm: Any) -> Tensors:
        model = mlp()
        rate = torch.tensor(0.1) if comm.rank else 0.1 + 1e-9  # As float32 one number.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer = gt.distributed(optimizer, comm=comm)
        optimizer.param_groups[0]["lr"] = rate
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 6)).sum().backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * 0.5
        return values(model)

    first, other = world(2, "shm").run(train)
    assert are_same(first, other)


def test_ranks_without_a_batch_may_change_the_rate_before_their_round_begins(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> Tensors:
        model = mlp()
        optimizer = gt.distributed(torch.optim.SGD(model.parameters(), lr=0.5), comm=comm)
        for batch_or_none in optimizer.uneven(range(2 + comm.rank)):
            optimizer.zero_grad()
            if batch_or_none is not None:
                model(torch.ones(1, 6)).sum().backward()
            optimizer.param_groups[0]["lr"] *= 0.5
            optimizer.step()
        return values(model)

    first, other = world(2, "shm").run(train)
    assert are_same(first, other)


def test_gradients_can_be_clipped_between_synchronize_and_step(world: GetWorld) -> None:
    def train(model: nn.Module, optimizer: Any, x: Any, y: Any) -> Tensors:
        (100 * F.mse_loss(model(x), y)).backward()
        if isinstance(optimizer, gt.DistributedOptimizer):
            optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        assert norm > 1
        optimizer.step()
        return values(model)

    def together(comm: Any) -> Tensors:
        model = mlp()
        optimizer = gt.distributed(torch.optim.SGD(model.parameters(), lr=1), comm=comm)
        return train(model, optimizer, *(part(comm, [4, 4], t) for t in batch(0, 8)))

    model = mlp()
    alone = train(model, torch.optim.SGD(model.parameters(), lr=1), *batch(0, 8))
    for parameters in world(2, "shm").run(together):
        for ours, theirs in zip(parameters, alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_training_goes_on_from_a_saved_state_bit_for_bit(world: GetWorld) -> None:
    def train(comm: Any) -> bool:
        def steps(model: nn.Module, optimizer: Any, begin: int, end: int) -> None:
            for step in range(begin, end):
                x, y = (part(comm, [3, 5], t) for t in batch(step, 8))
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()

        def fresh(model: nn.Module) -> Any:
            return gt.distributed(torch.optim.Adam(model.parameters(), lr=0.1), comm=comm)

        through, first, second = mlp(), mlp(), mlp(1)
        steps(through, fresh(through), 0, 6)
        optimizer = fresh(first)
        steps(first, optimizer, 0, 3)
        file = io.BytesIO()
        torch.save([first.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        model_state, optimizer_state = torch.load(file)
        second.load_state_dict(model_state)
        optimizer = fresh(second)
        optimizer.load_state_dict(optimizer_state)
        steps(second, optimizer, 3, 6)
        return are_same(values(second), values(through))

    assert world(2, "shm").run(train) == [True, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_16_bit_and_complex_gradients_are_averaged_without_overflow(
    world: GetWorld, dtype: torch.dtype
) -> None:
    def average(comm: Any) -> torch.Tensor:
        param = nn.Parameter(torch.zeros(3, dtype=dtype))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        optimizer.set_weight(1000 if comm.rank else 3000)
        grad = torch.tensor([1024, -8, 4], dtype=dtype) * (1 if comm.rank else 3)
        param.backward(grad)
        optimizer.synchronize()
        assert param.grad is not None
        return param.grad

    for grad in world(2, "shm").run(average):
        assert grad.dtype == dtype
        assert grad.tolist() == [2560, -20, 10]


def test_groups_can_be_added_and_parameters_unfrozen(world: GetWorld) -> None:
    def train(comm: Any) -> list[float]:
        first, second, third = (nn.Parameter(torch.full((1,), float(comm.rank))) for _ in range(3))
        second.requires_grad_(False)
        optimizer = gt.distributed(torch.optim.SGD([first, second], lr=1), comm=comm)
        optimizer.add_param_group({"params": [third], "lr": 2.0})
        ((first + third) * (1 + comm.rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
        second.requires_grad_(True)
        (second * 4).backward()
        with pytest.raises(gr.InvalidArgument, match="parameter 1 of group 0 was frozen"):
            optimizer.step()
        optimizer.refresh()
        optimizer.zero_grad()
        (second * (4 + 2 * comm.rank)).backward()
        optimizer.step()
        return [first.item(), second.item(), third.item()]

    assert world(2, "shm").run(train) == [[-1.5, -5, -3], [-1.5, -5, -3]]


def test_the_sampler_feeds_a_loader_with_this_ranks_part() -> None:
    with gr.init(rank=0, world_size=1) as comm:
        sampler = gt.Sampler(range(10), comm, seed=3)
        loader = torch.utils.data.DataLoader(range(10), batch_size=4, sampler=sampler)
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append([index for indices in loader for index in indices.tolist()])
        assert len(sampler) == 10
        assert epochs[0] != epochs[1]
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
        assert epochs[1] == gr.shard(10, comm, seed=3, epoch=1).tolist()
        sampler.set_epoch(1, first=7)
        assert (len(sampler), len(loader)) == (3, 1)
        assert [*sampler] == epochs[1][7:]
        sampler.set_epoch(1, first=12)
        assert (len(sampler), [*loader]) == (0, [])
        sampler.set_epoch(1)
        assert [*sampler] == epochs[1]


def test_after_close_ranks_average_no_more(world: GetWorld) -> None:
    def work(comm: Any) -> None:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([weight], lr=0.5), comm=comm)
        gradients_comm = optimizer._averager.comm
        (weight * comm.rank).sum().backward()
        optimizer.step()
        optimizer.close()
        optimizer.close()
        assert gradients_comm.is_closed
        assert not comm.is_closed
        optimizer.zero_grad()
        (weight * comm.rank).sum().backward()
        assert weight.grad.item() == comm.rank
        with pytest.raises(gr.Closed):
            optimizer.step()

    world(2, "tcp").run(work)


def test_servers_are_waited_for_as_long_as_the_variable_says(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = world(1, "tcp").comms[0]

    def make(**options: Any) -> Any:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.5)
        ps = ExactServer().client(0)
        return gt.distributed(optimizer, gr.Async(), comm=comm, ps=ps, **options)

    monkeypatch.setenv("GRADRING_TIMEOUT", "7")
    optimizer = make()
    assert optimizer.driver.timeout == 7
    optimizer.close()
    with pytest.raises(gr.InvalidArgument, match="timeout='0'"):
        make(timeout=0)
