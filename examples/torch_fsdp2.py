"""FSDP2 on the backend "gradring": parameters, gradients and Adam's state sharded over the ranks.

Run: torchrun --standalone --nproc-per-node 2 examples/torch_fsdp2.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from doodles import join, load, network
from options import Parser, at_least
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--images", type=at_least(1), default=2000, help="to train on")
    parser.add_argument("--steps", type=at_least(1), default=60)
    parser.add_argument("--global-batch", type=at_least(1), default=64, help="of all ranks")
    options = parser.parse_args()
    rank, world_size = join()
    if options.global_batch % world_size:
        raise SystemExit(f"--global-batch must be a multiple of the {world_size} ranks")

    x, y, classes = load(options.images)
    model = network(x.shape[-1], classes)
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    held = sum(p.to_local().numel() for p in model.parameters())
    whole = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    order = torch.Generator().manual_seed(0)
    for step in range(options.steps):
        rows = torch.randint(len(x), (options.global_batch,), generator=order)[rank::world_size]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {mean:.4f}")
    if rank == 0:
        print(f"last loss {mean:.4f}; each of {world_size} ranks holds {held} of {whole} weights")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
