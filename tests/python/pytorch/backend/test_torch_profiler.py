"""torch.profiler shows what goes between ranks: the backend's calls, and gradients on their way."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import gradring.torch as gt
from conftest import GetWorld
from torch_ranks import on_ranks


def shown(job: Any) -> dict[str, list[float]]:
    """How long each of our ranges was, in microseconds, in the order of their beginnings."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        job()
    found: dict[str, list[float]] = {}
    for event in sorted(profiler.events(), key=lambda event: event.time_range.start):
        if event.name.startswith("gradring::"):
            found.setdefault(event.name, []).append(event.time_range.elapsed_us())
    return found


def calls() -> dict[str, list[float]]:
    """All kinds of calls; the second all_reduce is done when rank 0 has had its message."""
    rank, x, outs = dist.get_rank(), torch.ones(4), [torch.empty(4) for _ in range(2)]

    def job() -> None:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather(outs, x)
        dist.all_to_all_single(torch.empty(4), x)
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            dist.recv(x.clone(), 1)
            dist.send(x.clone(), 1)
            work.wait()
        else:
            dist.send(x.clone(), 0)
            dist.recv(x.clone(), 0)
            dist.all_reduce(x)
        dist.barrier()

    return shown(job)


def test_the_backends_calls_are_shown_until_their_work_ends() -> None:
    first, second = on_ranks(2, calls)
    for found in (first, second):
        assert {name: len(each) for name, each in found.items()} == {
            "gradring::all_reduce": 2, "gradring::broadcast": 1, "gradring::all_gather": 1,
            "gradring::all_to_all": 1, "gradring::send": 1, "gradring::recv": 1,
            "gradring::barrier": 1,
        }  # fmt: skip
    # Between its beginning and its end both messages went.
    assert first["gradring::all_reduce"][1] > first["gradring::recv"][0]


def test_gradients_and_batch_norms_of_an_optimizer_are_shown(world: GetWorld) -> None:
    def job(comm: Any) -> Any:
        model = gt.sync_batch_norm(
            torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), comm
        )
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=0.1), model=model, comm=comm
        )

        def step() -> None:
            model(torch.rand(4, 2)).square().sum().backward()

        # A profiler is of one thread, so only one of ours asks for one.
        found = shown(step) if comm.rank == 0 else step()
        optimizer.step()
        optimizer.close()
        return found

    found = world(2, "shm").run(job)[0]
    assert {name: len(each) for name, each in found.items()} == {
        "gradring::all_gather": 1, "gradring::all_reduce": 1, "gradring::send_gradients": 1,
        "gradring::wait_for_gradients": 1,
    }  # fmt: skip
