"""Order within groups: all examples of a group count together, on whichever rank they came."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.metrics import GroupAUC, PairCounts, PairOrder
from shares import value_of, values_of

pytestmark = pytest.mark.timeout(60)


def examples(labels: int, scores: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(labels)
    groups = random.integers(-5, 12, 300) * (1 << 40)
    return random.integers(0, labels, 300), random.integers(0, scores, 300) / 7, groups


def brute_force(labels: Any, scores: Any, groups: Any) -> PairCounts:
    counts = [0, 0, 0]
    for i, j in itertools.permutations(range(len(labels)), 2):
        if groups[i] == groups[j] and labels[i] > labels[j]:
            counts[0 if scores[i] > scores[j] else 1 if scores[i] < scores[j] else 2] += 1
    return PairCounts(*counts)


@pytest.mark.parametrize(("labels", "scores"), [(2, 5), (2, 10**6), (5, 4), (1, 3), (5, 1)])
def test_pairs_are_counted_as_if_one_process_had_all(labels: int, scores: int) -> None:
    data = examples(labels, scores)
    assert set(values_of(PairOrder, *data)) == {brute_force(*data)}


@pytest.mark.parametrize("scores", [4, 10**6])
def test_the_group_s_areas_are_averaged_by_their_examples(scores: int) -> None:
    theirs = pytest.importorskip("sklearn.metrics")
    labels, said, groups = data = examples(2, scores)
    areas, sizes = [], []
    for group in np.unique(groups):
        here = groups == group
        if 0 < labels[here].sum() < here.sum():
            areas.append(theirs.roc_auc_score(labels[here], said[here]))
            sizes.append(here.sum())
    [value] = set(values_of(GroupAUC, *data))
    assert value == pytest.approx(np.average(areas, weights=sizes), rel=1e-14)


def test_without_pairs_there_is_no_order() -> None:
    for labels in ([], [1, 1]):
        area, pairs = GroupAUC(), PairOrder()
        for metric in (area, pairs):
            metric.update(labels, np.zeros(len(labels)), np.arange(len(labels)))
        assert math.isnan(value_of(area))
        assert value_of(pairs) == PairCounts(0, 0, 0)
        assert math.isnan(value_of(pairs).ratio)
    assert PairCounts(3, 0, 1).ratio == math.inf
    assert PairCounts(3, 2, 1).ratio == 1.5


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([0.5, 1.0], "groups: whole numbers are wanted, not float64"),
        ([[1], [1, 2]], "groups: whole numbers are wanted"),
        ([1], "groups: 1 of them, but 2 labels"),
        (np.array([1, 1 << 63], np.uint64), "which int64 does not hold"),
    ],
)
def test_groups_that_are_none_are_refused_whole(groups: Any, text: str) -> None:
    metric = PairOrder()
    with pytest.raises(gr.InvalidArgument, match=text):
        metric.update([0, 1], [0.0, 1.0], groups)
    assert value_of(metric) == PairCounts(0, 0, 0)


def test_grades_of_a_batch_that_was_refused_are_not_among_the_known_ones() -> None:
    metric = PairOrder()
    with pytest.raises(gr.InvalidArgument, match="groups"):
        metric.update(np.arange(1000), np.zeros(1000), np.zeros(1000))
    metric.update([-1, -2], [1.0, 0.0], [0, 0])
    assert value_of(metric) == PairCounts(1, 0, 0)


def test_measurements_are_no_grades() -> None:
    with pytest.raises(gr.InvalidArgument, match="more than 1000 different ones"):
        PairOrder().update(np.arange(1001), np.zeros(1001), np.zeros(1001, int))
