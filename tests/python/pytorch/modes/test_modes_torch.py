"""gradring.torch: the mode is one argument, and embeddings' rows live on servers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from mode_servers import Servers
from torch_models import OPTIMIZERS


@pytest.fixture
def comm(world: GetWorld) -> Any:
    """A communicator of one."""
    return world(1, "tcp").comms[0]


STEPS = 5
SGD = gr.optim.SGD(lr=0.25)


class Clicks(torch.nn.Module):
    """Two embeddings under a linear layer; everything begins dyadic."""

    def __init__(self, layer: Callable[[str, Any], torch.nn.Module]) -> None:
        super().__init__()
        self.user = layer("user", None)
        self.words = layer("words", "sum")
        self.linear = torch.nn.Linear(4, 1)
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor([[0.5, -0.25, 1, 2]]))
            self.linear.bias.zero_()

    def forward(self, users: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.cat([self.user(users), self.words(words)], 1))[:, 0]


def served(rule: Any = SGD) -> Clicks:
    return Clicks(
        lambda name, pooling: gt.Embedding(name, 2, optimizer=rule, pooling=pooling, padding_idx=0)
    )


def local() -> Clicks:
    def layer(_: str, pooling: str | None) -> torch.nn.Module:
        if pooling is None:
            made: Any = torch.nn.Embedding(10, 2, padding_idx=0)
        else:
            made = torch.nn.EmbeddingBag(10, 2, mode=pooling, padding_idx=0)
        torch.nn.init.zeros_(made.weight)
        return made

    return Clicks(layer)


def batch(step: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(step)
    users = torch.from_numpy(random.integers(0, 10, 8)[begin:end])
    words = torch.from_numpy(random.integers(0, 10, (8, 3))[begin:end])
    return users, words, torch.from_numpy(random.integers(-2, 3, 8)[begin:end]).float()


def loss_of(model: Clicks, step: int, begin: int, end: int) -> torch.Tensor:
    users, words, target = batch(step, begin, end)
    return ((model(users, words) - target) * target).mean()  # Linear, so gradients stay dyadic.


def rows_of(model: Clicks) -> list[Any]:
    ids = torch.arange(10)
    was_training = model.training
    model.eval()
    result = [model.user(ids).numpy(), model.words(ids[:, None]).detach().numpy()]
    model.train(was_training)
    return result


def train(comm: Any, server: Servers, mode: Any, make: Any) -> tuple[list[Any], list[Any]]:
    model = served()
    optimizer = gt.distributed(
        make(model.parameters()), mode, model=model, comm=comm, ps=server.client(comm.rank)
    )
    share = 8 // comm.world_size
    begin = comm.rank * share
    for step in range(STEPS):
        optimizer.zero_grad()
        optimizer.set_weight(share)
        loss_of(model, step, begin, begin + share).backward()
        if step + 1 < STEPS:
            model.user.prefetch(batch(step + 1, begin, begin + share)[0])
        optimizer.step()
    result = [param.detach().numpy().copy() for param in model.parameters()], rows_of(model)
    comm.barrier()
    optimizer.close()
    return result


def alone(make: Any) -> tuple[list[Any], list[Any]]:
    model = local()
    dense = make(model.linear.parameters())
    # Without momentum or decay a row that is not touched does not move: one optimizer for all.
    rows = torch.optim.SGD([model.user.weight, model.words.weight], lr=SGD.lr)
    for step in range(STEPS):
        dense.zero_grad()
        rows.zero_grad()
        loss_of(model, step, 0, 8).backward()
        dense.step()
        rows.step()
    return [p.detach().numpy() for p in model.linear.parameters()], [
        model.user.weight.detach().numpy(), model.words.weight.detach().numpy(),
    ]  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_sync_through_servers_is_one_process(
    world: GetWorld, servers: Servers, workers: int, kind: str
) -> None:
    make = OPTIMIZERS[kind]
    expected, rows = alone(make)
    results = world(workers, "tcp").run(lambda comm: train(comm, servers, gr.Sync(via="ps"), make))
    for params, own_rows in results:
        for one, other in zip(params, results[0][0], strict=True):
            np.testing.assert_array_equal(one, other)
        for one, other in zip([*params, *own_rows], [*expected, *rows], strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    "mode",
    [
        gr.Sync(), gr.Sync(via="ps"), gr.Hybrid(gr.Sync(), gr.Sync(via="ps")),
        gr.Hybrid(gr.Sync(via="ps"), gr.Sync(via="ps")),
    ],
)  # fmt: skip
def test_all_synchronous_modes_take_one_path_bit_for_bit(
    world: GetWorld, servers: Servers, mode: Any
) -> None:
    make = lambda params: torch.optim.SGD(params, lr=0.5)  # noqa: E731
    expected, rows = alone(make)
    for params, own_rows in world(2, "tcp").run(lambda comm: train(comm, servers, mode, make)):
        for one, other in zip([*params, *own_rows], [*expected, *rows], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "mode",
    [
        gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=2), gr.Geo(k_steps=2, outer=gr.Mean()),
        gr.Geo(k_steps=2, outer=gr.Nesterov()), gr.Hybrid(gr.Sync(), gr.Async()),
        gr.Hybrid(gr.Geo(3), gr.BoundedStaleness(2)),
    ],
)  # fmt: skip
def test_every_mode_runs_the_same_script_and_ends_with_everything_applied(
    world: GetWorld, servers: Servers, mode: Any
) -> None:

    def work(comm: Any) -> Any:
        model = served()
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=0.5), mode, model=model, comm=comm,
            ps=servers.client(comm.rank),
        )  # fmt: skip
        rows_of(model)
        for step in range(4):
            optimizer.zero_grad()
            users, words, _ = batch(step, comm.rank * 4, comm.rank * 4 + 4)
            model(users, words).sum().backward()
            optimizer.step()
        comm.barrier()
        optimizer.flush()
        comm.barrier()
        optimizer.flush()
        result = [p.detach().numpy().copy() for p in model.parameters()] + rows_of(model)
        comm.barrier()
        optimizer.close()
        return result

    first, second = world(2, "tcp").run(work)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    if not (isinstance(mode, gr.Geo) and mode.outer == gr.Nesterov()):
        # The bias' gradient is 4 in every step of everybody, whatever the mode.
        steps = 4 if isinstance(mode, gr.Hybrid) and mode.dense == gr.Sync() else 8
        np.testing.assert_array_equal(first[1], np.float32([-0.5 * 4 * steps]))


@pytest.mark.parametrize("make", [OPTIMIZERS["Adam"], OPTIMIZERS["SGD"]])
def test_one_worker_in_geo_trains_as_torch_alone_bit_for_bit(comm: Any, make: Any) -> None:
    def run(model: Clicks, optimizer: Any) -> list[Any]:
        torch.manual_seed(0)
        for _ in range(6):
            optimizer.zero_grad()
            model.linear(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
        return [p.detach().numpy().copy() for p in model.linear.parameters()]

    plain = local()
    expected = run(plain, make(plain.linear.parameters()))
    model, server = served(), ExactServer()
    optimizer = gt.distributed(
        make(model.linear.parameters()), gr.Geo(k_steps=2), comm=comm, ps=server.client(0)
    )
    for one, other in zip(run(model, optimizer), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    optimizer.flush()
    np.testing.assert_array_equal(server.values("model/0"), expected[0])
    optimizer.close()


def embedding(server: ExactServer, **options: Any) -> gt.Embedding:
    return gt.Embedding("e", 2, optimizer=SGD, ps=server.client(0), **options)


def fill(server: ExactServer, layer: gt.Embedding) -> torch.Tensor:
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    layer.table  # noqa: B018 - makes it
    server.tables["e"].rows.update(dict(enumerate(values)))
    return torch.from_numpy(values.copy())


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_embedding_is_torch_embedding(padding_idx: int | None) -> None:
    server = ExactServer()
    layer = embedding(server, padding_idx=padding_idx)
    weight = fill(server, layer)
    if padding_idx is not None:
        weight[padding_idx] = 0
    reference = torch.nn.Embedding.from_pretrained(weight, freeze=False, padding_idx=padding_idx)
    ids = torch.tensor([[3, 1, 3], [9, 1, 0]])
    factors = torch.randint(-4, 4, (2, 3, 2)).float()
    torch.testing.assert_close(layer(ids), reference(ids), rtol=0, atol=0)
    (layer(ids) * factors).sum().backward()
    (reference(ids) * factors).sum().backward()
    layer.flush()
    with torch.no_grad():
        reference.weight -= SGD.lr * reference.weight.grad
    pulled = layer.eval()(torch.arange(10))
    torch.testing.assert_close(pulled, reference.weight.detach(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("pooling", "is_weighted"), [("sum", 0), ("sum", 1), ("mean", 0), ("max", 0)]
)
@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("is_flat", [False, True])
def test_pooling_is_torch_embedding_bag(
    pooling: Any, is_weighted: bool, padding_idx: int | None, is_flat: bool
) -> None:
    server = ExactServer()
    layer = embedding(server, pooling=pooling, padding_idx=padding_idx)
    weight = fill(server, layer)
    reference = torch.nn.EmbeddingBag.from_pretrained(
        weight, freeze=False, mode=pooling, padding_idx=padding_idx
    )
    arguments: tuple[torch.Tensor, ...] = (torch.tensor([[3, 1], [9, 9], [3, 3]]),)
    if is_flat:
        arguments = torch.tensor([3, 1, 9, 3, 5]), torch.tensor([0, 2, 2])
    factors = [torch.arange(arguments[0].numel()).view_as(arguments[0]) / 4 - 1 for _ in range(2)]
    weights = [each.requires_grad_() if is_weighted else None for each in factors]
    out = layer(*arguments, per_sample_weights=weights[0])
    expected = reference(*arguments, per_sample_weights=weights[1])
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    (out * torch.arange(6).reshape(3, 2)).sum().backward()
    (expected * torch.arange(6).reshape(3, 2)).sum().backward()
    torch.testing.assert_close(factors[0].grad, factors[1].grad, rtol=0, atol=0)
    layer.flush()
    with torch.no_grad():
        reference.weight -= SGD.lr * reference.weight.grad
    rows = np.stack([server.values("e")[key] for key in range(10)])
    real = [key for key in range(10) if key != padding_idx]
    np.testing.assert_allclose(rows[real], reference.weight.detach().numpy()[real], rtol=1e-6)


def test_evaluation_reads_and_never_writes() -> None:
    server = ExactServer()
    layer = embedding(server)
    fill(server, layer)
    assert not layer.eval()(torch.tensor([1])).requires_grad
    with torch.no_grad():
        assert not layer.train()(torch.tensor([1])).requires_grad
    layer(torch.tensor([1]))  # Without backward nothing is pushed either.
    layer.flush()
    assert server.tables["e"].pushes == 0


def test_dropped_and_accumulated_gradients_of_rows(world: GetWorld) -> None:
    server = ExactServer()

    def work(comm: Any) -> None:
        layer = gt.Embedding("e", 2, optimizer=SGD)
        weight = torch.nn.Parameter(torch.ones(2))
        model = torch.nn.ParameterDict({"weight": weight})
        holder = torch.nn.ModuleList([layer, model])
        optimizer = gt.distributed(torch.optim.SGD([weight], lr=0.5), gr.Sync(via="ps"),
                                   model=holder, comm=comm, ps=server.client(0))  # fmt: skip
        ids = torch.tensor([5])
        (layer(ids) @ weight).sum().backward()
        optimizer.zero_grad()  # Dropped.
        (layer(ids) @ weight).sum().backward()
        (layer(ids) @ weight).sum().backward()  # Added up: one step.
        optimizer.step()
        np.testing.assert_array_equal(layer.table.pull([5])[0], np.float32(-0.25 * 2))
        assert server.tables["e"].pushes == 1
        optimizer.close()

    world(1, "tcp").run(work)


@pytest.mark.parametrize("ending", ["step", "zero_grad", "alone"])
def test_a_second_backward_through_one_graph_pushes_its_own_gradient(
    comm: Any, ending: str
) -> None:
    server = ExactServer()
    layer = embedding(server) if ending == "alone" else gt.Embedding("e", 2, optimizer=SGD)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    if ending != "alone":
        optimizer = gt.distributed(
            optimizer, gr.Async(), model=layer, comm=comm, ps=server.client(0)
        )
    out = layer(torch.tensor([5, 7]))
    out.sum().backward(retain_graph=True)
    if ending == "step":
        optimizer.step()
    optimizer.zero_grad()
    (10 * out).sum().backward()
    if ending != "alone":
        optimizer.step()
    layer.flush()
    pushed = 10 if ending == "zero_grad" else 1 + 10
    np.testing.assert_array_equal(layer.table.pull([5, 7]), np.full((2, 2), -0.25 * pushed))
    if ending != "alone":
        optimizer.close()


def test_what_servers_cannot_do_is_refused_by_name(comm: Any) -> None:
    def distributed(optimizer: torch.optim.Optimizer, **options: Any) -> Any:
        return gt.distributed(
            optimizer, gr.Async(), **{"comm": comm, "ps": ExactServer().client(0), **options}
        )

    def params(**kind: Any) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.ones(2, 2, **kind))]

    with pytest.raises(gr.InvalidArgument, match="no rule for NAdam"):
        distributed(torch.optim.NAdam(params()))
    with pytest.raises(gr.InvalidArgument, match="amsgrad=True"):
        distributed(torch.optim.Adam(params(), amsgrad=True))
    with pytest.raises(gr.InvalidArgument, match="maximize=True"):
        distributed(torch.optim.SGD(params(), maximize=True))
    with pytest.raises(gr.InvalidArgument, match="float64"):
        distributed(torch.optim.SGD(params(dtype=torch.float64)))
    with pytest.raises(gr.InvalidArgument, match="compress"):
        distributed(torch.optim.SGD(params()), compress="bf16")
    with pytest.raises(gr.InvalidArgument, match="mode 'async'"):
        gt.distributed(torch.optim.SGD(params()), "async")
    refused = torch.optim.NAdam(params())
    with pytest.raises(gr.InvalidArgument):
        distributed(refused)
    assert type(refused) is torch.optim.NAdam  # As it was.


def test_adam_whose_weight_decay_is_decoupled_is_adamw_on_servers(comm: Any) -> None:
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups: list[Any] = [{"params": params[:1]}, {"params": params[1:]}]
    groups[1]["decoupled_weight_decay"] = True
    optimizer = torch.optim.Adam(groups, weight_decay=0.1)
    if "decoupled_weight_decay" not in optimizer.defaults:
        pytest.skip("this PyTorch has no such option")
    served = gt.distributed(optimizer, gr.Async(), comm=comm, ps=ExactServer().client(0))
    kinds = [gr.optim.Adam, gr.optim.AdamW]
    assert served.driver.rules == [kind(lr=1e-3, weight_decay=0.1) for kind in kinds]
    served.param_groups[0]["decoupled_weight_decay"] = True
    with pytest.raises(gr.InvalidArgument, match="AdamW"):
        served.step()
    served.abandon()


def test_a_distributed_optimizer_is_not_copied(comm: Any) -> None:
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = gt.distributed(
        torch.optim.SGD([param], lr=1.0), gr.Async(), comm=comm, ps=ExactServer().client(0)
    )
    with pytest.raises(TypeError, match="copied"):
        copy.deepcopy(optimizer)
    with pytest.raises(gr.InvalidArgument, match="servers'; make another one"):
        gt.distributed(optimizer, comm=comm)
    with pytest.raises(gr.InvalidArgument, match="cannot be added"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    optimizer.close()
