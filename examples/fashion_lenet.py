"""LeNet on Fashion-MNIST with PyTorch, on one rank or many.

    python examples/fashion_lenet.py
    gradring run -n 2 examples/fashion_lenet.py --epochs 3

The data are the four .gz files of github.com/zalandoresearch/fashion-mnist, in $GRADRING_DATA (else
../shared/data beside the repository) or its folder fashion-mnist; without them scikit-learn's
digits stand in. The global batch, and so the loss curve, is the same for any number of ranks.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import load_digits
from options import Parser, new_file
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import gradring as gr
import gradring.torch as gt
from gradring.progress import Progress

Examples = tuple[torch.Tensor, torch.Tensor]


class LeNet(nn.Sequential):
    """LeCun et al. 1998, with SiLU and more channels.

    Smooth everywhere: a ReLU or a maximum can flip on a rounding error, and then two runs on the
    same batches drift apart.
    """

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 5, padding=2), nn.SiLU(), nn.AvgPool2d(2),
            nn.Conv2d(16, 32, 5), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(),
            nn.Linear(32 * 5 * 5, 128), nn.SiLU(), nn.Linear(128, 10),
        )  # fmt: skip


def main() -> None:
    options = parse()
    comm = gr.init()
    threads = int(os.environ.get("OMP_NUM_THREADS", "0")) or (os.cpu_count() or 1)
    torch.set_num_threads(threads)
    if options.global_batch % comm.world_size:
        sys.exit(f"--global-batch must be a multiple of the {comm.world_size} ranks")

    train, test, name = load(comm.rank == 0)
    torch.manual_seed(options.seed)
    model = LeNet()
    baseline = None
    if comm.world_size > 1 and options.baseline_seconds > 0:
        if comm.rank == 0:
            cores = min(threads * comm.local_world_size, len(os.sched_getaffinity(0)))
            baseline = max(measure_one_process(model, train, options, n) for n in {1, cores})
            torch.set_num_threads(threads)
        comm.barrier(timeout=comm.timeout + 10 * options.baseline_seconds)

    steps = -(-len(train[1]) // options.global_batch)
    optimizer = gt.distributed(make_optimizer(model, options), gr.Sync(), model=model, comm=comm)
    schedule = make_schedule(optimizer, options.epochs * steps)
    sampler = gt.Sampler(train[1], comm, seed=options.seed)
    batches = BatchSampler(sampler, options.global_batch // comm.world_size, drop_last=False)
    loader = DataLoader(TensorDataset(*train), sampler=batches, batch_size=None)

    loss = None
    losses, accuracies, rates = [], [], []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        loss_sums = np.zeros(steps)
        label = f"{name}, epoch {epoch + 1}/{options.epochs}"
        with Progress(steps, rank=comm.rank, label=label, baseline=baseline) as progress:
            for step, batch in enumerate(optimizer.uneven(loader, weight=lambda b: len(b[1]))):
                optimizer.zero_grad()
                if batch is not None:
                    x, y = batch
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    loss_sums[step] = loss.item() * len(y)
                optimizer.step()
                schedule.step()
                done = min(options.global_batch, len(train[1]) - step * options.global_batch)
                progress.advance(examples=done, loss=None if loss is None else loss.item())
        sizes = np.full(steps, options.global_batch)
        sizes[-1] = len(train[1]) - (steps - 1) * options.global_batch
        losses += (comm.all_reduce(loss_sums) / sizes).tolist()
        accuracies.append(accuracy(model, test, comm))
        rates.append(progress.examples_per_second)
        if comm.rank == 0:
            print(f"epoch {epoch + 1}: test accuracy {accuracies[-1]:.4f}  {progress.facts()}")

    if comm.rank == 0 and options.json is not None:
        facts = {
            "data": name, "workers": comm.world_size, "global_batch": options.global_batch,
            "losses": losses, "accuracies": accuracies, "examples_per_second": rates,
            "baseline": baseline,
        }  # fmt: skip
        options.json.write_text(json.dumps(facts) + "\n")
    comm.close()


def parse() -> argparse.Namespace:
    parser = Parser("LeNet on Fashion-MNIST, on one rank or many.")
    add = parser.add_argument
    add("--epochs", type=int, default=3)
    add("--global-batch", type=int, default=64, help="examples in a step, over all ranks")
    add("--seed", type=int, default=0)
    add("--json", type=new_file, help="write losses, accuracies and throughput there")
    add(
        "--baseline-seconds",
        type=float,
        default=2.0,
        help="to time one process for, first; 0: do not",
    )
    options = parser.parse_args()
    if options.epochs < 1 or options.global_batch < 1 or options.seed < 0:
        parser.error("--epochs and --global-batch are at least 1, --seed at least 0")
    return options


def make_optimizer(model: nn.Module, options: argparse.Namespace) -> torch.optim.Optimizer:
    lr = min(0.1, 0.05 * options.global_batch / 64)
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)


def make_schedule(optimizer: Any, steps: int) -> Any:
    """Go down to nothing in a straight line."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))


