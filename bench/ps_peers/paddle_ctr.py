"""CTR-DNN on Paddle's parameter server: the workload of examples/ctr.py.

    python bench/ps_peers/paddle_ctr.py [--workers 2] [--mode async]

Needs paddlepaddle 2.6.2 with numpy < 2 in an environment of its own; one embedding of 1,000,000 x
16. In `geo` and alone Adam trains everything. In `async` SGD trains the network, which did better
there than Adam (AUC 0.76 and 0.49 to 0.63 after 102,400 examples), and the rows' table applies its
own rule of Adam whatever is asked for. Rank 0 prints examples per second of all and the AUC of the
test part.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import numpy as np
import paddle_cluster
from datasets import ROWS, auc, table

WIDTHS = (400, 400, 400)
DIM, BATCH = 16, 512
WARM_UP = 10  # Steps.


def main() -> None:
    """Start the processes, or be one of them."""
    parser = paddle_cluster.parser()
    parser.add_argument("--examples", type=int, default=102_400)
    options = parser.parse_args()
    if not paddle_cluster.is_part(options):
        sys.exit(paddle_cluster.start(options))
    import paddle

    paddle.enable_static()
    paddle.seed(1)
    data = table("synthetic", examples=options.examples)
    loss, logits = network(paddle, data.ids.shape[1], data.dense.shape[1])
    test = paddle_cluster.test_program(paddle, options)
    is_async = options.mode == "async"
    optimizer = paddle.optimizer.SGD(0.1) if is_async else paddle.optimizer.Adam(1e-3)
    if not paddle_cluster.join(paddle, options, loss, optimizer):
        return
    executor = paddle.static.Executor(paddle.CPUPlace())
    rank = paddle_cluster.rank(options)
    workers = 1 if options.mode == "local" else options.workers
    rate = train(executor, data, rank, workers)
    if rank == 0:
        score = evaluate(executor, test(), logits, data)
        found = {"examples/s": rate * workers, "test AUC": score, "best AUC": data.best_auc}
        print(json.dumps(found), flush=True)
    paddle_cluster.leave(options)


def network(paddle: Any, slots: int, columns: int) -> tuple[Any, Any]:
    """Describe the model, and return its loss and its logits."""
    static = paddle.static
    ids = static.data("ids", [None, 1], "int64")  # One row of ids an id, as its tables want them.
    dense = static.data("dense", [None, columns], "float32")
    labels = static.data("labels", [None, 1], "float32")
    attr = paddle.ParamAttr(name="rows", initializer=paddle.nn.initializer.Uniform(-0.01, 0.01))
    rows = static.nn.embedding(ids, [ROWS, DIM], is_sparse=True, param_attr=attr)
    x = paddle.concat([paddle.reshape(rows, [-1, slots * DIM]), dense], 1)
    for width in WIDTHS:
        x = static.nn.fc(x, width, activation="relu")
    logits = static.nn.fc(x, 1)
    return paddle.nn.functional.binary_cross_entropy_with_logits(logits, labels), logits


def feed(data: Any, rows: Any) -> dict[str, Any]:
    """Take a batch of examples."""
    return {
        "ids": data.ids[rows].reshape(-1, 1),
        "dense": data.dense[rows],
        "labels": data.labels[rows][:, None],
    }


def train(executor: Any, data: Any, rank: int, workers: int) -> float:
    """Train an epoch of this worker's share; returns its examples per second."""
    import paddle

    order = np.random.default_rng(0).permutation(data.train)[rank::workers]
    parts = [order[at : at + BATCH] for at in range(0, len(order) - BATCH + 1, BATCH)]
    program = paddle.static.default_main_program()
    for rows in parts[:WARM_UP]:
        executor.run(program, feed=feed(data, rows))
    begin = time.perf_counter()
    for rows in parts[WARM_UP:]:
        executor.run(program, feed=feed(data, rows))
    return (len(parts) - WARM_UP) * BATCH / (time.perf_counter() - begin)


def evaluate(executor: Any, program: Any, logits: Any, data: Any) -> float:
    """Return the AUC of the test part."""
    scores = []
    for at in range(data.train, len(data.labels), 4096):
        rows = np.arange(at, min(at + 4096, len(data.labels)))
        scores.append(executor.run(program, feed=feed(data, rows), fetch_list=[logits])[0][:, 0])
    return auc(data.labels[data.train :], np.concatenate(scores))


if __name__ == "__main__":
    main()
