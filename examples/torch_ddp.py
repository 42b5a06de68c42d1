"""DistributedDataParallel on the backend "gradring": a CNN on doodles, then its test accuracy.

Run: torchrun --standalone --nproc-per-node 2 examples/torch_ddp.py   (or alone, with python)
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from doodles import join, load, network
from options import Parser, at_least
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--images", type=at_least(1), default=7500, help="to train on")
    parser.add_argument("--epochs", type=at_least(1), default=3)
    parser.add_argument("--global-batch", type=at_least(1), default=64, help="of all ranks")
    options = parser.parse_args()
    rank, world_size = join()
    if options.global_batch % world_size:
        raise SystemExit(f"--global-batch must be a multiple of the {world_size} ranks")

    x, y, classes = load(options.images)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, options.global_batch // world_size, sampler=sampler)
    model = DistributedDataParallel(network(x.shape[-1], classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        began, total = time.perf_counter(), torch.zeros(2)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(labels), len(labels)])
        dist.all_reduce(total)
        if rank == 0:
            speed = float(total[1]) / (time.perf_counter() - began)
            print(f"epoch {epoch}: loss {total[0] / total[1]:.4f}, {speed:.0f} images/s")

    x, y, _ = load(options.images, "test")
    with torch.no_grad():
        right = (model.module(x[rank::world_size]).argmax(1) == y[rank::world_size]).sum()
    dist.all_reduce(right)
    if rank == 0:
        print(f"{world_size} ranks: test accuracy {int(right) / len(y):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
