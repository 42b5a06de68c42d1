"""Steps that are not done, and what comes between two steps: weights, freezing, clearing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from torch_models import Failing, sgd


def by_optimizer(optimizer: Any, _: nn.Module) -> None:
    optimizer.zero_grad()


def by_model(_: Any, model: nn.Module) -> None:
    model.zero_grad()


def linear() -> nn.Linear:
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    return model


@pytest.mark.parametrize("clear", [by_optimizer, by_model])
def test_batches_of_another_size_may_follow_a_dropped_step(
    world: GetWorld, clear: Callable[[Any, nn.Module], None]
) -> None:
    counts = [[4, 3, 2], [4, 1]]  # Rank 1 has no batch for the last step.

    def train(comm: Any) -> tuple[float, float]:
        model = linear()
        optimizer = sgd(model.parameters(), comm)
        for step, count in enumerate(optimizer.uneven(counts[comm.rank], weight=float)):
            clear(optimizer, model)
            if count is not None:
                (model(torch.ones(1, 1)) * count).sum().backward()
            if step == 1:
                continue
            optimizer.step()
        return model.weight.item(), model.bias.item()

    # By hand: (4 * 4 + 4 * 4) / 8, nothing, and rank 0 alone.
    assert world(2, "shm").run(train) == [(-6, -6)] * 2


@pytest.mark.parametrize("clear", [by_optimizer, by_model])
@pytest.mark.parametrize("overlap", [True, False])
def test_another_weight_may_be_said_after_a_dropped_step(
    world: GetWorld, clear: Callable[[Any, nn.Module], None], overlap: bool
) -> None:
    counts = [[3, 8, 2], [1, 8, 0]]  # Of these the second ones are dropped.

    def train(comm: Any) -> float:
        model = linear()
        optimizer = sgd(model.parameters(), comm, overlap=overlap)
        for step, count in enumerate(counts[comm.rank]):
            clear(optimizer, model)
            if count > 0:
                optimizer.set_weight(count)
                (model(torch.ones(1, 1)) * count).sum().backward()
            if step == 1:
                optimizer.synchronize()
            else:
                optimizer.step(weight=count)
        return model.weight.item()

    # By hand: (3 * 3 + 1) / 4, and rank 0's alone.
    assert world(2, "shm").run(train) == [-4.5] * 2


def test_a_rank_without_a_batch_follows_when_the_model_has_dropped_a_step(world: GetWorld) -> None:
    batches = [[2.0, 8.0], [2.0]]

    def train(comm: Any) -> float:
        model = linear()
        optimizer = sgd(model.parameters(), comm)
        for step, value in enumerate(optimizer.uneven(batches[comm.rank])):
            model.zero_grad()
            if value is not None:
                (model(torch.ones(1, 1)) * value).sum().backward()
            if step > 0:
                optimizer.step()
        return model.weight.item()

    assert world(2, "shm").run(train) == [-8, -8]


def test_accumulation_may_follow_a_step_that_the_model_has_dropped(world: GetWorld) -> None:
    def train(comm: Any) -> float:
        model = linear()
        optimizer = sgd(model.parameters(), comm)
        (model(torch.ones(1, 1)) * 100).sum().backward()
        model.zero_grad()
        with optimizer.no_sync():
            model(torch.ones(1, 1)).sum().backward()
        (model(torch.ones(1, 1)) * 2 * comm.rank).sum().backward()
        optimizer.step()
        return model.weight.item()

    assert world(2, "shm").run(train) == [-2, -2]


def test_gradients_set_to_zero_in_place_do_not_drop_a_step_and_the_error_says_what_does(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> None:
        model = linear()
        optimizer = sgd(model.parameters(), comm)
        model(torch.ones(1, 1)).sum().backward()
        model.zero_grad(set_to_none=False)
        with pytest.raises(gr.InvalidArgument, match=r"drop the step with optimizer\.zero_grad"):
            model(torch.ones(1, 1)).sum().backward()
        optimizer.zero_grad()

    world(2, "shm").run(train)


def test_a_backward_in_no_sync_after_the_averages_is_refused(world: GetWorld) -> None:
    def train(comm: Any) -> float:
        param = nn.Parameter(torch.zeros(1))
        optimizer = sgd([param], comm)
        param.backward()
        with (
            optimizer.no_sync(),
            pytest.raises(gr.InvalidArgument, match="accumulate before the synchronised backward"),
        ):
            (param * (comm.rank + 1)).backward()
        optimizer.zero_grad()
        param.backward()
        optimizer.step()
        return param.item()

    assert world(2, "shm").run(train) == [-1, -1]


def test_without_overlap_a_backward_after_the_averages_is_refused_before_it_adds_anything(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> float:
        param = nn.Parameter(torch.zeros(1))
        optimizer = sgd([param], comm, overlap=False)
        (param * 2 * comm.rank).backward()
        optimizer.synchronize()
        with pytest.raises(gr.InvalidArgument, match=r"synchronize\(\) after the last backward"):
            (param * 100 * comm.rank).backward()
        optimizer.step()
        return param.item()

    assert world(2, "shm").run(train) == [-1, -1]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_model_with_one_parameter_drops_a_step_too(world: GetWorld, overlap: bool) -> None:
    def train(comm: Any) -> float:
        model = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = sgd(model.parameters(), comm, overlap=overlap)
        for factor in (100, 2):
            model.zero_grad()
            (model(torch.ones(1, 1)) * factor * comm.rank).sum().backward()
            optimizer.synchronize()
        optimizer.step()
        return model.weight.item()

    assert world(2, "shm").run(train) == [-1, -1]


def test_a_backward_after_one_that_has_failed_is_told_how_to_drop_the_step(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> float:
        first, second = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        optimizer = sgd([first, second], comm)
        with pytest.raises(ValueError, match="no gradient"):
            (Failing.apply(first.sin()) + second).sum().backward()
        with pytest.raises(gr.InvalidArgument, match=r"is dropped with optimizer\.zero_grad"):
            (first + second).sum().backward()
        optimizer.zero_grad()
        (first + second).sum().backward()
        optimizer.step()
        return second.item()

    assert world(2, "shm").run(train) == [-1, -1]


def test_looking_at_the_parameters_again_keeps_weight_accumulation_and_counts(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> tuple[float, float, bool]:
        model = linear()
        optimizer = sgd([model.weight], comm)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        sent = optimizer.sent_bytes
        model.zero_grad()
        optimizer.set_weight(3 if comm.rank else 1)
        with optimizer.no_sync():
            optimizer.add_param_group({"params": [model.bias]})
            (model(torch.ones(1, 1)) * 0).sum().backward()
        optimizer.refresh()
        (model(torch.ones(1, 1)) * 4 * comm.rank).sum().backward()
        optimizer.step()
        return model.weight.item(), model.bias.item(), optimizer.sent_bytes > sent > 0

    assert world(2, "shm").run(train) == [(-4, -3, True)] * 2


def test_the_gradient_of_a_rank_without_weight_is_nowhere_used(world: GetWorld) -> None:
    def train(comm: Any) -> tuple[float, float, bool]:
        first, second = (nn.Parameter(torch.ones(1)) for _ in range(2))
        optimizer = sgd([first, second], comm)
        optimizer.set_weight(1 - comm.rank)
        (first * 2 + (second * 5 if comm.rank else 0)).backward()
        optimizer.step()
        return first.item(), second.item(), second.grad is None

    assert world(2, "shm").run(train) == [(-1, 1, True)] * 2


def test_a_model_whose_parameters_are_all_frozen_steps_without_effect(world: GetWorld) -> None:
    def train(comm: Any) -> tuple[float, float]:
        model = linear().requires_grad_(False)
        optimizer = sgd(model.parameters(), comm)
        optimizer.step()
        model.requires_grad_(True)
        optimizer.refresh()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.requires_grad_(False)
        optimizer.refresh()
        optimizer.step()
        return model.weight.item(), model.bias.item()

    assert world(2, "shm").run(train) == [(-1, -1)] * 2


def leave_by_break(optimizer: Any, batches: list[float], step: Callable[[Any], None]) -> None:
    for turn, batch in enumerate(optimizer.uneven(batches)):
        step(batch)
        if turn == 2:
            break


def leave_by_error(optimizer: Any, batches: list[float], step: Callable[[Any], None]) -> None:
    def loop() -> None:
        for turn, batch in enumerate(optimizer.uneven(batches)):
            step(batch)
            list(optimizer.uneven([1.0]))  # An evaluation, in which none is out.
            if turn == 2:
                raise KeyError(turn)

    with pytest.raises(KeyError):
        loop()


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error])
def test_ranks_that_have_left_a_loop_while_one_was_out_meet_no_more(
    world: GetWorld, leave: Callable[[Any, list[float], Callable[[Any], None]], None]
) -> None:
    def train(comm: Any) -> tuple[float, int]:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([weight], lr=1.0), comm=comm)

        def step(batch: float | None) -> None:
            optimizer.zero_grad()
            if batch is not None:
                (weight * batch).backward()
            optimizer.step()

        leave(optimizer, [1.0] * (1 + 4 * comm.rank), step)
        meetings: list[Any] = []
        comm_of_turns = optimizer._turns._comm
        optimizer._turns._comm = SimpleNamespace(
            all_reduce=lambda *given: (meetings.append(given), comm_of_turns.all_reduce(*given))
        )
        step(1.0)
        return weight.item(), len(meetings)

    assert world(2, "shm").run(train) == [(-4, 0)] * 2


@pytest.mark.parametrize("compress", [gr.TopK(0.25), "int8"], ids=str)
def test_what_compression_has_kept_waits_for_a_parameter_that_steps_do_not_use(
    world: GetWorld, compress: Any
) -> None:
    def train(comm: Any) -> list[float]:
        used, unused = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
        optimizer = sgd([used, unused], comm, compress=compress)
        for step in range(24):
            gradient = torch.tensor([1.0, 2.0, 3.0, 4.25]) if step == 0 else torch.zeros(4)
            optimizer.zero_grad()
            ((used + (0 if 1 <= step < 12 else unused)) * gradient).sum().backward()
            assert (unused.grad is None) == (1 <= step < 12)
            optimizer.step()
        return unused.tolist()

    for values in world(2, "shm").run(train):
        assert values == pytest.approx([-1, -2, -3, -4.25], abs=1e-4)
