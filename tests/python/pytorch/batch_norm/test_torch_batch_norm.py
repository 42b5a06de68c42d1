"""Batch norm over ranks: n of them do what one process does with their batches put together."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradring.torch as gt
from conftest import GetWorld
from torch_models import part

CLOSE = {"rtol": 1e-11, "atol": 1e-12}
COUNTS = [[4, 4], [3, 5], [5, 2, 4], [6, 0, 1]]


class Blocks(nn.Module):
    """Batch norms behind layers, and one in front that no gradient goes through."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, 4, 3)
        self.second = nn.BatchNorm2d(4, momentum=None)
        self.third = nn.BatchNorm1d(4, affine=False)
        self.last = nn.Linear(4, 2)
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for param in self.parameters():
                param.copy_(torch.rand(param.shape, generator=random) - 0.25)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.conv(self.first(x))).tanh()
        return self.last(self.third(x.mean((2, 3))).sigmoid())


def images(step: int, count: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    random = torch.Generator().manual_seed(step)
    return (torch.randn(count, 3, 5, 5, generator=random) * 3 + 7).to(dtype)


def trained_alone(steps: int, count: int) -> dict[str, torch.Tensor]:
    model = Blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        model(images(step, count)).square().mean().backward()
        optimizer.step()
    return model.state_dict()


def assert_same_bits(states: list[dict[str, torch.Tensor]]) -> None:
    for state in states[1:]:
        for name, value in states[0].items():
            assert torch.equal(state[name], value), name


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_ranks_train_as_one_process_does_with_their_batches(
    world: GetWorld, counts: list[int]
) -> None:
    def job(comm: Any) -> dict[str, torch.Tensor]:
        model = gt.sync_batch_norm(Blocks(), comm)
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5), model=model, comm=comm,
            bucket_bytes=64,
        )  # fmt: skip
        for step in range(20):
            optimizer.zero_grad()
            optimizer.set_weight(counts[comm.rank])
            x = part(comm, counts, images(step, sum(counts)))
            model(x).square().mean().backward()  # Of no examples that is no number, and no matter.
            optimizer.step()
        optimizer.close()
        return model.state_dict()

    states = world(len(counts), "shm").run(job)
    assert_same_bits(states)
    expected = trained_alone(20, sum(counts))
    assert list(states[0]) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(states[0][name], value, **CLOSE)


TIGHT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.1}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.BatchNorm1d(4), ()),
    "1d of sequences": (lambda: nn.BatchNorm1d(4, eps=0.5), (6,)),
    "2d": (lambda: nn.BatchNorm2d(4, momentum=0.5), (3, 2)),
    "2d, mean of all batches": (lambda: nn.BatchNorm2d(4, momentum=None), (3, 2)),
    "3d": (lambda: nn.BatchNorm3d(4, affine=False), (2, 3, 2)),
    "nothing kept": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (3, 2)),
}
# By how many axes a batch has behind its channels.
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
LAYOUTS = [(kind, torch.contiguous_format) for kind in LAYERS] + [
    (kind, CHANNELS_LAST[len(shape)])
    for kind, (_, shape) in LAYERS.items()
    if len(shape) in CHANNELS_LAST
]


