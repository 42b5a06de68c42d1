"""Small models and dyadic data for the tests of gradring.torch; every call makes the same ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import gradring as gr
import gradring.torch as gt

IDS = torch.tensor([7])
Tensors = list[torch.Tensor]

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.5, nesterov=True, weight_decay=0.25),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW([{"params": p, "lr": 0.01, "weight_decay": 0.1}]),
}


# Ranks are threads here, and modules are initialised from one generator.
_seeded = threading.Lock()


def mlp(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    with _seeded:
        torch.manual_seed(seed)
        layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).to(dtype)


def sgd(params: Any, comm: Any, **options: Any) -> Any:
    """Plain SGD with a rate of 1, distributed."""
    return gt.distributed(torch.optim.SGD(params, lr=1), comm=comm, **options)


def batch(step: int, count: int, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    random = np.random.default_rng([7, step])
    x, y = random.standard_normal((count, 6)), random.standard_normal((count, 3))
    return torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)


def part(comm: Any, counts: list[int], x: torch.Tensor) -> torch.Tensor:
    """The rows of a global batch that belong to this rank."""
    first = sum(counts[: comm.rank])
    return x[first : first + counts[comm.rank]]


class Dyadic(nn.Module):
    """Linear, with small quarters for weights: some steps on such data round nothing."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        self.weight = nn.Parameter(quarters(random, (4, 3)))
        self.bias = nn.Parameter(quarters(random, (3,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


def quarters(random: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(random.integers(-4, 4, shape) / 4, dtype=torch.float32)


def values(model: nn.Module) -> Tensors:
    return [value.detach().clone() for value in model.state_dict().values()]


def are_same(a: Tensors, b: Tensors) -> bool:
    """Whether two models' values agree bit for bit."""
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Clicks(nn.Module):
    """A row and a weight whose gradients are those that a step is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = gt.Embedding("rows", 1, optimizer=gr.optim.SGD(lr=1.0))
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, dense: float, sparse: float) -> torch.Tensor:
        return self.weight * dense + self.rows(IDS).sum() * sparse

    def state(self) -> tuple[float, float]:
        return self.weight.item(), self.rows.eval()(IDS).item()


class Failing(torch.autograd.Function):
    """Fails in backward, when the gradients before it are on their way."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, _grad: torch.Tensor) -> Any:  # type: ignore[override]
        raise ValueError("no gradient")
