"""What cannot be trained is refused with its name and the way out, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from torch_models import sgd


def on_meta() -> nn.Parameter:
    return nn.Parameter(torch.ones(1, device="meta"))


def test_a_group_that_is_refused_is_not_there(world: GetWorld) -> None:
    def train(comm: Any) -> list[Any]:
        param, added = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        optimizer = sgd([param], comm, compress="bf16")
        with pytest.raises(gr.DeviceError, match="is on meta"):
            optimizer.add_param_group({"params": [on_meta()]})
        with pytest.raises(gr.InvalidArgument, match=r"float64, which cannot be compressed"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1).double())]})
        with pytest.raises(gr.Mismatch):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1 + comm.rank))]})
        with pytest.raises(gr.Mismatch, match=r"lr=1.0 in group 1.*lr=2.0 in group 1"):
            optimizer.add_param_group({"params": [added], "lr": 1 + comm.rank})
        param.backward()
        optimizer.step()
        optimizer.add_param_group({"params": [added]})
        (param + added).backward()
        optimizer.step()
        return [len(optimizer.param_groups), param.item(), added.item()]

    assert world(2, "shm").run(train) == [[2, -3, -1]] * 2


def test_unfreezing_what_cannot_be_compressed_is_refused(world: GetWorld) -> None:
    def train(comm: Any) -> float:
        param, frozen = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1).double(), False)
        optimizer = sgd([param, frozen], comm, compress="bf16")
        frozen.requires_grad_(True)
        with pytest.raises(gr.InvalidArgument, match="cannot be compressed"):
            optimizer.refresh()
        frozen.requires_grad_(False)
        param.backward()
        optimizer.step()
        return param.item()

    assert world(2, "shm").run(train) == [-1, -1]


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (torch.zeros(2).double(), r"0\.weight is torch\.float64"),
        (torch.zeros(2, 2).t()[:1], r"0\.weight is torch\.float32, of shape \(1, 2\) and strides"),
        (torch.zeros(0), r"0\.weight is empty"),
    ],
)
def test_what_servers_cannot_hold_is_named(
    world: GetWorld, tensor: torch.Tensor, problem: str
) -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].weight = nn.Parameter(tensor)
    with pytest.raises(gr.InvalidArgument, match=problem):
        sgd(
            model.parameters(), world(1, "tcp").comms[0], mode=gr.Async(), model=model,
            ps=ExactServer().client(0),
        )  # fmt: skip


def test_a_tensor_of_the_model_that_ranks_cannot_share_is_named(world: GetWorld) -> None:
    def train(comm: Any) -> None:
        model = nn.Linear(1, 1)
        model.register_buffer("limits", torch.zeros(1, device="meta"))
        with pytest.raises(gr.DeviceError, match=r"^limits is on meta"):
            sgd(model.parameters(), comm, model=model)

    world(2, "shm").run(train)


def test_a_tensor_whose_elements_share_memory_is_named_on_all_ranks_before_anything_is_sent(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> None:
        model = nn.Linear(1, 1)
        model.register_buffer("mask", torch.full((1, 3), float(comm.rank)).expand(4, 3))
        with pytest.raises(gr.InvalidArgument, match=r"^mask has elements that share.*\.clone"):
            sgd(model.parameters(), comm, model=model)

    ranks = world(2, "shm")
    ranks.run(train)
    assert ranks.is_usable


def exchange(optimizer: Any, new: nn.Parameter) -> None:
    optimizer.param_groups[0]["params"][0] = new


def append(optimizer: Any, new: nn.Parameter) -> None:
    optimizer.param_groups[0]["params"].append(new)


def append_group(optimizer: Any, new: nn.Parameter) -> None:
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": [new]})


@pytest.mark.parametrize("change", [exchange, append, append_group])
def test_parameters_that_came_into_the_groups_by_hand_are_refused_until_a_refresh_shares_them(
    world: GetWorld, change: Any
) -> None:
    def train(comm: Any) -> list[float]:
        param, new = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.full((1,), 5.0 + comm.rank))
        optimizer = sgd([param], comm)
        change(optimizer, new)
        (param + new * 2 * comm.rank).backward()
        with pytest.raises(gr.InvalidArgument, match=r"by hand; call optimizer\.refresh\(\)"):
            optimizer.step()
        optimizer.refresh()
        optimizer.zero_grad()
        (param + new * 2 * comm.rank).backward()
        optimizer.step()
        return [param.item() if change is not exchange else -1, new.item()]

    assert world(2, "shm").run(train) == [[-1, 4]] * 2


def test_parameters_that_are_new_on_some_ranks_only_are_a_mismatch_and_keep_their_values(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> float:
        params = [nn.Parameter(torch.full((1,), float(comm.rank))) for _ in range(2)]
        optimizer = sgd(params[:1], comm)
        exchange(optimizer, params[comm.rank])
        with pytest.raises(gr.Mismatch):
            optimizer.refresh()
        return params[1].item()

    assert world(2, "shm").run(train) == [0, 1]


@pytest.mark.parametrize("mode", [gr.Sync(via="ps"), gr.Async(), gr.Geo(k_steps=1)], ids=str)
@pytest.mark.parametrize("change", [exchange, append, append_group])
def test_parameters_that_came_by_hand_are_refused_where_servers_are(
    world: GetWorld, mode: Any, change: Any
) -> None:
    param, server = nn.Parameter(torch.zeros(1)), ExactServer()
    comm = world(1, "tcp").comms[0]
    optimizer = sgd([param], comm, mode=mode, ps=server.client(0))
    change(optimizer, nn.Parameter(torch.zeros(1)))
    with pytest.raises(gr.InvalidArgument, match="other parameters than servers have tables for"):
        optimizer.step()
    optimizer.close()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Sequential(nn.LazyLinear(1)), r"0\.weight"),
        (nn.Sequential(nn.Linear(1, 1), nn.LazyBatchNorm1d(affine=False)), r"1\.running_mean"),
    ],
    ids=["parameter", "buffer"],
)
def test_a_lazy_layer_that_has_seen_no_batch_is_named_with_the_way_out(
    world: GetWorld, model: nn.Module, name: str
) -> None:
    def train(comm: Any) -> None:
        with pytest.raises(gr.InvalidArgument, match=f"^{name} has no shape yet.*a batch through"):
            sgd(model.parameters(), comm, model=model)

    world(2, "shm").run(train)


@pytest.mark.parametrize("mode", [gr.Sync(via="ps"), gr.Async(), gr.Geo(2)], ids=str)
def test_a_lazy_layer_is_named_where_servers_have_the_parameters(
    world: GetWorld, mode: Any
) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.LazyLinear(1))
    options = {"ps": ExactServer().client(0), "model": model}
    with pytest.raises(gr.InvalidArgument, match=r"^1\.weight has no shape yet.*a batch through"):
        sgd(model.parameters(), world(1, "shm").comms[0], mode=mode, **options)
    model(torch.ones(1, 1))
    sgd(model.parameters(), world(1, "shm").comms[0], mode=mode, **options).close()


def test_a_class_may_have_an_attribute_of_any_name(world: GetWorld) -> None:
    class Listed(torch.optim.SGD):
        def __init__(self, params: Any) -> None:
            self._all_params = list(params)  # As ZeroRedundancyOptimizer has it.
            super().__init__(self._all_params, lr=1)

    param = nn.Parameter(torch.zeros(1))
    optimizer = gt.distributed(Listed([param]), comm=world(1, "tcp").comms[0])
    param.backward()
    optimizer.step()
    assert param.item() == -1


@pytest.mark.parametrize("mode", [gr.Sync(), gr.Async()], ids=str)
def test_a_class_whose_zero_grad_takes_nothing_is_trained(world: GetWorld, mode: Any) -> None:
    class Old(torch.optim.SGD):
        def zero_grad(self) -> None:  # type: ignore[override]
            super().zero_grad()

    param = nn.Parameter(torch.zeros(1))
    optimizer: Any = gt.distributed(
        Old([param], lr=1), mode, comm=world(1, "tcp").comms[0], ps=ExactServer().client(0)
    )
    for _ in range(2):
        optimizer.zero_grad()
        param.backward()
        optimizer.step()
    optimizer.close()
    assert param.item() == -2


@pytest.mark.parametrize("name", [5, "", None])
@pytest.mark.parametrize("mode", [gr.Sync(), gr.Async()], ids=str)
def test_what_is_no_name_is_refused(world: GetWorld, mode: Any, name: Any) -> None:
    comm, ps = world(1, "tcp").comms[0], ExactServer().client(0)
    options: Any = {"comm": comm, "mode": mode, "ps": ps, "name": name}
    with pytest.raises(gr.InvalidArgument, match="name must be a string"):
        sgd([nn.Parameter(torch.zeros(1))], **options)
    with pytest.raises(gr.InvalidArgument, match="name must be a string"):
        gr.distributed([], gr.optim.SGD(lr=1), **options)


def test_a_sampler_of_what_is_no_data_set_or_order_is_refused(world: GetWorld) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([1])

    comm = world(1, "tcp").comms[0]
    with pytest.raises(gr.InvalidArgument, match="a Stream has no length"):
        gt.Sampler(Stream(), comm)
    with pytest.raises(gr.InvalidArgument, match="comm is a str"):
        gt.Sampler(5, "x")  # type: ignore[arg-type]
    sampler = gt.Sampler(5, comm)
    for epoch in (-1, "a", 0.5):
        with pytest.raises(gr.InvalidArgument, match="epoch"):
            sampler.set_epoch(epoch)  # type: ignore[arg-type]
    with pytest.raises(gr.InvalidArgument, match="first"):
        sampler.set_epoch(1, first=-1)
    for seed in (-1, "a"):
        with pytest.raises(gr.InvalidArgument, match="seed"):
            gr.shard(5, comm, seed=seed)  # type: ignore[arg-type]
    assert sorted(sampler) == [0, 1, 2, 3, 4]


def test_a_label_of_a_group_is_none_of_the_optimizer_s_options(world: GetWorld) -> None:
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    labels: dict[str, Any] = {"name": "encoder", "lr_scale": 0.5, "layers": torch.ones(2)}
    optimizer = torch.optim.SGD([{"params": [first], **labels}, {"params": [second]}], lr=1)
    server, comm = ExactServer(), world(1, "tcp").comms[0]
    optimizer = gt.distributed(optimizer, gr.Async(), comm=comm, ps=server.client(0))
    optimizer.param_groups[1]["name"] = "decoder"
    (first + second).backward()
    optimizer.step()
    optimizer.param_groups[1]["maximize"] = True
    with pytest.raises(gr.InvalidArgument, match="SGD: servers do not know maximize=True"):
        optimizer.step()
    optimizer.param_groups[1]["maximize"] = False
    optimizer.close()
    assert server.values("model/0") == server.values("model/1") == [-1]
