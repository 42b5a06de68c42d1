"""A rank of torch.distributed on Gloo: `python -m peers.gloo SOCKET STORE RANK SIZE DEVICE`."""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.distributed as dist

from . import control
from .pattern import Array, Case
from .timing import Bound, Call, Rank, Reply, Unsupported

_REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX, "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}  # fmt: skip


class Gloo:
    """The library as the bench sees it."""

    def __init__(self, store: str, rank: int, size: int, device: str) -> None:
        """Join the others through a file; tensors will be on ``cpu`` or ``cuda``."""
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        self.rank = rank
        self.size = size
        self._is_on_cuda = device == "cuda"
        if self._is_on_cuda:
            torch.cuda.set_device(rank % torch.cuda.device_count())

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def about(self) -> Reply:
        """Say which PyTorch it is."""
        return {"version": f"torch {torch.__version__}"}

    def bind(self, case: Case, x: Array, y: Array) -> Bound:
        """Prepare an operation; torch's all_reduce, broadcast and reduce are in place."""
        is_reduction = case.op in ("all_reduce", "reduce", "reduce_scatter")
        if is_reduction and case.reduce_op not in _REDUCE_OPS:
            raise Unsupported(f"Gloo has no {case.reduce_op}")
        in_place = case.op in ("all_reduce", "broadcast", "reduce")
        result = x if in_place else y
        here, there = _tensor(x, case.dtype), _tensor(y, case.dtype)
        if not self._is_on_cuda:
            return Bound(self._call(case, here, there), result)
        above = here.cuda(), there.cuda()
        call = self._call(case, *above)

        def whole_call() -> None:
            call()
            torch.cuda.current_stream().synchronize()  # Gloo's calls let the stream wait, not us.

        def put() -> None:
            for to, source in zip(above, (here, there), strict=True):
                to.copy_(source)

        def get() -> None:
            (here if in_place else there).copy_(above[0 if in_place else 1])

        return Bound(whole_call, result, put=put, get=get)

    def _call(self, case: Case, x: torch.Tensor, y: torch.Tensor) -> Call:
        op = _REDUCE_OPS.get(case.reduce_op)
        is_root = self.rank == 0
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        part = case.count // self.size
        if case.op == "gather":
            parts = list(torch.split(y, part)) if is_root else None
            return lambda: dist.gather(x, parts, dst=0)
        if case.op == "scatter":
            parts = list(torch.split(x, part)) if is_root else None
            return lambda: dist.scatter(y, parts, src=0)
        if case.op == "sendrecv":

            def sendrecv() -> None:
                sent = dist.isend(x, after)
                dist.recv(y, before)
                if sent is not None:
                    sent.wait()

            return sendrecv
        calls: dict[str, Call] = {
            "all_reduce": lambda: dist.all_reduce(x, op),
            "broadcast": lambda: dist.broadcast(x, 0),
            "reduce": lambda: dist.reduce(x, 0, op),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(y, x, op),
            "all_gather": lambda: dist.all_gather_into_tensor(y, x),
            "all_to_all": lambda: dist.all_to_all_single(y, x),
            "barrier": dist.barrier,
        }
        return calls[case.op]


def _tensor(x: Array, dtype: str) -> torch.Tensor:
    if dtype == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def main(path: str, store: str, rank: str, size: str, device: str = "cpu") -> None:
    """Join and obey."""
    library = Gloo(store, int(rank), int(size), device)
    control.serve(path, library.rank, Rank(library))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
