"""When gradients travel: during backward, once a step, and whatever a rank has or lacks."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from torch_models import Tensors, are_same, batch, mlp, part, values


def sgd(net: nn.Module, comm: Any, **options: Any) -> Any:
    return gt.distributed(torch.optim.SGD(net.parameters(), lr=0.5), comm=comm, **options)


def test_buckets_start_while_backward_still_computes_other_gradients(world: GetWorld) -> None:
    def events(comm: Any) -> list[str]:
        seen: list[str] = []
        model = mlp()
        optimizer = sgd(model, comm, bucket_bytes=64)
        for name, param in model.named_parameters():
            param.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name))
        gradients_comm = optimizer._averager.comm
        start = gradients_comm.average_bucket

        def spy(*arguments: Any) -> Any:
            seen.append("start")
            return start(*arguments)

        gradients_comm.average_bucket = spy
        F.mse_loss(model(batch(0, 4)[0]), batch(0, 4)[1]).backward()
        seen.append("backward ended")
        optimizer.step()
        return seen

    for seen in world(2, "shm").run(events):
        first_layer = seen.index("0.weight")
        assert seen[:first_layer].count("start") >= 3
        assert seen.index("backward ended") == len(seen) - 1


def test_only_the_last_backward_of_an_accumulated_step_sends(world: GetWorld) -> None:
    def train(comm: Any) -> Tensors:
        model = mlp()
        optimizer = sgd(model, comm)
        x, y = (part(comm, [6, 6], t) for t in batch(0, 12))
        for begin in (0, 2, 4):
            loss = F.mse_loss(model(x[begin : begin + 2]), y[begin : begin + 2]) / 3
            if begin < 4:
                with optimizer.no_sync():
                    loss.backward()
                assert not optimizer._averager.is_open
            else:
                loss.backward()
        optimizer.step()
        return values(model)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = batch(0, 12)
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    for parameters in world(2, "shm").run(train):
        for ours, theirs in zip(parameters, values(model), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_parameter_unused_here_counts_as_zero_and_unused_everywhere_keeps_no_gradient(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> list[float | None]:
        params = [nn.Parameter(torch.ones(1)) for _ in range(3)]
        optimizer = gt.distributed(torch.optim.SGD(params, lr=1), comm=comm, bucket_bytes=8)
        for _ in range(2):
            optimizer.zero_grad()
            loss = params[2] * 2
            if comm.rank == 0:
                loss = loss + params[0] * 3
            loss.backward()
            optimizer.synchronize()
            grads = [None if param.grad is None else float(param.grad) for param in params]
            optimizer.step()
        return [*grads, *(param.item() for param in params)]

    for result in world(3, "shm").run(train):
        assert result == [1, None, 2, 1 - 2 * 1, 1, 1 - 2 * 2]


def test_ranks_with_more_batches_go_on_and_ranks_without_any_follow(world: GetWorld) -> None:
    counts = [[4, 4, 3], [4, 2], []]  # Examples in each batch of each rank.

    def train(comm: Any) -> tuple[list[float], Tensors]:
        model = mlp()
        optimizer = gt.distributed(torch.optim.Adam(model.parameters(), lr=0.1), comm=comm)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        mine = [batch(10 * comm.rank + step, n) for step, n in enumerate(counts[comm.rank])]
        rates = []
        for pair in optimizer.uneven(mine, weight=lambda pair: len(pair[0])):
            optimizer.zero_grad()
            if pair is not None:
                F.mse_loss(model(pair[0]), pair[1]).backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            rates.append(scheduler.get_last_lr()[0])
        return rates, values(model)

    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(3):
        pairs = [batch(10 * r + step, n[step]) for r, n in enumerate(counts) if step < len(n)]
        x, y = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()

    results = world(3, "shm").run(train)
    for rates, parameters in results:
        assert rates == [0.05, 0.025, 0.0125]
        assert are_same(parameters, results[0][1])
        for ours, theirs in zip(parameters, values(model), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_other_collectives_may_come_between_backward_and_step(world: GetWorld) -> None:
    def train(comm: Any) -> tuple[float, float]:
        params = [nn.Parameter(torch.zeros(1)) for _ in range(4)]
        optimizer = gt.distributed(torch.optim.SGD(params, lr=1), comm=comm, bucket_bytes=4)
        # Ranks have sent different numbers of buckets when they make their own call.
        sum(params[comm.rank :]).backward()
        loss = float(comm.all_reduce(torch.ones(1)))
        optimizer.step()
        return loss, params[3].item()

    assert world(4, "shm").run(train) == [(4, -1)] * 4


def test_an_optimizer_that_calls_a_closure_many_times_sees_averages(world: GetWorld) -> None:
    x, y = batch(0, 12, torch.float64)

    def train(model: nn.Module, optimizer: Any, x: Any, y: Any) -> Tensors:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        for _ in range(2):
            if isinstance(optimizer, gt.DistributedOptimizer):
                optimizer.set_weight(len(x))
            optimizer.step(closure)
        return values(model)

    def make(model: nn.Module) -> Any:
        return torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def together(comm: Any) -> Tensors:
        model = mlp(comm.rank, torch.float64)
        optimizer = gt.distributed(make(model), comm=comm)
        return train(model, optimizer, *(part(comm, [5, 7], t) for t in (x, y)))

    model = mlp(0, torch.float64)
    alone = train(model, make(model), x, y)
    results = world(2, "shm").run(together)
    assert are_same(*results)
    for ours, theirs in zip(results[0], alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, None])
def test_a_rank_without_a_batch_searches_with_the_loss_of_the_others(
    world: GetWorld, dtype: torch.dtype | None
) -> None:
    def train(comm: Any) -> list[Any]:
        param = nn.Parameter(torch.zeros(1))
        optimizer = sgd(nn.ParameterList([param]), comm)

        def closure(value: float | None) -> Any:
            if value is None:
                return None
            optimizer.zero_grad()
            (param * value).backward()
            return value / 3 if dtype is None else torch.tensor(value / 3, dtype=dtype)

        batches = optimizer.uneven([1.0, 2.0, 4.0][: 3 - comm.rank])
        losses = [optimizer.step(lambda value=value: closure(value)) for value in batches]
        return [*losses, param.item()]

    results = world(2, "shm").run(train)
    expected = [1 / 3, 2 / 3, 4 / 3]
    if dtype is not None:
        expected = [torch.tensor(each, dtype=dtype) for each in expected]
    assert results[0] == results[1] == [*expected, -0.5 * (1 + 2 + 4)]
    assert all(getattr(loss, "dtype", None) == dtype for loss in results[1][:3])


def test_a_closure_may_return_no_loss_anywhere(world: GetWorld) -> None:
    def train(comm: Any) -> list[Any]:
        param = nn.Parameter(torch.zeros(1))
        optimizer = sgd(nn.ParameterList([param]), comm)
        return [optimizer.step((param * 2 * comm.rank).backward), param.item()]

    assert world(2, "shm").run(train) == [[None, -0.5]] * 2


def test_a_step_that_all_ranks_drop_leaves_no_trace(world: GetWorld) -> None:
    def train(comm: Any, is_dropping: bool) -> Tensors:
        model = mlp()
        optimizer = sgd(model, comm, bucket_bytes=64)
        if is_dropping:
            model[4](torch.ones(1, 8) * (1 + comm.rank)).sum().backward()  # Only the last layer.
            optimizer.zero_grad()
        F.mse_loss(model(batch(0, 4)[0]), batch(0, 4)[1]).backward()
        optimizer.step()
        return values(model)

    ranks = world(2, "shm")
    dropped = ranks.run(lambda comm: train(comm, True))
    assert are_same(dropped[0], dropped[1])
    assert are_same(dropped[0], ranks.run(lambda comm: train(comm, False))[0])


def test_a_second_backward_before_the_step_is_refused_with_the_way_out(world: GetWorld) -> None:
    def train(comm: Any) -> None:
        model = mlp()
        optimizer = sgd(model, comm, model=model)
        loss = model(batch(0, 4)[0]).sum()
        loss.backward(retain_graph=True)
        with pytest.raises(gr.InvalidArgument, match=r"^4\.(weight|bias) got another .*no_sync"):
            loss.backward()
        optimizer.zero_grad()
        model(batch(0, 4)[0]).sum().backward()
        optimizer.step()

    world(2, "shm").run(train)


def test_a_weight_that_comes_too_late_is_refused_and_without_overlap_it_is_in_time(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> float:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        param.backward()
        with pytest.raises(gr.InvalidArgument, match="too late"):
            optimizer.step(weight=3)
        optimizer.step(weight=1)

        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm, overlap=False)
        for _ in range(2):
            optimizer.zero_grad()
            (param * 4 * comm.rank).backward()
            optimizer.step(weight=3 if comm.rank else 1)
        return param.item()

    assert world(2, "shm").run(train) == [-6, -6]


def test_a_forgotten_optimizer_stops_listening(world: GetWorld) -> None:
    def train(comm: Any) -> float:
        param = nn.Parameter(torch.zeros(1))
        gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        (param * (1 + comm.rank)).backward()
        optimizer.step()
        return param.item()

    assert world(2, "shm").run(train) == [-1.5, -1.5]


def test_different_models_are_a_mismatch_on_every_rank_that_names_the_parameter(
    world: GetWorld,
) -> None:
    def wrong_shape(comm: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4 + comm.rank // 2))
        sgd(model, comm, model=model)

    def wrong_dtype(comm: Any) -> None:
        sgd(mlp(dtype=torch.float64 if comm.rank == 1 else torch.float32), comm)

    def wrong_number(comm: Any) -> None:
        sgd(nn.Linear(3, 2, bias=comm.rank == 0), comm)

    ranks = world(3, "shm")
    for call, text in (
        (wrong_shape, "1.weight is float32[4, 2] on rank 0, float32[5, 2] on rank 2"),
        (wrong_dtype, "parameter 0 of group 0 is float32[8, 6] on rank 0, float64[8, 6] on rank 1"),
        (wrong_number, "rank 0 has 2 tensors, rank 1 has 1"),
    ):
        for error in ranks.errors(call):
            assert isinstance(error, gr.Mismatch)
            assert text in str(error)
    assert ranks.is_usable


def test_what_cannot_be_distributed_is_refused(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    for arguments, text in (
        ({"optimizer": model}, "not a torch.optim.Optimizer"),
        ({"optimizer": optimizer, "mode": "sync"}, "mode 'sync'"),
        ({"optimizer": optimizer, "bucket_bytes": 0}, "bucket_bytes"),
        ({"optimizer": optimizer, "bucket_bytes": 1.5}, "bucket_bytes must be a whole number"),
        ({"optimizer": optimizer, "bucket_bytes": True}, "bucket_bytes must be positive, got True"),
        ({"optimizer": optimizer, "overlap": "no"}, "overlap must be True or False, got 'no'"),
        ({"optimizer": optimizer, "ps": 3}, "ps is a int; give what"),
        ({"optimizer": torch.optim.SGD(mlp().to("meta").parameters(), lr=1)}, "is on meta"),
    ):
        with pytest.raises(gr.Error, match=text):
            gt.distributed(**arguments, comm=comm)
    gt.distributed(optimizer, comm=comm)
    with pytest.raises(gr.InvalidArgument, match="already"):
        gt.distributed(optimizer, comm=comm)
    with pytest.raises(gr.InvalidArgument, match="model"):
        optimizer.share_buffers()
    patched: Any = torch.optim.SGD(model.parameters(), lr=1)
    torch.optim.lr_scheduler.StepLR(patched, 1)
    patched.step = functools.wraps(patched.step)(lambda: None)  # With the scheduler's mark.
    with pytest.raises(gr.InvalidArgument, match="step has been replaced"):
        gt.distributed(patched, comm=comm)


def test_buffers_of_rank_0_are_shared_on_request(world: GetWorld) -> None:
    def train(comm: Any) -> list[float]:
        model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
        optimizer = sgd(model, comm, model=model)
        model(torch.full((4, 1), 10.0 * (1 + comm.rank)))
        optimizer.share_buffers()
        return [float(value) for value in model.buffers()]

    results = world(2, "shm").run(train)
    assert results[0] == results[1]
    assert results[0][0] == 1  # A tenth of the mean that rank 0 saw.


def test_all_ranks_with_weight_zero_are_an_error_on_all_and_the_next_step_works(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> float:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        with pytest.raises(gr.InvalidArgument, match="weight 0"):
            optimizer.step(weight=0)
        optimizer.set_weight(2)
        param.backward()
        optimizer.step()
        return param.item()

    assert world(2, "shm").run(train) == [-1, -1]
