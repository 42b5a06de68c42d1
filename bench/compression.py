"""What compression costs in accuracy and saves in bytes: LeNet on Fashion-MNIST, every codec.

    gradring run -n 2 bench/compression.py --epochs 2 --json bench/results/compression-2.json

The same initial values, batches and steps for all. The data are found as in
examples/fashion_lenet.py (scikit-learn's digits stand in where they are missing).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

import gradring as gr
import gradring.torch as gt

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from fashion_lenet import LeNet, load

CODECS: dict[str, Any] = {
    "none": None,
    "bf16": "bf16",
    "fp16": "fp16",
    "int8": "int8",
    "TopK(0.1)": gr.TopK(0.1),
    "TopK(0.01)": gr.TopK(0.01),
}


def main() -> None:
    """Train once with each codec and let rank 0 report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    comm = gr.init()
    train, test, name = load(comm.rank == 0)
    rows = [train_with(codec, comm, train, test, options) for codec in CODECS]
    if comm.rank == 0:
        print(f"{name}, {comm.world_size} ranks, {options.epochs} epochs\n\n{table(rows)}")
        if options.json is not None:
            document = {"data": name, "ranks": comm.world_size, **vars(options), "rows": rows}
            options.json.write_text(json.dumps(document, indent=1, default=str) + "\n")


def train_with(codec: str, comm: Any, train: Any, test: Any, options: Any) -> dict[str, Any]:
    """Train one model."""
    torch.manual_seed(0)
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gt.distributed(optimizer, comm=comm, model=model, compress=CODECS[codec])
    begin = time.perf_counter()
    steps = 0
    for epoch in range(options.epochs):
        mine = gr.shard(len(train[1]), comm, epoch=epoch, drop_last=True)
        size = options.global_batch // comm.world_size
        for first in range(0, len(mine) - size + 1, size):
            indices = torch.from_numpy(mine[first : first + size].copy())
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train[0][indices]), train[1][indices])
            loss.backward()
            optimizer.step()
            steps += 1
    with torch.no_grad():
        accuracy = float((model(test[0]).argmax(1) == test[1]).float().mean())
    return {
        "codec": codec,
        "accuracy": accuracy,
        "last_loss": float(loss.detach()),
        "bytes_a_step": optimizer.sent_bytes / steps,
        "saved": optimizer.uncompressed_bytes / optimizer.sent_bytes,
        "steps": steps,
        "seconds": time.perf_counter() - begin,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| codec | bytes a rank sends in a step | times fewer | test accuracy |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {row['codec']} | {row['bytes_a_step']:,.0f} | {row['saved']:.1f} |"
        f" {row['accuracy']:.4f} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
