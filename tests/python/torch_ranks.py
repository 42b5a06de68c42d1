"""Ranks of torch.distributed as processes: run one function on all of them, on any backend.

The processes are forked from a server that has imported PyTorch once, so that a test takes a second
and not ten. What a rank returns must be plain values or NumPy arrays; `plain` makes them.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Job = Callable[..., Any]

SECONDS = 90.0
GROUP_SECONDS = 30.0

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["torch_ranks", "gradring.torch", "torch_models"])


def on_ranks(size: int, job: Job, *arguments: Any, backend: str = "gradring") -> list[Any]:
    """Call ``job(*arguments)`` on every rank of a new job, inside its default group.

    Returns what each rank returned; the first rank that raised fails the test.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        pipes, processes = [], []
        for rank in range(size):
            ours, theirs = _server.Pipe(duplex=False)
            process = _server.Process(
                target=_rank_main,
                args=(theirs, backend, rank, size, store, job, arguments),
                daemon=True,
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return _collect(pipes)
        finally:
            for process in processes:
                process.join(5)
                process.kill()


def _collect(pipes: list[Any]) -> list[Any]:
    deadline = time.monotonic() + SECONDS
    results, errors = [], []
    for rank, pipe in enumerate(pipes):
        if not pipe.poll(max(0.0, deadline - time.monotonic())):
            errors.append(f"rank {rank} said nothing for {SECONDS} s")
            continue
        try:
            error, result = pipe.recv()
        except EOFError:
            errors.append(f"rank {rank} died")
            continue
        results.append(result)
        if error:
            errors.append(f"rank {rank}:\n{error}")
    assert not errors, "\n".join(errors)
    return results


def _rank_main(
    pipe: Any, backend: str, rank: int, size: int, store: Path, job: Job, arguments: Any
) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    error, result = "", None
    try:
        dist.init_process_group(
            backend, init_method=f"file://{store}", rank=rank, world_size=size,
            timeout=timedelta(seconds=GROUP_SECONDS),
        )  # fmt: skip
        result = plain(job(*arguments))
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001 - told to the test
        error = traceback.format_exc()
    pipe.send((error, result))


def plain(value: Any) -> Any:
    """Turn tensors, also in lists and dicts, into NumPy arrays."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.is_sparse:
            value = value.to_dense()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value
