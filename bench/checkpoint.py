"""What a checkpoint costs: MB/s of the files, and how much slower training is meanwhile.

One server process, trained in two ways. "without a pause": one worker (this one) pulls and pushes
Zipf ids and does nothing else. "computing": a worker process for each core pulls rows, does the
arithmetic of a small network on them, and pushes, so that every core is taken. Steps are counted
before, during and after each save, and the checkpoints are checked in the end.

    python bench/checkpoint.py --rows 2000000 --dim 64 --to /tmp/checkpoints
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
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
from typing import Any, Protocol

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
        try:
            yield process.stdout.readline().split(" at ")[1].split(",")[0]
        finally:
            process.terminate()
            process.wait(60)


class Training(Protocol):
    """Trains from `start` to `stop`, and counts its steps."""

    @property
    def steps(self) -> int: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class WithoutAPause(threading.Thread):
    """Pulls and pushes batches, one after the other."""

    def __init__(self, ps: Any, options: argparse.Namespace) -> None:
        super().__init__()
        self.steps = 0
        self._stops = threading.Event()
        self._table = table(ps, options)
        self._batches = batches(options, 0)
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


class Computing:
    """A process for each core, all of them workers."""

    def __init__(self, address: str, secret: str, options: argparse.Namespace) -> None:
        fresh = multiprocessing.get_context("spawn")
        self._stops = fresh.Event()
        self._counts = [fresh.Value("q", 0, lock=False) for _ in range(os.cpu_count() or 1)]
        self._processes = [
            fresh.Process(
                target=compute, args=((address, secret), 10 + n, options, self._stops, count)
            )
            for n, count in enumerate(self._counts)
        ]

    @property
    def steps(self) -> int:
        return sum(count.value for count in self._counts)

    def start(self) -> None:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = "1"  # They start with it: one thread each.
        for process in self._processes:
            process.start()
        while not all(count.value for count in self._counts):
            time.sleep(0.1)

    def stop(self) -> None:
        self._stops.set()
        for process in self._processes:
            process.join()


def compute(
    place: tuple[str, str], client: int, options: argparse.Namespace, stops: Any, steps: Any
) -> None:
    address, secret = place
    with gr.ps.connect(address, secret=secret, client=client) as ps:
        rows = table(ps, options)
        dice = np.random.default_rng(client)
        first = dice.standard_normal((options.dim, 256), np.float32)
        second = dice.standard_normal((256, options.dim), np.float32)
        some = batches(options, client)
        hidden = np.empty((options.batch // 4, 256), np.float32)
        back = np.empty_like(hidden)
        wrong = np.empty((options.batch // 4, options.dim), np.float32)
        gradients = np.empty_like(wrong)
        while not stops.is_set():
            ids = some[steps.value % len(some)][: options.batch // 4]
            pulled, n = rows.pull(ids), len(ids)
            for _ in range(options.passes):  # Forward and backward through two layers.
                np.maximum(np.matmul(pulled, first, out=hidden[:n]), 0, out=hidden[:n])
                np.subtract(np.matmul(hidden[:n], second, out=wrong[:n]), pulled, out=wrong[:n])
                np.matmul(wrong[:n], second.T, out=back[:n])
                np.multiply(back[:n], hidden[:n] > 0, out=back[:n])
                np.matmul(back[:n], first.T, out=gradients[:n])
            np.clip(gradients[:n], -1e-3, 1e-3, out=gradients[:n])
            rows.push(ids, gradients[:n], distinct=True)
            steps.value += 1


def batches(options: argparse.Namespace, seed: int) -> list[Any]:
    dice = np.random.default_rng(seed)
    return [
        np.unique(dice.zipf(1.2, 2 * options.batch) % options.rows)[: options.batch]
        for _ in range(50)
    ]


def rate(training: Training, seconds: float) -> float:
    begun, steps = time.perf_counter(), training.steps
    time.sleep(seconds)
    return (training.steps - steps) / (time.perf_counter() - begun)


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


def saves_during(
    training: Training, saver: Any, options: argparse.Namespace, name: str
) -> dict[str, Any]:
    """Save again and again while it trains: every save, and the medians."""
    rate(training, 1.0)
    saves = []
    for number in range(options.times):
        before = rate(training, options.seconds)
        save = one_save(saver, training, options.to / f"{name}-{number}", None)
        usual = (before + rate(training, options.seconds)) / 2
        save["steps/s usual"] = usual
        lost = save["seconds"] * (1 - save["steps/s during"] / usual)
        save["seconds of training lost"] = lost
        save["slowdown during, %"] = 100 * lost / save["seconds"]
        save["slowdown with one a minute, %"] = 100 * lost / 60
        saves.append(save)
    middle = {key: statistics.median(save[key] for save in saves) for key in saves[0]}
    return {"saves": saves, "median": middle}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    secret = secrets.token_hex(16)
    shutil.rmtree(options.to, ignore_errors=True)
    log = options.to / "log" if options.log else None
    found: dict[str, Any] = {"rows": options.rows, "dim": options.dim, "cores": os.cpu_count()}
    with server(secret, log) as address, gr.ps.connect(address, secret=secret, client=0) as ps:
        fill(ps, options)
        time.sleep(2)  # It saves at full speed only when nobody has trained for a second.
        found["quiet"] = [
            one_save(ps, None, options.to / f"quiet-{n}", None) for n in range(options.times)
        ]
        with gr.ps.connect(address, secret=secret, client=1) as saver:
            computing = Computing(address, secret, options)
            computing.start()
            found["computing"] = saves_during(computing, saver, options, "computing")
            computing.stop()
            training = WithoutAPause(ps, options)
            training.start()
            found["without a pause"] = saves_during(training, saver, options, "busy")
            last = str(options.to / f"busy-{options.times - 1}")
            found["incremental"] = one_save(saver, training, options.to / "step", last)
        training.stop()
    checkpoint.verify(str(options.to / "step"))
    found |= load(secret, options)
    return found


def load(secret: str, options: argparse.Namespace) -> dict[str, Any]:
    begun = time.perf_counter()
    with server(secret, None) as address, gr.ps.connect(address, secret=secret) as ps:
        ready = time.perf_counter()
        loaded = checkpoint.load(ps, str(options.to / "quiet-0"))
        seconds = time.perf_counter() - ready
        assert len(table(ps, options)) == options.rows
    return {
        "load": {"seconds": seconds, "MB/s": loaded.total_bytes / 1e6 / seconds},
        "server ready after, seconds": ready - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--passes", type=int, default=1, help="of a computing worker's arithmetic")
    parser.add_argument("--seconds", type=float, default=3.0, help="to measure the usual rate")
    parser.add_argument("--log", action="store_true", help="with the server's log on")
    parser.add_argument("--to", type=Path, required=True, help="folder; what is there is removed")
    options = parser.parse_args()
    print(json.dumps(measure(options), indent=1))


if __name__ == "__main__":
    main()
