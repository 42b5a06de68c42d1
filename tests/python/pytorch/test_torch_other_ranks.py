"""A distributed optimizer that goes on in other ranks: after a loss, and with newcomers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from rank_job import Job
from torch_models import Clicks, Tensors, are_same, batch, mlp, values

SECRET = "the job's secret"

# As in docs/training.md, with a schedule, until the rank that was lost is back.
SETUP = """
import torch, gradring.torch as gt
torch.manual_seed(os.getpid())
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
shared, step, lost, left = None, 0, False, None
"""
LOOP = """
while left != 0:
    try:
        if comm is not shared:
            whole = lost and comm.world_size == 3
            told = gt.broadcast_state(parts | {"step": step, "whole": whole}, comm=comm)
            step, left = told["step"], 5 if told["whole"] else None
            gt.distributed(optimizer, model=model, comm=comm)
            shared = comm
        optimizer.zero_grad()
        model(torch.full((4, 64), float(comm.rank + step))).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if left is None: comm = comm.grow()
        else: left -= 1
    except gr.PeerLost:
        lost, comm = True, comm.shrink()
state = list(optimizer.state_dict()["state"].values())
sums = [float(value.double().sum()) for one in state for value in one.values()]
sums += [float(param.double().sum()) for param in model.parameters()]
result = [comm.world_size, step, scheduler.last_epoch, *scheduler.get_last_lr(), *sums]
"""


@pytest.mark.one_transport
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_optimizers_and_schedules_go_on_after_a_death_and_with_a_newcomer(
    torch_job: Callable[..., Job], transport: str
) -> None:
    ranks = torch_job(3, transport=transport, secret=SECRET)
    point = ranks.ranks[0].call("result = comm.meeting_point")
    ranks.call(SETUP)
    victim, survivors = ranks.ranks[1], ranks.others(1)
    victim.begin(LOOP.replace("step += 1", "step += 1; step == 3 and say('on the way')"))
    for rank in survivors:
        rank.begin(LOOP)
    victim.expect("on the way")
    victim.kill()
    newcomer = ranks.spawn(3)
    newcomer.begin(f"comm = gr.join({point!r}, secret={SECRET!r}, timeout=30)" + SETUP + LOOP)
    ends = [outcome.result for outcome in ranks.outcomes([*survivors, newcomer])]
    assert ends[0] is not None
    assert ends[0] == ends[1] == ends[2]
    size, step, epoch = ends[0][:3]
    assert size == 3
    assert step == epoch >= 8


def train(model: Any, optimizer: Any, numbers: range, scheduler: Any = None) -> None:
    for number in numbers:
        x, y = batch(number, 4)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def adam(model: Any) -> tuple[Any, StepLR]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return optimizer, StepLR(optimizer, step_size=2, gamma=0.5)


@pytest.mark.parametrize("again", [False, True])
def test_a_schedule_may_be_there_before_the_optimizer_is_distributed(
    world: GetWorld, again: bool
) -> None:
    def steps(comm: Any) -> tuple[Tensors, list[float]]:
        model = mlp()
        optimizer, scheduler = adam(model)
        if comm is not None:
            gt.distributed(optimizer, comm=comm)
        train(model, optimizer, range(3), scheduler)
        if comm is not None and again:
            optimizer.close()
            gt.distributed(optimizer, comm=comm)
        train(model, optimizer, range(3, 6), scheduler)
        return values(model), scheduler.get_last_lr()

    expected, rates = steps(None)
    for ours, own in world(2, "shm").run(steps):
        assert are_same(ours, expected)  # (g + g) / 2 is g, bit for bit.
        assert own == rates


def test_a_step_that_was_begun_in_other_ranks_is_forgotten(world: GetWorld) -> None:
    def steps(comm: Any) -> Tensors:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        group = comm.split(0)
        gt.distributed(optimizer, comm=group)
        with optimizer.no_sync():
            model(torch.ones(2, 6)).sum().backward()
        group.close()
        gt.distributed(optimizer, comm=comm)
        x, y = batch(0, 4)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        return values(model)

    model = mlp()
    train(model, torch.optim.SGD(model.parameters(), lr=0.5), range(1))
    assert all(are_same(ours, values(model)) for ours in world(2, "shm").run(steps))


def test_one_that_could_not_go_on_may_be_given_again(world: GetWorld) -> None:
    def steps(comm: Any) -> Tensors:
        model = mlp()
        optimizer = gt.distributed(adam(model)[0], model=model, comm=comm)
        train(model, optimizer, range(2))
        optimizer.close()
        with pytest.raises(gr.Mismatch, match="clip_norm"):
            gt.distributed(optimizer, model=model, comm=comm, clip_norm=comm.rank + 1)
        with pytest.raises(gr.Closed, match="this optimizer is closed"):
            optimizer.step()
        gt.distributed(optimizer, model=model, comm=comm)
        train(model, optimizer, range(2, 4))
        return values(model)

    first, second = world(2, "shm").run(steps)
    assert are_same(first, second)
    model = mlp()
    train(model, adam(model)[0], range(4))
    assert are_same(first, values(model))


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_loop_over_uneven_batches_does_not_go_on_in_other_ranks(
    world: GetWorld, is_alone: bool
) -> None:
    def steps(comm: Any) -> None:
        model, group = mlp(), comm.split(comm.rank if is_alone else 0)
        optimizer = gt.distributed(adam(model)[0], comm=group)
        for number in optimizer.uneven(range(3)):
            assert number == 0
            train(model, optimizer, range(1))
            comm.barrier()
            group.close()
            gt.distributed(optimizer, comm=comm)

    for error in world(2, "shm").errors(steps):
        assert isinstance(error, gr.Closed)
        assert "goes on in other ranks than those of this loop" in str(error)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_scaler_goes_on_after_a_step_that_a_lost_rank_has_ended(
    world: GetWorld, overlap: bool
) -> None:
    def steps(comm: Any) -> Tensors:
        model, scaler = mlp(), torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer, scheduler = adam(model)
        options = {"model": model, "overlap": overlap}

        def step(number: int) -> None:
            x, y = batch(number, 4)
            optimizer.zero_grad()
            scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()

        if comm is not None:
            gt.distributed(optimizer, comm=comm.split(0), **options)
        step(0)
        if comm is not None:
            if comm.rank == 1:
                optimizer.abandon()
            else:
                with pytest.raises(gr.PeerLost):
                    step(1)
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            gt.broadcast_state(parts | {"scaler": scaler}, comm=comm)
            gt.distributed(optimizer, comm=comm, **options)
        step(1)
        step(2)
        return values(model)

    expected = steps(None)
    assert all(are_same(ours, expected) for ours in world(2, "shm").run(steps))


def test_one_whose_ranks_are_there_or_that_is_to_go_to_servers_is_refused(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    group = comm.split(0)
    optimizer = gt.distributed(torch.optim.SGD(mlp().parameters(), lr=0.1), comm=group)
    with pytest.raises(gr.InvalidArgument, match=r"its ranks are there; close\(\) it before"):
        gt.distributed(optimizer, comm=comm)
    group.close()
    with pytest.raises(gr.InvalidArgument, match="make another one for this mode"):
        gt.distributed(optimizer, gr.Async(), comm=comm, ps=ExactServer().client(0))
    gt.distributed(optimizer, comm=comm).close()
    gt.distributed(optimizer, comm=comm).close()  # Alone as with others.


@pytest.mark.parametrize("is_closed", [True, False])
def test_rows_on_servers_go_on_with_it(world: GetWorld, is_closed: bool) -> None:
    server = ExactServer()

    def steps(comm: Any) -> tuple[float, float]:
        model, ps = Clicks(), server.client(comm.rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(2):
            group = comm.split(0)
            gt.distributed(optimizer, model=model, comm=group, ps=ps)
            optimizer.zero_grad()
            model(1.0, comm.rank).backward()
            optimizer.step()
            optimizer.flush()
            comm.barrier()
            if is_closed:
                optimizer.close()
            group.close()
        return model.state()

    assert world(2, "shm").run(steps) == [(-2.0, -1.0)] * 2
