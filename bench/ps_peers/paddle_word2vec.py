"""Skip-gram on Paddle's parameter server in GEO mode, as examples/word2vec.py --synthetic.

    python bench/ps_peers/paddle_word2vec.py [--workers 2] [--k-steps 100] [--local]

Needs paddlepaddle 2.6.2 with numpy < 2 in an environment of its own. Starts one server and the
workers as processes; rank 0 prints pairs per second of all and the held-out loss.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import numpy as np
from datasets import zipf_pairs

DIM, BATCH, NEGATIVE = 128, 1024, 5


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--k-steps", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=1_024_000, help="of all workers")
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--local", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Start the processes, or be one of them."""
    options = parse()
    if options.local or "TRAINING_ROLE" in os.environ:
        work(options)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **os.environ, "PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{port}",
        "PADDLE_TRAINERS_NUM": str(options.workers), "PADDLE_WITH_GLOO": "0", "CPU_NUM": "1",
        "FLAGS_communicator_max_merge_var_num": str(options.k_steps), "OMP_NUM_THREADS": "1",
        "FLAGS_communicator_send_queue_size": str(options.k_steps), "GLOG_minloglevel": "3",
    }  # fmt: skip
    server = {"TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1", "PADDLE_PORT": str(port)}
    roles = [server]
    roles += [
        {**server, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(rank)}
        for rank in range(options.workers)
    ]
    running = [
        subprocess.Popen([sys.executable, *sys.argv], env={**common, **role}) for role in roles
    ]
    codes = [process.wait() for process in running[1:]]
    running[0].kill()
    sys.exit(max(codes))


def work(options: argparse.Namespace) -> None:
    """Train as a worker, or serve."""
    import paddle
    from paddle.distributed import fleet

    paddle.enable_static()
    paddle.seed(1)
    is_server = os.environ.get("TRAINING_ROLE") == "PSERVER"
    loss, feeds = network(paddle)
    test = paddle.static.default_main_program().clone(for_test=True)
    optimizer = paddle.optimizer.SGD(options.lr)
    if options.local:
        optimizer.minimize(loss)
    else:
        fleet.init(fleet.PaddleCloudRoleMaker())
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = True
        strategy.a_sync_configs = {"k_steps": options.k_steps}
        fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
        if is_server:
            fleet.init_server()
            fleet.run_server()
            return
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    rank = 0
    if not options.local:
        rank = fleet.worker_index()
        fleet.init_worker()
    workers = 1 if options.local else options.workers
    rate = train(options, executor, feeds, rank, workers)
    if rank == 0:
        held_out = evaluate(executor, test, loss, feeds)
        print(json.dumps({"pairs/s": rate * workers, "held-out loss": held_out}), flush=True)
    if not options.local:
        fleet.stop_worker()


def network(paddle: Any) -> tuple[Any, list[str]]:
    """Describe the model; one row of ids a pair, as its tables want them."""
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
    return paddle.mean(paddle.sum(losses, 1)), ["centre", "outputs", "labels"]


def feed(pairs: Any, first: int) -> dict[str, Any]:
    """Take a batch of pairs."""
    labels = np.zeros((BATCH, 1 + NEGATIVE), np.float32)
    labels[:, 0] = 1
    return {
        "centre": pairs.centres[first : first + BATCH, None],
        "outputs": pairs.outputs[first : first + BATCH].reshape(-1, 1),
        "labels": labels,
    }


def train(
    options: argparse.Namespace, executor: Any, _feeds: list[str], rank: int, workers: int
) -> float:
    """Train on this worker's share; returns its pairs per second."""
    import paddle

    share = options.pairs // workers // BATCH * BATCH
    pairs = zipf_pairs(share + 20 * BATCH, seed=rank)
    program = paddle.static.default_main_program()
    for first in range(0, 20 * BATCH, BATCH):
        executor.run(program, feed=feed(pairs, first))
    begin = time.perf_counter()
    for first in range(20 * BATCH, share + 20 * BATCH, BATCH):
        executor.run(program, feed=feed(pairs, first))
    return share / (time.perf_counter() - begin)


def evaluate(executor: Any, program: Any, loss: Any, _feeds: list[str]) -> float:
    """Return the mean loss on pairs that nobody trained on."""
    pairs = zipf_pairs(20 * BATCH, seed=1_000_003)
    losses = [
        executor.run(program, feed=feed(pairs, first), fetch_list=[loss])[0]
        for first in range(0, 20 * BATCH, BATCH)
    ]
    return float(np.mean(losses))


if __name__ == "__main__":
    main()
