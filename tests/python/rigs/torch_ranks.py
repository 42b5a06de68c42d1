"""Ranks with PyTorch as processes: one function on all of them, on any backend, or one script.

The processes are forked from a server that has imported PyTorch once, so that a test takes a second
and not ten. What a rank returns must be plain values or NumPy arrays; `plain` makes them.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import runpy
import secrets
import socket
import sys
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

from mode_servers import RealServers

Job = Callable[..., Any]

SECONDS = 90.0
GROUP_SECONDS = 30.0

_server = multiprocessing.get_context("forkserver")
# An optimizer imports torch._dynamo when the first is made: two seconds for each rank. The examples
# take their digits from scikit-learn, which is as slow.
_server.set_forkserver_preload(
    ["torch_ranks", "gradring.torch", "torch_models", "torch._dynamo", "sklearn.datasets"]
)


def on_ranks(size: int, job: Job, *arguments: Any, backend: str = "gradring") -> list[Any]:
    """Call ``job(*arguments)`` on every rank of a new job, inside its default group.

    Returns what each rank returned; the first rank that raised fails the test.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        return _fork(size, _rank_main, (backend, size, store, job, arguments))


def script_on_ranks(size: int, script: Path, *arguments: str) -> list[str]:
    """Run a script as torchrun would on every rank; what each prints to standard output."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        **_of_examples(), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **shared} for rank in range(size)]
    return [output for output, _ in _fork(size, _script_main, (ranks, None, script, arguments))]


def script_on_our_ranks(
    size: int, script: Path, *arguments: str, servers: RealServers | None = None, **settings: str
) -> list[tuple[str, str]]:
    """Run a script as `gradring run` would on every rank, or as a user alone; the two streams.

    Settings are variables of the environment, of several ranks.
    """
    if size == 1:
        return _fork(1, _script_main, ([_of_examples()], None, script, arguments))
    with socket.create_server(("127.0.0.1", 0)) as door:
        shared = {
            **_of_examples(), **settings,
            "GRADRING_WORLD_SIZE": str(size), "GRADRING_LOCAL_WORLD_SIZE": str(size),
            "GRADRING_RENDEZVOUS": f"127.0.0.1:{door.getsockname()[1]}",
            "GRADRING_SECRET": servers.secret if servers else secrets.token_hex(16),
        }  # fmt: skip
        if servers:
            shared["GRADRING_SERVERS"] = ",".join(servers.addresses)
        ranks = [
            {"GRADRING_RANK": str(rank), "GRADRING_LOCAL_RANK": str(rank), **shared}
            for rank in range(size)
        ]
        return _fork(size, _script_main, (ranks, door, script, arguments))


def _of_examples() -> dict[str, str]:
    """What examples look for; a forked rank has the server's variables, not this process's."""
    return {"GRADRING_DATA": os.environ.get("GRADRING_DATA", ""), "OMP_NUM_THREADS": "1"}


def _fork(size: int, main: Job, arguments: Any) -> list[Any]:
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = _server.Pipe(duplex=False)
        process = _server.Process(target=main, args=(theirs, rank, *arguments), daemon=True)
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


def _script_main(
    pipe: Any, rank: int, ranks: list[dict[str, str]], door: Any, script: Path, options: Any
) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(ranks[rank])
    if door and rank == 0:
        os.environ["GRADRING_LISTEN_FD"] = str(door.detach())
    torch.set_num_threads(1)
    sys.argv = [str(script), *options]
    sys.path.insert(0, str(script.parent))
    error, output, errors = "", io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            runpy.run_path(str(script), run_name="__main__")
    except BaseException:  # noqa: BLE001 - told to the test
        error = traceback.format_exc()
    pipe.send((error, (output.getvalue(), errors.getvalue())))


def _rank_main(
    pipe: Any, rank: int, backend: str, size: int, store: Path, job: Job, arguments: Any
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
