"""Keras on several ranks, on both backends: the path of one process, one start, common metrics."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from rank_job import StartJob

keras_is_there = importlib.util.find_spec("keras") is not None
pytestmark = [
    pytest.mark.skipif(not keras_is_there, reason="keras (gradring[keras]) is not installed"),
    pytest.mark.timeout(180),
]


def _run(job: Any, backend: str, name: str) -> list[Any]:
    return job.call(
        f"os.environ['KERAS_BACKEND'] = {backend!r}\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from test_keras import {name}; result = {name}(comm)"
    )


def _model(keras: Any, optimizer: Any, seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dropout(0.0)]
    model = keras.Sequential(layers)
    # Whole numbers, whose sums are exact.
    start = np.random.default_rng(seed).integers(-2, 3, (4, 2)).astype(np.float32)
    model.set_weights([start, np.zeros(2, np.float32)])
    model.compile(optimizer, loss="mse", metrics=["mae"])
    return model


def training(comm: Any) -> list[Any]:
    """Train alone on all examples, and together on a part each."""
    import keras

    import gradring.keras as gk

    random = np.random.default_rng(0)
    x = random.integers(-2, 3, (16, 4)).astype(np.float32)
    y = random.integers(-4, 5, (16, 2)).astype(np.float32)
    alone = _model(keras, keras.optimizers.SGD(0.25), 0)
    alone.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    optimizer = gk.distributed(keras.optimizers.SGD(0.25), comm)
    together = _model(keras, optimizer, comm.rank)  # Rank 0 has what `alone` had.
    mine = slice(8 * comm.rank, 8 * comm.rank + 8)
    callbacks = [gk.BroadcastInitial(comm), gk.AverageMetrics(comm)]
    seen = together.fit(
        x[mine], y[mine], batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
    ).history
    same = [a.tobytes() == b.tobytes() for a, b in zip(
        alone.get_weights(), together.get_weights(), strict=True
    )]  # fmt: skip
    told = comm.all_gather(np.array([seen["loss"], seen["mae"]]))
    kept = keras.saving.serialize_keras_object(optimizer)["class_name"]
    return [same, bool((told == told[0]).all()), kept, int(optimizer.iterations)]


def loop_of_ones_own(comm: Any) -> list[Any]:
    """Step outside of fit: with a gradient that is missing, and gradients that stay as they are."""
    import keras

    import gradring.keras as gk

    optimizer = gk.distributed(keras.optimizers.SGD(1.0), comm)
    used, unused = keras.Variable(np.zeros(2)), keras.Variable(np.zeros(2))
    mine = keras.ops.ones(2) * (2 * comm.rank)
    optimizer.apply_gradients([(mine, used), (None, unused)])
    said = []
    for refused in (optimizer, "sgd"):
        with pytest.raises(gr.InvalidArgument) as caught:
            gk.distributed(refused, comm)
        said.append(str(caught.value))
    values = [keras.ops.convert_to_numpy(each).tolist() for each in (used, unused, mine)]
    return [*values[:2], values[2][0] / 2, *said]


def scaled_losses(comm: Any) -> list[Any]:
    """Fit as float16 policies do, then with gradients that are infinite on rank 1 alone."""
    import keras

    import gradring.keras as gk

    def scaled() -> Any:
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25), initial_scale=8.0)

    x, y = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((2, 2), np.float32)
    alone = _model(keras, scaled(), 0)
    alone.fit(x, y, batch_size=2, verbose=0)
    together = _model(keras, gk.distributed(scaled(), comm), 0)
    mine = slice(comm.rank, comm.rank + 1)
    same = []
    for factor in (1, np.inf if comm.rank else 1):  # The second step is left out on both.
        together.fit(x[mine] * factor, y[mine], batch_size=1, verbose=0)
        pairs = zip(alone.get_weights(), together.get_weights(), strict=True)
        same += [a.tobytes() == b.tobytes() for a, b in pairs]
    return [*same, float(together.optimizer.dynamic_scale)]


def compiled_step(comm: Any) -> list[Any]:
    """Step in a function that PyTorch compiles, as fit does with jit_compile=True."""
    import keras
    import torch

    import gradring.keras as gk

    optimizer = gk.distributed(keras.optimizers.SGD(1.0), comm)
    weight = keras.Variable(np.zeros(2))
    optimizer.build([weight])
    step = torch.compile(lambda grad: optimizer.apply([grad], [weight]), backend="eager")
    step(torch.ones(2) * comm.rank)
    return keras.ops.convert_to_numpy(weight).tolist()


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_fit_and_loops_of_ones_own_take_the_path_of_one_process(
    job: StartJob, backend: str
) -> None:
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    ranks = job(2)  # One job for all: importing Keras takes longest.
    assert _run(ranks, backend, "training") == [[[True, True], True, "SGD", 2]] * 2
    for rank, told in enumerate(_run(ranks, backend, "loop_of_ones_own")):
        assert told[:3] == [[-1, -1], [0, 0], rank]
        assert "distributed already" in told[3]
        assert "str is not" in told[4]
    assert _run(ranks, backend, "scaled_losses") == [[True] * 4 + [4]] * 2
    if backend == "torch":
        assert _run(ranks, backend, "compiled_step") == [[-0.5, -0.5]] * 2


def test_other_backends_are_refused() -> None:
    script = (
        "import keras, gradring as gr, gradring.keras as gk\n"
        "try: gk.distributed(keras.optimizers.SGD(), gr.init())\n"
        "except gr.InvalidArgument as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "KERAS_BACKEND": "numpy"},
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert "the backend of Keras is numpy" in done.stdout
