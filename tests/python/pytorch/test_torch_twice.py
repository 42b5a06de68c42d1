"""What would train a parameter twice is refused: averages beside ours, one name, one memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from mode_servers import RealServers
from thread_ranks import ThreadWorld

SERVED = [gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=1)]


@pytest.fixture
def comm(world: GetWorld) -> Any:
    """A communicator of one."""
    return world(1, "tcp").comms[0]


@pytest.fixture
def process_group() -> Iterator[None]:
    """PyTorch's own, of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1)


def in_ddp(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    wrapped = DistributedDataParallel(model)
    return wrapped, wrapped


def beside_ddp(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    return model, DistributedDataParallel(model)


def in_fsdp(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    return wrapped, wrapped


def sharded(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    return model, model


@pytest.mark.parametrize("wrap", [in_ddp, beside_ddp, in_fsdp, sharded])
@pytest.mark.parametrize("knows_model", [True, False])
@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.usefixtures("process_group")
def test_a_model_whose_gradients_are_averaged_already_is_refused(
    comm: Any, wrap: Callable[[nn.Module], tuple[nn.Module, nn.Module]], knows_model: bool
) -> None:
    model, _wrapper = wrap(nn.Linear(2, 1))
    optimizer = sgd(model)
    with pytest.raises(gr.InvalidArgument, match="plain model's parameters"):
        gt.distributed(optimizer, model=model if knows_model else None, comm=comm)
    assert type(optimizer) is torch.optim.SGD


@pytest.mark.usefixtures("process_group")
def test_a_model_beside_one_that_is_averaged_already_is_trained(comm: Any) -> None:
    other = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = gt.distributed(sgd(nn.Linear(2, 1)), comm=comm)
    optimizer.close()
    assert other.module.weight.shape == (1, 2)


@pytest.mark.parametrize("mode", [*SERVED, gr.Sync()], ids=str)
def test_a_second_optimizer_of_a_name_is_refused_until_the_first_one_is_closed(
    comm: Any, real_servers: RealServers, mode: Any
) -> None:
    ps = real_servers.client(0)
    models = [
        nn.Sequential(gt.Embedding(name, 2, optimizer=gr.optim.SGD(lr=1)), nn.Linear(2, 2))
        for name in ("a", "b")
    ]

    def make(model: nn.Module, **options: Any) -> Any:
        return gt.distributed(sgd(model), mode, model=model, comm=comm, ps=ps, **options)

    first = make(models[0])
    with pytest.raises(gr.InvalidArgument, match=r"name='model' is open.* name=\.\.\."):
        make(models[1])
    make(models[1], name="other").close()
    first.close()
    make(models[1]).close()


@pytest.mark.parametrize("mode", SERVED, ids=str)
def test_a_second_optimizer_over_arrays_of_a_name_is_refused(comm: Any, mode: Any) -> None:
    ps = ExactServer().client(0)

    def make() -> Any:
        params = [np.zeros(2, np.float32)]
        return gr.distributed(params, gr.optim.SGD(lr=1), mode, ps=ps, comm=comm)

    with make(), pytest.raises(gr.InvalidArgument, match="name='model' is open"):
        make()
    make().abandon()
    make().close()


def test_tables_of_rows_have_names_of_their_own_where_nobody_waits(comm: Any) -> None:
    ps = ExactServer().client(0)
    pair = [gr.distributed([], gr.optim.SGD(lr=1), gr.Async(), ps=ps, comm=comm) for _ in range(2)]
    for each in pair:
        each.close()


@pytest.mark.parametrize("mode", SERVED, ids=str)
def test_two_parameters_in_one_memory_are_refused_by_name_where_servers_are(
    comm: Any, mode: Any
) -> None:
    model = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(3)])
    flat = torch.zeros(8)
    for index, begin in enumerate([0, 4, 2]):
        model[index].weight.data = flat[begin : begin + 4].view(2, 2)
    with pytest.raises(gr.InvalidArgument, match=r"^0\.weight and 2\.weight lie in the same"):
        gt.distributed(sgd(model), mode, model=model, comm=comm, ps=ExactServer().client(0))
    model[2].weight = model[1].weight  # One parameter in two modules is trained once.
    gt.distributed(sgd(model), mode, model=model, comm=comm, ps=ExactServer().client(0)).close()


@pytest.mark.parametrize("mode", SERVED, ids=str)
def test_rows_of_a_layer_are_trained_by_one_optimizer_at_a_time(comm: Any, mode: Any) -> None:
    ps = ExactServer().client(0)
    rows = gt.Embedding("rows", 2, optimizer=gr.optim.SGD(lr=1))
    model = nn.Sequential(rows, nn.Linear(2, 2), nn.Linear(2, 1))

    def train(layer: int, name: str) -> Any:
        return gt.distributed(sgd(model[layer]), mode, model=model, comm=comm, ps=ps, name=name)

    first = train(1, "first")
    with pytest.raises(gr.InvalidArgument, match=r"'rows' is trained by optimizer 'first"):
        train(2, "second")
    first.close()
    train(2, "second").close()


def test_a_parameter_is_averaged_for_one_open_optimizer_and_others_are_refused_by_name_on_all_ranks(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> list[float]:
        shared, other, frozen = (nn.Parameter(torch.zeros(1)) for _ in range(3))
        frozen.requires_grad_(False)

        def make(*params: nn.Parameter) -> Any:
            return gt.distributed(torch.optim.SGD(params, lr=1), comm=comm)

        first, second = make(shared, frozen), make(other, frozen)  # Of frozen ones none is trained.
        with pytest.raises(gr.InvalidArgument, match="0 of group 0 is trained by another"):
            make(shared)
        with pytest.raises(gr.InvalidArgument, match="0 of group 1 is trained by another"):
            second.add_param_group({"params": [shared]})
        frozen.requires_grad_(True)
        first.refresh()
        with pytest.raises(gr.InvalidArgument, match=r"1 of group 0 is trained by.* close"):
            second.refresh()
        frozen.requires_grad_(False)
        first.close()
        second.add_param_group({"params": [shared]})
        (shared * 2 * comm.rank + other).backward()
        second.step()
        return [shared.item(), other.item()]

    ranks = world(2, "shm")
    assert ranks.run(train) == [[-1, -1]] * 2
    assert ranks.is_usable


def test_a_parameter_is_free_when_nobody_has_its_optimizer_any_more_or_its_ranks_are_lost(
    fresh_world: Callable[..., ThreadWorld],
) -> None:
    def train(comm: Any) -> None:
        param = nn.Parameter(torch.zeros(1))
        for _ in range(2):
            optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
            param.backward()
            optimizer.step()
            del optimizer
        failed = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        if comm.rank == 1:
            comm.close()
            return
        with pytest.raises(gr.PeerLost):
            param.backward()
        gt.distributed(torch.optim.SGD([param], lr=1), comm=comm.shrink())
        del failed

    fresh_world(2, "shm").run(train)


@pytest.mark.parametrize("mode", SERVED, ids=str)
def test_a_parameter_that_servers_have_is_refused_to_another_open_optimizer(
    comm: Any, mode: Any
) -> None:
    model, ps = nn.Linear(2, 1), ExactServer().client(0)
    first = gt.distributed(sgd(model), mode, comm=comm, ps=ps, name="first")
    with pytest.raises(gr.InvalidArgument, match="0 of group 0 is trained by another"):
        gt.distributed(sgd(model), mode, comm=comm, ps=ps, name="second")
    first.close()
    gt.distributed(sgd(model), mode, comm=comm, ps=ps, name="second").abandon()
    gt.distributed(sgd(model), mode, comm=comm, ps=ps, name="third").close()


@pytest.mark.parametrize("mode", [gr.Sync(), *SERVED], ids=str)
def test_a_weight_that_is_no_number_of_examples_is_refused(comm: Any, mode: Any) -> None:
    model = nn.Linear(1, 1)
    ps = None if mode == gr.Sync() else ExactServer().client(0)
    optimizer = gt.distributed(sgd(model), mode, model=model, comm=comm, ps=ps)
    with pytest.raises(gr.InvalidArgument, match="weight None is no number of examples"):
        list(optimizer.uneven([torch.ones(1, 1)], weight=lambda _: None))
    optimizer.close()
