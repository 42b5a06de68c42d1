"""gradring.torch in real training loops: what PyTorch offers goes on to work, on averages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from thread_ranks import TRANSPORTS
from torch_models import Tensors, are_same, batch, mlp, part, values


def sgd(model: nn.Module, comm: Any, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return gt.distributed(optimizer, comm=comm, model=model, **options)


def close(ours: Tensors, theirs: Tensors, tolerance: float = 1e-5) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def trained_alone(steps: int) -> Tensors:
    """The same model after steps of plain PyTorch over batches of 8."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(steps):
        x, y = batch(step, 8)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return values(model)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_gradients_are_averages_when_backward_returns(world: GetWorld, transport: str) -> None:
    def train(comm: Any) -> Tensors:
        model = mlp()
        optimizer = sgd(model, comm, bucket_bytes=256)
        for step in range(3):  # The buckets change after the first.
            optimizer.zero_grad()
            x, y = (part(comm, [4, 4, 4], t) for t in batch(step, 12))
            F.mse_loss(model(x), y).backward()
        return [param.grad.clone() for param in model.parameters() if param.grad is not None]

    model = mlp()
    x, y = batch(2, 12)
    F.mse_loss(model(x), y).backward()
    results = world(3, transport).run(train)
    close(results[0], [param.grad for param in model.parameters() if param.grad is not None])
    assert all(are_same(result, results[0]) for result in results)


def test_gradients_are_views_of_buckets_and_are_not_copied_once_they_are(world: GetWorld) -> None:
    def train(comm: Any) -> bool:
        model = mlp()
        optimizer = sgd(model, comm)
        places = []
        for step in range(4):
            optimizer.zero_grad(set_to_none=False)
            x, y = batch(step, 4)
            F.mse_loss(model(x), y).backward()
            places.append([param.grad.data_ptr() for param in model.parameters()])  # type: ignore[union-attr]
        (bucket,) = optimizer._averager._layout.buckets
        begin = bucket.values.data_ptr()
        return places[2] == places[3] and min(places[3]) == begin

    assert world(2, "shm").run(train) == [True, True]


