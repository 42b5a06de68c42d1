"""The two models of ctr.py: a deep network on embeddings, and DeepFM. Both give logits.

Their rows come from an embedding module that is handed in: torch's own, or one whose rows live on
parameter servers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTHS = (400, 400, 400)


def network(inputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in WIDTHS:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, 1))


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
