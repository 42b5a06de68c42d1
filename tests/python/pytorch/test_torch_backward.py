"""What else goes on in a backward pass: hooks of the user's, checkpoints, other optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradring as gr
from conftest import GetWorld
from thread_ranks import ThreadWorld
from torch_models import sgd


def at_once(comm: Any) -> None:
    """Have buckets be back before the hook that sends them has returned."""
    start = comm.average_bucket

    def average(*arguments: Any) -> Any:
        work = start(*arguments)
        work.wait()
        return work

    comm.average_bucket = average


def plain(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)  # type: ignore[no-any-return]


def reentrant(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model, x.requires_grad_(), use_reentrant=True)  # type: ignore[no-any-return]


def recomputed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model, x, use_reentrant=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("run", [plain, reentrant, recomputed])
def test_a_hook_that_changes_a_gradient_comes_before_the_averages_whenever_it_was_registered(
    world: GetWorld, run: Callable[[nn.Module, torch.Tensor], torch.Tensor]
) -> None:
    def train(comm: Any) -> list[float]:
        model = nn.Linear(1, 1)
        optimizer = sgd(model.parameters(), comm)
        at_once(optimizer._averager.comm)
        for param in model.parameters():
            param.register_post_accumulate_grad_hook(clamp)
        averages = []
        for _ in range(2):
            optimizer.zero_grad()
            run(model, torch.full((1, 1), 4.0 * comm.rank)).sum().backward()
            averages.append([param.grad.item() for param in model.parameters()])
            optimizer.step()
        return averages[0] + averages[1]

    # Of 0 and 4 for the weight, of 1 and 1 for the bias.
    assert world(2, "shm").run(train) == [[0.5, 1, 0.5, 1]] * 2


def clamp(param: torch.Tensor) -> None:
    assert param.grad is not None
    param.grad.clamp_(-1, 1)


def test_gradients_set_by_hand_are_averaged_and_functions_may_give_none(world: GetWorld) -> None:
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor, _y: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
            return grad, None

    def train(comm: Any) -> list[Any]:
        first, second, third = (nn.Parameter(torch.zeros(1)) for _ in range(3))
        optimizer = sgd([first, second, third], comm)
        third.grad = torch.full((1,), 2.0 * comm.rank)
        Nothing.apply(first, second).sum().backward()
        optimizer.step()
        return [first.item(), second.grad, third.item()]

    assert world(2, "shm").run(train) == [[-1, None, -1]] * 2


def test_optimizers_that_ranks_reach_in_different_orders_do_not_wait_for_each_other(
    fresh_world: Callable[..., ThreadWorld],
) -> None:
    def train(comm: Any) -> list[float]:
        groups = [[nn.Parameter(torch.ones(1)) for _ in range(2)] for _ in range(2)]
        optimizers = [sgd(params, comm) for params in groups]
        # Nobody uses the second parameters; each rank's backward begins with another optimizer.
        late, early = groups[comm.rank][0], groups[1 - comm.rank][0]
        for _ in range(2):
            (late.sin().asin() + early).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return [round(params[0].item(), 5) for params in groups]

    assert fresh_world(2, "shm", timeout=10).run(train) == [[-1, -1]] * 2


class BackwardInside(torch.autograd.Function):
    """x times a parameter, whose gradient comes of a backward pass inside the function's own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, param: list[nn.Parameter]) -> torch.Tensor:
        ctx.param, ctx.x = param[0], x.detach()
        return x * param[0].detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            (ctx.x * ctx.param).backward(grad)
        return grad * ctx.param.detach(), None


def in_checkpoint(param: nn.Parameter, x: torch.Tensor) -> Any:
    return checkpoint(lambda x: x * param, x, use_reentrant=True)


def in_two_checkpoints(param: nn.Parameter, x: torch.Tensor) -> Any:
    return checkpoint(lambda x: in_checkpoint(param, x), x, use_reentrant=True)


def in_function(param: nn.Parameter, x: torch.Tensor) -> Any:
    return BackwardInside.apply(x, [param])


@pytest.mark.parametrize("run", [in_checkpoint, in_two_checkpoints, in_function])
def test_gradients_that_all_come_out_of_inner_passes_are_averages_when_backward_returns(
    world: GetWorld, run: Callable[[nn.Parameter, torch.Tensor], torch.Tensor]
) -> None:
    def train(comm: Any) -> list[Any]:
        inner, outer, unused = (nn.Parameter(torch.ones(1)) for _ in range(3))
        first, second = sgd([inner, unused], comm), sgd([outer], comm)
        seen: list[Any] = []
        for _ in range(2):
            first.zero_grad()
            second.zero_grad()
            x = torch.full((1,), 2.0 * comm.rank, requires_grad=True)
            (run(inner, x) + outer).backward()
            assert inner.grad is not None
            seen += [inner.grad.item(), unused.grad]
        return seen

    assert world(2, "shm").run(train) == [[1, None] * 2] * 2


def test_a_parameter_in_two_reentrant_checkpoints_is_refused_with_the_way_out(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> float:
        param, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))
        optimizer = sgd([param, other], comm)
        x = torch.ones(1, requires_grad=True)

        def loss(is_reentrant: bool) -> torch.Tensor:
            once = checkpoint(lambda x: x * param, x, use_reentrant=is_reentrant)
            twice = checkpoint(lambda x: x * param, once, use_reentrant=is_reentrant)
            return twice.sum()  # type: ignore[union-attr]

        with pytest.raises(gr.InvalidArgument, match="use_reentrant=False"):
            loss(True).backward()
        optimizer.zero_grad()
        loss(False).backward()
        optimizer.step()
        return param.item()

    assert world(2, "shm").run(train) == [-1, -1]


def test_compiled_models_are_averaged(world: GetWorld) -> None:
    def train(comm: Any) -> float:
        model = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = sgd(model.parameters(), comm)
        compiled = torch.compile(model, backend="aot_eager")
        compiled(torch.full((1, 1), 2.0 * comm.rank)).sum().backward()
        assert optimizer._averager.is_done
        optimizer.step()
        return model.weight.item()

    assert world(2, "shm").run(train) == [-1, -1]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_inside_backward_trains_with_averages_in_every_backward(
    world: GetWorld, overlap: bool
) -> None:
    def train(comm: Any) -> list[list[float]]:
        params = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizers = {param: sgd([param], comm, overlap=overlap) for param in params}

        def step(param: torch.Tensor) -> None:
            optimizers[param].step()
            optimizers[param].zero_grad()

        for param in params:
            param.register_post_accumulate_grad_hook(step)
        seen = []
        for _ in range(3):
            (params[0] * 2 * comm.rank + params[1] * 4 * comm.rank).backward()
            seen.append([param.item() for param in params])
        return seen

    assert world(2, "shm").run(train) == [[[-1, -2], [-2, -4], [-3, -6]]] * 2


def test_averages_that_a_hook_inside_backward_has_waited_for_are_not_sent_again(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> list[float]:
        param = nn.Parameter(torch.zeros(1))
        optimizer = sgd([param], comm)
        param.register_post_accumulate_grad_hook(lambda _: optimizer.synchronize())
        seen = []
        for _ in range(2):
            optimizer.zero_grad()
            (param * 2 * comm.rank).backward()
            assert param.grad is not None
            seen.append(param.grad.item())
            optimizer.step()
        return [*seen, param.item()]

    assert world(2, "shm").run(train) == [[1, 1, -2]] * 2
