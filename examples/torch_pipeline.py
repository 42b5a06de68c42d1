"""Model parallelism by send and recv: two ranks, half of the layers each, micro-batches between.

Rank 0 sends activations and receives their gradients; while rank 1 works on one micro-batch, rank 0
computes the next. Run: torchrun --standalone --nproc-per-node 2 examples/torch_pipeline.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from doodles import join, load, network
from options import Parser, at_least
from torch import Tensor, nn


def first_stage(stage: nn.Module, parts: tuple[Tensor, ...]) -> None:
    """Forward of all micro-batches, then backward of each with the gradient that comes back."""
    outs, gradients, works = [], [], []
    for index, part in enumerate(parts):
        out = stage(part)
        outs.append(out)
        gradients.append(torch.empty_like(out))
        works.append(dist.isend(out.detach(), 1, tag=index))
        works.append(dist.irecv(gradients[-1], 1, tag=index))
    for index, out in enumerate(outs):
        works[2 * index + 1].wait()
        out.backward(gradients[index])
    for work in works:
        work.wait()


def last_stage(stage: nn.Module, labels: tuple[Tensor, ...], shape: torch.Size) -> float:
    """Forward and backward of each micro-batch as it comes; the mean loss of all examples."""
    total, works = 0.0, []
    batch = sum(map(len, labels))  # The last micro-batch may be a shorter one.
    for index, wanted in enumerate(labels):
        x = torch.empty(len(wanted), *shape)
        dist.recv(x, 0, tag=index)
        x.requires_grad_()
        loss = nn.functional.cross_entropy(stage(x), wanted) * len(wanted) / batch
        loss.backward()
        works.append(dist.isend(x.grad, 0, tag=index))
        total += loss.item()
    for work in works:
        work.wait()
    return total


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--images", type=at_least(1), default=2000, help="to train on")
    parser.add_argument("--steps", type=at_least(1), default=60)
    parser.add_argument("--batch", type=at_least(1), default=64, help="images in a step")
    parser.add_argument("--micro-batches", type=at_least(1), default=4, help="parts of a batch")
    options = parser.parse_args()
    rank, world_size = join()
    if world_size != 2:
        raise SystemExit("this pipeline has two stages: start two ranks")

    x, y, classes = load(options.images)
    layers = network(x.shape[-1], classes)  # The same on both, of which each keeps half.
    with torch.no_grad():
        shape = layers[:2](x[:1]).shape[1:]
    stage = layers[:2] if rank == 0 else layers[2:]
    optimizer = torch.optim.Adam(stage.parameters(), lr=2e-3)
    order = torch.Generator().manual_seed(0)
    for step in range(options.steps):
        rows = torch.randint(len(x), (options.batch,), generator=order)
        optimizer.zero_grad()
        if rank == 0:
            first_stage(stage, x[rows].chunk(options.micro_batches))
        else:
            loss = last_stage(stage, y[rows].chunk(options.micro_batches), shape)
            if step % 20 == 0 or step == options.steps - 1:
                print(f"step {step}: loss {loss:.4f}")
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
