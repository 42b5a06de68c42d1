"""What each process of the demo runs: ``python -m gradring.demo.worker OUT``, alone or as a rank.

Writes the parameters to ``OUT.RANK.npz`` and numbers to ``OUT.RANK.json``; the demo compares.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

import gradring as gr
from gradring.demo.digits import Network, load_digits
from gradring.demo.options import shared_options
from gradring.progress import Progress

Array = npt.NDArray[Any]


class Trainer:
    """One rank's training, with its batches cut into parts to compare with that many ranks."""

    def __init__(self, comm: gr.Communicator, options: argparse.Namespace) -> None:
        """Load the data, and start from rank 0's initial weights."""
        self._comm = comm
        self._options = options
        self._data = load_digits()
        self._network = Network(options.seed + comm.rank)
        rule = gr.optim.SGD(lr=0.1, momentum=0.9)
        self._optimizer = gr.SyncOptimizer(self._network.params, rule, comm)
        self._count = len(self._data.train_y)
        self._steps = -(-self._count // options.global_batch)
        self._loss_sum = 0.0

    def run(self) -> dict[str, Any]:
        """Train all epochs and return what is to be compared."""
        options, losses = self._options, np.zeros(self._options.epochs)
        bar = Progress(
            options.epochs * self._steps,
            rank=self._comm.rank,
            label=options.label,
            baseline=options.baseline,
        )
        with bar:
            for epoch in range(options.epochs):
                self._loss_sum = 0.0
                shards = self._shards(epoch)
                for step in range(self._steps):
                    self._train_step(shards, step)
                    done = min(options.global_batch, self._count - step * options.global_batch)
                    bar.advance(examples=done, loss=losses[epoch - 1] if epoch else None)
                losses[epoch] = self._loss_sum / self._count
                self._comm.all_reduce(losses[epoch : epoch + 1])
        return {
            "params": self._network.params,
            "losses": losses.tolist(),
            "accuracy": self._network.accuracy(self._data.test_x, self._data.test_y),
            "examples_per_second": bar.examples_per_second,
        }

    def _shards(self, epoch: int) -> list[Array]:
        # Part p of rank r is what rank r * parts + p of so many more ranks would get.
        parts, first = self._options.parts, self._comm.rank * self._options.parts
        world_size = parts * self._comm.world_size
        places: list[Any] = [
            SimpleNamespace(rank=first + part, world_size=world_size) for part in range(parts)
        ]
        seed = self._options.seed
        return [gr.shard(self._count, place, epoch=epoch, seed=seed) for place in places]

    def _train_step(self, shards: list[Array], step: int) -> None:
        each = self._options.global_batch // (len(shards) * self._comm.world_size)
        parts = []
        for shard in shards:
            rows = shard[step * each : (step + 1) * each]
            if len(rows):
                x, y = self._data.train_x[rows], self._data.train_y[rows]
                loss, gradients = self._network.loss_and_gradients(x, y)
                self._loss_sum += loss * len(rows)
                parts.append((len(rows), gradients))
        mean = mean_of_parts(parts) if len(parts) > 1 else parts[0][1] if parts else None
        self._optimizer.step(mean, weight=sum(weight for weight, _ in parts))


def mean_of_parts(parts: Sequence[tuple[int, list[Array]]]) -> list[Array]:
    """Average gradients of parts of a batch as ranks do: weigh, add in order, divide once."""
    total = sum(weight for weight, _ in parts)
    weighted = [[gradient * weight for gradient in grads] for weight, grads in parts]
    return [sum(column[1:], column[0]) / total for column in zip(*weighted, strict=True)]


def main() -> None:
    """Train as this process's rank and save the outcome."""
    own = argparse.ArgumentParser(parents=[shared_options()])
    own.add_argument("out", type=Path)
    own.add_argument("--parts", type=int, default=1, help="how many parts a rank's batch is cut in")
    own.add_argument("--label", default="training")
    own.add_argument("--baseline", type=float)
    options = own.parse_args()
    with gr.init() as comm:
        outcome = Trainer(comm, options).run()
        path = options.out.with_name(f"{options.out.name}.{comm.rank}")
        np.savez(path.with_name(path.name + ".npz"), *outcome.pop("params"))
        path.with_name(path.name + ".json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
