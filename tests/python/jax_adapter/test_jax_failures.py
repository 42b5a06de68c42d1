"""Errors inside of compiled programs: they come out as gradring's own, and another call follows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

import gradring as gr
from jax_ranks import endings, run
from rank_job import StartJob

jax = pytest.importorskip("jax", reason="jax (gradring[jax]) is not installed")
jnp = jax.numpy
gj = pytest.importorskip("gradring.jax")


def _late(comm: Any, matrix: Any) -> Any:
    """A program that JAX begins on a thread of its own, as its operand is not there yet."""
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: x @ x / len(x), x))
    return jax.jit(lambda x: gj.all_reduce(x, comm).sum())(slow(matrix))


def _go_on(comm: Any) -> list[Any]:
    """Call what has failed once more, then programs with what `comm` shrinks to."""
    with pytest.raises(gr.Closed), gj.own_errors():
        jax.jit(lambda x: gj.all_reduce(x, comm))(jnp.ones(3)).block_until_ready()
    with pytest.raises(gr.Closed):
        gj.all_reduce(jnp.ones(3), comm)
    smaller = comm.shrink()
    total = jax.jit(lambda x: gj.all_reduce(x, smaller).sum())(jnp.ones(4))
    return [smaller.world_size, float(total), float(gj.all_reduce(total, smaller))]


def a_rank_dies(comm: Any) -> list[Any]:
    """Lose rank 2 where the others are in a program."""
    matrix = jnp.ones((300, 300))
    float(_late(comm, matrix))
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(gr.PeerLost) as caught, gj.own_errors():
        _late(comm, matrix).block_until_ready()
    is_behind_jaxs = isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
    return [caught.value.rank, is_behind_jaxs, *_go_on(comm)]


def test_a_rank_that_dies_is_peer_lost_out_of_a_program_and_the_others_go_on(
    jax_job: StartJob,
) -> None:
    job = jax_job(3)
    for outcome in endings(job, a_rank_dies, ranks=job.others(2)):
        assert outcome.result == [2, True, 2, 8.0, 16.0], outcome


def ranks_differ(comm: Any) -> list[str]:
    """Compile another program on each rank."""
    said = []
    with pytest.raises(gr.Mismatch) as caught, gj.own_errors():
        jax.jit(lambda x: gj.all_reduce(x, comm))(jnp.ones(3 + comm.rank)).block_until_ready()
    said.append(str(caught.value))
    return said


def test_ranks_that_traced_different_programs_get_mismatch(jax_job: StartJob) -> None:
    for [said] in run(jax_job(2), ranks_differ):
        assert "float32 x 3, sum" in said
        assert "float32 x 4, sum" in said


def nobody_comes(comm: Any) -> str:
    """Wait in a program for a rank that never calls it."""
    group = comm.split(0)
    if comm.rank == 0:
        with pytest.raises(gr.TimedOut) as caught, gj.own_errors():
            jax.jit(lambda x: gj.all_reduce(x, group, timeout=0.5))(jnp.ones(3)).sum()
    gj.barrier(comm)  # Nothing is left of the program that failed.
    return str(caught.value) if comm.rank == 0 else ""


def test_a_program_does_not_wait_for_ever(jax_job: StartJob) -> None:
    assert "rank 1" in run(jax_job(2), nobody_comes)[0]


def without_own_errors(comm: Any) -> list[str]:
    """Fail in a program, at once or as it is waited for, and go on without asking for the error."""
    group = comm.split(0)
    with pytest.raises(jax.errors.JaxRuntimeError) as raw:
        _late(group, jnp.ones((300 + comm.rank, 300 + comm.rank))).block_until_ready()
    told = ""
    try:
        gj.barrier(comm)
    except gr.Mismatch as error:  # Where JAX began the program late, it still has the error.
        told = str(error)
        gj.barrier(comm)
    total = jax.jit(lambda x: gj.all_reduce(x, comm))(jnp.ones(1))
    return [str(raw.value), told, float(total[0])]


def test_without_its_own_errors_the_text_is_in_jaxs_and_the_next_call_tells_it(
    jax_job: StartJob,
) -> None:
    for text, told, total in run(jax_job(2), without_own_errors):
        assert "Mismatch: " in text
        assert "the ranks made different calls" in text
        assert not told or told in text
        assert total == 2


LAST_WORDS = """
import jax, jax.numpy as jnp
from jax.experimental import io_callback
import gradring as gr, gradring.jax as gj
comm = gr.init()
slow = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: x @ x / len(x), x))

@jax.jit
def program(x):
    total = gj.all_reduce(x, comm)
    io_callback(lambda: print("done", flush=True), None, ordered=True)
    return total.sum()

for _ in range(2):
    last = program(slow(jnp.ones((500, 500))))
print("end", flush=True)
"""


def test_a_program_that_still_runs_as_the_script_ends_is_done_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAST_WORDS], capture_output=True, text=True, timeout=30, check=True
    )
    assert sorted(done.stdout.split()) == ["done", "done", "end"]
    assert "Error" not in done.stderr