def outcome(layer: Any, x: torch.Tensor, take: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Of two batches: outputs, gradients of inputs, those of parameters, and the buffers."""
    random = torch.Generator().manual_seed(9)
    wanted = torch.randint(-4, 5, x.shape, generator=random).to(x.dtype) / 4
    given = [take(x).requires_grad_(), take(x.flip(0) * 2).requires_grad_()]
    outs = [layer(each) for each in given]
    sum((y * take(wanted)).sum() for y in outs).backward()
    params = [param.grad for param in layer.parameters()]
    return [*outs, *[each.grad for each in given]], params, list(layer.buffers())


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
@pytest.mark.parametrize("dtype", TIGHT)
def test_a_layer_gives_what_torchs_gives_for_all_batches(
    world: GetWorld, kind: str, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    make, shape = LAYERS[kind]
    counts = [3, 0, 5]
    x = torch.randn(8, 4, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = (x + 1).to(dtype).to(memory_format=layout) if shape else (x + 1).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def job(comm: Any) -> Any:
        layer = gt.sync_batch_norm(make().to(wide), comm)
        found = outcome(layer, x, lambda whole: part(comm, counts, whole).clone())
        assert {each.dtype for each in found[0]} == {dtype}
        for param in found[1]:
            comm.all_reduce(param)
        return found

    results = world(3, "shm").run(job)
    expected = outcome(make().double(), x.double(), torch.clone)
    close = {"rtol": TIGHT[dtype], "atol": TIGHT[dtype], "check_dtype": False}
    for index, of_all in enumerate(expected[0]):
        torch.testing.assert_close(torch.cat([each[0][index] for each in results]), of_all, **close)
    for _, params, buffers in results:
        torch.testing.assert_close([*params, *buffers], [*expected[1], *expected[2]], **close)
        assert all(map(torch.equal, buffers, results[0][2]))


def test_far_from_zero_no_digits_are_lost(world: GetWorld) -> None:
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(2)) * 1e-2 + 300
    variance = x.double().var(0)

    def job(comm: Any) -> torch.Tensor:
        layer = gt.sync_batch_norm(nn.BatchNorm1d(2, momentum=1.0), comm)
        layer(part(comm, [40, 24], x))
        return layer.running_var

    for found in world(2, "tcp").run(job):
        # A sum of squares less the square of the sum has no correct digit here.
        torch.testing.assert_close(found.double(), variance, rtol=1e-4, atol=0)


def test_a_rank_alone_has_torchs_bits(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        model, plain = gt.sync_batch_norm(Blocks(), comm), Blocks()
        results = [each(images(0, 4)) for each in (model, plain)]
        assert torch.equal(*results)
        for result in results:
            result.sum().backward()
        assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)

    world(1, "shm").run(job)


def test_a_rank_evaluates_alone_and_sends_nothing(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        model, plain = gt.sync_batch_norm(Blocks(), comm).eval(), Blocks().eval()
        nothing_kept = gt.sync_batch_norm(nn.BatchNorm1d(4, track_running_stats=False), comm).eval()
        if comm.rank == 0:
            assert torch.equal(model(images(0, 3)), plain(images(0, 3)))
            assert nothing_kept(torch.ones(2, 4)).abs().max() == 0

    world(2, "shm").run(job)


def test_states_go_both_ways_and_copies_keep_their_ranks(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        model, plain = gt.sync_batch_norm(Blocks(), comm), Blocks()
        model(images(comm.rank, 4))
        plain.load_state_dict(model.state_dict())
        gt.sync_batch_norm(Blocks(), comm).load_state_dict(plain.state_dict())
        made = gt.SyncBatchNorm(3, 1e-3, momentum=0.5, comm=comm, dtype=torch.float64)
        made.load_state_dict(plain.first.state_dict())
        assert (made.eps, made.momentum) == (1e-3, 0.5)

        twin = copy.deepcopy(model)
        assert torch.equal(twin(images(comm.rank, 4)), model(images(comm.rank, 4)))
        assert_same_bits([twin.state_dict(), model.state_dict()])
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False).eval()
        assert torch.equal(loaded(images(0, 1)), model.eval()(images(0, 1)))

    world(2, "shm").run(job)


def test_a_layer_stays_the_object_that_it_was(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        norm, weight, seen = model[1], model[1].weight, []
        norm.register_forward_hook(lambda *_: seen.append(1))
        assert gt.sync_batch_norm(model, comm) is model
        assert model[1] is norm
        assert norm.weight is weight
        model(torch.rand(3, 2))
        assert seen == [1]
        assert gt.sync_batch_norm(nn.SyncBatchNorm(2), comm).ranks.comm.world_size == 2

    world(2, "shm").run(job)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_run_a_layer_again_on_every_rank(world: GetWorld, reentrant: bool) -> None:
    x = images(0, 6)

    def run(model: Any, x: torch.Tensor, *, again: bool) -> list[torch.Tensor]:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return model.second(model.conv(x)).tanh()

        x = x.clone().requires_grad_()
        y = checkpoint(inner, x, use_reentrant=reentrant) if again else inner(x)
        y.square().sum().backward()
        return [x.grad, *[param.grad for param in (model.conv.weight, model.second.weight)]]

    def job(comm: Any) -> None:
        plain, model = (gt.sync_batch_norm(Blocks(), comm) for _ in range(2))
        mine = part(comm, [2, 4], x)
        found = run(model, mine, again=True)
        torch.testing.assert_close(found, run(plain, mine, again=False), **CLOSE)
        assert model.second.num_batches_tracked == 2  # As torch's own.

    world(2, "shm").run(job)


def test_without_gradients_running_means_come_nearer_all_the_same(world: GetWorld) -> None:
    def job(comm: Any) -> torch.Tensor:
        layer = gt.sync_batch_norm(nn.BatchNorm1d(2), comm)
        with torch.no_grad():
            layer(torch.full((2, 2), 10.0 + 20 * comm.rank))
        assert layer.running_mean.tolist() == [2, 2]
        return layer.running_var

    first, second = world(2, "shm").run(job)
    assert torch.equal(first, second)


def test_under_autocast_16_bits_go_in_and_come_out(world: GetWorld) -> None:
    def job(comm: Any) -> None:
        model, plain = gt.sync_batch_norm(Blocks(torch.float32), comm), Blocks(torch.float32)
        x = images(0, 6, torch.float32)
        outs = []
        with torch.autocast("cpu", torch.bfloat16):
            for each, given in ((model, part(comm, [2, 4], x)), (plain, x)):
                inner = each.second(each.conv(given))
                assert inner.dtype == torch.bfloat16
                outs.append(inner)
        outs[0].float().sum().backward()
        assert model.conv.weight.grad.dtype == torch.float32
        expected = part(comm, [2, 4], outs[1])
        torch.testing.assert_close(outs[0], expected, rtol=0.05, atol=0.05)

    world(2, "shm").run(job)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # By the compiler itself.
def test_a_compiled_model_runs_its_layers_as_they_are(world: GetWorld) -> None:
    def job(comm: Any) -> Any:
        return gt.sync_batch_norm(Blocks(), comm)

    models = world(2, "shm").run(job)
    compiled = [torch.compile(model, backend="eager") for model in models]
    twins = [copy.deepcopy(model) for model in models]

    def run(comm: Any) -> None:
        x = part(comm, [2, 4], images(0, 6))
        expected = twins[comm.rank](x)
        torch.testing.assert_close(compiled[comm.rank](x), expected, **CLOSE)

    world(2, "shm").run(run)
