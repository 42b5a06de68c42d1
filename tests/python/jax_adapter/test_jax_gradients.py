"""optax on several ranks: the path of one process, compression, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import gradring as gr
from jax_ranks import endings, run
from rank_job import StartJob

jax = pytest.importorskip("jax", reason="jax (gradring[jax]) is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
jnp = jax.numpy
gj = pytest.importorskip("gradring.jax")


def _loss(params: Any, x: Any, y: Any) -> Any:
    return (((x @ params["w"]).sum(1) + params["b"] - y) ** 2).mean()


def _train(optimizer: Any, x: Any, y: Any, steps: int) -> Any:
    params = {"w": jnp.zeros((4, 2)), "b": jnp.zeros(())}
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = optimizer.update(jax.grad(_loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params


def path_of_one_process(comm: Any) -> list[bool]:
    """Train on this rank's examples and on all of them, of whole numbers: sums are exact."""
    random = np.random.default_rng(0)
    x = random.integers(-2, 3, (16, 4)).astype(np.float32)
    y = random.integers(-4, 5, 16).astype(np.float32)
    mine = slice(comm.rank * 16 // comm.world_size, (comm.rank + 1) * 16 // comm.world_size)
    same = []
    sgd, adam = optax.sgd(0.25), optax.adam(0.01)
    for rule, whole, steps in (
        (sgd, gj.distributed(sgd, comm=comm), 2),
        (adam, optax.chain(gj.average_gradients(comm, bucket_bytes=16), adam), 1),
    ):
        expected = jax.tree.leaves(_train(rule, x, y, steps))
        found = jax.tree.leaves(_train(whole, x[mine], y[mine], steps))
        same += [a.tobytes() == b.tobytes() for a, b in zip(expected, found, strict=True)]
    return same


@pytest.mark.parametrize("size", [2, 4])
def test_n_ranks_take_the_path_of_one_process_bit_for_bit(jax_job: StartJob, size: int) -> None:
    assert run(jax_job(size), path_of_one_process) == [[True] * 4] * size


def unequal_batches(comm: Any) -> list[float]:
    """Average over three examples of rank 0 and none of rank 1, as docs/jax.md says."""
    average = gj.average_gradients(comm)
    x = jnp.array([1.0, 2.0, 6.0])[: 0 if comm.rank else 3]

    def loss(w: Any) -> Any:
        losses = w * x
        return losses.sum() * comm.world_size / gj.all_reduce(losses.size, comm)

    step = jax.jit(lambda w: average.update(jax.grad(loss)(w), average.init(w))[0])
    return [float(step(jnp.float32(0)))]


def test_a_rank_may_have_fewer_examples_or_none(jax_job: StartJob) -> None:
    assert run(jax_job(2), unequal_batches) == [[3.0], [3.0]]


def compressed(comm: Any, codec: Any) -> list[Any]:
    """Compare compressed averages and what is left out with the communicator's own."""
    random = np.random.default_rng(comm.rank)
    gradients = {"w": random.standard_normal((5, 60)), "b": random.standard_normal(3)}
    compress = gr.TopK(codec) if isinstance(codec, float) else codec
    average = gj.average_gradients(comm, compress=compress)
    state = average.init(gradients)
    tree = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), gradients)
    residual = np.zeros(303, np.float32)
    update = jax.jit(average.update)
    for _ in range(3):
        averages, state = update(tree, state)
        flat = np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)])
        comm.all_reduce_compressed(flat, compress, residual, op="avg")
    found = np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(averages)])
    return [
        found.tobytes() == flat.tobytes(),
        np.asarray(state.residual).tobytes() == residual.tobytes(),
        jax.tree.structure(averages) == jax.tree.structure(tree),
        bool(residual.any()),
        average.update({"loss": 0.0}, average.init({"loss": 0.0}))[0] == {"loss": 0},
    ]


@pytest.mark.parametrize("codec", ["int8", "bf16", 0.1])
def test_compressed_gradients_are_the_communicators(jax_job: StartJob, codec: Any) -> None:
    assert run(jax_job(2), compressed, codec) == [[True] * 5] * 2


def other_beginnings(comm: Any, what: str) -> None:
    """Begin with other parameters or options on each rank."""
    params = {"w": jnp.ones(3) * (1 + (what == "values") * comm.rank), "b": jnp.zeros(2)}
    if what == "names" and comm.rank:
        params["c"] = params.pop("b")
    compress = "int8" if what == "options" and comm.rank else None
    optimizer = gj.distributed(optax.sgd(0.1), gr.Sync(), comm=comm, compress=compress)
    try:
        optimizer.init(params)
    finally:
        optimizer = gj.distributed(optax.sgd(0.1), comm=comm)
        optimizer.init(gj.broadcast({"w": params["w"]}, comm))  # As the message says.


@pytest.mark.parametrize(
    ("what", "part"),
    [("values", "parameter ['w']"), ("names", "parameters "), ("options", "compress=int8")],
)
def test_ranks_that_begin_differently_are_told(jax_job: StartJob, what: str, part: str) -> None:
    job = jax_job(2)
    for outcome in endings(job, other_beginnings, what, ranks=job.ranks):
        assert outcome.error == "Mismatch", outcome
        assert part in outcome.text
        assert "gradring.jax.broadcast" in outcome.text


def refusals(comm: Any) -> list[str]:
    """Ask for what there is not."""
    int8 = gj.average_gradients(comm, compress="int8")
    said = []
    for call in (
        lambda: gj.distributed(optax.sgd(0.1), gr.Sync(via="ps"), comm=comm),
        lambda: gj.distributed(optax.sgd(0.1), gr.Async(), comm=comm),
        lambda: gj.distributed("sgd", comm=comm),
        lambda: gj.average_gradients(comm, compress="zip"),
        lambda: gj.average_gradients(comm, bucket_bytes=0),
        lambda: int8.update(jnp.ones(2, jnp.bfloat16), int8.init(jnp.ones(2))),
        lambda: int8.update(jnp.ones(2), int8.init(jnp.ones(3))),
    ):
        with pytest.raises(gr.InvalidArgument) as caught:
            call()
        said.append(str(caught.value))
    return said


def test_what_there_is_not_is_refused(jax_job: StartJob) -> None:
    [said] = run(jax_job(1), refusals)
    expected = [
        "gradring.distributed", "gradring.distributed", "no init and update", "'zip'",
        "bucket_bytes", "is bfloat16", "init(params)",
    ]  # fmt: skip
    assert [part for part, text in zip(expected, said, strict=True) if part not in text] == []


def test_optax_is_not_needed() -> None:
    script = "import sys; sys.modules['optax'] = None\nimport gradring.jax as gj; gj.distributed"
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
