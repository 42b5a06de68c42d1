"""gradring.torch.Embedding as a module: its copies, and what it refuses."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer

IDS = torch.tensor([3, 5])
RULE = gr.optim.SGD(lr=1.0)


@pytest.fixture
def comm(world: GetWorld) -> Any:
    """A communicator of one."""
    return world(1, "tcp").comms[0]


def embedding(server: ExactServer, **options: Any) -> gt.Embedding:
    return gt.Embedding("e", 2, optimizer=RULE, ps=server.client(0), **options)


def train(layer: torch.nn.Module) -> None:
    layer(IDS).sum().backward()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_copy_reads_the_rows_that_the_layer_trains(device: Any) -> None:
    layer = embedding(ExactServer(), device=device)
    train(layer)
    copied = copy.deepcopy(layer)
    for step in range(1, 3):
        layer.flush()
        for reader in (copied.eval(), copy.deepcopy(copied)):
            np.testing.assert_array_equal(reader(IDS), np.full((2, 2), -step))
        train(layer)


def test_an_average_of_a_model_reads_its_rows(comm: Any) -> None:
    server = ExactServer()
    model = torch.nn.Sequential(
        gt.Embedding("e", 2, optimizer=RULE),
        torch.nn.Linear(2, 2, bias=False),
        torch.nn.BatchNorm1d(2),
    )
    torch.nn.init.ones_(model[1].weight)
    optimizer = gt.distributed(
        torch.optim.SGD(model.parameters(), lr=1.0), gr.Sync(via="ps"), model=model, comm=comm,
        ps=server.client(0),
    )  # fmt: skip
    average = AveragedModel(model)
    model[:2](IDS).sum().backward()
    optimizer.step()
    average.update_parameters(model)
    update_bn([IDS], average)
    torch.testing.assert_close(average.module[0].eval()(IDS), model[0].eval()(IDS))
    torch.testing.assert_close(model[0](IDS), torch.full((2, 2), -2.0))
    optimizer.close()


def test_a_copy_that_would_train_says_that_it_only_reads(comm: Any) -> None:
    server = ExactServer()
    layer = embedding(server)
    train(layer)
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied(IDS)
    with pytest.raises(gr.InvalidArgument, match=r"'e' is a copy.*only reads.*eval\(\)"):
        copied(IDS)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    with pytest.raises(gr.InvalidArgument, match=r"copy a model before distributed\(\)"):
        gt.distributed(optimizer, gr.Async(), model=copied, comm=comm, ps=server.client(0))
    assert copy.copy(layer)(IDS).requires_grad  # The same layer by another name.


def test_a_copy_of_a_layer_without_rows_is_a_layer_of_its_own() -> None:
    server = ExactServer()
    layer = embedding(server, device="cpu")
    train(copied := copy.deepcopy(layer))
    copied.flush()
    np.testing.assert_array_equal(layer.eval()(IDS), np.full((2, 2), -1))
    assert copied.cache is not layer.cache


def test_a_layer_with_rows_is_not_pickled_without_them() -> None:
    torch.save(gt.Embedding("e", 2, optimizer=RULE), io.BytesIO())
    layer = embedding(ExactServer())
    train(layer)
    with pytest.raises(TypeError, match=r"'e' cannot be pickled.*state_dict\(\).*save\(path\)"):
        torch.save(torch.nn.Sequential(layer), io.BytesIO())
    assert layer.state_dict() == {}


def test_offsets_and_weights_are_refused_where_nothing_is_added_up() -> None:
    layer = embedding(ExactServer())
    for arguments in ({"offsets": torch.tensor([0])}, {"per_sample_weights": torch.ones(2)}):
        with pytest.raises(gr.InvalidArgument, match=r"offsets are for pool.*per_sample_weights"):
            layer(IDS, **arguments)


@pytest.mark.parametrize(
    ("pooling", "weights", "why"),
    [
        ("mean", torch.ones(1, 2), "averages rows: per_sample_weights are for pooling='sum'"),
        ("sum", torch.ones(2), r"of shape \(2,\); for ids of shape \(1, 2\) they are float32"),
        ("sum", torch.ones(1, 2, dtype=torch.float64), "are torch.float64"),
    ],
)
def test_weights_that_rows_cannot_have_are_refused_before_those_are_asked_for(
    pooling: Any, weights: torch.Tensor, why: str
) -> None:
    server = ExactServer()
    layer = embedding(server, pooling=pooling)
    with pytest.raises(gr.InvalidArgument, match=why):
        layer(IDS[None], per_sample_weights=weights)
    assert not server.tables


@pytest.mark.parametrize(
    ("ids", "offsets", "why"),
    [
        ([1, 2], None, r"'e': ids of shape \(2,\) without offsets are no bags"),
        ([[1, 2]], [0], r"with offsets ids are flat; these have shape \(1, 2\)"),
        ([1, 2], [0.0], "offsets are an int64 tensor, not torch.float32"),
        ([1, 2], [[0]], r"offsets are flat.*shape \(1, 1\)"),
        ([1, 2], [1], "first at 0"),
        ([1, 2], [0, 3], "in the 2 ids each bag begins.*none beyond"),
        ([1, 2, 3], [0, 2, 1], "none before the one before it"),  # torch reads beyond the rows.
        ([1.5], [0], "Embedding 'e': ids has dtype float32"),
    ],
)
def test_ids_that_are_no_bags_are_refused_before_their_rows_are_asked_for(
    ids: Any, offsets: Any, why: str
) -> None:
    server = ExactServer()
    layer = embedding(server, pooling="sum")
    collection = gt.EmbeddingCollection({"a": layer})
    given = [torch.tensor(each) for each in (ids, offsets) if each is not None]
    for call in (lambda: layer(*given), lambda: collection({"a": tuple(given)})):
        with pytest.raises(gr.InvalidArgument, match=why):
            call()
    assert not server.tables


@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
def test_bags_of_no_ids_give_zeros_and_train_nothing(pooling: Any) -> None:
    server = ExactServer()
    layer = embedding(server, pooling=pooling)
    rows = layer(torch.empty((3, 0), dtype=torch.int64))
    assert rows.tolist() == [[0, 0]] * 3
    rows.sum().backward()
    layer.flush()
    assert not server.values("e")


class Tower(torch.nn.Module):
    """Rows under a layer that can be compiled."""

    def __init__(self, rows: gt.Embedding) -> None:
        super().__init__()
        self.rows = rows
        self.linear = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(self.linear.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.linear(self.rows(ids)).sum() * 2  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Where a graph begins.
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("options", [{}, {"pooling": "sum", "padding_idx": 3}, {"device": "cpu"}])
def test_a_compiled_model_trains_its_rows_and_compiles_the_rest_once(
    backend: str, options: Any
) -> None:
    def trained(make: Any) -> tuple[Any, Any]:
        server = ExactServer()
        model = Tower(embedding(server, **options))
        run = make(model)
        for step in range(3):
            run(torch.tensor([[3, 5, 5 + step]])).backward()
            model.rows.flush()
        rows = {key: row.tolist() for key, row in server.values("e").items()}
        return rows, model.linear.weight.grad.tolist()

    counter = CompileCounterWithBackend(backend)
    torch._dynamo.reset()
    assert trained(lambda model: torch.compile(model, backend=counter)) == trained(lambda m: m)
    assert counter.frame_count == 1


def test_frozen_rows_are_read_and_not_trained_until_they_are_unfrozen() -> None:
    server = ExactServer()
    layer = embedding(server)
    train(layer)
    before = layer(IDS).sum()
    assert layer.requires_grad_(False) is layer
    assert not layer(IDS).requires_grad
    before.backward(retain_graph=True)  # As of a parameter, nothing comes any more.
    layer.flush()
    assert server.tables["e"].pushes == 1
    layer.requires_grad_(True)
    before.backward()
    layer.flush()
    np.testing.assert_array_equal(layer.eval()(IDS), np.full((2, 2), -2))


@pytest.mark.parametrize("mode", [gr.Sync(), gr.Sync(via="ps"), gr.Async(), gr.Geo(k_steps=1)])
def test_a_model_whose_rows_are_frozen_trains_its_other_parameters(comm: Any, mode: Any) -> None:
    server = ExactServer()
    model = torch.nn.Sequential(gt.Embedding("e", 2, optimizer=RULE), torch.nn.Linear(2, 1))
    model.apply(lambda module: module.requires_grad_(False))
    torch.nn.init.zeros_(model[1].requires_grad_(True).bias)
    optimizer = gt.distributed(
        torch.optim.SGD(model.parameters(), lr=1.0), mode, model=model, comm=comm,
        ps=server.client(0),
    )  # fmt: skip
    train(model)
    optimizer.step()
    optimizer.flush()
    np.testing.assert_array_equal(model[0].eval()(IDS), np.zeros((2, 2)))
    assert model[1].bias.item() == -2
    optimizer.close()


def test_a_copy_is_frozen_as_its_layer_is_and_a_frozen_copy_reads_in_training() -> None:
    layer = embedding(ExactServer())
    train(layer)
    copied = copy.deepcopy(layer)
    with pytest.raises(gr.InvalidArgument, match=r"only reads.*requires_grad_\(False\)"):
        copied(IDS)
    for frozen in (copied.requires_grad_(False), copy.deepcopy(copied)):
        assert not frozen(IDS).requires_grad
    other_name = copy.copy(layer)
    layer.requires_grad_(False)
    assert not other_name(IDS).requires_grad


def test_a_layer_says_how_wide_its_rows_are_as_torch_does() -> None:
    layer = embedding(ExactServer())
    assert layer.embedding_dim == layer.dim == 2
    with pytest.raises(AttributeError):
        layer.embedding_dim = 3  # type: ignore[misc]


def fails(_: torch.Tensor) -> None:
    raise RuntimeError("hook")


def failing(layer: gt.Embedding) -> torch.Tensor:
    """A loss whose backward has brought a gradient of rows when it fails."""
    late, early = layer(IDS), layer(IDS)
    late.register_hook(fails)
    return late.sum() + early.sum()


def test_a_backward_that_failed_leaves_nothing_to_the_next_one() -> None:
    server = ExactServer()
    layer = embedding(server)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="hook"):
            failing(layer).backward()
        assert layer.gradients()
        train(layer)
    layer.flush()
    assert server.tables["e"].pushes == 2
    np.testing.assert_array_equal(layer.eval()(IDS), np.full((2, 2), -2))


class Within(torch.autograd.Function):
    """Runs a pass of its own inside backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, run: Any) -> torch.Tensor:  # type: ignore[override]
        ctx.run = run
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            ctx.run()
        return grad, None