@torch.no_grad()
def accuracy(model: nn.Module, test: Examples, comm: gr.Communicator) -> float:
    """Let every rank test its part."""
    rows = torch.from_numpy(gr.shard(len(test[1]), comm, shuffle=False))
    right = np.zeros(1, np.int64)
    for part in rows.split(1000):
        right += (model(test[0][part]).argmax(dim=1) == test[1][part]).sum().item()
    return int(comm.all_reduce(right)[0]) / len(test[1])


def measure_one_process(
    model: nn.Module, train: Examples, options: argparse.Namespace, threads: int
) -> float:
    """Train a copy for a moment, on one thread or on all the cores that the ranks here share."""
    torch.set_num_threads(threads)
    model = copy.deepcopy(model)
    optimizer = make_optimizer(model, options)
    x, y = (tensor[: options.global_batch] for tensor in train)
    examples, begin = -3 * len(y), time.perf_counter()
    while examples <= 0 or time.perf_counter() - begin < options.baseline_seconds:
        if examples == 0:  # Warm now.
            begin = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        examples += len(y)
    return examples / (time.perf_counter() - begin)


def load(is_talking: bool) -> tuple[Examples, Examples, str]:
    root = Path(__file__).resolve().parents[1]
    given = os.environ.get("GRADRING_DATA")
    data = Path(given) if given else root.parent / "shared" / "data"
    places = [data / "fashion-mnist", data]
    for place in places:
        if all((place / name).exists() for part in ("train", "t10k") for name in names(part)):
            return read(place, "train"), read(place, "t10k"), "Fashion-MNIST"
    if is_talking:
        where = ", ".join(map(str, places))
        print(f"no Fashion-MNIST, all four files, in {where}: using scikit-learn's digits")
    return (*digits(), "digits")


def names(part: str) -> tuple[str, str]:
    """The files of a part's pictures and labels."""
    return f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"


def read(place: Path, part: str) -> Examples:
    pictures, labels = (gzip.decompress((place / name).read_bytes()) for name in names(part))
    pictures, labels = pictures[16:], labels[8:]  # Behind their headers.
    x = np.frombuffer(pictures, np.uint8).reshape(-1, 1, 28, 28).astype(np.float32)
    y = np.frombuffer(labels, np.uint8).astype(np.int64)
    return torch.from_numpy((x - 73) / 90), torch.from_numpy(y)  # Mean 0, deviation 1.


def digits() -> tuple[Examples, Examples]:
    pictures, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.from_numpy(pictures[order] / 8 - 1).float().view(-1, 1, 8, 8)
    x, y = F.interpolate(x, size=(28, 28), mode="bilinear"), torch.from_numpy(labels[order])
    return (x[360:], y[360:]), (x[:360], y[:360])


if __name__ == "__main__":
    main()
