"""`Sender`: the operations of one round of averaging, in the order in which every rank starts them.

First the rank's weight travels, with a mark of its last step's settings, then each bucket, then
maybe what rank 0 has to say, and last what has no bucket. Owned by
`gradring.torch.gradients.averaging`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gradring.collectives.communicator import Communicator
from gradring.collectives.same_lines import Mark
from gradring.collectives.work import Work
from gradring.compression import Compression, wire_bytes
from gradring.errors import Closed, Error, Mismatch
from gradring.torch.c10d.calls.job import Job
from gradring.torch.c10d.calls.profiled import shown
from gradring.torch.gradients.buckets import Bucket

_UNKNOWN = Mark([])
_ADVICE = (
    "their last step was done so, and their parameters differ by now: change settings on every "
    "rank alike, and go on from a checkpoint"
)


class Sender:
    """Starts operations and waits for all of them.

    Attributes:
        mark: Of the settings of the last step.
        sent_bytes: What this rank had to send for gradients so far.
        uncompressed_bytes: What it would have been without compression.
    """

    def __init__(self, comm: Communicator, compress: Compression | None) -> None:
        """Send nothing yet.

        Args:
            comm: To be used for nothing else.
            compress: How gradients are encoded on their way.
        """
        self._comm = comm
        self._compress = compress
        self._sums = np.zeros(3)
        self._total = self._sums[:1]
        self.mark = _UNKNOWN
        # Of the round, and on which GPU their arrays are; none: no round is open.
        self._works: list[tuple[Work | Job, torch.device | None]] = []
        self.sent_bytes = 0
        self.uncompressed_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether a round has begun and not ended."""
        return bool(self._works)

    def open(self, weight: float) -> None:
        """Begin a round: send this rank's weight, if that has not been done."""
        if not self._works:
            self._sums[:] = weight, *self.mark.columns
            self._start(self._comm.all_reduce, self._sums, async_op=True)

    def send(self, bucket: Bucket) -> None:
        """Start a bucket that is full."""
        with shown("send_gradients"):
            self._send(bucket)
        self._count_bytes(bucket)

    def _send(self, bucket: Bucket) -> None:
        # The total is there when its turn has come: operations run in their order.
        whole = bucket.buffer
        device = bucket.values.device if bucket.values.is_cuda else None
        if self._compress is not None:
            with bucket.sending():
                self._start(
                    self._comm.average_compressed,
                    bucket.travelling,
                    self._total,
                    self._compress,
                    bucket.residual,
                    device=device,
                )
            whole = bucket.marks
        elif bucket.is_apart:
            with bucket.sending():
                self._start(self._comm.all_reduce, bucket.travelling, device=device, async_op=True)
            whole = bucket.marks
        self._start(self._comm.average_bucket, whole, self._total)

    def broadcast(self, message: Any) -> None:
        """Have every rank get rank 0's array by the end of the round."""
        self._start(self._comm.broadcast, message, async_op=True)

    def add(self, job: Job) -> None:
        """Have the round end after what else belongs to it."""
        self._works.append((job, None))

    def count(self, sent_bytes: int) -> None:
        """Count what went outside of the buckets, without compression."""
        self.sent_bytes += sent_bytes
        self.uncompressed_bytes += sent_bytes

    def wait(self) -> float:
        """Wait for everything, which ends the round.

        Who goes on with gradients on a GPU is the stream that is current on it now.

        Returns:
            The sum of all ranks' weights.
        """
        with shown("wait_for_gradients"):
            for work, device in self._works:
                work.wait(stream=None if device is None else torch.cuda.current_stream(device))
        self._works.clear()
        return float(self._total[0])

    def require_same_steps(self, before_it_raises: Callable[[], None]) -> None:
        """Look whether all ranks have done their last step by the same settings, after `wait`.

        A schedule may change them at any time between two backward passes, on each rank at another
        one, so that only those of a step that is done can be compared.

        Raises:
            Mismatch: They have not; on every rank, and then no more of that step.
        """
        mark, self.mark = self.mark, _UNKNOWN
        try:
            mark.require_everybodys(self._sums[1:].tolist(), self._comm, _ADVICE)
        except Mismatch:
            before_it_raises()
            raise
        self.mark = mark

    def _count_bytes(self, bucket: Bucket) -> None:
        count = bucket.values.numel()
        rank, world_size = self._comm.rank, self._comm.world_size
        items = bucket.values.element_size() / 4
        plain = round(items * wire_bytes(count, None, rank, world_size))
        self.uncompressed_bytes += plain
        if self._compress is not None:
            plain = wire_bytes(count, self._compress, rank, world_size)
        self.sent_bytes += plain

    def _start(
        self,
        operation: Callable[..., Any],
        *arguments: Any,
        device: torch.device | None = None,
        **options: Any,
    ) -> None:
        try:
            work: Work = operation(*arguments, **options)
        except Closed as closed:
            # What closed it came to an operation in the background, which says more.
            for started, _ in self._works:
                started.wait()
            if isinstance(closed.__cause__, Error):
                raise closed.__cause__ from None
            raise
        self._works.append((work, device))
