"""Collectives inside of compiled programs: they run in order, once each, and differentiate."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from jax_ranks import run
from rank_job import StartJob
from thread_ranks import on_workers

jax = pytest.importorskip("jax", reason="jax (gradring[jax]) is not installed")
jnp = jax.numpy
gj = pytest.importorskip("gradring.jax")


def many_that_depend_on_nothing(comm: Any) -> list[Any]:
    """Begin collectives of different sizes whose results nobody uses, in several programs."""
    begun = []

    @jax.jit
    def program(x: Any) -> Any:
        for size in range(1, 8):
            gj.all_reduce(jnp.ones(size), comm)
        gj.barrier(comm)
        return x @ x

    x = jnp.eye(300) * (comm.rank + 1)
    for _ in range(5):
        x = program(x) / (comm.rank + 1)
        begun.append(gj.all_gather(jnp.int32(comm.rank), comm).tolist())  # At once, behind it.
    jax.effects_barrier()
    counted = comm.all_reduce(np.ones(1))
    return [begun, float(counted[0])]


def test_collectives_run_once_each_in_the_order_of_the_program(jax_job: StartJob) -> None:
    assert run(jax_job(2), many_that_depend_on_nothing) == [[[[0, 1]] * 5, 2.0]] * 2


def control_flow(comm: Any) -> list[Any]:
    """Call them in scan, fori_loop and cond."""

    def body(carry: Any, x: Any) -> Any:
        return gj.all_reduce(carry + x, comm, "avg"), carry.sum()

    scanned = jax.jit(lambda c, xs: jax.lax.scan(body, c, xs))
    looped = jax.jit(
        lambda c: jax.lax.fori_loop(0, 3, lambda _, c: gj.all_reduce(c, comm, "avg") + 1, c)
    )
    chosen = jax.jit(
        lambda c: jax.lax.cond(c[0] > 0, lambda c: gj.all_reduce(c, comm), lambda c: c, c)
    )
    last, sums = scanned(jnp.ones(2), jnp.ones((3, 2)))
    slope = jax.jit(jax.grad(lambda c: scanned(c, jnp.ones((3, 2)))[0].sum()))(jnp.ones(2))
    return [
        last.tolist(), sums.tolist(), slope.tolist(),
        looped(jnp.ones(2) * comm.rank).tolist(), chosen(jnp.ones(2)).tolist(),
        chosen(-jnp.ones(2)).tolist(),
    ]  # fmt: skip


def test_they_work_in_loops_and_branches(jax_job: StartJob) -> None:
    expected = [[4, 4], [2, 4, 6], [1, 1], [3.5, 3.5], [2, 2], [-1, -1]]
    assert run(jax_job(2), control_flow) == [expected] * 2


def _losses(comm: Any) -> dict[str, Callable[[Any], Any]]:
    return {
        "sum": lambda x: gj.all_reduce(x, comm),
        "avg": lambda x: gj.all_reduce(x, comm, "avg"),
        "broadcast": lambda x: gj.broadcast(x, comm, 1),
        "gather": lambda x: gj.all_gather(x, comm),
        "gather tiled": lambda x: gj.all_gather(x, comm, tiled=True),
        "scatter": lambda x: gj.reduce_scatter(x, comm, tiled=True),
        "scatter avg": lambda x: gj.reduce_scatter(x.reshape(2, 2), comm, "avg"),
        "all_to_all": lambda x: gj.all_to_all(x, comm),
    }


def slopes_are_those_of_all_ranks_losses(comm: Any) -> dict[str, Any]:
    """Compare gradients of a loss with differences of the sum of all ranks' losses."""
    wrong = {}
    x = jnp.arange(4.0) + 3 * comm.rank + 1
    weights = 1.0 + comm.rank  # Ranks have different losses.
    for name, operation in _losses(comm).items():

        def loss(x: Any, operation: Any = operation) -> Any:
            return weights * (operation(x) ** 2).sum()

        slope = jax.grad(loss)(x)
        assert slope.tolist() == jax.jit(jax.grad(loss))(x).tolist()
        for rank in range(comm.world_size):
            for index in range(4):
                step = jnp.zeros(4).at[index].set(0.5 * (comm.rank == rank))
                ends = [float(gj.all_reduce(loss(x + way * step), comm)) for way in (1, -1)]
                if comm.rank == rank and slope[index] != ends[0] - ends[1]:
                    wrong[f"{name} {rank} {index}"] = [float(slope[index]), ends[0] - ends[1]]
    return wrong


