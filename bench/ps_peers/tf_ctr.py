"""CTR-DNN on TensorFlow's ParameterServerStrategy: the workload of examples/ctr.py, for comparison.

    python bench/ps_peers/tf_ctr.py [--workers 2] [--batches 1] [--local]

Needs tensorflow (2.21 was used) in its own environment; gradring is not needed there. Starts one
parameter server and the workers as processes and coordinates them from this one. Adagrad on the
rows and Adam on the network, as in the example; one embedding of 1,000,000 x 16. A scheduled
function takes `--batches` batches of 512. --local trains in this process without any of it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import numpy as np
import tf_cluster
from datasets import ROWS, auc, table

WIDTHS = (400, 400, 400)
DIM, BATCH = 16, 512
ROW_LR, LR, BETA1, BETA2, EPSILON = 0.05, 1e-3, 0.9, 0.999, 1e-8


class Model:
    """CTR-DNN in plain variables, with its optimizers' state beside them."""

    def __init__(self, tf: Any, slots: int, columns: int) -> None:
        """Make the variables, where the strategy puts them."""
        self.tf = tf
        self.rows = tf.Variable(tf.random.uniform((ROWS, DIM), -0.01, 0.01, seed=1))
        self.squares = tf.Variable(tf.zeros((ROWS, DIM)))
        sizes = [slots * DIM + columns, *WIDTHS, 1]
        self.weights = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            bound = fan_in**-0.5
            self.weights.append(tf.Variable(tf.random.uniform((fan_in, fan_out), -bound, bound)))
            self.weights.append(tf.Variable(tf.random.uniform((fan_out,), -bound, bound)))
        self.means = [tf.Variable(tf.zeros(w.shape)) for w in self.weights]
        self.variances = [tf.Variable(tf.zeros(w.shape)) for w in self.weights]
        self.powers = [tf.Variable(BETA1), tf.Variable(BETA2)]

    def logits(self, embedded: Any, dense: Any, weights: list[Any]) -> Any:
        """Apply the network to rows and dense columns."""
        tf = self.tf
        x = tf.concat([tf.reshape(embedded, (tf.shape(dense)[0], -1)), dense], 1)
        for nth in range(0, len(weights), 2):
            x = x @ weights[nth] + weights[nth + 1]
            if nth + 2 < len(weights):
                x = tf.nn.relu(x)
        return tf.squeeze(x, 1)

    def step(self, ids: Any, dense: Any, labels: Any) -> None:
        """Pull, compute, push: one step of one batch."""
        tf = self.tf
        flat, places = tf.unique(tf.reshape(ids, (-1,)))
        rows = tf.gather(self.rows, flat)
        weights = [tf.identity(w) for w in self.weights]
        with tf.GradientTape() as tape:
            tape.watch([rows, *weights])
            logits = self.logits(tf.gather(rows, places), dense, weights)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        row_gradient, *gradients = tape.gradient(loss, [rows, *weights])
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=self.rows.handle, accum=self.squares.handle, lr=ROW_LR, epsilon=1e-10,
            grad=tf.convert_to_tensor(row_gradient), indices=flat,
        )  # fmt: skip
        power1, power2 = (tf.identity(power) for power in self.powers)
        for weight, mean, variance, gradient in zip(
            self.weights, self.means, self.variances, gradients, strict=True
        ):
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle, m=mean.handle, v=variance.handle, beta1_power=power1,
                beta2_power=power2, lr=LR, beta1=BETA1, beta2=BETA2, epsilon=EPSILON,
                grad=gradient,
            )  # fmt: skip
        self.powers[0].assign(power1 * BETA1)
        self.powers[1].assign(power2 * BETA2)


def train(options: argparse.Namespace, data: Any, model: Model, coordinator: Any) -> float:
    """Train an epoch; returns examples per second."""
    tf = model.tf
    slots, columns = data.ids.shape[1], data.dense.shape[1]

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, BATCH, slots), tf.int64),
            tf.TensorSpec((None, BATCH, columns), tf.float32),
            tf.TensorSpec((None, BATCH), tf.float32),
        ]
    )
    def steps(ids: Any, dense: Any, labels: Any) -> None:
        for nth in range(options.batches):
            model.step(ids[nth], dense[nth], labels[nth])

    order = np.random.default_rng(0).permutation(data.train)
    size = BATCH * options.batches
    parts = [order[at : at + size] for at in range(0, data.train - size + 1, size)]

    def run(rows: Any) -> None:
        columns_of = (data.ids, data.dense, data.labels)
        shaped = [x[rows].reshape(options.batches, BATCH, *x.shape[1:]) for x in columns_of]
        if coordinator is None:
            steps(*shaped)
        else:
            coordinator.schedule(steps, args=shaped)

    def join() -> None:
        if coordinator is not None:
            coordinator.join()

    warm = 4 * options.workers  # Every worker compiles its function before the clock starts.
    if len(parts) < 2 * warm:
        raise SystemExit(f"{len(parts)} functions of {size} examples are too few to time")
    for rows in parts[:warm]:
        run(rows)
    join()
    begin = time.perf_counter()
    for rows in parts[warm:]:
        run(rows)
    join()
    return (len(parts) - warm) * size / (time.perf_counter() - begin)


def main() -> None:
    """Start the processes, train, print a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=4, help="in a scheduled function")
    parser.add_argument("--threads", type=int, default=1, help="of a worker's operations")
    parser.add_argument("--examples", type=int, default=102_400)
    parser.add_argument("--local", action="store_true")
    options = parser.parse_args()
    data = table("synthetic", examples=options.examples)
    if options.local:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
        measure(options, data, tf, None, None)
        return
    with tf_cluster.started(options.workers, options.threads) as (strategy, coordinator):
        import tensorflow as tf

        measure(options, data, tf, strategy, coordinator)


def measure(
    options: argparse.Namespace, data: Any, tf: Any, strategy: Any, coordinator: Any
) -> None:
    """Train a model and print what comes of it."""
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = Model(tf, data.ids.shape[1], data.dense.shape[1])
    rate = train(options, data, model, coordinator)
    weights = [tf.identity(weight) for weight in model.weights]
    logits = []
    for at in range(data.train, len(data.labels), 4096):
        ids, dense = data.ids[at : at + 4096], data.dense[at : at + 4096]
        logits.append(model.logits(tf.gather(model.rows, ids), dense, weights).numpy())
    score = auc(data.labels[data.train :], np.concatenate(logits))
    found = {"examples/s": rate, "test AUC": score, "best AUC": data.best_auc}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
