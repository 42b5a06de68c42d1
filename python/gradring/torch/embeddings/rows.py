"""`Rows`: the embeddings of a model, trained in a mode that goes through parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradring.modes.contracts import Mode
from gradring.modes.factory import over_servers
from gradring.modes.geo.optimizer import GeoOptimizer
from gradring.modes.parameters.row_gradients import RowGradients
from gradring.modes.stepping.optimizer import ModeOptimizer
from gradring.modes.stepping.waiting import StepTimedOut, lateness_of
from gradring.torch.embeddings.embedding import Embedding


class Rows:
    """The embeddings of a model, and the mode that trains their rows."""

    def __init__(self, layers: list[Embedding], driver: ModeOptimizer) -> None:
        """Take over the layers."""
        self.layers = layers
        self.driver = driver
        self._seen = 0  # Gradients.
        for layer in layers:
            layer.attach(driver)

    def gradients(self) -> list[torch.Tensor]:
        """Return what backward has brought so far, as it is kept until a step is done."""
        return [grad for layer in self.layers for grad in layer.gradients()]

    def has_more(self) -> bool:
        """Tell whether backward has brought some since the last call."""
        before, self._seen = self._seen, len(self.gradients())
        return self._seen > before

    def step(self, weight: float, dense: Sequence[Any] | None = None) -> StepTimedOut | None:
        """Push them; they are kept where the step fails, which is then not done.

        Args:
            weight: As for `ModeOptimizer.step`.
            dense: Gradients of the driver's parameters, if it has any.

        Returns:
            What to raise when everything that goes with this step is done, if it came too late.
        """
        given = self._given()
        late = lateness_of(lambda: self.driver.step(dense, weight, _joined(given)))
        self._end_step(given)
        return late

    def train(self, driver: GeoOptimizer) -> None:
        """Do a local step of them; they are kept where it fails."""
        given = self._given()
        driver.train_rows(_joined(given))
        self._end_step(given)

    def _given(self) -> list[list[RowGradients]]:
        return [layer.row_gradients() for layer in self.layers]

    def _end_step(self, given: list[list[RowGradients]]) -> None:
        self._seen = 0
        for layer, rows in zip(self.layers, given, strict=True):
            layer.end_step(rows)

    def forget(self) -> None:
        """Drop them."""
        self._seen = 0
        for layer in self.layers:
            layer.forget_gradients()

    def forget_rows(self) -> None:
        """Ask servers for every row anew, where a device has kept some."""
        for layer in self.layers:
            layer.forget_rows()


def _joined(given: list[list[RowGradients]]) -> list[RowGradients]:
    return [entry for rows in given for entry in rows]


def embeddings_of(model: torch.nn.Module | None) -> list[Embedding]:
    """Return a model's layers with rows on servers."""
    if model is None:
        return []
    return [module for module in model.modules() if isinstance(module, Embedding)]


def make_rows(mode: Mode, model: torch.nn.Module | None, ps: Any, **options: Any) -> Rows | None:
    """Make what trains a model's embeddings in a mode; ``None`` if it has none.

    Args:
        mode: Of the rows.
        model: May hold embeddings.
        ps: As in `distributed`.
        **options: Of `gradring.modes.stepping.optimizer.ModeOptimizer`.
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
