"""What the demo trains: a small network in NumPy, on scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.errors import InvalidArgument

Array = npt.NDArray[Any]

SIZES = (64, 256, 256, 10)
TEST_EXAMPLES = 360


@dataclass(frozen=True)
class Digits:
    """8x8 pictures of digits as rows of 64 numbers from 0 to 1, and what they show."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def load_digits() -> Digits:
    """Return scikit-learn's digits, shuffled and split, always in the same way."""
    try:
        from sklearn import datasets
    except ModuleNotFoundError:
        raise InvalidArgument(
            "the demo trains on scikit-learn's digits: pip install 'gradring[examples]'"
        ) from None
    pictures, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = pictures[order] / 16, labels[order]
    n = TEST_EXAMPLES
    return Digits(x[n:], y[n:], x[:n], y[:n])


class Network:
    """Fully connected layers with ReLU between them.

    In float64, because rounding in float32 can carry a unit across ReLU's corner, and after that
    two runs that agree in every sense that matters differ in many digits.

    Attributes:
        params: Float64 weights ``(inputs, outputs)`` and biases ``(outputs,)``, in turn.
    """

    def __init__(self, seed: int) -> None:
        """Draw initial weights (He et al. 2015)."""
        random = np.random.default_rng(seed)
        self.params: list[Array] = []
        for inputs, outputs in pairwise(SIZES):
            scale = (2 / inputs) ** 0.5
            weights = random.standard_normal((inputs, outputs)) * scale
            self.params += [weights, np.zeros(outputs)]

    def scores(self, x: Array) -> list[Array]:
        """Return every layer's output, the input first."""
        outputs = [x]
        for weights, bias in zip(self.params[::2], self.params[1::2], strict=True):
            x = outputs[-1] @ weights + bias
            outputs.append(x if len(bias) == SIZES[-1] else np.maximum(x, 0))
        return outputs

    def accuracy(self, x: Array, y: Array) -> float:
        """Return the share of examples that are recognised."""
        return float((self.scores(x)[-1].argmax(axis=1) == y).mean())

    def loss_and_gradients(self, x: Array, y: Array) -> tuple[float, list[Array]]:
        """Return the mean cross-entropy and its gradient for each parameter."""
        outputs = self.scores(x)
        scores = outputs[-1] - outputs[-1].max(axis=1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        rows = np.arange(len(y))
        error = np.exp(log_p)
        error[rows, y] -= 1
        error /= len(y)
        gradients: list[Array] = []
        for layer in range(len(SIZES) - 2, -1, -1):
            gradients[:0] = [outputs[layer].T @ error, error.sum(axis=0)]
            if layer:
                error = (error @ self.params[2 * layer].T) * (outputs[layer] > 0)
        return -float(log_p[rows, y].mean()), gradients
