"""`AsyncOptimizer`: Async(). Gradients go and parameters come in the background; nobody waits.

Two threads beside the training thread: one sends what `step` hands it, in order, each step as a
push of its own; one fills a second copy of the dense parameters, which `step` takes over between
two steps. The two copies change hands through one word that each side only moves forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from gradring.modes.contracts import Async
from gradring.modes.parameters.row_gradients import RowGradients
from gradring.modes.stepping.at_servers import AtServers
from gradring.modes.stepping.background import Background
from gradring.modes.stepping.staleness import Histogram
from gradring.modes.stores.store import Array, Push
from gradring.optim.averaging import require_weight

# Whose the second copy is.
_OURS, _BEING_FILLED, _FULL = range(3)


class AsyncOptimizer(AtServers):
    """Pushes every step's gradients as an update of its own and goes on at once.

    A pull of rows reads what servers have now; this worker's own last steps may still be on their
    way, except after `flush`. Dense parameters are pulled behind each step's push.

    Attributes:
        staleness: For every push of a table, how many updates came between the pull that it was
            computed on and it.
        refused: Rows whose gradients servers have refused because they were not finite.
    """

    def __init__(
        self,
        params: Iterable[Array],
        rule: Any,
        ps: Any = None,
        *,
        queue: int = 4,
        **options: Any,
    ) -> None:
        """Make the tables and start the threads; see `ModeOptimizer`.

        Args:
            params: As there.
            rule: As there.
            ps: As there.
            queue: Steps whose gradients may wait to be sent; then `step` waits.
            **options: As there.
        """
        mode = Async(queue)
        params = list(params)
        self.uses_name = bool(params)  # Tables of rows have names of their own.
        super().__init__(params, rule, ps, **options)
        self.staleness = Histogram()
        self.refused = 0
        self._sender = Background(f"gradring sender of {self.name}", mode.queue)
        self._receiver = Background(f"gradring receiver of {self.name}", 2)
        self._second = [np.empty_like(param) for param in self.params]
        self._second_seen: list[Any] = []
        self._second_is = _OURS
        self._free: SimpleQueue[list[Array]] = SimpleQueue()
        self._receive()

    def step(
        self,
        grads: Sequence[Any] | None = None,
        weight: float = 1.0,
        rows: Iterable[RowGradients] = (),
    ) -> None:
        """Hand the gradients to the sender, and take over what the receiver has brought.

        Raises:
            InvalidArgument: Gradients do not fit, or the weight makes no sense; nothing was handed
                over.
            TimedOut: The queue of steps to be sent stayed full, and this one is not in it: it can
                be repeated.
            Error: A push or pull in the background failed; as it did, or `Closed` if it timed out.
        """
        self.require_open()
        require_weight(weight)
        self._receiver.require_well()
        pushes = self.dense.pushes(grads)
        copies = self._copies()
        for push in pushes:
            copy = copies[self.dense.tables.index(push.table)]
            np.copyto(copy, push.values)
            push.values = copy
        pushes += self.row_pushes(rows)

        def send() -> None:
            self._send(pushes)
            self._free.put(copies)
            self._receive()  # Behind the push, so that what comes has this step in it.

        self._take_over()
        self._sender.submit(send, self.timeout)

    def make_room(self) -> None:
        """Wait until there is room in the queue of steps to be sent; see `ModeOptimizer`."""
        self._receiver.require_well()
        self._sender.wait_for_room(self.timeout)

    def tell_rules(self, rules: list[tuple[Any, Any]]) -> None:
        """Behind the steps that wait to be sent."""
        self._sender.submit(lambda: self.store.set_rules(rules), self.timeout)

    def _copies(self) -> list[Array]:
        try:
            return self._free.get_nowait()
        except Empty:
            return [np.empty_like(param) for param in self.params]

    def _send(self, pushes: list[Push]) -> None:
        if not pushes:
            return
        for pushed in self.store.push(pushes).result():
            self.staleness.add(pushed.staleness)
            self.refused += pushed.refused

    def _receive(self) -> None:
        # The sender's thread begins a pull, the receiver's ends it, the training thread takes over.
        if self.params and self._second_is == _OURS:
            self._second_is = _BEING_FILLED
            self._receiver.submit(self._fill, self.timeout)

    def _fill(self) -> None:
        self._second_seen = self.store.pull(self.dense.pulls(self._second))
        self._second_is = _FULL

    def _take_over(self) -> None:
        if self._second_is != _FULL:
            return
        for param, copy in zip(self.params, self._second, strict=True):
            np.copyto(param, copy)
        self.dense.seen = self._second_seen
        self._second_is = _OURS

    def left_behind(self) -> str:
        """Say how many steps wait to be sent."""
        waiting = self._sender.waiting
        return f"its last {waiting} steps" if waiting else ""

    @property
    def versions(self) -> dict[str, Any]:
        """For each dense table the servers' version of the values in `params`, part by part."""
        return dict(zip(self.dense.names, self.dense.seen, strict=True))

    @property
    def waited_seconds(self) -> float:
        """Seconds that `step` has waited because the queue was full."""
        return self._sender.waited_seconds

    def settle_own(self) -> None:
        """Wait until all steps that were handed to the sender are done."""
        self._sender.drain(self.timeout)

    def flush(self) -> None:
        """Wait until servers have applied all of this worker's steps, and take their values.

        Raises:
            TimedOut: They have not after ``timeout`` seconds, or did not answer.
            Error: A push or pull in the background failed; as it did, or `Closed` if it timed out.
            Closed: After `close`.
        """
        self._sender.drain(self.timeout)
        self._receiver.drain(self.timeout)
        self._second_is = _OURS
        self.forget_prefetches()
        self.dense.pull(self.store)

    def abandon(self) -> None:
        """End the threads without waiting for servers."""
        super().abandon()
        self._sender.close(0)
        self._receiver.close(0)
