"""`Rows`: the embeddings of a model, trained in a mode that goes through parameter servers."""

from __future__ import annotations

from typing import Any

import torch

from gradring.modes.contracts import Mode
from gradring.modes.factory import over_servers
from gradring.modes.optimizer import ModeOptimizer
from gradring.torch.embedding import Embedding, embeddings_of


class Rows:
    """The embeddings of a model, and the mode that trains their rows."""

    def __init__(self, layers: list[Embedding], driver: ModeOptimizer) -> None:
        """Take over the layers."""
        self.layers = layers
        self.driver = driver
        for layer in layers:
            layer.attach(driver)

    def gradients(self) -> list[torch.Tensor]:
        """Return what backward has brought so far, as it is kept until `take`."""
        return [grad for layer in self.layers for grad in layer.gradients()]

    def take(self) -> list[Any]:
        """Return the gradients that backward has brought."""
        return [entry for layer in self.layers for entry in layer.take_gradients()]

    def step(self, weight: float) -> None:
        """Push them: a step of their own."""
        self.driver.step(None, weight, self.take())

    def forget(self) -> None:
        """Drop them."""
        for layer in self.layers:
            layer.forget_gradients()

    def forget_rows(self) -> None:
        """Ask servers for every row anew, where a device has kept some."""
        for layer in self.layers:
            layer.forget_rows()


def make_rows(mode: Mode, model: torch.nn.Module | None, ps: Any, **options: Any) -> Rows | None:
    """Make what trains a model's embeddings in a mode; ``None`` if it has none.

    Args:
        mode: Of the rows.
        model: May hold embeddings.
        ps: As in `distributed`.
        **options: Of `gradring.modes.optimizer.ModeOptimizer`.
    """
    layers = embeddings_of(model)
    if not layers:
        return None
    driver = over_servers(mode, [], None, ps, **options)
    try:
        return Rows(layers, driver)
    except BaseException:
        driver.abandon()
        raise
