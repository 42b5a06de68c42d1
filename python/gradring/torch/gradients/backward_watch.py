"""`BackwardWatch`: tells a step's weight that a backward pass brings gradients, before it adds any.

Where gradients are averaged in backward their listeners tell it (`see`); where servers average them
it listens by itself (`listen`), once there is a loop whose turns have to be counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from gradring.torch.gradients.backward import GradientListener, current_backward
from gradring.torch.gradients.step_weight import StepWeight


class BackwardWatch:
    """Watches the parameters of one optimizer."""

    def __init__(self, params: Sequence[torch.Tensor], weights: StepWeight) -> None:
        """Listen to nothing yet."""
        self._params = params
        self._weights = weights
        self._backward = -1  # The last pass.
        self._listeners: dict[int, GradientListener] = {}
        reference = weakref.WeakMethod(self._are_forgotten)  # Layers have the weights for longer.

        def are_forgotten() -> bool:
            ask = reference()
            return ask is not None and ask()

        weights.are_forgotten = are_forgotten

    def see(self) -> None:
        """Note that a gradient is about to be added."""
        if self._are_forgotten():
            self._weights.drop()
        self._backward = current_backward()
        self._weights.see_backward()

    def _are_forgotten(self) -> bool:
        # By `model.zero_grad()`, before this pass has brought any.
        return current_backward() != self._backward and all(
            param.grad is None for param in self._params
        )

    def listen(self) -> None:
        """Listen to every parameter that is trained now; may be called again."""
        for index, param in enumerate(self._params):
            if index not in self._listeners and param.requires_grad:
                self._listeners[index] = GradientListener(param, self, index)

    def expect_gradient(self, _index: int) -> None:
        """See it."""
        self.see()

    def take_gradient(self, _index: int) -> None:
        """Do nothing: servers get it with the step."""
