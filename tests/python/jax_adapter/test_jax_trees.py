"""Collectives over trees of JAX's arrays: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from jax_ranks import run
from rank_job import StartJob

jax = pytest.importorskip("jax", reason="jax (gradring[jax]) is not installed")
jnp = jax.numpy
gj = pytest.importorskip("gradring.jax")


def _tree(rank: int) -> dict[str, Any]:
    random = np.random.default_rng(rank)
    return {
        "layers": [
            {"w": jnp.asarray(random.standard_normal((33, 7)), dtype), "b": None}
            for dtype in ("float32", "float16", "bfloat16")
        ],
        "ints": tuple(
            jnp.asarray(random.integers(0, 9, 5), dtype) for dtype in ("int8", "int32", "uint8")
        ),
        "number": jnp.float32(rank + 0.5),
        "nothing": jnp.zeros((0, 4)),
        "numpy": np.float64(rank),  # Without x64 JAX has float32 of it.
        "python": 2.5,
    }


def same_bits_as_numpy(comm: Any, op: str) -> list[Any]:
    """Compare every leaf with what the communicator makes of NumPy arrays; what differs."""
    trees = [gj.all_reduce(_tree(comm.rank), comm, op)]
    trees.append(jax.jit(lambda tree: gj.all_reduce(tree, comm, op))(_tree(comm.rank)))
    paths, _ = jax.tree_util.tree_flatten_with_path(_tree(comm.rank))
    expected = comm.all_reduce_many([np.array(jnp.asarray(leaf)) for _, leaf in paths], op)
    wrong = []
    for tree in trees:
        assert jax.tree.structure(tree) == jax.tree.structure(_tree(0))
        for (path, _), leaf, right in zip(paths, jax.tree.leaves(tree), expected, strict=True):
            assert isinstance(leaf, jax.Array)
            kind = (leaf.dtype, leaf.shape) == (right.dtype, right.shape)
            if not kind or np.asarray(leaf).tobytes() != right.tobytes():
                wrong.append(jax.tree_util.keystr(path))
    return wrong


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "max"])
def test_a_tree_has_the_bits_of_the_communicator(jax_job: StartJob, op: str) -> None:
    assert run(jax_job(3), same_bits_as_numpy, op) == [[]] * 3


def exchanges(comm: Any) -> list[Any]:
    """Move what each rank has, at once and compiled."""
    rank = comm.rank
    tree = {"u": jnp.arange(4, dtype=jnp.uint32) + 10 * rank, "c": jnp.array([1j, rank])}

    def all_of_them(tree: Any) -> Any:
        gj.barrier(comm)
        return (
            gj.all_gather(tree, comm),
            gj.all_gather(tree["u"], comm, tiled=True),
            gj.broadcast(tree, comm, 1),
            gj.all_to_all(tree["u"], comm),
            gj.reduce_scatter(tree["u"].astype("int32"), comm, tiled=True),
            gj.reduce_scatter(jnp.ones((2, 3)) * rank, comm),
        )

    at_once, compiled = all_of_them(tree), jax.jit(all_of_them)(tree)
    same = jax.tree.map(lambda a, b: a.dtype == b.dtype and bool((a == b).all()), at_once, compiled)
    assert all(jax.tree.leaves(same))
    gathered, tiled, shared, dealt, rows, row = at_once
    assert gathered["c"].dtype == shared["c"].dtype == "complex64"
    return [each.tolist() for each in (gathered["u"], tiled, shared["u"], dealt, rows, row)] + [
        gathered["c"].real.tolist()
    ]


def test_exchanges_move_any_dtype(jax_job: StartJob) -> None:
    both = [[0, 1, 2, 3], [10, 11, 12, 13]]
    first, second = run(jax_job(2), exchanges)
    assert first[0] == second[0] == both
    assert first[1] == second[1] == [*both[0], *both[1]]
    assert first[2] == second[2] == both[1]
    assert (first[3], second[3]) == ([0, 1, 10, 11], [2, 3, 12, 13])
    assert (first[4], second[4]) == ([10, 12], [14, 16])
    assert first[5] == second[5] == [1, 1, 1]
    assert first[6] == second[6] == [[0, 0], [0, 1]]


def odd_arrays(comm: Any) -> list[Any]:
    """Reduce what lies oddly: transposed, sliced, empty trees; with x64 and its float64."""
    matrix = jnp.arange(6.0).reshape(2, 3)
    assert jax.tree.leaves(gj.all_reduce({"none": None, "empty": []}, comm)) == []
    assert gj.all_reduce(np.asfortranarray(matrix), comm).tolist() == (2 * matrix).tolist()
    assert gj.all_reduce(matrix.T[1:], comm).tolist() == (2 * matrix.T[1:]).tolist()
    placed = jax.device_put(matrix, jax.devices()[0])
    result = gj.all_reduce(placed, comm)
    assert (result.committed, result.sharding) == (True, placed.sharding)
    assert not gj.all_reduce(matrix, comm).committed
    # What came out may be given away, and what went in is untouched.
    grown = jax.jit(lambda x: x + 1, donate_argnums=0)(gj.all_reduce(matrix, comm))
    assert (grown - 1).tolist() == (2 * matrix).tolist()
    jax.config.update("jax_enable_x64", True)
    return [str(gj.all_reduce(np.ones(2) / 3, comm).dtype), float(gj.all_reduce(1 / 3, comm))]


def test_layouts_places_and_float64_are_as_jax_has_them(jax_job: StartJob) -> None:
    assert run(jax_job(2), odd_arrays) == [["float64", 2 / 3]] * 2


def refusals(comm: Any) -> list[str]:
    """Give what is refused, on this rank alone: nothing is sent."""
    donated = jnp.ones(3)
    donated.delete()
    calls: list[Callable[[], Any]] = [
        lambda: gj.all_reduce({"a": jnp.ones(2, jnp.uint32)}, comm),
        lambda: gj.all_reduce({"a": [jnp.ones(2), jnp.ones(2)]}, comm, "band"),
        lambda: gj.all_reduce({"a": "text"}, comm),
        lambda: gj.all_reduce(jnp.ones(2), comm, "median"),
        lambda: gj.all_reduce(donated, comm),
        lambda: gj.all_reduce(jax.random.key(0), comm),
        lambda: gj.broadcast(jnp.ones(2), comm, 2),
        lambda: gj.reduce_scatter(jnp.ones(3), comm),
        lambda: gj.reduce_scatter(jnp.ones(3), comm, tiled=True),
        lambda: gj.all_to_all(jnp.float32(1), comm),
        lambda: gj.all_gather(jnp.float32(1), comm, tiled=True),
        lambda: gj.all_reduce(jnp.ones(2), comm, timeout=-1),
        lambda: gj.all_reduce(jnp.ones(2), "comm"),
        lambda: jax.jit(lambda x: gj.reduce_scatter(x, comm))(jnp.ones(3)),
        lambda: jax.jit(lambda x: gj.all_gather(x, comm))(jnp.ones(3, jnp.int4)),
        lambda: gj.broadcast({"a": jnp.ones(3, jnp.float4_e2m1fn)}, comm),
    ]
    said = []
    for call in calls:
        try:
            call()
        except gr.InvalidArgument as error:
            said.append(str(error))
    gj.barrier(comm)
    return said


def test_what_makes_no_sense_is_refused_before_anything_is_sent(jax_job: StartJob) -> None:
    said, other = run(jax_job(2), refusals)
    assert said == other
    expected = [
        "leaf ['a'] has dtype uint32, which cannot be reduced", "leaf ['a'][0]: the operation",
        "leaf ['a'] is a str that makes no array", "op 'median'", "was donated or deleted",
        "jax.random.key_data",
        "root 2", "shape (3,); its first axis must be 2", "a multiple of 2", "a multiple of 2",
        "is a number", "timeout", "comm is a str", "shape (3,)",
        "dtype int4, several of which JAX packs", "leaf ['a'] has dtype float4_e2m1fn",
    ]  # fmt: skip
    assert len(said) == len(expected)
    assert [part for part, text in zip(expected, said, strict=True) if part not in text] == []


def on_several_devices(comm: Any) -> list[Any]:
    """Reduce an array that is spread over two devices of this process."""
    jax.config.update("jax_num_cpu_devices", 2)
    mesh = jax.make_mesh((2,), ("x",))
    spread = jax.NamedSharding(mesh, jax.P("x"))
    x = jax.device_put(jnp.arange(4.0), spread)
    result = gj.all_reduce(x, comm)
    assert result.sharding == spread
    one = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    alone = _over(one, comm)(jax.device_put(x, jax.devices()[0]))
    said = []
    for program, values in (
        (jax.jit(lambda x: gj.all_reduce(x, comm)), x),
        (_over(mesh, comm), x),
        (jax.pmap(lambda x: gj.all_reduce(x, comm)), np.ones((2, 3))),
    ):
        with pytest.raises((gr.InvalidArgument, ValueError)) as caught:
            program(values)
        said.append(str(caught.value))
    return [result.tolist(), gj.all_gather(x, comm).tolist(), alone.tolist(), said]


def _over(mesh: Any, comm: Any) -> Any:
    each = jax.P("x")
    return jax.shard_map(lambda x: gj.all_reduce(x, comm), mesh=mesh, in_specs=each, out_specs=each)


def test_arrays_on_several_devices_are_reduced_outside_of_programs_alone(jax_job: StartJob) -> None:
    for reduced, gathered, alone, said in run(jax_job(2), on_several_devices):
        assert reduced == alone == [0, 2, 4, 6]
        assert gathered == [[0, 1, 2, 3]] * 2
        assert ["runs on 2 devices" in each or "`pmap`" in each for each in said] == [True] * 3


def test_a_jax_without_what_it_needs_is_named() -> None:
    script = (
        "import sys; sys.modules['jax.experimental.buffer_callback'] = None\nimport gradring.jax"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"does not work with JAX {jax.__version__}, where something is missing" in done.stderr
    assert "install an older JAX or a newer gradring" in done.stderr


def test_without_jax_it_says_what_to_install() -> None:
    script = "import sys; sys.modules['jax'] = None\nimport gradring.jax"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "pip install 'gradring[jax]'" in done.stderr