def test_the_order_of_backward_is_learned_and_is_rank_0s_everywhere(world: GetWorld) -> None:
    class Crossed(nn.Module):
        """Uses its layers in another order than it lists them; rank 1 in yet another."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(4)])
            self.order = [2, 0, 3, 1] if rank == 0 else [0, 1, 2, 3]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for index in self.order:
                x = torch.tanh(self.layers[index](x))
            return x

    def train(comm: Any) -> tuple[list[list[int]], Tensors]:
        torch.manual_seed(0)
        model = Crossed(comm.rank)
        optimizer = sgd(model, comm, bucket_bytes=64)
        for step in range(4):
            optimizer.zero_grad()
            model(batch(step, 4)[0][:, :4]).sum().backward()
            optimizer.step()
        return optimizer._averager._layout.groups, values(model)

    (layout, parameters), *others = world(3, "shm").run(train)
    assert layout == [[1], [3], [0], [2]]
    for other_layout, other_parameters in others:
        assert other_layout == layout
        assert are_same(other_parameters, parameters)


def test_frozen_and_tied_parameters_train_as_in_one_process(world: GetWorld) -> None:
    def make() -> nn.Sequential:
        model = mlp()
        model.append(nn.Linear(3, 8))
        model.append(model[2])  # The same layer once more.
        with torch.no_grad():
            model[5].weight.copy_(torch.eye(8)[:, :3])
            model[5].bias.zero_()
        model[0].bias.requires_grad_(False)
        return model

    def train(model: nn.Module, optimizer: Any, cut: Any) -> Tensors:
        for step in range(4):
            x, y = (cut(t) for t in batch(step, 8))
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, :3], y).backward()
            optimizer.step()
        return values(model)

    def together(comm: Any) -> Tensors:
        model = make()
        return train(model, sgd(model, comm, bucket_bytes=128), lambda t: part(comm, [4, 4], t))

    model = make()
    alone = train(model, torch.optim.SGD(model.parameters(), lr=0.5), lambda t: t)
    results = world(2, "shm").run(together)
    assert are_same(*results)
    close(results[0], alone)
    assert torch.equal(results[0][1], make()[0].bias)


def test_clip_norm_clips_the_norm_of_the_averages(world: GetWorld) -> None:
    def train(model: nn.Module, optimizer: Any, cut: Any) -> Tensors:
        for step in range(3):
            x, y = (cut(t) for t in batch(step, 8))
            optimizer.zero_grad()
            (100 * F.mse_loss(model(x), y)).backward()
            if not isinstance(optimizer, gt.DistributedOptimizer):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        return values(model)

    def together(comm: Any) -> tuple[Tensors, float]:
        model = mlp()
        optimizer = sgd(model, comm, clip_norm=0.1)
        counts = [8 // comm.world_size] * comm.world_size
        return train(model, optimizer, lambda t: part(comm, counts, t)), float(optimizer.grad_norm)

    model = mlp()
    alone = train(model, torch.optim.SGD(model.parameters(), lr=0.5), lambda t: t)
    for size in (1, 2):
        results = world(size, "shm").run(together)
        for parameters, norm in results:
            assert are_same(parameters, results[0][0])
            assert norm == results[0][1] > 1
            close(parameters, alone)
    with pytest.raises(gr.InvalidArgument, match="clip_norm"):
        gt.distributed(
            torch.optim.SGD(mlp().parameters()), clip_norm=0, comm=world(1, "shm").comms[0]
        )


def test_a_loss_scaler_skips_the_same_steps_on_every_rank(world: GetWorld) -> None:
    def train(comm: Any) -> tuple[list[float], Tensors]:
        model = mlp()
        optimizer = sgd(model, comm, clip_norm=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
        scales = []
        for step in range(4):
            x, y = (part(comm, [4, 4], t) for t in batch(step, 8))
            if step == 1 and comm.rank == 1:
                x = x * float("inf")  # Only one rank's loss overflows.
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(model(x).float(), y)
            scaler.scale(loss).backward()
            before = values(model)
            scaler.step(optimizer)
            scaler.update()
            assert are_same(before, values(model)) == (step == 1)
            scales.append(scaler.get_scale())
        return scales, values(model)

    results = world(2, "shm").run(train)
    assert results[0][0] == results[1][0] == [1024, 512, 512, 512]
    assert are_same(results[0][1], results[1][1])
    assert all(bool(value.isfinite().all()) for value in results[0][1])


def test_compiled_models_train_alike(world: GetWorld) -> None:
    # Compiled beforehand, on this thread; ranks are threads here.
    models = [mlp(), mlp()]
    compiled = [torch.compile(model, backend="aot_eager") for model in models]
    for call in compiled:
        call(batch(0, 4)[0]).sum().backward()

    def train(comm: Any) -> Tensors:
        model = models[comm.rank]
        optimizer = sgd(model, comm, bucket_bytes=128)
        for step in range(3):
            x, y = (part(comm, [4, 4], t) for t in batch(step, 8))
            optimizer.zero_grad()
            F.mse_loss(compiled[comm.rank](x), y).backward()
            optimizer.step()
        return values(model)

    results = world(2, "shm").run(train)
    assert are_same(*results)
    close(results[0], trained_alone(3))


def test_a_graph_that_changes_from_step_to_step_and_rank_to_rank(world: GetWorld) -> None:
    def loss_of(model: Any, step: int, half: int) -> torch.Tensor:
        x = batch(step, 8)[0][4 * half : 4 * half + 4]
        way = (step + half) % 3
        if way == 0:
            return model[0](x).pow(2).mean()
        if way == 1:
            return model[4](model[2](torch.tanh(model[0](x)))).sum()
        return model[2](torch.tanh(model[2](torch.ones(1, 8)))).mean()  # Neither first nor last.

    def train(model: Any, optimizer: Any, halves: list[int]) -> Tensors:
        for step in range(7):
            optimizer.zero_grad()
            torch.stack([loss_of(model, step, half) for half in halves]).mean().backward()
            optimizer.step()
        return values(model)

    def together(comm: Any) -> Tensors:
        model = mlp()
        return train(model, sgd(model, comm, bucket_bytes=64), [comm.rank])

    model = mlp()
    alone = train(model, torch.optim.SGD(model.parameters(), lr=0.5), [0, 1])
    results = world(2, "shm").run(together)
    assert are_same(*results)
    close(results[0], alone)


@pytest.mark.parametrize("is_whole", [False, True])
def test_checkpoints_that_run_backward_inside_backward(world: GetWorld, is_whole: bool) -> None:
    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        middle = model if is_whole else model[2:4]
        inside: Any = checkpoint(middle, x if is_whole else model[:2](x), use_reentrant=True)
        return inside if is_whole else model[4:](inside)

    def train(comm: Any) -> Tensors:
        model = mlp()
        optimizer = sgd(model, comm, bucket_bytes=64)
        for step in range(3):
            x, y = (part(comm, [4, 4], t) for t in batch(step, 8))
            optimizer.zero_grad()
            F.mse_loss(forward(model, x), y).backward()
            assert optimizer._averager.is_done
            optimizer.step()
        return values(model)

    results = world(2, "shm").run(train)
    assert are_same(*results)
    close(results[0], trained_alone(3))


def test_totals_that_are_not_whole_numbers_divide_as_well(world: GetWorld) -> None:
    def average(comm: Any) -> float:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        optimizer.set_weight(0.25 if comm.rank else 0.5)
        (param * (1 if comm.rank else 4)).backward()
        optimizer.step()
        return param.item()

    assert world(2, "shm").run(average) == [-3, -3]


CODECS: list[Any] = ["bf16", "fp16", "int8", gr.TopK(0.25)]


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_compressed_gradients_train_to_the_same_place_and_ranks_agree_in_bits(
    world: GetWorld, codec: Any, size: int
) -> None:
    steps, count = 60, 12

    def loss_of(model: nn.Module) -> float:
        return F.mse_loss(model(batch(0, count)[0]), batch(0, count)[1]).item()

    def train(comm: Any) -> tuple[Tensors, float, float]:
        model = mlp(comm.rank)
        optimizer = sgd(model, comm, compress=codec, bucket_bytes=256)
        counts = [count // comm.world_size] * comm.world_size
        x, y = (part(comm, counts, t) for t in batch(0, count))
        for _ in range(steps):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        ratio = optimizer.uncompressed_bytes / optimizer.sent_bytes
        return values(model), loss_of(model), ratio

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    start = loss_of(model)
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = batch(0, count)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    results = world(size, "shm").run(train)
    for parameters, loss, ratio in results:
        assert are_same(parameters, results[0][0])
        assert ratio > 1
        assert loss < loss_of(model) + 0.1 * start


def test_what_compression_leaves_out_survives_new_buckets(world: GetWorld) -> None:
    def train(comm: Any) -> tuple[float, float]:
        params = [nn.Parameter(torch.zeros(50)) for _ in range(3)]
        optimizer = gt.distributed(
            torch.optim.SGD(params, lr=1), comm=comm, compress=gr.TopK(0.1), bucket_bytes=256
        )
        wanted = 0.0
        for step in range(5):
            if step == 3:
                optimizer.refresh()
            optimizer.zero_grad()
            grads = [torch.arange(50.0) * (1 + index + step) for index in range(3)]
            loss = sum((param * grad).sum() for param, grad in zip(params, grads, strict=True))
            loss.backward()  # type: ignore[union-attr]
            optimizer.step()
            wanted += sum(float(grad.sum()) for grad in grads)
        late = sum(float(part.sum()) for part in optimizer._averager._layout.residuals().values())
        late = float(comm.all_reduce(torch.tensor([late], dtype=torch.float64)))
        return -sum(float(param.detach().sum()) for param in params) + late / 2, wanted

    for arrived, wanted in world(2, "shm").run(train):
        assert arrived == pytest.approx(wanted, rel=1e-6)


def test_what_cannot_be_compressed_is_refused_by_name(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    with pytest.raises(gr.InvalidArgument, match=r"0\.weight has dtype torch.float64"):
        sgd(mlp(dtype=torch.float64), comm, compress="bf16")
    with pytest.raises(gr.InvalidArgument, match="int4"):
        sgd(mlp(), comm, compress="int4")
