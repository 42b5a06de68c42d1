"""The row benchmark on torch's RPC: one server that holds rows in a tensor, some workers.

Started once for each process by bench/compare. The server's tensor has a row for every id there is,
written once before anything is timed, so it needs no hash table. Workers send each distinct id
once. They are given distinct ids; with --merges ids as they come, and then finding the distinct
ones, once for a pull and its push, giving rows to every place and adding up gradients is timed. At
the end a worker compares its rows with what they must be (SGD, one worker).
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
    # Zeros would be pages that are not there before somebody writes to them.
    _rows = torch.full((count, dim), 1.0).zero_()
    _squares = torch.full((count, dim), 1.0).zero_() if rule == "adagrad" else None


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
    pull_rows, push_rows = (_pull_all, _push_all) if options.merges else (_pull, _push)
    if options.rank == 1:
        rpc.rpc_sync("server", make, (options.rows, options.dim, options.rule))
    _wait(options)
    for nth, batch in enumerate(ids):
        push_rows(batch, gradients[nth])
    for round_ in range(options.rounds + 1):  # The first one warms up.
        _wait(options)
        start = time.perf_counter()
        for call in range(options.calls):
            nth = call % len(ids)
            pull_rows(ids[nth])
            if options.do == "train":
                push_rows(ids[nth], gradients[nth])
        _wait(options)
        if options.rank == 1 and round_ > 0:
            print(f"round {time.perf_counter() - start:.6f}", flush=True)
    if options.workers == 1 and (options.rule, options.do) == ("sgd", "train"):
        print(f"wrong {_count_wrong(options, ids)}", flush=True)


def _pull(ids: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_sync("server", pull, (ids,))


def _push(ids: torch.Tensor, gradients: torch.Tensor) -> None:
    rpc.rpc_sync("server", push, (ids, gradients))


class Distinct:
    """The ids of a batch, each once: found for its pull, and known in the push that follows."""

    def __init__(self) -> None:
        self._of: torch.Tensor | None = None
        self._found: tuple[torch.Tensor, torch.Tensor]

    def __call__(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the distinct ids, and which of them is at each place."""
        if ids is not self._of:
            self._of, self._found = ids, torch.unique(ids, return_inverse=True)
        return self._found


_distinct = Distinct()


def _pull_all(ids: torch.Tensor) -> torch.Tensor:
    distinct, places = _distinct(ids)
    return _pull(distinct)[places]


def _push_all(ids: torch.Tensor, gradients: torch.Tensor) -> None:
    distinct, places = _distinct(ids)
    sums = torch.zeros(distinct.numel(), gradients.shape[1]).index_add_(0, places, gradients)
    _push(distinct, sums)


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
    parser.add_argument("--merges", action="store_true")
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
