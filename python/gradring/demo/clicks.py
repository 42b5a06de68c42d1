"""The demo's second part: who will click? Embeddings and a small network on a parameter server.

Made-up clicks whose probabilities are known, so the best possible AUC is known too. Every example
has a few features, each one of many ids, some of them far more frequent than others. Embeddings are
rows of a sparse table, the network over them is a dense table, and both are updated by their
server, asynchronously: while one batch is computed, the next one's rows are fetched and the last
one's gradients are on their way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import gradring as gr

Array = npt.NDArray[Any]

FEATURES = 6
IDS = 200  # Of each feature.
DIM = 8
HIDDEN = 32
EXAMPLES, TEST_EXAMPLES = 100_000, 20_000
BATCH = 256


@dataclass(frozen=True)
class Clicks:
    """Examples: ids (n, FEATURES) of uint64, whether there was a click, and how likely it was."""

    ids: npt.NDArray[np.uint64]
    clicks: Array
    probability: Array

    def part(self, rows: Any) -> Clicks:
        """Return some of the examples."""
        return Clicks(self.ids[rows], self.clicks[rows], self.probability[rows])


@dataclass(frozen=True)
class ClickOutcome:
    """What came of it.

    Attributes:
        auc: On test examples.
        best_auc: Of somebody who knows every probability.
        rate: Examples a second.
        rows: In the sparse table.
        staleness: The largest number of other updates between a pull and its push.
    """

    auc: float
    best_auc: float
    rate: float
    rows: int
    staleness: int


def make_clicks(seed: int) -> Clicks:
    """Draw examples; each feature's ids are frequent as in a Zipf distribution."""
    random = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, IDS + 1)
    count = EXAMPLES + TEST_EXAMPLES
    ids = random.choice(IDS, (count, FEATURES), p=frequency / frequency.sum())
    weight = random.normal(0, 0.8, (FEATURES, IDS))
    taste = random.normal(0, 0.6, (FEATURES, IDS, 2))
    features = np.arange(FEATURES)
    liking = taste[features, ids].sum(axis=1)
    logit = weight[features, ids].sum(axis=1) + 0.1 * (liking**2).sum(axis=1) - 2
    probability = 1 / (1 + np.exp(-logit))
    names = (features.astype(np.uint64) << np.uint64(48)) + ids.astype(np.uint64)
    return Clicks(names, random.random(count) < probability, probability)


def auc(scores: Array, clicks: Array) -> float:
    """Return the probability that a click scores above no click (Mann-Whitney)."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = int(clicks.sum())
    above = ranks[clicks].sum() - positive * (positive + 1) / 2
    return float(above / (positive * (len(clicks) - positive)))


class Network:
    """One hidden layer over the embeddings of all features, in one flat array of parameters."""

    shapes = ((FEATURES * DIM, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))
    count = sum(int(np.prod(shape)) for shape in shapes)

    def parts(self, flat: Array) -> list[Array]:
        """Return the layers as views of ``flat``."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        return [
            part.reshape(shape)
            for part, shape in zip(np.split(flat, ends[:-1]), self.shapes, strict=True)
        ]

    def scores(self, flat: Array, rows: Array) -> tuple[Array, Array, Array]:
        """Return the input, the hidden layer and the logit of each example."""
        first, bias, second, last = self.parts(flat)
        x = rows.reshape(len(rows), -1)
        hidden = np.maximum(x @ first + bias, 0)
        return x, hidden, (hidden @ second + last)[:, 0]

    def gradients(self, flat: Array, rows: Array, clicks: Array) -> tuple[Array, Array]:
        """Return the mean cross-entropy's gradient by ``flat`` and by ``rows``."""
        first, _, second, _ = self.parts(flat)
        x, hidden, logit = self.scores(flat, rows)
        error = ((1 / (1 + np.exp(-logit)) - clicks) / len(rows))[:, None].astype(np.float32)
        inside = (error @ second.T) * (hidden > 0)
        by_layer = (x.T @ inside, inside.sum(axis=0), hidden.T @ error, error.sum(axis=0))
        return np.concatenate([part.ravel() for part in by_layer]), (inside @ first.T).reshape(
            rows.shape
        )


def train_clicks(seed: int) -> ClickOutcome:
    """Train on a server inside this process, without waiting for pushes; return what came of it."""
    clicks, network = make_clicks(seed), Network()
    train, test = clicks.part(slice(EXAMPLES)), clicks.part(slice(EXAMPLES, None))
    pushes: list[Any] = []
    with gr.ps.connect() as ps:
        embeddings = ps.sparse_table(
            "clicks.embeddings", DIM, gr.optim.Adagrad(lr=0.1), init=gr.init.Uniform(0.05)
        )
        layers = ps.dense_table(
            "clicks.layers", network.count, gr.optim.Adam(lr=2e-3), init=gr.init.Uniform(0.15)
        )
        begin = time.perf_counter()
        coming = None
        for batch, following in _with_next(_batches(train, seed)):
            rows = embeddings.pull(batch.ids) if coming is None else coming.wait()
            if following is not None:
                coming = embeddings.pull(following.ids, async_op=True)
            flat = layers.pull()
            by_layers, by_rows = network.gradients(flat, rows, batch.clicks)
            pushes.append(embeddings.push(batch.ids, by_rows, async_op=True))
            layers.push(by_layers, async_op=True)
        staleness = max(push.wait().staleness for push in pushes)
        ps.flush()
        seconds = time.perf_counter() - begin
        _, _, scores = network.scores(layers.pull(), embeddings.pull(test.ids))
        return ClickOutcome(
            auc=auc(scores, test.clicks),
            best_auc=auc(test.probability, test.clicks),
            rate=EXAMPLES / seconds,
            rows=len(embeddings),
            staleness=staleness,
        )


def _batches(train: Clicks, seed: int) -> Iterator[Clicks]:
    order = np.random.default_rng(seed).permutation(len(train.ids))
    for first in range(0, len(order), BATCH):
        yield train.part(order[first : first + BATCH])


def _with_next(batches: Iterator[Clicks]) -> Iterator[tuple[Clicks, Clicks | None]]:
    batch = next(batches, None)
    while batch is not None:
        following = next(batches, None)
        yield batch, following
        batch = following
