"""Averages over examples: each example's term is rounded as float64 does, their sum only once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradring.errors import InvalidArgument
from gradring.metrics import batches
from gradring.metrics.batches import Floats
from gradring.metrics.exact_sum import add_up, exact_sum, quotient


class _Average:
    """Terms of examples and their weights, added up."""

    def __init__(self) -> None:
        """Begin without examples."""
        self.reset()

    def reset(self) -> None:
        """Forget all examples."""
        self._terms = 0
        self._weights = 0

    def compute(self, comm: Any = None) -> float:
        """Return the value over the examples of all ranks; every rank calls it.

        Args:
            comm: ``None``: the communicator of this process; without one its own examples alone.

        Returns:
            The same on all ranks; NaN without examples, or where their weights are all 0.

        Raises:
            Mismatch: A rank computes another metric.
            Error: As `Communicator.all_gather`.
        """
        ranks, name = batches.ranks_of(comm), type(self).__name__
        return quotient(*add_up(ranks, self._terms, self._weights, of=name))

    def _add(self, terms: Floats, weights: Floats) -> None:
        for each in (terms, weights):
            if not np.isfinite(each).all():
                raise InvalidArgument("labels and predictions: a term of theirs is beyond float64")
        self._terms += exact_sum(terms)
        self._weights += exact_sum(weights)


class _OfErrors(_Average):
    def update(self, labels: Any, predictions: Any, weights: Any = None) -> None:
        """Add examples.

        Args:
            labels: What is true: numbers of any real dtype and shape, on any device.
            predictions: As many; flat they are in the same order.
            weights: As many, not negative; ``None``: 1 each.

        Raises:
            InvalidArgument: They differ in size, or one is not finite; nothing was added.
        """
        true, said, counts = batches.batch(
            ("labels", labels), ("predictions", predictions), weights=weights
        )
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            weighted = self._term(true, said) * counts
        self._add(weighted, counts)

    def _term(self, labels: Floats, predictions: Floats) -> Floats:
        raise NotImplementedError


class Accuracy(_OfErrors):
    """The share of predictions that equal their label: classes, not probabilities."""

    def _term(self, labels: Floats, predictions: Floats) -> Floats:
        return np.where(labels == predictions, 1.0, 0.0)


class MeanAbsoluteError(_OfErrors):
    """The mean of ``|label - prediction|``."""

    def _term(self, labels: Floats, predictions: Floats) -> Floats:
        return np.abs(labels - predictions)


class MeanSquaredError(_OfErrors):
    """The mean of ``(label - prediction)**2``."""

    def _term(self, labels: Floats, predictions: Floats) -> Floats:
        return np.square(labels - predictions)


class RootMeanSquaredError(MeanSquaredError):
    """The root of `MeanSquaredError`."""

    def compute(self, comm: Any = None) -> float:
        """Return the value over the examples of all ranks, as `MeanSquaredError.compute`."""
        return math.sqrt(super().compute(comm))


class LogLoss(_OfErrors):
    """The mean of ``-log(probability of what is true)``: labels 0 and 1, probabilities of 1.

    Probabilities count as 2**-52 away from 0 and 1 at least, as scikit-learn has it for float64:
    else one mistake that was certain would make it infinite.
    """

    def _term(self, labels: Floats, predictions: Floats) -> Floats:
        batches.labels_of_two_classes(labels)
        if ((predictions < 0) | (predictions > 1)).any():
            raise InvalidArgument("predictions: one of them is no probability from 0 to 1")
        least = np.finfo(np.float64).eps
        inside = np.clip(predictions, least, 1 - least)
        return -np.where(labels == 1, np.log(inside), np.log1p(-inside))


class Calibration(_OfErrors):
    """Labels over predictions, each added up: clicks over clicks that were predicted (COPC).

    1 where they come to the same; above, where too little was predicted.
    """

    def update(self, labels: Any, predictions: Any, weights: Any = None) -> None:
        """Add examples, as `MeanAbsoluteError.update`."""
        true, said, counts = batches.batch(
            ("labels", labels), ("predictions", predictions), weights=weights
        )
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            self._add(true * counts, said * counts)
