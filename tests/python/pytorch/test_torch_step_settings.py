"""Settings that ranks have stepped by are compared: a change is seen, however it is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from gradring.torch.gradients.same_rules import StepSettings
from torch_models import Failing


class OnDevice(torch.Tensor):
    """A tensor on the CPU that says that it is on a GPU."""

    device: Any = torch.device("cuda")


def on_device(number: float) -> torch.Tensor:
    return torch.tensor(number).as_subclass(OnDevice)


def told(settings: StepSettings, group: dict[str, Any]) -> str:
    optimizer: Any = SimpleNamespace(param_groups=[group])
    return ", ".join(settings.mark(optimizer).lines)


def test_settings_that_are_numpy_arrays_are_seen_to_change() -> None:
    settings, group = StepSettings(), {"betas": np.zeros(2)}
    for _ in range(2):
        group["betas"] = np.array([0.9, 0.99])
        assert told(settings, group) == "betas=(0.9, 0.99) in group 0"
    group["betas"][0] = 0.5
    assert told(settings, group) == "betas=(0.5, 0.99) in group 0"


def test_a_rate_on_a_device_is_seen_to_change_whether_written_or_replaced() -> None:
    settings, group = StepSettings(), {"lr": on_device(0.5)}
    assert told(settings, group) == "lr=0.5 in group 0"
    group["lr"].fill_(0.25)
    assert told(settings, group) == "lr=0.25 in group 0"
    for count in range(1, 50):  # Each in the place of the one before, if that is free.
        del group["lr"]
        rate = on_device(count)
        rate.fill_(count)
        group["lr"] = rate
        del rate
        assert told(settings, group) == f"lr={count:.1f} in group 0"


def test_a_rate_on_a_device_that_was_made_for_inference_is_looked_at() -> None:
    with torch.inference_mode():
        settings, group = StepSettings(), {"lr": on_device(0.5)}
        assert told(settings, group) == "lr=0.5 in group 0"
        group["lr"].fill_(0.25)
        assert told(settings, group) == "lr=0.25 in group 0"


@pytest.mark.parametrize("drops", [[True, True], [False, True], [True, False]], ids=str)
def test_a_step_that_is_dropped_when_ranks_have_stepped_differently_leaves_nothing_behind(
    world: GetWorld, drops: list[bool]
) -> None:
    def train(comm: Any) -> list[float]:
        first, second = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        rate = 0.5 + comm.rank
        optimizer = gt.distributed(
            torch.optim.SGD([first, second], lr=1), comm=comm, bucket_bytes=4
        )
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()  # Nobody has had a backward: an order is still to be learned.
        if drops[comm.rank]:
            with pytest.raises(ValueError, match="no gradient"):
                (Failing.apply(first.sin()) + second).sum().backward()
            with pytest.raises(gr.Mismatch, match=r"lr=0\.5 in group 0"):
                optimizer.zero_grad()
            assert first.grad is None
            assert second.grad is None
        else:
            with pytest.raises(gr.Mismatch, match=r"lr=0\.5 in group 0"):
                (second + first).sum().backward()
        optimizer.param_groups[0]["lr"] = 1.0
        for param in (first, second):  # As from a checkpoint.
            param.grad = None
            nn.init.zeros_(param)
        for _ in range(3):
            (second + first).sum().backward()
            optimizer.step()
            for param in (first, second):
                param.grad = None
        return [first.item(), second.item()]

    assert world(2, "shm").run(train) == [[-3, -3]] * 2


def test_a_round_without_rank_0_that_was_refused_is_no_part_of_the_next(world: GetWorld) -> None:
    def train(comm: Any) -> float:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm)
        optimizer.set_weight(0)
        with pytest.raises(gr.InvalidArgument, match="every rank has weight 0"):
            (param.backward if comm.rank else optimizer.synchronize)()
        param.grad = None
        optimizer.set_weight(1)
        param.backward()
        optimizer.step()
        return param.item()

    assert world(2, "shm").run(train) == [-1, -1]
