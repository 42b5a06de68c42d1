"""Batch norm over ranks beside what else ranks do: averages, loops, DDP, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from thread_ranks import ThreadWorld
from torch_models import are_same, part, values
from torch_ranks import on_ranks

CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def small(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4),
              nn.Linear(4, 1)]  # fmt: skip
    model = nn.Sequential(*layers).to(dtype)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.rand(param.shape, generator=random) - 0.25)
    return model


def rows(step: int, count: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(step)
    return torch.randn(count, 3, generator=random, dtype=torch.float64) * 2 + 1


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)


# Rows of each batch of each rank; some run out, and the first rank is not the last to do so.
UNEVEN = [[[3, 2], [4, 4, 1, 5], [2, 6, 3]], [[], [4, 3], [5]], [[2, 2, 2], [4]]]


@pytest.mark.parametrize("sizes", UNEVEN, ids=str)
def test_ranks_that_run_out_are_left_out_and_keep_the_others_means(
    world: GetWorld, sizes: list[list[int]]
) -> None:
    steps = max(map(len, sizes))
    padded = [[*each, *[0] * (steps - len(each))] for each in sizes]
    counts = [[each[step] for each in padded] for step in range(steps)]

    def job(comm: Any) -> list[torch.Tensor]:
        model = gt.sync_batch_norm(small(), comm)
        optimizer = gt.distributed(sgd(model), model=model, comm=comm)
        for epoch in range(2):
            batches = [
                part(comm, counts[step], rows(step + 10 * epoch, sum(counts[step])))
                for step in range(len(sizes[comm.rank]))
            ]
            for batch in optimizer.uneven(batches, weight=len):
                optimizer.zero_grad()
                if batch is not None:
                    model(batch).square().mean().backward()
                optimizer.step()
        assert model[1].ranks.group is model[1].ranks.comm
        optimizer.close()
        return values(model)

    alone = small()
    optimizer = sgd(alone)
    for epoch in range(2):
        for step in range(steps):
            optimizer.zero_grad()
            alone(rows(step + 10 * epoch, sum(counts[step]))).square().mean().backward()
            optimizer.step()
    results = world(len(sizes), "shm").run(job)
    for found in results:
        torch.testing.assert_close(found, values(alone), **CLOSE)
        assert are_same(found, results[0])


def test_an_evaluation_of_unequal_parts_inside_a_loop_takes_no_running_means_back(
    world: GetWorld,
) -> None:
    """Rank 1, which has learned nothing of the last batches, is the last one to evaluate."""

    def job(comm: Any) -> tuple[list[int], torch.Tensor]:
        model = gt.sync_batch_norm(small(), comm)
        optimizer = gt.distributed(sgd(model), model=model, comm=comm)
        counts = []
        for batch in optimizer.uneven([rows(step, 4) for step in range(3 - 2 * comm.rank)]):
            if batch is not None:
                model(batch).sum().backward()
            optimizer.step()
            model.eval()
            for examples in optimizer.uneven([rows(9, 2)] * (1 + comm.rank)):
                counts.append(int(model[1].num_batches_tracked))
                if examples is not None:
                    model(examples)
            model.train()
            optimizer.zero_grad()
        optimizer.close()
        return counts, model[1].running_mean

    (counts, mean), (also, same) = world(2, "shm").run(job)
    assert counts == also == [1, 1, 2, 2, 3, 3]
    assert torch.equal(mean, same)


def test_a_rank_that_has_run_out_normalises_nothing(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        model = gt.sync_batch_norm(small(), comm)
        optimizer = gt.distributed(sgd(model), model=model, comm=comm)
        for batch in optimizer.uneven([rows(0, 4)] * (comm.rank + 1)):
            optimizer.zero_grad()
            if batch is None:
                assert model(rows(0, 0)).shape == (0, 1)
                with pytest.raises(gr.InvalidArgument, match="has run out of batches"):
                    model(rows(0, 4))
            else:
                model(batch).sum().backward()
            optimizer.step()
        optimizer.close()

    world(2, "shm").run(job)


def test_accumulated_batches_count_as_on_one_process(world: GetWorld) -> None:
    counts = [[5, 2], [3, 4]]  # Of each of two backward passes of a step.

    def job(comm: Any) -> list[torch.Tensor]:
        model = gt.sync_batch_norm(small(), comm)
        optimizer = gt.distributed(sgd(model), model=model, comm=comm)
        own = sum(each[comm.rank] for each in counts)
        optimizer.set_weight(own)
        first, second = (
            model(part(comm, each, rows(step, sum(each)))).square().sum() / own
            for step, each in enumerate(counts)
        )
        with optimizer.no_sync():
            first.backward()
        second.backward()
        optimizer.step()
        optimizer.close()
        return values(model)

    alone = small()
    optimizer = sgd(alone)
    for step, each in enumerate(counts):
        (alone(rows(step, sum(each))).square().sum() / 14).backward()
    optimizer.step()
    for found in world(2, "shm").run(job):
        torch.testing.assert_close(found, values(alone), **CLOSE)


def test_where_servers_step_a_rank_without_a_batch_runs_an_empty_one(world: GetWorld) -> None:
    counts, server = [[5, 2], [3, 0]], ExactServer()

    def job(comm: Any) -> list[torch.Tensor]:
        model = gt.sync_batch_norm(small(torch.float32), comm)
        optimizer = gt.distributed(
            sgd(model), gr.Sync(via="ps"), model=model, comm=comm, ps=server.client(comm.rank)
        )
        batches = [
            part(comm, each, rows(step, sum(each)).float()) for step, each in enumerate(counts)
        ]
        for batch in optimizer.uneven([each for each in batches if len(each)], weight=len):
            optimizer.zero_grad()
            model(rows(0, 0).float() if batch is None else batch).square().mean().backward()
            optimizer.step()
        optimizer.close()
        return values(model)

    alone = small(torch.float32)
    optimizer = sgd(alone)
    for step, each in enumerate(counts):
        optimizer.zero_grad()
        alone(rows(step, sum(each)).float()).square().mean().backward()
        optimizer.step()
    for found in world(2, "shm").run(job):
        torch.testing.assert_close(found, values(alone), rtol=1e-4, atol=1e-5)


def in_ddp() -> Any:
    model = gt.sync_batch_norm(small())
    ddp = DistributedDataParallel(model, bucket_cap_mb=1e-5)
    optimizer = sgd(model)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(4):
        optimizer.zero_grad()
        ddp(rows(step, 4 * size)[4 * rank : 4 * rank + 4]).square().mean().backward()
        optimizer.step()
    made = [gt.SyncBatchNorm(3, dtype=torch.float64) for _ in range(2)]  # One communicator.
    for layer in made:
        layer(rows(rank, 4))
    assert made[0].ranks.comm is made[1].ranks.comm
    return values(model)


@pytest.mark.parametrize("backend", ["gradring", "gloo"])
def test_ddp_trains_as_one_process_does(backend: str) -> None:
    alone = small()
    optimizer = sgd(alone)
    for step in range(4):
        optimizer.zero_grad()
        alone(rows(step, 8)).square().mean().backward()
        optimizer.step()
    for found in on_ranks(2, in_ddp, backend=backend):
        torch.testing.assert_close(list(map(torch.tensor, found)), values(alone), **CLOSE)


def test_other_channels_and_layers_are_told_by_name(world: GetWorld) -> None:
    def other_channels(comm: Any) -> None:
        layer = gt.SyncBatchNorm(2 + comm.rank, comm=comm)
        layer(torch.rand(4, 2 + comm.rank))

    for error in world(2, "shm").errors(other_channels):
        assert isinstance(error, gr.Mismatch)
        assert "SyncBatchNorm of " in str(error)

    def other_layer(comm: Any) -> None:
        model = gt.sync_batch_norm(small(), comm)
        model[1 if comm.rank == 0 else 4](rows(0, 4) @ torch.ones(3, 4, dtype=torch.float64))

    for error in world(2, "shm").errors(other_layer):
        assert isinstance(error, gr.Mismatch)
        assert "rank 0 is at batch norm 0 of its model, and rank 1 at 1" in str(error)

    def other_model(comm: Any) -> None:
        gt.sync_batch_norm(nn.Sequential(nn.BatchNorm1d(2, momentum=0.5 + comm.rank)), comm)

    for error in world(2, "shm").errors(other_model):
        assert isinstance(error, gr.Mismatch)
        assert "rank 1 has batch norm 0 of 2 channels, eps=1e-05, momentum=1.5" in str(error)


def test_a_rank_that_waits_in_vain_is_told_of_which_layer_and_what_to_do(
    fresh_world: Callable[..., ThreadWorld],
) -> None:
    def job(comm: Any) -> nn.Module:
        layer = gt.sync_batch_norm(nn.BatchNorm1d(3), comm)
        if comm.rank == 0:
            with pytest.raises(gr.TimedOut, match=r"SyncBatchNorm of 3 channels: .* empty batch"):
                layer(torch.rand(4, 3))
            with pytest.raises(gr.Closed, match=r"of 3 channels: .*sync_batch_norm\(model"):
                layer(torch.rand(4, 3))
        return layer  # Its communicator would be closed with it.

    fresh_world(2, "shm", timeout=0.5).run(job)


def test_an_input_that_needs_a_gradient_on_one_rank_only_is_refused_before_one_waits(
    world: GetWorld,
) -> None:
    def job(comm: Any) -> None:
        layer = gt.sync_batch_norm(nn.BatchNorm1d(2), comm)
        layer(torch.rand(4, 2, requires_grad=comm.rank == 1))

    for error in world(2, "shm").errors(job):
        assert isinstance(error, gr.Mismatch)
        assert "needs a gradient" in str(error)


def test_one_number_a_channel_is_refused_on_all_ranks_and_changes_nothing(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        layer = gt.sync_batch_norm(nn.BatchNorm1d(2), comm)
        with pytest.raises(gr.InvalidArgument, match="together have 1 values per channel"):
            layer(torch.rand(comm.rank, 2))
        assert layer.num_batches_tracked == 0
        layer(torch.rand(1, 2))

    world(2, "shm").run(job)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.LazyBatchNorm2d()), "0 is a LazyBatchNorm2d that does not know"),
        (nn.Sequential(type("Own", (nn.BatchNorm2d,), {})(2)), "0 is a Own, a batch norm that may"),
        (7, "model is a int"),
    ],
)
def test_what_is_no_plain_batch_norm_is_refused_by_name(
    world: GetWorld, model: Any, said: str
) -> None:
    def job(comm: Any) -> None:
        with pytest.raises(gr.InvalidArgument, match=said):
            gt.sync_batch_norm(model, comm)

    world(1, "shm").run(job)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_scripted_batch_norm_is_refused_by_name(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        model = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        with pytest.raises(gr.InvalidArgument, match=r"1 is a BatchNorm1d that torch\.jit\.script"):
            gt.sync_batch_norm(model, comm)
        gt.sync_batch_norm(torch.jit.script(nn.Sequential(nn.Linear(2, 2))), comm)

    world(1, "shm").run(job)


def test_a_batch_that_does_not_fit_is_refused_before_anything_is_sent(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        layer = gt.SyncBatchNorm(3, comm=comm)
        if comm.rank == 0:
            for shape in ((4, 2), (3,)):
                with pytest.raises(gr.InvalidArgument, match="of 3 channels got a batch of shape"):
                    layer(torch.rand(shape))
            with pytest.raises(gr.InvalidArgument, match=r"a batch of torch\.complex64"):
                layer(torch.ones(4, 3, dtype=torch.complex64))
        layer(torch.rand(4, 3))

    world(2, "shm").run(job)


@pytest.mark.parametrize("mode", [gr.Async(), gr.Geo(), gr.BoundedStaleness(2)], ids=str)
def test_modes_whose_workers_do_not_step_together_refuse_it(world: GetWorld, mode: Any) -> None:
    def job(comm: Any) -> None:
        model = gt.sync_batch_norm(small(torch.float32), comm)
        with pytest.raises(gr.InvalidArgument, match="leave its batch norms as they are"):
            gt.distributed(sgd(model), mode, model=model, comm=comm)

    world(1, "shm").run(job)


def test_a_second_call_takes_the_layers_to_other_ranks(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        layer = gt.sync_batch_norm(nn.BatchNorm1d(1, momentum=1.0), comm)
        with comm.split(comm.rank // 2) as pair:
            gt.sync_batch_norm(layer, pair)
            layer(torch.full((2, 1), float(comm.rank)))
            assert layer.running_mean.item() == 2 * (comm.rank // 2) + 0.5

    world(4, "shm").run(job)


def test_models_on_threads_of_their_own_do_not_meet(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        models = [gt.sync_batch_norm(nn.BatchNorm1d(1, momentum=1.0), comm) for _ in range(2)]
        order = [0, 1] if comm.rank == 0 else [1, 0]  # As threads may come.

        def run(index: int) -> None:
            models[index](torch.tensor([[index + 1.0], [index + 3.0 + comm.rank]]))

        threads = [threading.Thread(target=run, args=(index,)) for index in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [model.running_mean.item() for model in models] == [2.25, 3.25]

    world(2, "shm").run(job)
