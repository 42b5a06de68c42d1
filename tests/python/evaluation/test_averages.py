"""Averages over examples: the same bits for all orders, batches and worlds, and scikit-learn's."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring import metrics
from gradring.collectives import joining
from gradring.metrics.exact_sum import UNITS_BITS, exact_sum
from shares import value_of, values_of
from thread_ranks import ThreadWorld

pytestmark = pytest.mark.timeout(60)
RANDOM = np.random.default_rng(11)


@pytest.mark.parametrize(
    "values",
    [
        RANDOM.standard_normal(1000),
        np.array([1e308, 1e308, -1e308, 5e-324, -1.0, 1.0]),
        np.array([5e-324, 2.2250738585072014e-308, -5e-324, 1.7976931348623157e308]),
        RANDOM.standard_normal(500) * 10.0 ** RANDOM.integers(-300, 300, 500),
        np.zeros(0),
    ],
)
def test_a_sum_of_floats_loses_nothing(values: Any) -> None:
    true = sum(map(Fraction, values.tolist()), Fraction(0))
    assert Fraction(exact_sum(values), 1 << UNITS_BITS) == true
    assert exact_sum(RANDOM.permutation(values)) == exact_sum(values)


ERRORS = {
    metrics.MeanAbsoluteError: "mean_absolute_error",
    metrics.MeanSquaredError: "mean_squared_error",
    metrics.RootMeanSquaredError: "root_mean_squared_error",
    metrics.Accuracy: "accuracy_score",
    metrics.LogLoss: "log_loss",
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ERRORS)
def test_an_average_has_the_same_bits_for_all_batches_and_worlds(kind: Any, weighted: bool) -> None:
    theirs = pytest.importorskip("sklearn.metrics")
    labels = RANDOM.integers(0, 2, 300).astype(float)
    predictions = RANDOM.random(300)
    if kind is metrics.Accuracy:
        predictions = np.round(predictions)
    weights = RANDOM.random(300) if weighted else None
    [value] = set(values_of(kind, labels, predictions, weights))
    expected = getattr(theirs, ERRORS[kind])(labels, predictions, sample_weight=weights)
    assert value == pytest.approx(expected, rel=1e-13)


def test_terms_that_cancel_or_are_far_apart_are_averaged_rightly() -> None:
    metric = metrics.MeanAbsoluteError()
    metric.update([1e16, 1.0, 1.0], [0.0, 0.0, 0.0])
    assert value_of(metric) == float(Fraction(10**16 + 2, 3))


def test_calibration_is_clicks_over_predicted_clicks() -> None:
    labels = RANDOM.integers(0, 2, 300).astype(float)
    predictions = RANDOM.random(300)
    [value] = set(values_of(metrics.Calibration, labels, predictions))
    said = sum(map(Fraction, predictions.tolist()), Fraction(0))
    assert value == float(Fraction(int(labels.sum())) / said)


def test_certain_mistakes_cost_a_lot_and_not_infinitely_much() -> None:
    metric = metrics.LogLoss()
    metric.update([1, 0], [0.0, 1.0])
    assert value_of(metric) == pytest.approx(36.04, abs=0.01)


def test_without_examples_there_is_no_average() -> None:
    for kind in (*ERRORS, metrics.Calibration):
        assert math.isnan(value_of(kind()))
        metric = kind()
        metric.update([1], [1], [0])
        assert math.isnan(value_of(metric))


def test_without_a_communicator_it_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice:
        rank, world_size = 0, 2

        def all_gather(self, own: Any) -> Any:
            return np.concatenate([own, own])

    metric = metrics.Calibration()
    metric.update([3], [2])
    for current in (None, Twice()):
        monkeypatch.setattr(joining, "current_if_any", lambda current=current: current)
        assert metric.compute() == 1.5
    with pytest.raises(gr.InvalidArgument, match="comm is a str"):
        metric.compute("all")


def test_ranks_that_compute_different_averages_are_told_so() -> None:
    world = ThreadWorld(2, "shm")
    kinds = [metrics.LogLoss, metrics.Accuracy]
    errors = world.errors(lambda comm: kinds[comm.rank]().compute(comm))
    world.close()
    assert [str(error) for error in errors] == [
        "rank 0 computes LogLoss, but rank 1 computes Accuracy",
        "rank 1 computes Accuracy, but rank 0 computes LogLoss",
    ]
    assert all(isinstance(error, gr.Mismatch) for error in errors)


def test_tensors_count_as_their_numbers() -> None:
    torch = pytest.importorskip("torch")
    metric = metrics.MeanSquaredError()
    metric.update(torch.ones(2, 2, dtype=torch.bfloat16), torch.zeros(2, 2, requires_grad=True))
    assert value_of(metric) == 1.0


def test_real_dtypes_that_numpy_has_not_count_as_their_numbers() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        metric = metrics.MeanSquaredError()
        metric.update(np.full(2, 3, dtype), np.ones(2, dtype))
        assert value_of(metric) == 4.0
    for nonsense in (np.zeros(1, "V4"), np.zeros(1, [("a", float)]), [1j], ["1"], [None]):
        with pytest.raises(gr.InvalidArgument, match="real numbers are wanted"):
            metrics.Accuracy().update([1], nonsense)


def test_a_tensor_without_numbers_is_refused() -> None:
    torch = pytest.importorskip("torch")
    nothing = torch.zeros(1, device="meta", dtype=torch.int64)
    with pytest.raises(gr.InvalidArgument, match="predictions: real numbers are wanted"):
        metrics.Accuracy().update([1], nothing)
    with pytest.raises(gr.InvalidArgument, match="groups: whole numbers are wanted"):
        metrics.PairOrder().update([1], [1], nothing)


@pytest.mark.filterwarnings("error")
def test_what_is_no_probability_or_beyond_float64_is_refused_whole() -> None:
    loss, square = metrics.LogLoss(), metrics.MeanSquaredError()
    with pytest.raises(gr.InvalidArgument, match="no probability from 0 to 1"):
        loss.update([1, 0], [0.5, 1.5])
    with pytest.raises(gr.InvalidArgument, match="beyond float64"):
        square.update([1e200], [0.0])
    with pytest.raises(gr.InvalidArgument, match="beyond float64"):
        square.update([1e200], [0.0], [0.0])
    calibration = metrics.Calibration()
    for labels, predictions in (([1e200], [1.0]), ([1.0], [1e200])):
        with pytest.raises(gr.InvalidArgument, match="beyond float64"):
            calibration.update(labels, predictions, [1e200])
    for metric in (loss, square, calibration):
        assert math.isnan(value_of(metric))