def test_passes_inside_a_pass_push_each_gradient_once_and_drop_only_their_own() -> None:
    server = ExactServer()
    layer = embedding(server)

    def fail() -> None:
        with pytest.raises(RuntimeError, match="hook"):
            failing(layer).backward()

    for run in (lambda: train(layer), fail):
        # One leaf gets its gradient before the pass inside, the other one after it.
        before = Within.apply(layer(IDS), run) + layer(IDS)
        before.sum().backward()
        assert not layer.gradients()
    layer.flush()
    np.testing.assert_array_equal(layer.eval()(IDS), np.full((2, 2), -(3 + 2)))


def test_rows_in_a_reentrant_checkpoint_are_pushed_beside_those_outside() -> None:
    layer = embedding(ExactServer())
    for step in range(1, 3):
        inside: Any = checkpoint(lambda rows: rows + 2 * layer(IDS), layer(IDS), use_reentrant=True)
        (inside + 4 * layer(IDS)).sum().backward()
        assert not layer.gradients()
        layer.flush()
        np.testing.assert_array_equal(layer.eval()(IDS), np.full((2, 2), -7 * step))
        layer.train()


@pytest.mark.filterwarnings("ignore:Using backward")  # Torch warns of memory, once.
@pytest.mark.parametrize("mode", [None, gr.Sync(), gr.Async(), gr.Geo(k_steps=1)], ids=str)
@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_backward_that_makes_a_graph_trains_rows_as_any(
    comm: Any, mode: Any, is_scaled: bool
) -> None:
    server = ExactServer()
    layer = embedding(server) if mode is None else gt.Embedding("e", 2, optimizer=RULE)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer: Any = torch.optim.SGD([weight], lr=1.0)
    if mode is not None:
        optimizer = gt.distributed(optimizer, mode, model=layer, comm=comm, ps=server.client(0))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=is_scaled and mode is not None)
    rows = layer(IDS)
    loss = ((rows + weight) ** 2).sum()  # Of 1 each, so that gradients are 2 a number.
    scaler.scale(loss).backward(create_graph=True)
    scaler.step(optimizer)
    optimizer.zero_grad()
    layer.flush()
    np.testing.assert_array_equal(layer.eval()(IDS), np.full((2, 2), -2))
    if mode is not None:
        optimizer.close()


