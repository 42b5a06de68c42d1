"""A communication hook for PyTorch's DistributedDataParallel: its gradients in fewer bytes.

DDP compares the hook's annotations with its own classes, so they must be no texts: nothing here is
imported from ``__future__``.
"""

import queue
import threading
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradring.collectives.communicator import Communicator
from gradring.collectives.work import Work
from gradring.compression import Compression, code_of, wire_bytes
from gradring.errors import InvalidArgument
from gradring.torch.c10d.creation import meet_beside_default_group

# The operation has a deadline of its own.
_FOR_GOOD = 365 * 24 * 3600.0


class CompressedGradients:
    """The state of `compressed_gradients`: the codec, and what it has left out so far.

        ddp.register_comm_hook(gt.CompressedGradients("int8"), gt.compressed_gradients)

    Works with every backend of torch.distributed, since gradients travel over a communicator of
    their own, and has the same codecs and schedule as ``distributed(..., compress=...)``. What is
    left out is kept for each parameter, so it survives DDP's new buckets.

    Attributes:
        sent_bytes: What this rank had to send so far.
        uncompressed_bytes: What it would have been without compression.
    """

    def __init__(self, compress: Compression, comm: Communicator | None = None) -> None:
        """Make a communicator; a collective call.

        Args:
            compress: ``"bf16" "fp16" "int8"`` or ``gradring.TopK(ratio)``.
            comm: Of the same ranks as DDP's group, to split one off. ``None``: the ranks of
                torch.distributed's default group meet through its store.

        Raises:
            InvalidArgument: There is no such codec.
            TimedOut: Not all ranks came.
        """
        code_of(compress)
        self.compress = compress
        self.sent_bytes = 0
        self.uncompressed_bytes = 0
        self._comm: Communicator = (
            meet_beside_default_group("gradring/compressed") if comm is None else comm.split(0)  # type: ignore[assignment]
        )
        self._total = np.array([self._comm.world_size], np.float64)
        self._buckets: dict[int, tuple[list[int], Any]] = {}  # Whose residuals, and those.
        self._residual_of: dict[int, Any] = {}  # The same by parameter.
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiter: threading.Thread | None = None

    def start(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Average one of DDP's buckets.

        Raises:
            InvalidArgument: Its gradients are not float32; and as `compressed_gradients`.
        """
        buffer = bucket.buffer()
        if buffer.dtype != torch.float32:
            raise InvalidArgument(f"gradients of {buffer.dtype} cannot be compressed")
        world_size, rank = self._comm.world_size, self._comm.rank
        self.sent_bytes += wire_bytes(buffer.numel(), self.compress, rank, world_size)
        self.uncompressed_bytes += wire_bytes(buffer.numel(), None, rank, world_size)
        residual = self._residual_for(bucket)
        work = self._comm.average_compressed(buffer, self._total, self.compress, residual)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        if self._waiter is None:
            self._waiter = threading.Thread(target=_tell, args=(self._waiting,), daemon=True)
            self._waiter.start()
        self._waiting.put((work, buffer, future))
        # DDP waits in C++, where an error of `set_exception` is a value as any other; not so what
        # is raised behind it.
        return future.then(lambda told: told.value())

    def close(self) -> None:
        """Leave; what runs raises `Closed`."""
        self._waiting.put(None)
        self._comm.close()

    def _residual_for(self, bucket: Any) -> Any:
        params = bucket.parameters()
        keys = [id(param) for param in params]
        known = self._buckets.get(bucket.index())
        if known is not None and known[0] == keys:
            return known[1]
        # DDP lays its buckets out anew after the first step.
        device = bucket.buffer().device
        nothing = [
            torch.zeros(param.numel(), dtype=torch.float32, device=device) for param in params
        ]
        earlier = zip(keys, nothing, strict=True)
        residual = torch.cat(
            [self._residual_of.get(key, zeros).to(device) for key, zeros in earlier]
        )
        self._buckets[bucket.index()] = (keys, residual)
        ends = np.cumsum([param.numel() for param in params])
        for key, end, param in zip(keys, ends, params, strict=True):
            self._residual_of[key] = residual[end - param.numel() : end]
        return residual


def compressed_gradients(
    state: CompressedGradients,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of DDP's with ``state.compress``; for ``ddp.register_comm_hook``.

    Raises:
        InvalidArgument: The gradients are not float32.
        PeerLost: As `Communicator.all_reduce`, and so for its other errors; once a bucket has been
            started, out of the future: from DDP's backward as a RuntimeError with the same text.
    """
    return state.start(bucket)


def _tell(waiting: queue.SimpleQueue[Any]) -> None:
    # Operations end in the order in which they were started.
    while (item := waiting.get()) is not None:
        work: Work = item[0]
        future: torch.futures.Future[torch.Tensor] = item[2]
        try:
            work.wait(_FOR_GOOD)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the future
            future.set_exception(error)  # type: ignore[arg-type] # PyTorch's own stub errs.
        else:
            future.set_result(item[1])
