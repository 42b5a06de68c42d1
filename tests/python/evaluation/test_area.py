"""The area under the ROC curve is that of all ranks' examples together, however they are cut."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.metrics import AUC, area
from shares import on_ranks, value_of, values_of

pytestmark = pytest.mark.timeout(60)


def brute_force(labels: Any, scores: Any, weights: Any = None) -> Fraction:
    counts = np.ones(len(labels)) if weights is None else weights
    columns = (column.tolist() for column in (labels, scores, counts))
    each = [(label, score, Fraction(weight)) for label, score, weight in zip(*columns, strict=True)]
    ordered = pairs = Fraction(0)
    for _, low, one in (example for example in each if not example[0]):
        for _, high, other in (example for example in each if example[0]):
            pairs += one * other
            ordered += one * other * Fraction((high > low) + (high >= low), 2)
    return ordered / pairs


def examples(size: int, kind: str) -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    labels = random.integers(0, 2, size)
    scores = {
        "distinct": random.permutation(size) / size,
        "ties": random.integers(0, 5, size) / 8,
        "one score": np.zeros(size),
        "signed zeros": random.choice([-0.0, 0.0, 5e-324], size),
        "extremes": random.choice([-1.7e308, -1e-320, 0.0, 1e-320, 1.7e308], size),
        "perfect": labels.astype(float),
    }[kind]
    return labels, scores


@pytest.mark.parametrize(
    "kind", ["distinct", "ties", "one score", "signed zeros", "extremes", "perfect"]
)
def test_the_area_is_the_true_quotient_for_all_batches_and_worlds(kind: str) -> None:
    labels, scores = examples(200, kind)
    true = float(brute_force(labels, scores))
    assert set(values_of(AUC, labels, scores)) == {true}


def test_a_score_goes_to_one_rank_whichever_ranks_have_it() -> None:
    columns = np.array([1, 0, 0, 0]), np.array([2.0, 1.0, 5.0, 2.0])
    assert on_ranks(AUC, [[[0, 1]], [[2]], [], [[3]]], columns) == [0.5] * 4


def test_ranks_sort_about_as_many_scores_each(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    areas = area._areas
    monkeypatch.setattr(
        area, "_areas", lambda comm, *own: (sizes.append(own[0].size), areas(comm, *own))[1]
    )
    columns = np.arange(4000) % 2, np.arange(4000)
    on_ranks(AUC, [[np.arange(4000)[rank::4]] for rank in range(4)], columns)
    assert sum(sizes) == 4000
    assert max(sizes) < 1200


def test_it_equals_scikit_learn_s() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    labels, scores = examples(5000, "ties")
    weights = np.random.default_rng(5).random(5000)
    ours = AUC()
    ours.update(labels, scores)
    assert value_of(ours) == pytest.approx(metrics.roc_auc_score(labels, scores), rel=1e-14)
    theirs = metrics.roc_auc_score(labels, scores, sample_weight=weights)
    for value in values_of(AUC, labels, scores, weights):
        assert value == pytest.approx(theirs, rel=1e-12)


def test_whole_weights_count_as_that_many_examples() -> None:
    labels, scores = examples(60, "ties")
    weights = np.random.default_rng(6).integers(0, 4, 60).astype(float)
    true = float(brute_force(labels, scores, weights))
    assert set(values_of(AUC, labels, scores, weights)) == {true}
    scaled = AUC()  # So large that products need more than 64 bits.
    scaled.update(labels, scores, weights * 2.0**43)
    assert value_of(scaled) == true


@pytest.mark.parametrize("scale", [5e-324, 1e-170, 2.0**500, 2.0**960])
def test_weights_far_from_one_weigh_what_they_say(scale: float) -> None:
    labels, scores = examples(60, "ties")
    weights = np.random.default_rng(7).integers(1, 4, 60) / 4 if scale > 1 else np.ones(60)
    true = float(brute_force(labels, scores, weights))
    for value in values_of(AUC, labels, scores, weights * scale):
        assert value == pytest.approx(true, rel=1e-14)


def test_an_area_is_never_above_one_whatever_rounding_does() -> None:
    random = np.random.default_rng(8)
    for size in range(10, 40):
        metric = AUC()
        metric.update(np.arange(size) >= size // 2, np.arange(size), random.random(size))
        assert value_of(metric) <= 1.0


def test_many_different_scores_are_not_sorted_again_for_every_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradring.metrics.area._KEPT", 10)
    sorted_sizes: list[int] = []
    by_score = area._by_score
    monkeypatch.setattr(
        area, "_by_score", lambda *one: (sorted_sizes.append(one[0].size), by_score(*one))[1]
    )
    metric = AUC()
    for first in range(0, 2000, 10):
        metric.update([0, 1] * 5, np.arange(first, first + 10))
    assert sum(sorted_sizes) < 3 * 2000


def test_more_examples_than_are_kept_as_they_come_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradring.metrics.area._KEPT", 7)
    labels, scores = examples(200, "ties")
    assert set(values_of(AUC, labels, scores)) == {float(brute_force(labels, scores))}


@pytest.mark.parametrize("kind", ["distinct", "ties", "one score", "perfect"])
@pytest.mark.parametrize("buckets", [1, 3, 8, 4096])
def test_buckets_are_within_the_bound_that_they_tell(kind: str, buckets: int) -> None:
    labels, scores = examples(200, kind)
    true = float(brute_force(labels, scores))
    metric = AUC(buckets=buckets)
    metric.update(labels, scores)
    value = value_of(metric)
    assert abs(value - true) <= metric.error_bound * (1 + 1e-15)
    assert set(values_of(lambda: AUC(buckets=buckets), labels, scores)) == {value}
    if kind == "perfect" and buckets > 1:
        assert (value, metric.error_bound) == (1.0, 0.0)


@pytest.mark.parametrize("labels", [[], [0, 0], [1]])
def test_one_class_alone_has_no_area(labels: list[int]) -> None:
    for metric in (AUC(), AUC(buckets=4)):
        metric.update(labels, np.full(len(labels), 0.5))
        assert math.isnan(value_of(metric))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([0, 2], [0.1, 0.2]), "labels: one of them is neither 0 nor 1"),
        (([0, 1], [0.1]), "scores: 1 of them, but 2 labels"),
        (([0, 1], [0.1, math.nan]), "scores: one of them is NaN or infinite"),
        (([0, 1], ["a", "b"]), "scores: real numbers are wanted"),
        (([0, 1], [0.1, 0.2], [1, -1]), "weights: one of them is negative"),
        (([0, 1], [0.1, 0.2], [1, 1e300]), r"weights: one of them is above 2\*\*960"),
        (([0, 1], [0.1, 1.5]), "scores: one of them is not from 0 to 1"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused_whole(arguments: Any, text: str) -> None:
    metric = AUC(buckets=2)
    metric.update([0, 1], [0.0, 1.0])
    with pytest.raises(gr.InvalidArgument, match=text):
        metric.update(*arguments)
    assert value_of(metric) == 1.0
    metric.reset()
    assert math.isnan(value_of(metric))


def test_buckets_that_are_no_number_are_refused() -> None:
    for buckets in (0, -1, 1.5, 1 << 25):
        with pytest.raises(gr.InvalidArgument, match="buckets"):
            AUC(buckets=buckets)  # type: ignore[arg-type]
