"""The row benchmark on torch's RPC: one server that holds rows in a tensor, some workers.

Started once for each process by bench/compare. The server's tensor has a row for every id there is,
so it needs no hash table; memory that nobody touches costs nothing. Workers send each distinct id
once; finding the distinct ids is not timed. At the end a worker compares its rows with what they
must be (SGD, one worker).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch.distributed import rpc

LR = 2.0**-4
GRADIENT = 2.0**-10

_rows: torch.Tensor
_squares: torch.Tensor | None = None


def make(count: int, dim: int, rule: str) -> None:
    """Make the table, on the server."""
    global _rows, _squares  # noqa: PLW0603 - an RPC reaches functions and what they know
    _rows = torch.zeros(count, dim)
    _squares = torch.zeros(count, dim) if rule == "adagrad" else None


def pull(ids: torch.Tensor) -> torch.Tensor:
    """Read rows, on the server."""
    return _rows.index_select(0, ids)


def push(ids: torch.Tensor, gradients: torch.Tensor) -> None:
    """Update rows, on the server."""
    if _squares is None:
        _rows.index_add_(0, ids, gradients, alpha=-LR)
        return
    squares = _squares.index_select(0, ids).addcmul_(gradients, gradients)
    _squares.index_copy_(0, ids, squares)
    _rows.index_add_(0, ids, gradients / squares.sqrt().add_(1e-10), alpha=-LR)


def work(options: argparse.Namespace) -> None:
    """Time rounds; rank 1 prints them."""
    batches = list(np.load(f"{options.ids}.npz").values())
    ids = [torch.from_numpy(batch.astype(np.int64)) for batch in batches]
    gradients = [torch.full((batch.numel(), options.dim), GRADIENT) for batch in ids]
    if options.rank == 1:
        rpc.rpc_sync("server", make, (options.rows, options.dim, options.rule))
    _wait(options)
    for nth, batch in enumerate(ids):
        rpc.rpc_sync("server", push, (batch, gradients[nth]))
    for round_ in range(options.rounds + 1):  # The first one warms up.
        _wait(options)
        start = time.perf_counter()
        for call in range(options.calls):
            nth = call % len(ids)
            rpc.rpc_sync("server", pull, (ids[nth],))
            if options.do == "train":
                rpc.rpc_sync("server", push, (ids[nth], gradients[nth]))
        _wait(options)
        if options.rank == 1 and round_ > 0:
            print(f"round {time.perf_counter() - start:.6f}", flush=True)
    if options.workers == 1 and (options.rule, options.do) == ("sgd", "train"):
        print(f"wrong {_count_wrong(options, ids)}", flush=True)


def _count_wrong(options: argparse.Namespace, ids: list[torch.Tensor]) -> int:
    """Return how many rows of the first batch are not what all pushes must have made of them."""
    pushes = torch.zeros(options.rows)
    for nth, batch in enumerate(ids):
        times = 1 + (options.rounds + 1) * len(range(nth, options.calls, len(ids)))
        pushes.index_add_(0, batch, torch.full((batch.numel(),), float(times)))
    rows = rpc.rpc_sync("server", pull, (ids[0],))
    right = (-LR * GRADIENT * pushes[ids[0]])[:, None]
    return int((rows != right).any(1).sum())


_arrived = 0


def arrive() -> None:
    """Count a worker that waits, on the server."""
    global _arrived  # noqa: PLW0603 - as above
    _arrived += 1


def arrived() -> int:
    """Return how many have come so far, on the server."""
    return _arrived


_waits = 0


def _wait(options: argparse.Namespace) -> None:
    global _waits  # noqa: PLW0603 - as above
    _waits += 1
    rpc.rpc_sync("server", arrive)
    while rpc.rpc_sync("server", arrived) < _waits * options.workers:
        pass


def main() -> None:
    """Run as the server (rank 0) or a worker."""
    parser = argparse.ArgumentParser()
    for name in ("rank", "workers", "rows", "dim", "rounds", "calls", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("ids", "rule", "do"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    rpc.init_rpc(
        "server" if options.rank == 0 else f"worker{options.rank}",
        rank=options.rank,
        world_size=options.workers + 1,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://127.0.0.1:{options.port}", num_worker_threads=4
        ),
    )
    if options.rank > 0:
        work(options)
    rpc.shutdown()


if __name__ == "__main__":
    main()
