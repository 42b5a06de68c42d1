"""Gradients and parameters that get other memory between two steps are trained on, together."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from mode_servers import RealServers
from torch_models import Tensors, are_same, mlp, part, values


def image_model() -> nn.Sequential:
    # Without first values: another thread may be drawing those of its `mlp`.
    images = nn.utils.skip_init(nn.Conv2d, 3, 6, 3, bias=False)
    with torch.no_grad():
        images.weight.copy_(torch.linspace(-1, 1, 162).view(6, 3, 3, 3))
    return nn.Sequential(images, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), mlp())


def train(
    comm: Any,
    net: nn.Module | None,
    between: Callable[[nn.Module], Any],
    after: Callable[[nn.Module], Any] = lambda _: None,
    *,
    overlap: bool = True,
) -> Tensors:
    """Four steps, on all ranks or (``comm`` is ``None``) alone; the second is disturbed."""
    model: nn.Module = mlp() if net is None else net
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.25)
    if comm is not None:
        optimizer = gt.distributed(optimizer, comm=comm, overlap=overlap)
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, *((3, 5, 5) if net is not None else (6,)), generator=generator)
        y = torch.randn(8, 3, generator=generator)
        if comm is not None:
            x, y = (part(comm, [4, 4], each) for each in (x, y))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if comm is not None:
            optimizer.synchronize()
        if step == 1:
            between(model)
        optimizer.step()
        if step == 1:
            after(model)
    return values(model)


def clamp_data(model: nn.Module) -> None:
    for param in model.parameters():
        assert param.grad is not None
        param.grad.data = param.grad.data.clamp(-0.05, 0.05)


def nothing(_: nn.Module) -> None:
    pass


def require_trained_as_one(results: list[Tensors], alone: Tensors) -> None:
    for result in results:
        assert are_same(result, results[0])
        for ours, theirs in zip(result, alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_are_averaged_after_a_step_that_has_given_them_other_memory(
    world: GetWorld, overlap: bool
) -> None:
    results = world(2, "shm").run(lambda comm: train(comm, None, clamp_data, overlap=overlap))
    require_trained_as_one(results, train(None, None, clamp_data))


def test_a_gradient_that_a_hook_has_transposed_where_it_lay_is_averaged_as_it_is(
    world: GetWorld,
) -> None:
    def transpose(param: torch.Tensor) -> None:
        assert param.grad is not None
        param.grad = param.grad.t()

    def averages(comm: Any) -> list[Any]:
        param = nn.Parameter(torch.zeros(2, 2))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        param.register_post_accumulate_grad_hook(transpose)
        seen = []
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)  # The next gradient is added where this one is.
            (param * torch.tensor([[1.0, 2], [3, 4]]) * 2 * comm.rank).sum().backward()
            assert param.grad is not None
            seen.append(param.grad.tolist())
            optimizer.step()
        return seen

    assert world(2, "shm").run(averages) == [[[[1, 3], [2, 4]]] * 2] * 2


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.bfloat16().float(),
        lambda model: model.double().float(),
        lambda model: model.share_memory(),
    ],
    ids=["bfloat16", "double", "shared"],
)
def test_gradients_are_averaged_after_their_model_was_moved(
    world: GetWorld, move: Callable[[nn.Module], Any]
) -> None:
    results = world(2, "shm").run(lambda comm: train(comm, None, nothing, move))
    require_trained_as_one(results, train(None, None, nothing, move))


def test_gradients_are_averaged_after_their_model_went_to_channels_last(world: GetWorld) -> None:
    def move(model: nn.Module) -> None:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    results = world(2, "shm").run(lambda comm: train(comm, image_model(), nothing, move))
    require_trained_as_one(results, train(None, image_model(), nothing, move))


def to_double_and_back(param: nn.Parameter) -> None:
    param.data = param.data.double()
    param.data = param.data.float()


def in_bfloat16_for_a_while(param: nn.Parameter) -> None:
    kept = param.data
    param.data = kept.bfloat16()
    param.data = kept


@pytest.mark.parametrize("move", [to_double_and_back, in_bfloat16_for_a_while])
@pytest.mark.parametrize("when", ["before the first backward", "after zero_grad", "after step"])
def test_backward_averages_by_itself_after_a_model_went_to_another_dtype_and_back_on_a_rank(
    world: GetWorld, move: Callable[[nn.Parameter], None], when: str
) -> None:
    def averages(comm: Any) -> list[float]:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        seen = []
        for step in range(3):
            if (
                comm.rank == 0
                and when == ("before the first backward", "after zero_grad")[step > 0]
            ):
                move(param)
            (param * 2 * comm.rank).backward()
            assert param.grad is not None
            seen.append(param.grad.item())
            optimizer.step()
            if comm.rank == 0 and when == "after step":
                move(param)
            optimizer.zero_grad()
        return seen

    assert world(2, "shm").run(averages) == [[1, 1, 1]] * 2


def test_backward_averages_through_a_graph_that_is_older_than_a_move_and_a_step(
    world: GetWorld,
) -> None:
    def averages(comm: Any) -> list[float]:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        older, seen = param * 2 * comm.rank, []
        to_double_and_back(param)
        for loss in (param * 2 * comm.rank, older):
            loss.backward()
            assert param.grad is not None
            seen.append(param.grad.item())
            optimizer.step()
            optimizer.zero_grad()
        return seen

    assert world(2, "shm").run(averages) == [[1, 1]] * 2


def test_gradients_that_autograd_only_computes_are_taken_for_no_step_also_after_a_move(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> list[float]:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        for _ in range(2):
            to_double_and_back(param)
            (param * 2 * comm.rank).backward()
            (computed,) = torch.autograd.grad(param * 3, param)
            optimizer.step()
            optimizer.zero_grad()
        return [computed.item(), param.item()]

    assert world(2, "shm").run(train) == [[3, -2]] * 2


def test_a_parameter_whose_optimizer_is_gone_is_left_alone(world: GetWorld) -> None:
    def hooks(comm: Any) -> list[int]:
        param, counts = nn.Parameter(torch.zeros(1)), []
        for end in (lambda optimizer: optimizer.close(), lambda _: None):
            optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
            end(optimizer)
            del optimizer
            gc.collect()
            comm.barrier()
            param.backward()
            counts.append(len(param._backward_hooks or ()))
        return counts

    assert world(2, "shm").run(hooks) == [[0, 0]] * 2


@pytest.mark.parametrize("overlap", [True, False])
def test_a_model_of_another_dtype_is_refused_until_it_is_looked_at_again(
    world: GetWorld, overlap: bool
) -> None:
    def train_on(comm: Any) -> tuple[float, torch.dtype]:
        param = nn.Parameter(torch.zeros(1))
        options: Any = {"comm": comm, "overlap": overlap}
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), **options)
        param.data = param.data.double()
        for refused in ((param * 2 * comm.rank).backward, optimizer.step):
            with pytest.raises(gr.InvalidArgument, match=r"float64.* now; call optimizer\.refresh"):
                refused()
        optimizer.refresh()
        (param * 2 * comm.rank).backward()
        optimizer.step()
        return param.item(), param.dtype

    assert world(2, "shm").run(train_on) == [(-1, torch.float64)] * 2


@pytest.mark.parametrize(
    "mode",
    [gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=1), gr.Geo(k_steps=9)],
    ids=str,
)
@pytest.mark.parametrize("then", ["step", "flush", "close"])
def test_where_servers_are_a_model_trains_on_in_shared_memory(
    world: GetWorld, mode: Any, then: str
) -> None:
    param, server = nn.Parameter(torch.zeros(4)), ExactServer()
    optimizer = gt.distributed(
        torch.optim.SGD([param], lr=1), mode, comm=world(1, "shm").comms[0], ps=server.client(0)
    )
    before = param.detach().numpy()
    param.sum().backward()
    optimizer.step()
    param.detach().share_memory_()
    assert param.data_ptr() != before.ctypes.data
    if then == "step":
        optimizer.zero_grad()
        param.sum().backward()
    getattr(optimizer, then)()
    optimizer.close()
    steps = 2 if then == "step" else 1
    assert param.tolist() == [-steps] * 4
    assert server.values("model/0").tolist() == [-steps] * 4


@pytest.mark.parametrize("mode", [gr.Sync(), gr.Geo(k_steps=1), gr.Geo(k_steps=9)], ids=str)
def test_where_workers_step_training_goes_on_from_what_is_written_into_a_parameter(
    world: GetWorld, mode: Any
) -> None:
    def train(comm: Any) -> float:
        param = nn.Parameter(torch.zeros(1))
        store = server.client(comm.rank)
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), mode, comm=comm, ps=store)
        for begin in (0.0, 100.0):
            with torch.no_grad():
                param.copy_(torch.full((1,), begin))
            optimizer.zero_grad()
            param.backward()
            optimizer.step()
            optimizer.flush()
        optimizer.close()
        return param.item()

    server = ExactServer()
    assert world(1, "shm").run(train) == [99]


@pytest.mark.parametrize("mode", [gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async()], ids=str)
def test_where_servers_step_training_goes_on_from_what_is_written_into_their_tables(
    world: GetWorld, real_servers: RealServers, mode: Any
) -> None:
    param, ps = nn.Parameter(torch.zeros(1)), real_servers.client(0)
    optimizer = torch.optim.SGD([param], lr=1, momentum=0.5)
    optimizer = gt.distributed(optimizer, mode, comm=world(1, "tcp").comms[0], ps=ps)
    param.backward()
    optimizer.step()
    optimizer.flush()
    with torch.no_grad():
        param.copy_(torch.full((1,), 50.0))  # Only here: servers give back what they have.
    optimizer.flush()
    assert param.item() == -1
    table = ps.dense_table("model/0", (1,), gr.optim.SGD(lr=1, momentum=0.5))
    table.load_state_dict(table.state_dict() | {"weights": torch.full((1,), 100.0)})
    optimizer.flush()
    assert param.item() == 100
    optimizer.step()
    optimizer.close()
    assert param.item() == 100 - 1.5  # The momentum is as it was.
