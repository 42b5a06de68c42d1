"""Distributed evaluation: every rank scores its share of the test images, all get the same metrics.

The ranks' shares need not be equal, no image is counted twice, and the numbers are those of one
process. Run: torchrun --standalone --nproc-per-node 2 examples/torch_evaluate.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from doodles import join, load, network
from options import Parser, at_least
from torch import Tensor, nn


def confusion(model: nn.Module, x: Tensor, y: Tensor, classes: int) -> Tensor:
    """Count, over all ranks, images by true class and by the class they are taken for."""
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    with torch.no_grad():
        for images, labels in zip(x.split(256), y.split(256), strict=True):
            pairs = labels * classes + model(images).argmax(1)
            counts += torch.bincount(pairs, minlength=classes**2).view(classes, classes)
    dist.all_reduce(counts)
    return counts


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--images", type=at_least(1), default=2000, help="to train on")
    parser.add_argument("--steps", type=at_least(1), default=100)
    options = parser.parse_args()
    rank, world_size = join()

    x, y, classes = load(options.images)
    model = network(x.shape[-1], classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    if rank == 0:  # Trained on one rank, scored on all.
        for rows in torch.randint(len(x), (options.steps, 64)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)

    x, y, _ = load(options.images, "test")
    counts = confusion(model, x[rank::world_size], y[rank::world_size], classes)
    right, taken, there = counts.diag().double(), counts.sum(0), counts.sum(1)
    f1 = (2 * right / (taken + there).clamp(min=1)).mean()
    slowest: list[object] = [None] * world_size
    dist.all_gather_object(slowest, len(range(rank, len(y), world_size)))
    if rank == 0:
        print(f"images by rank: {slowest}")
        print(f"accuracy {right.sum() / counts.sum():.6f}, macro F1 {f1:.6f}, n {counts.sum()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
