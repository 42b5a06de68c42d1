"""One server and the workers of Paddle's parameter server, for the programs beside this one.

Runs the calling program again as each of them. Workers start when the server listens, since a pull
before that never returns.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

_LISTEN_SECONDS = 60.0


def parser() -> argparse.ArgumentParser:
    """Return the options that all programs have."""
    made = argparse.ArgumentParser()
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--mode", choices=("geo", "async", "local"), default="geo")
    made.add_argument("--k-steps", type=int, default=100, help="geo: steps between exchanges")
    made.add_argument("--merge", type=int, default=1, help="async: gradients in a push")
    return made


def is_part(options: argparse.Namespace) -> bool:
    """Whether this process is to work or to serve, not to start the others."""
    return options.mode == "local" or "TRAINING_ROLE" in os.environ


def start(options: argparse.Namespace) -> int:
    """Start the server and the workers; returns the workers' worst exit code."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    steps = str(options.k_steps if options.mode == "geo" else options.merge)
    common = {
        **os.environ, "PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{port}",
        "PADDLE_TRAINERS_NUM": str(options.workers), "PADDLE_WITH_GLOO": "0", "CPU_NUM": "1",
        "FLAGS_communicator_max_merge_var_num": steps, "OMP_NUM_THREADS": "1",
        "FLAGS_communicator_send_queue_size": steps, "GLOG_minloglevel": "3",
        "POD_IP": "127.0.0.1", "PADDLE_PORT": str(port),
    }  # fmt: skip
    command = [sys.executable, *sys.argv]
    server = subprocess.Popen(command, env={**common, "TRAINING_ROLE": "PSERVER"})
    try:
        _await(port, server)
        role = {**common, "TRAINING_ROLE": "TRAINER"}
        workers = [
            subprocess.Popen(command, env={**role, "PADDLE_TRAINER_ID": str(rank)})
            for rank in range(options.workers)
        ]
        return max(abs(process.wait()) for process in workers)
    finally:
        server.kill()


def _await(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _LISTEN_SECONDS
    while time.monotonic() < until and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("Paddle's server does not listen")


def join(paddle: Any, options: argparse.Namespace, loss: Any, optimizer: Any) -> bool:
    """Add the optimizer to the program and join the others; returns False after having served."""
    from paddle.distributed import fleet

    if options.mode == "local":
        optimizer.minimize(loss)
    else:
        fleet.init(fleet.PaddleCloudRoleMaker())
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = True
        strategy.a_sync_configs = {"k_steps": options.k_steps if options.mode == "geo" else 0}
        fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
        if os.environ["TRAINING_ROLE"] == "PSERVER":
            fleet.init_server()
            fleet.run_server()
            return False
    paddle.static.Executor(paddle.CPUPlace()).run(paddle.static.default_startup_program())
    if options.mode != "local":
        fleet.init_worker()
    return True


def test_program(paddle: Any, options: argparse.Namespace) -> Callable[[], Any]:
    """Return what gives the program that predicts; call it before `join`.

    The clone for tests looks rows up in this process. In `async` they are on the server only, which
    only the program that trains asks: then the test part is trained on too, each batch after it was
    predicted.
    """
    if options.mode == "async":
        return paddle.static.default_main_program  # `join` puts another one there.
    program = paddle.static.default_main_program().clone(for_test=True)
    return lambda: program


def rank(options: argparse.Namespace) -> int:
    """Return which worker this is."""
    return 0 if options.mode == "local" else int(os.environ["PADDLE_TRAINER_ID"])


def leave(options: argparse.Namespace) -> None:
    """Leave the others."""
    from paddle.distributed import fleet

    if options.mode != "local":
        fleet.stop_worker()