def calls_of_each_derivative(comm: Any) -> int:
    """Count what gradients take, whatever is compiled."""
    calls = []
    real = comm.all_reduce_many
    comm.all_reduce_many = lambda *given, **options: (calls.append(1), real(*given, **options))[1]

    def loss(x: Any) -> Any:
        return (gj.all_reduce(x, comm) ** 2).sum()

    for slope in (
        jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss)),
        jax.value_and_grad(jax.jit(loss)),
    ):  # fmt: skip
        slope(jnp.ones(3))
        jax.effects_barrier()
    return len(calls)


def test_a_gradient_takes_one_call_more(jax_job: StartJob) -> None:
    assert run(jax_job(2), calls_of_each_derivative) == [8, 8]


def test_the_gradient_is_that_of_the_sum_of_all_ranks_losses(jax_job: StartJob) -> None:
    assert run(jax_job(2), slopes_are_those_of_all_ranks_losses) == [{}, {}]


def other_derivatives(comm: Any) -> list[Any]:
    """Second derivatives, forward mode, integers beside floats, and what has no derivative."""
    x = jnp.arange(3.0) + comm.rank

    def loss(x: Any) -> Any:
        reduced, count = gj.all_reduce((x, jnp.int32(2)), comm)
        return (reduced**2).sum() * count

    hessian = jax.jit(jax.hessian(loss))(x)
    value, slope = jax.jvp(loss, (x,), (jnp.ones(3),))
    if comm.rank == 0:  # Nothing is sent.
        with pytest.raises(gr.InvalidArgument, match="op='max' has no derivative"):
            jax.grad(lambda x: gj.all_reduce(x, comm, "max").sum())(x)
    gj.barrier(comm)
    return [hessian.diagonal().tolist(), float(value), float(slope)]


def test_other_derivatives_are_right_or_refused(jax_job: StartJob) -> None:
    expected = [[32, 32, 32], 4 * (1 + 9 + 25), 4 * 2 * 2 * (1 + 3 + 5)]
    assert run(jax_job(2), other_derivatives) == [expected] * 2


def slopes_of_complex_numbers(comm: Any) -> list[Any]:
    """Differentiate what only moves complex leaves; what comes back is added up."""

    def gathered(x: Any) -> Any:
        return (gj.all_gather(x, comm) * (2 + 1j)).real.sum()

    def shared(x: Any) -> Any:
        return sum((leaf * (2 + 1j)).real.sum() for leaf in gj.broadcast([x, x[:1]], comm, 1))

    z = jnp.array([1j, 3])
    slopes = [jax.grad(gathered)(z), jax.jit(jax.grad(gathered))(z), jax.grad(shared)(z)]
    return [[[each.real, each.imag] for each in slope.tolist()] for slope in slopes]


def test_complex_cotangents_are_added_up(jax_job: StartJob) -> None:
    both = [[4, 2], [4, 2]]
    first, second = run(jax_job(2), slopes_of_complex_numbers)
    assert first == [both, both, [[0, 0], [0, 0]]]
    assert second == [both, both, [[8, 4], [4, 2]]]


