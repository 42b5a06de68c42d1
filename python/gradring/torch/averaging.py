"""Gradients averaged over ranks while backward still runs.

A round is one step's averaging: it opens with the first gradient (one number is sent ahead, the
rank's weight), each bucket starts as soon as it and all before it are full, and at the end of
backward `finish` sends the rest, waits, and lets every ``.grad`` be its average. Every rank sends
the same operations in the same order, whatever its gradients; on a communicator of their own, so
that operations of the user may come in between. The first round also teaches the order in which
backward reaches the parameters; the buckets are laid out anew in rank 0's. Runs on the thread that
runs backward and on the one that steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gradring.communicator import Communicator
from gradring.compression import Compression, wire_bytes
from gradring.errors import Closed, Error, InvalidArgument
from gradring.optim.averaging import no_examples, require_weight
from gradring.torch.backward import at_the_end_of_backward, is_outermost_backward
from gradring.torch.buckets import Bucket, lay_out, make_buckets
from gradring.torch.parameters import Named
from gradring.work import Work

# Rounds after which rank 0 must have run a backward, for its order to be learned.
_ROUNDS_TO_LEARN = 3
# What the core divides by as it adds: larger totals, and broken ones, take a pass of their own.
_WHOLE_DIVISORS = 1 << 24


class GradientAverager:
    """The rounds of one optimizer.

    Attributes:
        comm: The ranks; carries nothing but gradients.
        is_done: Whether the parameters' gradients are this step's averages.
        is_accumulating: Whether backward only adds up gradients here.
        sent_bytes: What this rank had to send for gradients so far.
        uncompressed_bytes: What it would have been without compression.
    """

    def __init__(
        self,
        named: Named,
        comm: Communicator,
        *,
        bucket_bytes: int,
        overlap: bool,
        compress: Compression | None,
    ) -> None:
        """Lay out the buckets; with ``overlap`` listen to the parameters' gradients.

        Args:
            named: Parameters by name; those that need no gradient are left out.
            comm: To be used for nothing else.
            bucket_bytes: Most bytes in a bucket.
            overlap: Start buckets during backward rather than in `finish`, and finish in the end
                of backward.
            compress: How gradients are encoded on their way.
        """
        self.comm = comm
        self._named = named
        trainable = {name: param for name, param in named.items() if param.requires_grad}
        self._names = list(trainable)
        self._params = list(trainable.values())
        self._left_out = [name for name in named if name not in trainable]
        self._bucket_bytes = bucket_bytes
        self._compress = compress
        self._buckets: list[Bucket] = []
        self._layout: list[list[int]] = []
        # Until it is known better: backward begins at the end.
        self._lay_out(range(len(self._params) - 1, -1, -1))
        self._seen: list[int] = []  # The order of this round's gradients.
        self._rounds_to_learn = _ROUNDS_TO_LEARN if overlap else 0
        self._is_ready = [False] * len(self._params)
        self._weight = 1.0
        self._total = np.zeros(1)
        self._weighing: Work | None = None  # The round's first operation; None: no round is open.
        self._reducing: list[Work] = []
        self._sent = 0  # Buckets of this round.
        self.sent_bytes = 0
        self.uncompressed_bytes = 0
        self.is_done = False
        self.is_accumulating = False
        self._handles = []
        if overlap:
            self._handles = [
                _listen(param, _listener(self, index)) for index, param in enumerate(self._params)
            ]

    def take_residuals(self, other: GradientAverager) -> None:
        """Go on from what compression has left out in another averager."""
        if self._compress is None:
            return
        known = {id(param): index for index, param in enumerate(self._params)}
        earlier = {
            known[id(other._params[index])]: residual
            for index, residual in other._residuals().items()
            if id(other._params[index]) in known
        }
        for bucket in self._buckets:
            bucket.keep_residual(earlier)

    def stop_listening(self) -> None:
        """Leave the parameters alone from now on."""
        for handle in self._handles:
            handle.remove()

    @property
    def is_open(self) -> bool:
        """Whether a round has begun and not ended."""
        return self._weighing is not None

    def set_weight(self, weight: float) -> None:
        """Say how many examples stand behind this rank's next gradients.

        Raises:
            InvalidArgument: It makes no sense, or the round has begun with another weight.
        """
        weight = require_weight(weight)
        if (self.is_open or self.is_done) and weight != self._weight:
            raise InvalidArgument(
                f"weight {weight:g} comes too late: backward has begun to send gradients with "
                f"weight {self._weight:g}; call set_weight() before backward, loop with "
                "uneven(batches, weight=...), or give up the overlap with overlap=False"
            )
        self._weight = weight

    def take_gradient(self, index: int) -> None:
        """Take a gradient that backward has just completed."""
        if self.is_accumulating:
            return
        if self._is_ready[index] or self.is_done:
            raise InvalidArgument(
                f"{self._names[index]} got another gradient after its last one was sent; run all "
                "but the last backward of a step inside `with optimizer.no_sync():`"
            )
        self._put(index)
        self._seen.append(index)
        self._start_full_buckets()
        at_the_end_of_backward(self)

    def end_backward(self) -> None:
        """Finish; called at the end of every backward that gave gradients.

        Backward may run inside backward (reentrant checkpoints): then the outer one ends the round,
        unless nothing is missing any more.
        """
        if self.is_open and (all(self._is_ready) or is_outermost_backward()):
            self.finish()

    def finish(self) -> None:
        """Send what is left, wait, and hand out the averages; nothing where that has been done.

        Raises:
            InvalidArgument: All ranks have weight 0; or a parameter was frozen before.
            PeerLost: As `Communicator.all_reduce`, and so for its other errors.
        """
        if self.is_done:
            return
        self._require_all_listed()
        total = self._end_round()
        if total == 0:
            self._reset_buckets()
            raise no_examples()
        is_whole = total == int(total) and 1 <= total <= _WHOLE_DIVISORS
        for bucket in self._buckets:
            # The core divides as it adds, where it is told the total and can.
            is_divided = self._compress is not None or (is_whole and not bucket.is_apart)
            if not is_divided:
                bucket.values.div_(total)
            bucket.give(self._params)
        self._reset_buckets()
        self.is_done = True
        if self._rounds_to_learn > 0:
            self._learn_order()

    def begin(self) -> None:
        """Make ready for another round; one that was not finished is ended and forgotten."""
        if self.is_open:
            self._end_round()
            self._reset_buckets()
        self.is_done = False
        self._seen.clear()

    def average_number(self, value: float) -> float:
        """Return a number averaged with the ranks' weights; a collective call."""
        pair = np.array([value * self._weight if self._weight else 0.0, self._weight])
        self.comm.all_reduce(pair)
        return float(pair[0] / pair[1])

    def _put(self, index: int) -> None:
        if not self.is_open:
            self._total[0] = self._weight
            self._weighing = self._start(self.comm.all_reduce, self._total, async_op=True)
        grad = self._params[index].grad
        if grad is not None and grad.layout != torch.strided:
            raise InvalidArgument(
                f"{self._names[index]} has a sparse gradient; only dense ones can be averaged "
                "(for an embedding: sparse=False)"
            )
        self._is_ready[index] = True
        self._bucket_of[index].put(index, self._params[index], self._weight)

    def _start_full_buckets(self) -> None:
        while self._sent < len(self._buckets):
            bucket = self._buckets[self._sent]
            if bucket.missing:
                return
            self._sent += 1
            self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        # The total is there when its turn has come: operations run in their order.
        whole = bucket.buffer
        if self._compress is not None:
            compressed = self._start(
                self.comm.average_compressed,
                bucket.travelling,
                self._total,
                self._compress,
                bucket.residual,
            )
            self._reducing.append(compressed)
            whole = bucket.marks
        elif bucket.is_apart:
            added = self._start(self.comm.all_reduce, bucket.travelling, async_op=True)
            self._reducing.append(added)
            whole = bucket.marks
        self._reducing.append(self._start(self.comm.average_bucket, whole, self._total))
        self._count_bytes(bucket)

    def _count_bytes(self, bucket: Bucket) -> None:
        count = bucket.values.numel()
        rank, world_size = self.comm.rank, self.comm.world_size
        items = bucket.values.element_size() / 4
        plain = round(items * wire_bytes(count, None, rank, world_size))
        self.uncompressed_bytes += plain
        if self._compress is not None:
            plain = wire_bytes(count, self._compress, rank, world_size)
        self.sent_bytes += plain

    def _end_round(self) -> float:
        for index, is_ready in enumerate(self._is_ready):
            if not is_ready:
                self._put(index)
        self._start_full_buckets()
        for work in self._works():
            work.wait(stream=self._stream)
        self._weighing = None
        self._reducing.clear()
        self._sent = 0
        self._is_ready = [False] * len(self._params)
        return float(self._total[0])

    @property
    def _stream(self) -> Any:
        # Who goes on with gradients on a GPU: the stream of whoever ends the round.
        is_on_gpu = any(bucket.values.is_cuda for bucket in self._buckets)
        return torch.cuda.current_stream() if is_on_gpu else None

    def _reset_buckets(self) -> None:
        for bucket in self._buckets:
            bucket.reset()

    def _lay_out(self, order: Sequence[int]) -> None:
        layout = lay_out(order, self._params, self._bucket_bytes)
        if layout == self._layout:
            return
        self._layout = layout
        earlier = self._residuals()
        self._buckets = make_buckets(layout, self._params, self.comm)
        if self._compress is not None:
            for bucket in self._buckets:
                bucket.keep_residual(earlier)
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.members}

    def _residuals(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for bucket in self._buckets:
            if bucket.residual is not None:
                found |= bucket.residuals()
        return found

    def _learn_order(self) -> None:
        self._rounds_to_learn -= 1
        unseen = sorted(set(range(len(self._params))) - set(self._seen), reverse=True)
        order = np.array([len(self._seen), *self._seen, *unseen], np.int64)
        self.comm.broadcast(order)
        if order[0] > 0:
            self._rounds_to_learn = 0
            self._lay_out([int(index) for index in order[1:]])

    def _works(self) -> list[Work]:
        return [*([] if self._weighing is None else [self._weighing]), *self._reducing]

    def _start(self, operation: Callable[..., Any], *arguments: Any, **options: Any) -> Work:
        try:
            work: Work = operation(*arguments, **options)
        except Closed as closed:
            # What closed it came to an operation in the background, which says more.
            for started in self._works():
                started.wait()
            if isinstance(closed.__cause__, Error):
                raise closed.__cause__ from None
            raise
        return work

    def _require_all_listed(self) -> None:
        for name in self._left_out:
            param = self._named[name]
            if param.requires_grad and param.grad is not None:
                raise InvalidArgument(
                    f"{name} was frozen when the optimizer became distributed; call "
                    "optimizer.refresh() on every rank after unfreezing parameters"
                )


def _listen(param: Any, listener: Callable[[torch.Tensor], None]) -> Any:
    # PyTorch gives this method no types.
    return param.register_post_accumulate_grad_hook(listener)


def _listener(averager: GradientAverager, index: int) -> Callable[[torch.Tensor], None]:
    # Parameters may outlive the optimizer; they must not keep it alive.
    reference = weakref.ref(averager)

    def listen(_param: torch.Tensor) -> None:
        averager = reference()
        if averager is not None:
            averager.take_gradient(index)

    return listen
