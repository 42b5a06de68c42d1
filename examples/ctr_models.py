"""The two models of ctr.py: a deep network on embeddings, and DeepFM. Both give logits.

Their rows come from an embedding module that is handed in: torch's own, or one whose rows live on
parameter servers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

WIDTHS = (400, 400, 400)


class _Products(torch.autograd.Function):
    """A linear layer's three products by oneDNN."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return _linear(x, weight, bias)

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = context.saved_tensors
        needs_x = context.needs_input_grad[0]
        return (
            _linear(grad, weight.t(), None) if needs_x else None,
            _linear(grad.t(), x.t(), None),
            grad.sum(0),
        )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # noqa: SLF001
    return product


class Linear(nn.Linear):
    """The same layer, on CPUs that are not Intel's by oneDNN where this PyTorch has it.

    `nn.Linear` calls MKL, which leaves AVX-512 unused on AMD's CPUs and half of their speed with it
    (512 x 429 by 429 x 400 on one core of an EPYC: 103 and 228 GFLOP/s). On Intel's it is the
    faster of the two: it multiplies by a transposed matrix without copying it first.
    """

    def forward(self, x: Tensor) -> Tensor:
        if _USES_ONEDNN and x.device.type == "cpu" and x.dtype is torch.float32:
            y: Tensor = _Products.apply(x, self.weight, self.bias)
            return y
        return F.linear(x, self.weight, self.bias)


def _is_intel() -> bool:
    cpus = Path("/proc/cpuinfo")
    return cpus.exists() and "GenuineIntel" in cpus.read_text()


_USES_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and not (torch.backends.mkl.is_available() and _is_intel())
)


def network(inputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in WIDTHS:
        layers += [Linear(inputs, width), nn.ReLU(inplace=True)]
        inputs = width
    return nn.Sequential(*layers, Linear(inputs, 1))


class CtrDnn(nn.Module):
    """Embeddings and dense columns side by side into a network of three layers."""

    def __init__(self, embedding: nn.Module, dim: int, slots: int, columns: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.network = network(slots * dim + columns)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        rows = self.embedding(ids)
        return self.network(torch.cat([rows.flatten(1), dense], 1)).squeeze(1)


class DeepFM(nn.Module):
    """Guo et al. 2017 (arXiv:1703.04247): a factorization machine and a network on the same rows.

    A row's first number is its id's linear weight, the others are its factors.
    """

    def __init__(self, embedding: nn.Module, dim: int, slots: int, columns: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.linear = nn.Linear(columns, 1)
        self.network = network(slots * (dim - 1) + columns)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        rows = self.embedding(ids)
        weights, factors = rows[:, :, 0], rows[:, :, 1:]
        pairs = (factors.sum(1) ** 2 - (factors**2).sum(1)).sum(1) / 2
        deep = self.network(torch.cat([factors.flatten(1), dense], 1)).squeeze(1)
        return weights.sum(1) + pairs + deep + self.linear(dense).squeeze(1)