def batches(comm: Any) -> list[str]:
    """Call each under vmap along either axis, and beside what has no batch; what is wrong."""
    wrong = []
    batch = jnp.arange(24.0).reshape(4, 3, 2) + comm.rank
    for name, operation in _losses(comm).items():
        for axis in (0, 1, 2):
            examples = jnp.moveaxis(batch if axis == 1 else batch[:, :2], axis, 0)
            if examples.shape[1] % 2 or name == "scatter avg":  # It takes leaves of four.
                continue
            one_by_one = jnp.stack([operation(example) for example in examples])
            given = jnp.moveaxis(examples, 0, axis)
            if (jax.vmap(operation, in_axes=axis)(given) != one_by_one).any():
                wrong.append(f"{name} along {axis}")
    summed, shared = jax.jit(
        jax.vmap(lambda x, y: gj.all_reduce((x, y), comm), (0, None), (0, None))
    )(batch, jnp.ones(2))
    if (summed != gj.all_reduce(batch, comm)).any() or shared.tolist() != [2, 2]:
        wrong.append("beside one without a batch")
    with pytest.raises(gr.InvalidArgument, match="a leaf is a number"):
        jax.vmap(lambda x: gj.all_gather(x, comm, tiled=True))(jnp.ones(2))
    average = gj.average_gradients(comm, compress="int8")
    with pytest.raises(gr.InvalidArgument, match=r"does not work under jax\.vmap"):
        jax.vmap(lambda x: average.update(x, average.init(x)))(jnp.ones((2, 2)))
    return wrong


def test_under_vmap_a_batch_is_one_call(jax_job: StartJob) -> None:
    assert run(jax_job(2), batches) == [[], []]


def on_one_processor(comm: Any) -> float:
    """Run programs one after the other where JAX has one thread, and large operands."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

    @jax.jit
    def heavy(x: Any) -> Any:
        return x @ x / len(x)

    @jax.jit
    def program(x: Any) -> Any:
        constant = gj.all_reduce(jnp.arange(1 << 20, dtype=jnp.float32), comm, "avg")
        return gj.all_reduce(x.T, comm, "avg") + gj.all_reduce(x[:1], comm, "avg") * constant[0]

    x = jnp.ones((400, 400))
    for _ in range(10):
        x = program(heavy(x))
    return float(x.sum())


def test_one_thread_of_jax_is_enough(jax_job: StartJob) -> None:
    assert run(jax_job(2), on_one_processor) == [160000.0] * 2


def threads_with_a_device_each(comm: Any) -> list[float]:
    """Run programs with two communicators at a time."""
    jax.config.update("jax_num_cpu_devices", 2)
    groups = [comm.split(0), comm.split(0)]

    def work(thread: int) -> float:
        with jax.default_device(jax.devices()[thread]):
            program = jax.jit(lambda x: gj.all_reduce(x @ x, groups[thread], "avg") / len(x))
            x = jnp.ones((100, 100))
            for _ in range(20):
                x = program(x)
            return float(x.sum())

    return on_workers(2, work)


def test_threads_with_a_device_each_run_programs_at_a_time(jax_job: StartJob) -> None:
    assert run(jax_job(2), threads_with_a_device_each) == [[1e4, 1e4]] * 2


def alone(comm: Any) -> list[Any]:
    """Do all of it in a world of one."""
    x = jnp.arange(4.0)
    results = [f(x).reshape(-1).tolist() for f in (
        lambda x: gj.all_reduce(x, comm),
        jax.jit(lambda x: gj.all_reduce(x, comm, "avg")),
        jax.jit(lambda x: gj.broadcast(x, comm)),
        jax.jit(lambda x: gj.all_gather(x, comm)),
        jax.jit(lambda x: gj.reduce_scatter(x, comm, tiled=True)),
        lambda x: gj.all_to_all(x, comm),
    )]  # fmt: skip
    results.append(jax.grad(lambda x: (gj.all_reduce(x, comm) ** 2).sum() / 2)(x).tolist())
    return results


def test_a_world_of_one_changes_nothing(jax_job: StartJob) -> None:
    assert run(jax_job(1), alone) == [[[0, 1, 2, 3]] * 7]
