"""Skip-gram on TensorFlow's ParameterServerStrategy, as examples/word2vec.py --synthetic.

    python bench/ps_peers/tf_word2vec.py [--workers 2] [--batches 10]

Needs tensorflow (2.21 was used) in its own environment. Adagrad on the sum of the losses
of a batch, as ours. A worker's step gathers the distinct rows of
a batch of 1,024 pairs, computes, and steps on them; a scheduled function takes `--batches` of them.
Prints pairs per second of all and the held-out loss.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import numpy as np
import tf_cluster
from datasets import Pairs, zipf_pairs

ROWS, DIM, BATCH, NEGATIVE = 100_000, 128, 1024, 5


class Model:
    """Both matrices, where the strategy puts them."""

    def __init__(self, tf: Any) -> None:
        """Make the variables."""
        self.tf = tf
        start = tf.random.uniform((ROWS, DIM), -0.5 / DIM, 0.5 / DIM, seed=1)
        self.inputs = tf.Variable(start)
        self.outputs = tf.Variable(tf.zeros((ROWS, DIM)))
        self.squares = [tf.Variable(tf.zeros((ROWS, DIM))) for _ in range(2)]

    def step(self, centres: Any, outputs: Any, lr: Any) -> None:
        """Pull, compute, push: one step of one batch."""
        tf = self.tf
        centre_ids, centre_places = tf.unique(centres)
        output_ids, output_places = tf.unique(tf.reshape(outputs, (-1,)))
        h = tf.gather(tf.gather(self.inputs, centre_ids), centre_places)
        rows = tf.gather(tf.gather(self.outputs, output_ids), output_places)
        u = tf.reshape(rows, (BATCH, 1 + NEGATIVE, DIM))
        labels = tf.one_hot(tf.zeros(BATCH, tf.int32), 1 + NEGATIVE)
        g = tf.sigmoid(tf.einsum("bnd,bd->bn", u, h)) - labels
        for matrix, squares, ids, places, gradient in (
            (self.inputs, self.squares[0], centre_ids, centre_places,
             tf.einsum("bn,bnd->bd", g, u)),
            (self.outputs, self.squares[1], output_ids, output_places,
             tf.reshape(tf.einsum("bn,bd->bnd", g, h), (-1, DIM))),
        ):  # fmt: skip
            total = tf.math.unsorted_segment_sum(gradient, places, tf.size(ids))
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=matrix.handle, accum=squares.handle, lr=lr, epsilon=1e-10, grad=total,
                indices=ids,
            )  # fmt: skip


def train(options: argparse.Namespace, tf: Any, model: Model, coordinator: Any) -> float:
    """Train on all pairs; returns pairs per second."""
    size = BATCH * options.batches
    warm = 4 * options.workers  # Every worker compiles its function before the clock starts.
    count = options.pairs // size - warm  # So that it learns from as many pairs as the others.
    pairs = zipf_pairs((warm + count) * size, seed=0)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, BATCH), tf.int64),
            tf.TensorSpec((None, BATCH, 1 + NEGATIVE), tf.int64),
            tf.TensorSpec((), tf.float32),
        ]
    )
    def steps(centres: Any, outputs: Any, lr: Any) -> None:
        for nth in range(options.batches):
            model.step(centres[nth], outputs[nth], lr)

    begin = 0.0
    for nth in range(warm + count):
        if nth == warm:
            coordinator.join()
            begin = time.perf_counter()
        part = slice(nth * size, (nth + 1) * size)
        centres = pairs.centres[part].reshape(-1, BATCH)
        outputs = pairs.outputs[part].reshape(-1, BATCH, 1 + NEGATIVE)
        coordinator.schedule(steps, args=(centres, outputs, np.float32(options.lr)))
    coordinator.join()
    return count * size / (time.perf_counter() - begin)


def held_out(model: Model, pairs: Pairs) -> float:
    """Return the mean loss on pairs that nobody trained on."""
    inputs, outputs = model.inputs.numpy(), model.outputs.numpy()
    scores = np.einsum("bnd,bd->bn", outputs[pairs.outputs], inputs[pairs.centres])
    scores[:, 1:] *= -1
    return float(np.logaddexp(0, -scores).sum() / len(pairs.centres))


def main() -> None:
    """Start the processes, train, print a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=10, help="in a scheduled function")
    parser.add_argument("--pairs", type=int, default=1_024_000, help="with those of the warm-up")
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()
    with tf_cluster.started(options.workers, threads=1) as (strategy, coordinator):
        import tensorflow as tf

        with strategy.scope():
            model = Model(tf)
        rate = train(options, tf, model, coordinator)
        loss = held_out(model, zipf_pairs(20 * BATCH, seed=1_000_003))
        print(json.dumps({"pairs/s": rate, "held-out loss": loss}), flush=True)


if __name__ == "__main__":
    main()
