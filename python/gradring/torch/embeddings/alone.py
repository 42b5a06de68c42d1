"""`Alone`: what trains `Embedding` layers that no optimizer has.

Their gradients are pushed as in `gradring.Async` at the end of each backward pass. Layers that are
used together for the first time share one: their rows come, and their gradients go, together.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gradring.modes.asynchronous import AsyncOptimizer
from gradring.modes.stepping import reminder

if TYPE_CHECKING:
    from gradring.torch.embeddings.embedding import Embedding


class Alone:
    """Trains layers of one connection.

    Attributes:
        driver: Their optimizer.
    """

    def __init__(self, layers: Sequence[Embedding], ps: Any) -> None:
        """Take over layers.

        Args:
            layers: One or more.
            ps: As in `Embedding`.
        """
        first, more = layers[0].name, len(layers) - 1
        self.driver = AsyncOptimizer([], None, ps, name=f"{first}/alone", workers=1)
        who = f"Embedding {first!r}, which has no optimizer,"
        if more:
            who = f"Embedding {first!r} with {more} more, which have no optimizer,"
        reminder.describe(self.driver, who, "call its flush(), or gr.ps.current().close()")
        # They hold this.
        self._layers = [weakref.ref(layer) for layer in layers]
        undo = [layer.attachment() for layer in layers]
        try:
            for layer in layers:
                layer.attach(self.driver, self)
        except BaseException:  # As if none had been used: an optimizer may still take them.
            for each in undo:
                each()
            self.driver.abandon()
            raise

    def end_backward(self) -> None:
        """Push what the pass has brought, of all layers as one step."""
        # Nobody repeats this step: the next backward brings its own.
        layers = [layer for layer in (each() for each in self._layers) if layer is not None]
        rows = [entry for layer in layers for entry in layer.take_from_backward()]
        if rows:
            self.driver.step(None, rows=rows)


def attach_alone(layers: Iterable[Embedding]) -> None:
    """Train those layers that have no rows yet: together where they have one connection."""
    by_connection: dict[int, list[Embedding]] = {}
    for layer in layers:
        if not layer.has_table:
            by_connection.setdefault(id(layer.ps), []).append(layer)
    for together in by_connection.values():
        Alone(together, together[0].ps)
