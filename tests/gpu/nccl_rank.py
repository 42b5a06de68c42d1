"""One of two ranks on one GPU, which NCCL takes for two hosts (tools/gpu_check.sh: NCCL_HOSTID).

Every collective that NCCL has, on small integers, against what it must be. Two processes take turns
on the GPU, so nothing is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import gradring as gr
from gradring import gpu


def expect(name: str, found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found.to_numpy(), expected, err_msg=name)
    print(f"{name}: right", flush=True)


def check(comm: gr.Communicator) -> None:
    rank, size = comm.rank, comm.world_size
    base = np.arange(1001, dtype=np.float32)
    mine, total = base + rank, size * base + sum(range(size))

    def on_gpu(values: Any) -> gpu.Array:
        return gpu.from_numpy(values)

    cases: dict[str, tuple[Callable[[], Any], Any]] = {
        "all_reduce": (lambda: comm.all_reduce(on_gpu(mine)), total),
        "all_reduce avg": (lambda: comm.all_reduce(on_gpu(mine), "avg"), total / size),
        "all_reduce max": (lambda: comm.all_reduce(on_gpu(mine), "max"), base + size - 1),
        "broadcast": (lambda: comm.broadcast(on_gpu(mine), 1), base + 1),
        "all_gather": (
            lambda: comm.all_gather(on_gpu(mine)),
            np.stack([base + other for other in range(size)]),
        ),
        "reduce_scatter": (
            lambda: comm.reduce_scatter(on_gpu(mine[:1000])),
            np.split(total[:1000], size)[rank],
        ),
        "all_to_all": (
            lambda: comm.all_to_all(on_gpu(mine[:1000])),
            np.concatenate([np.split(base[:1000] + other, size)[rank] for other in range(size)]),
        ),
        "staged: int16, which NCCL has not": (
            lambda: comm.all_reduce(on_gpu(np.full(9, rank + 1, np.int16))),
            np.full(9, sum(range(1, size + 1)), np.int16),
        ),
    }
    for name, (call, expected) in cases.items():
        expect(name, call(), expected)
    stream = gpu.Stream()
    x = gpu.from_numpy(mine)
    comm.all_reduce(x, async_op=True, stream=stream).wait(stream=stream)
    np.testing.assert_array_equal(x.to_numpy(stream), total)
    print("ordered by a stream: right", flush=True)


def main() -> int:
    with gr.init(timeout=60) as comm:
        print(comm.use_gpu(0, path="nccl"), flush=True)
        check(comm)
    return 0


if __name__ == "__main__":
    sys.exit(main())