def test_a_penalty_on_the_gradients_of_rows_trains_them() -> None:
    layer = embedding(ExactServer())
    rows = layer(IDS)
    (slope,) = torch.autograd.grad((rows * (rows + 3)).sum(), rows, create_graph=True)
    (slope**2).sum().backward()  # (2 r + 3)^2, so 4 (2 r + 3) a number.
    layer.flush()
    np.testing.assert_array_equal(layer.eval()(IDS), np.full((2, 2), -12))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 9}, {"pooling": "sum"}], ids=str)
@pytest.mark.parametrize("when", ["before backward", "before the step"])
def test_the_memory_of_ids_may_be_used_for_others_once_their_rows_are_here(
    comm: Any, options: Any, when: str
) -> None:
    server = ExactServer()
    model = torch.nn.Sequential(gt.Embedding("e", 2, optimizer=RULE, **options))
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = gt.distributed(
        torch.optim.SGD([weight], lr=1.0), gr.Sync(via="ps"), model=model, comm=comm,
        ps=server.client(0),
    )  # fmt: skip
    ids = torch.tensor([[3, 5]])
    loss = model(ids).sum()
    if when == "before backward":
        ids[:] = torch.tensor([[7, 8]])
    loss.backward()
    ids[:] = torch.tensor([[7, 8]])
    optimizer.step()
    assert sorted(server.values("e")) == [3, 5]
    optimizer.close()


@pytest.mark.parametrize("ids", [[4, 3, 4, 5, 3, 3], [3, 3, 3, 3, 3, 3], []], ids=str)
def test_of_equal_numbers_max_trains_the_one_that_torch_trains(ids: list[int]) -> None:
    server = ExactServer()
    layer = embedding(server, pooling="max", padding_idx=3)
    reference = torch.nn.EmbeddingBag(6, 2, mode="max", padding_idx=3)
    torch.nn.init.zeros_(reference.weight)
    flat, offsets = torch.tensor(ids, dtype=torch.int64), torch.tensor([0, 0, len(ids) // 2])
    for module in (layer, reference):
        assert module(flat, offsets).tolist() == [[0, 0]] * 3
        (module(flat, offsets) * torch.tensor([[1.0], [2.0], [4.0]])).sum().backward()
    layer.flush()
    rows = layer.eval()(torch.arange(6), torch.arange(6))
    torch.testing.assert_close(rows, -reference.weight.grad, rtol=0, atol=0)
