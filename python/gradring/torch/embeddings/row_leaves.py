"""`RowLeaves`: the rows that an `Embedding` has returned, and the gradients that they got.

Each forward pass makes a leaf of its rows, and backward leaves a gradient in it, which is kept here
until it is pushed or forgotten. Used by `gradring.torch.embeddings.embedding`, on the thread that
runs backward and on the one that steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradring.torch.gradients.backward import current_backward, is_outermost_backward


@dataclass(slots=True)
class _Leaf:
    """A leaf with a gradient.

    Attributes:
        rows: What is trained.
        ids: Theirs.
        chosen: Which of the rows these are.
        backward: The pass that has brought the gradient, or the last part of it.
    """

    rows: torch.Tensor
    ids: Any
    chosen: Any
    backward: int

    def array(self) -> tuple[Any, Any]:
        """Return ids and their gradients."""
        assert self.rows.grad is not None
        # It has a graph of its own after backward(create_graph=True).
        return self.ids, self.rows.grad.detach().cpu().numpy()[self.chosen]


class RowLeaves:
    """The leaves that have had a gradient, in the order in which they had their first.

    Attributes:
        is_frozen: No more are kept.
    """

    def __init__(self, *, is_frozen: bool = False) -> None:
        """Keep none."""
        self.is_frozen = is_frozen
        self._ready: list[_Leaf] = []

    def emptied(self) -> RowLeaves:
        """Return what a copy of the layer begins with."""
        return RowLeaves(is_frozen=self.is_frozen)

    def note(self, rows: torch.Tensor, ids: Any, chosen: Any) -> None:
        """Keep a leaf that has a gradient now; it may be kept already."""
        if self.is_frozen:  # Since forward.
            rows.grad = None
            return
        for leaf in self._ready:
            if leaf.rows is rows:
                leaf.backward = current_backward()
                return
        self._ready.append(_Leaf(rows, ids, chosen, current_backward()))

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients, one for each leaf; what is written there is pushed."""
        return [leaf.rows.grad.detach() for leaf in self._ready if leaf.rows.grad is not None]

    def arrays(self) -> list[tuple[Any, Any]]:
        """Return ids and their gradients, one pair for each leaf."""
        return [leaf.array() for leaf in self._ready]

    def take_from_backward(self) -> list[tuple[Any, Any]]:
        """Return the arrays of the pass that ends now, and forget those leaves.

        Passes around this one (reentrant checkpoints) take theirs when they end. The outermost also
        forgets what passes that failed have left.
        """
        now = current_backward()
        own = [leaf for leaf in self._ready if leaf.backward == now]
        self._ready = [leaf for leaf in self._ready if leaf.backward != now]
        arrays = [leaf.array() for leaf in own]
        _forget(own)
        if is_outermost_backward():
            self.forget()
        return arrays

    def forget(self) -> None:
        """Keep none of these any longer."""
        ready, self._ready = self._ready, []
        _forget(ready)


def _forget(leaves: list[_Leaf]) -> None:
    for leaf in leaves:
        leaf.rows.grad = None  # A second backward through the same graph would add to it.
