"""Gradients averaged over ranks while backward still runs.

A round is one step's averaging: it opens with the first gradient (one number is sent ahead, the
rank's weight), each bucket starts as soon as it and all before it are full, and at the end of
backward the rest is sent, with what is sparse (`gradring.torch.gradients.sparse.exchange`), and
`finish` waits and lets every ``.grad`` be its average. Every rank sends the same operations in the
same order, whatever its gradients; on a communicator of their own, so that operations of the user
may come in between. The first round also teaches the order in which backward reaches the parameters
(`gradring.torch.gradients.gradient_order`), and any which gradients are sparse; the buckets are
laid out anew. Runs on the threads that run backward, one for each device and the caller's own for
the CPU, and on the one that steps; a lock lets one at a time. Hooks in it may step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import torch

from gradring.collectives.communicator import Communicator
from gradring.collectives.same_lines import Mark
from gradring.compression import Compression
from gradring.errors import InvalidArgument
from gradring.optim.averaging import no_examples
from gradring.torch.gradients.backward import (
    GradientListener,
    after_all_others,
    at_the_end_of_backward,
    leave_to_outer_backward,
)
from gradring.torch.gradients.backward_watch import BackwardWatch
from gradring.torch.gradients.gradient_order import GradientOrder
from gradring.torch.gradients.layout import Layout
from gradring.torch.gradients.losses import average_loss
from gradring.torch.gradients.parameters import Named
from gradring.torch.gradients.sending import Sender
from gradring.torch.gradients.sparse.exchange import SparseGradients
from gradring.torch.gradients.step_weight import StepWeight

# What the core divides by as it adds: larger totals, and broken ones, take a pass of their own.
_WHOLE_DIVISORS = 1 << 24


class GradientAverager:
    """The rounds of one optimizer.

    Attributes:
        comm: The ranks; carries nothing but gradients.
        ended: Rounds that have.
        is_done: Whether the parameters' gradients are this step's averages.
        is_accumulating: Whether backward only adds up gradients here.
    """

    def __init__(
        self,
        named: Named,
        comm: Communicator,
        weights: StepWeight,
        before_the_end: Callable[[], None],
        *,
        bucket_bytes: int,
        overlap: bool,
        compress: Compression | None,
        apart: Collection[torch.Tensor] = frozenset(),
    ) -> None:
        """Lay out the buckets and listen to the parameters' gradients.

        Args:
            named: Parameters by name; those that need no gradient are left out.
            comm: To be used for nothing else.
            weights: The optimizer's; knows of this rank's examples.
            before_the_end: Called before a round ends, which every rank does.
            bucket_bytes: Most bytes in a bucket.
            overlap: Start buckets during backward rather than in `finish`, and finish in the end
                of backward.
            compress: How gradients are encoded on their way; sparse ones are not.
            apart: Parameters whose gradients are believed to be sparse, alike on all ranks.
        """
        self.comm = comm
        # Nobody runs a backward, or hooks of others, while he has it.
        self._lock = threading.RLock()
        self._named = named
        trainable = {name: param for name, param in named.items() if param.requires_grad}
        self._names = list(trainable)
        self._params = list(trainable.values())
        self._kinds = [_kind_of(param) for param in self._params]
        self._left_out = [name for name in named if name not in trainable]
        self._compress = compress
        self._layout = Layout(self._params, comm, bucket_bytes, is_compressed=compress is not None)
        places = [index for index, param in enumerate(self._params) if param in apart]
        self._sparse = SparseGradients(comm, self._names, self._params, places)
        self._layout.lay_out(None, self._sparse.apart)
        self._order = GradientOrder(len(self._params), is_wanted=overlap)
        self._overlap = overlap
        self._is_ready = [False] * len(self._params)
        self.ended = 0
        self._expected = [0] * len(self._params)  # `ended` when each gradient came.
        self._weights = weights
        self._before_the_end = before_the_end
        self._weight = 1.0  # That was sent.
        self._watch = BackwardWatch(self._params, weights)
        self._sender = Sender(comm, compress)
        self._sent = 0  # Buckets of this round.
        self._given = 0  # Parameters that have an average of the last round's.
        self.is_done = False
        self.is_accumulating = False
        # Without the overlap too: they tell of gradients that come after the averages.
        self._listeners = [
            GradientListener(param, self, index) for index, param in enumerate(self._params)
        ]

    def take_over(self, other: GradientAverager) -> None:
        """Go on from another averager: its counts, and what compression left out."""
        self.is_accumulating = other.is_accumulating
        self._sender.sent_bytes = other.sent_bytes
        self._sender.uncompressed_bytes = other.uncompressed_bytes
        known = {id(param): index for index, param in enumerate(self._params)}
        earlier = {
            known[id(other._params[index])]: residual
            for index, residual in other._layout.residuals().items()
            if id(other._params[index]) in known
        }
        if earlier:
            self._layout.keep_residuals(earlier)

    def stop_listening(self) -> None:
        """Leave the parameters alone from now on."""
        self._sparse.stop()
        for listener in self._listeners:
            listener.stop()

    @property
    def is_open(self) -> bool:
        """Whether a round has begun and not ended."""
        return self._sender.is_open

    @property
    def apart(self) -> set[torch.Tensor]:
        """The parameters whose gradients are believed to be sparse; alike on all ranks."""
        return {self._params[index] for index in self._sparse.apart}

    @property
    def sent_bytes(self) -> int:
        """What this rank had to send for gradients so far."""
        return self._sender.sent_bytes

    @property
    def uncompressed_bytes(self) -> int:
        """What that would have been without compression."""
        return self._sender.uncompressed_bytes

    def require_in_time(self, weight: float) -> None:
        """Raise `InvalidArgument` if the round has begun with another weight."""
        with self._lock:
            self._notice_dropped_step()
        if (self.is_open or self.is_done) and weight != self._weight:
            raise InvalidArgument(
                f"weight {weight:g} comes too late: backward has begun to send gradients with "
                f"weight {self._weight:g}; call set_weight() before backward, loop with "
                "uneven(batches, weight=...), or give up the overlap with overlap=False; a step "
                "that is not done is dropped with optimizer.zero_grad()"
            )

    def expect_gradient(self, index: int) -> None:
        """Look whether a gradient may come now that backward is about to add.

        Raises:
            InvalidArgument: It cannot be averaged any more, or the parameter is of another dtype,
                shape or device by now.
        """
        with self._lock:
            self._notice_dropped_step()
            if self.is_done or self._is_ready[index]:
                raise self._too_many_gradients(index)
            self._require_same_kind(index)
            self._expected[index] = self.ended
            self._watch.see()

    def take_gradient(self, index: int) -> None:
        """Take a gradient that backward has just completed."""
        if not self._overlap or self.is_accumulating:
            return
        with self._lock:
            if self._expected[index] != self.ended:
                return  # A hook of the user's has stepped, or synchronised, with it.
            self._put(index)
            self._order.see(index)
            self._start_full_buckets()
            at_the_end_of_backward(self)

    def end_backward(self) -> None:
        """Send the rest; called at the end of every backward that gave gradients.

        Backward may run inside backward (reentrant checkpoints): then the outer one ends the round,
        unless nothing is missing any more. It may give gradients to several optimizers: all send
        before any waits, since other ranks may have begun with another one.
        """
        with self._lock:
            if self.is_open and (all(self._is_ready) or not leave_to_outer_backward(self)):
                self._require_all_listed()
                self._send_rest()
                after_all_others(self.finish)

    def finish(self) -> None:
        """Send what is left, wait, and hand out the averages; nothing where that has been done.

        Raises:
            InvalidArgument: All ranks have weight 0; or a parameter was frozen before.
            Mismatch: Ranks have done their last step by other settings.
            PeerLost: As `Communicator.all_reduce`, and so for its other errors.
        """
        with self._lock:
            self._finish()

    def require_fitting(self) -> None:
        """Look whether `finish` would be refused; what other ranks have is not known here.

        Raises:
            InvalidArgument: A parameter was frozen before, or is another one.
        """
        with self._lock:
            self._notice_dropped_step()
            if self.is_done:
                return
            self._require_all_listed()
            if not self.is_open:
                for index in range(len(self._params)):
                    self._require_same_kind(index)

    def _finish(self) -> None:
        self.require_fitting()
        if self.is_done or not self._params:
            return
        total = self._end_round()
        if total == 0:
            self._drop_averages()
            raise no_examples()
        is_whole = total == int(total) and 1 <= total <= _WHOLE_DIVISORS
        arrived = self._sparse.arrived
        self._given = self._sparse.give(total)
        for bucket in self._layout.buckets:
            # The core divides as it adds, where it is told the total and can.
            is_divided = self._compress is not None or (is_whole and not bucket.is_apart)
            if not is_divided:
                bucket.values.div_(total)
            self._given += bucket.give(self._params, total / self.comm.world_size, arrived)
        self._reset()
        self.is_done = True

    def begin(self, stepped_by: Mark | None = None) -> None:
        """Make ready for another round; one that was not finished is ended and forgotten.

        A collective call where a new order of the buckets has been learned. What the step that has
        been done was ``stepped_by`` is compared in the next round. Raises as `finish`.
        """
        with self._lock:
            self._sender.mark = stepped_by or self._sender.mark
            try:
                if self.is_open:
                    self._end_round()
                    self._reset()
            finally:
                self._forget_round()
            self._take_order()

    def _forget_round(self) -> None:
        self.is_done = False
        self._weights.drop()

    def _take_order(self) -> None:
        order = self._order.take_learned()
        if self._sparse.learn() or order is not None:
            self._layout.lay_out(order, self._sparse.apart)

    def _notice_dropped_step(self) -> None:
        # Somebody has forgotten the averages, as ``model.zero_grad()`` does.
        if self.is_done and self._given > 0 and all(param.grad is None for param in self._params):
            self._forget_round()

    def _require_same_kind(self, index: int) -> None:
        before, now = self._kinds[index], _kind_of(self._params[index])
        if before == now:
            return
        was, is_now = [
            f"{dtype}, of shape {tuple(shape)} on {device}"
            for dtype, shape, device in (before, now)
        ]
        raise InvalidArgument(
            f"{self._names[index]} was {was} when the optimizer became distributed, and is "
            f"{is_now} now; call optimizer.refresh() on every rank after changing parameters"
        )

    def _too_many_gradients(self, index: int) -> InvalidArgument:
        name = self._names[index]
        if not self.is_done:
            return InvalidArgument(
                f"{name} got another gradient after its last one was sent; run all but the last "
                "backward of a step inside `with optimizer.no_sync():`, and checkpoints that share "
                "a parameter with use_reentrant=False; a step that was not done, after an error "
                "say, is dropped with optimizer.zero_grad()"
            )
        if self.is_accumulating or not self._overlap:
            instead = "accumulate before the synchronised backward"
            if not self._overlap:
                instead = "call synchronize() after the last backward of a step"
            return InvalidArgument(
                f"{name} got another gradient when the averages of this step were out; {instead}, "
                "or drop the step with optimizer.zero_grad()"
            )
        return InvalidArgument(
            f"{name} got another gradient after its last one was sent; run all but the last "
            "backward of a step inside `with optimizer.no_sync():`, or drop the step with "
            "optimizer.zero_grad() (setting gradients to zero in another way does not)"
        )

    def average_loss(self, loss: Any) -> Any:
        """Return a closure's loss averaged with the ranks' weights; a collective call."""
        is_sent = self.is_open or self.is_done
        return average_loss(self.comm, loss, self._weight if is_sent else self._weights.weight)

    def _put(self, index: int) -> None:
        if not self.is_open:
            self._weight = self._weights.hold()
            self._sender.open(self._weight)
        self._is_ready[index] = True
        self._sparse.take(index, self._weight)
        self._layout.put(index, self._weight)

    def _start_full_buckets(self) -> None:
        while self._sent < len(self._layout.buckets):
            bucket = self._layout.buckets[self._sent]
            if bucket.missing:
                return
            self._sent += 1
            self._sender.send(bucket)

    def _send_rest(self) -> None:
        """Send what backward has not brought; nothing where that has been done."""
        for index, is_ready in enumerate(self._is_ready):
            if not is_ready:
                self._put(index)
        self._start_full_buckets()
        if self._order.is_wanted and not self._order.is_asking:
            self._sender.broadcast(self._order.message())
        if self._sparse.are_wanted:
            self._start_sparse()

    def _start_sparse(self) -> None:
        if not self._sparse.has_begun:
            self._sender.add(self._sparse.start())

    def _end_round(self) -> float:
        self._send_rest()
        self._before_the_end()
        total = self._sender.wait()
        if self._layout.have_sparse():  # On this rank they may be none, or dense.
            self._start_sparse()
            self._sender.wait()
        self._sender.count(self._sparse.sent_bytes)
        self._order.hear()
        self.ended += 1
        self._sent = 0
        self._is_ready = [False] * len(self._params)
        self._sender.require_same_steps(self._drop_averages)
        self._sparse.require_alike(self._drop_averages)
        return total

    def _drop_averages(self) -> None:
        self._reset()
        self._weights.drop()
        self._take_order()  # Now: of what follows ranks may begin with different calls.

    def _reset(self) -> None:
        self._layout.reset()
        self._sparse.reset()

    def _require_all_listed(self) -> None:
        for name in self._left_out:
            param = self._named[name]
            if param.requires_grad and param.grad is not None:
                raise InvalidArgument(
                    f"{name} was frozen when the optimizer became distributed; call "
                    "optimizer.refresh() on every rank after unfreezing parameters"
                )


def _kind_of(param: torch.Tensor) -> tuple[torch.dtype, torch.Size, torch.device]:
    """Return what a parameter's place in a bucket depends on."""
    return param.dtype, param.shape, param.device
