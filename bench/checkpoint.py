"""What a checkpoint costs: MB/s of the files, and how much slower training is meanwhile.

One server process and one worker (this one) that pulls and pushes Zipf ids without a pause, so that
both have work all the time. Steps are counted before, during and after each save, and the
checkpoints are checked in the end.

    python bench/checkpoint.py --rows 2000000 --dim 64 --to /tmp/checkpoints
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gradring as gr
from gradring.ps import checkpoint


@contextlib.contextmanager
def server(secret: str, log: Path | None) -> Iterator[str]:
    command = [sys.executable, "-m", "gradring", "serve"]
    if log is not None:
        command += ["--log", str(log), "--fsync", "none"]
    environment = {**os.environ, "GRADRING_SECRET": secret}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split(" at ")[1].split(",")[0]
        process.terminate()
        process.wait(60)


class Training(threading.Thread):
    """Pulls and pushes batches until it is stopped; counts them."""

    def __init__(self, ps: Any, options: argparse.Namespace) -> None:
        super().__init__()
        self.steps = 0
        self._stops = threading.Event()
        self._table = table(ps, options)
        dice = np.random.default_rng(0)
        self._batches = [
            np.unique(dice.zipf(1.2, 2 * options.batch) % options.rows)[: options.batch]
            for _ in range(50)
        ]
        self._gradients = np.full((options.batch, options.dim), 1e-3, np.float32)

    def run(self) -> None:
        while not self._stops.is_set():
            ids = self._batches[self.steps % len(self._batches)]
            self._table.pull(ids)
            self._table.push(ids, self._gradients[: len(ids)], distinct=True)
            self.steps += 1

    def stop(self) -> None:
        self._stops.set()
        self.join()

    def rate(self, seconds: float) -> float:
        begun, steps = time.perf_counter(), self.steps
        time.sleep(seconds)
        return (self.steps - steps) / (time.perf_counter() - begun)


def table(ps: Any, options: argparse.Namespace) -> Any:
    return ps.sparse_table("rows", options.dim, gr.optim.Adagrad(lr=0.01))


def fill(ps: Any, options: argparse.Namespace) -> None:
    rows = table(ps, options)
    at_once = 1 << 16
    ones = np.ones((at_once, options.dim), np.float32)
    for first in range(0, options.rows, at_once):
        ids = np.arange(first, min(first + at_once, options.rows))
        rows.push(ids, ones[: len(ids)], distinct=True)


def one_save(ps: Any, training: Training | None, url: Path, base: str | None) -> dict[str, float]:
    steps, begun = training.steps if training else 0, time.perf_counter()
    made = checkpoint.save(ps, str(url), base)
    seconds = time.perf_counter() - begun
    found = {
        "MB": made.total_bytes / 1e6,
        "seconds": seconds,
        "MB/s": made.total_bytes / 1e6 / seconds,
    }
    if training:
        found["steps/s during"] = (training.steps - steps) / seconds
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    secret = secrets.token_hex(16)
    shutil.rmtree(options.to, ignore_errors=True)
    log = options.to / "log" if options.log else None
    found: dict[str, Any] = {"rows": options.rows, "dim": options.dim, "cores": os.cpu_count()}
    with server(secret, log) as address, gr.ps.connect(address, secret=secret, client=0) as ps:
        fill(ps, options)
        found["quiet"] = [
            one_save(ps, None, options.to / f"quiet-{n}", None) for n in range(options.times)
        ]
        training = Training(ps, options)
        training.start()
        with gr.ps.connect(address, secret=secret, client=1) as saver:
            training.rate(1.0)
            saves = []
            for number in range(options.times):
                before = training.rate(options.seconds)
                save = one_save(saver, training, options.to / f"busy-{number}", None)
                after = training.rate(options.seconds)
                usual = (before + after) / 2
                save["steps/s usual"] = usual
                lost = max(0.0, save["seconds"] * (1 - save["steps/s during"] / usual))
                save["seconds of training lost"] = lost
                save["slowdown during, %"] = 100 * lost / save["seconds"]
                save["slowdown with one a minute, %"] = 100 * lost / 60
                saves.append(save)
            found["training"] = saves
            found["median"] = {
                name: statistics.median(save[name] for save in saves) for name in saves[0]
            }
            last = str(options.to / f"busy-{options.times - 1}")
            found["incremental"] = one_save(saver, training, options.to / "step", last)
        training.stop()
    checkpoint.verify(str(options.to / "step"))
    begun = time.perf_counter()
    with server(secret, None) as address, gr.ps.connect(address, secret=secret) as ps:
        ready = time.perf_counter()
        checkpoint.load(ps, str(options.to / "quiet-0"))
        seconds = time.perf_counter() - ready
        found["load"] = {"seconds": seconds, "MB/s": found["quiet"][0]["MB"] / seconds}
        assert len(table(ps, options)) == options.rows
    found["server ready after, seconds"] = ready - begun
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="to measure the usual rate")
    parser.add_argument("--log", action="store_true", help="with the server's log on")
    parser.add_argument("--to", type=Path, required=True, help="folder; what is there is removed")
    options = parser.parse_args()
    print(json.dumps(measure(options), indent=1))


if __name__ == "__main__":
    main()
