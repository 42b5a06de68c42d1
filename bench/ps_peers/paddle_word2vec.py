"""Skip-gram on Paddle's parameter server, as examples/word2vec.py --synthetic.

    python bench/ps_peers/paddle_word2vec.py [--workers 2] [--mode geo] [--k-steps 100]

Needs paddlepaddle 2.6.2 with numpy < 2 in an environment of its own. Adagrad on the sum of
the losses of a batch, as ours. In `async` the rows' table applies Adam whatever is asked for (its
`the_one_ps.py` names that rule for all but Adam itself), so Adam it is, at a rate that did well.
Rank 0 prints pairs per second of all and the held-out loss.
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
import paddle_cluster
from datasets import zipf_pairs

DIM, BATCH, NEGATIVE = 128, 1024, 5
WARM_UP = 20  # Steps.


def main() -> None:
    """Start the processes, or be one of them."""
    parser = paddle_cluster.parser()
    parser.add_argument("--pairs", type=int, default=1_024_000, help="of all, with warm-up")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--async-lr", type=float, default=0.0125)
    options = parser.parse_args()
    if not paddle_cluster.is_part(options):
        sys.exit(paddle_cluster.start(options))
    import paddle

    paddle.enable_static()
    paddle.seed(1)
    loss = network(paddle)
    test = paddle_cluster.test_program(paddle, options)
    optimizer = paddle.optimizer.Adagrad(options.lr, epsilon=1e-10)
    if options.mode == "async":
        optimizer = paddle.optimizer.Adam(options.async_lr)
    if not paddle_cluster.join(paddle, options, loss, optimizer):
        return
    executor = paddle.static.Executor(paddle.CPUPlace())
    rank = paddle_cluster.rank(options)
    workers = 1 if options.mode == "local" else options.workers
    rate = train(options, executor, rank, workers)
    if rank == 0:
        found = {"pairs/s": rate * workers, "held-out loss": evaluate(executor, test(), loss)}
        print(json.dumps(found), flush=True)
    paddle_cluster.leave(options)


def network(paddle: Any) -> Any:
    """Describe the model, and return its loss; one row of ids a pair, as its tables want them."""
    static = paddle.static
    centre = static.data("centre", [None, 1], "int64")
    outputs = static.data("outputs", [None, 1], "int64")
    labels = static.data("labels", [None, 1 + NEGATIVE], "float32")
    uniform = paddle.nn.initializer.Uniform(-0.5 / DIM, 0.5 / DIM)
    zeros = paddle.nn.initializer.Constant(0.0)

    def embedding(ids: Any, name: str, start: Any) -> Any:
        attr = paddle.ParamAttr(name=name, initializer=start)
        return static.nn.embedding(ids, [100_000, DIM], is_sparse=True, param_attr=attr)

    h = paddle.reshape(embedding(centre, "input", uniform), [-1, DIM, 1])
    u = paddle.reshape(embedding(outputs, "output", zeros), [-1, 1 + NEGATIVE, DIM])
    logits = paddle.reshape(paddle.matmul(u, h), [-1, 1 + NEGATIVE])
    losses = paddle.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return paddle.sum(losses)


def feed(pairs: Any, first: int) -> dict[str, Any]:
    """Take a batch of pairs."""
    labels = np.zeros((BATCH, 1 + NEGATIVE), np.float32)
    labels[:, 0] = 1
    return {
        "centre": pairs.centres[first : first + BATCH, None],
        "outputs": pairs.outputs[first : first + BATCH].reshape(-1, 1),
        "labels": labels,
    }


def train(options: argparse.Namespace, executor: Any, rank: int, workers: int) -> float:
    """Train on this worker's share; returns its pairs per second."""
    import paddle

    share = options.pairs // workers // BATCH * BATCH
    pairs = zipf_pairs(share, seed=rank)
    program = paddle.static.default_main_program()
    for first in range(0, WARM_UP * BATCH, BATCH):
        executor.run(program, feed=feed(pairs, first))
    begin = time.perf_counter()
    for first in range(WARM_UP * BATCH, share, BATCH):
        executor.run(program, feed=feed(pairs, first))
    return (share - WARM_UP * BATCH) / (time.perf_counter() - begin)


def evaluate(executor: Any, program: Any, loss: Any) -> float:
    """Return the mean loss on pairs that nobody trained on."""
    pairs = zipf_pairs(20 * BATCH, seed=1_000_003)
    losses = [
        executor.run(program, feed=feed(pairs, first), fetch_list=[loss])[0] / BATCH
        for first in range(0, 20 * BATCH, BATCH)
    ]
    return float(np.mean(losses))


if __name__ == "__main__":
    main()
