"""Arguments of a wrong type are refused by name, on the rank that gave them, before all is sent."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld

SIZE = 3
Call = Callable[[Any, Any], Any]


def masked(x: Any) -> Any:
    return np.ma.masked_array(x, [True, *[False] * (len(x) - 1)])


class Several:
    # As a tensor of torch's with several elements.
    def __gt__(self, other: float) -> Any:
        return self

    def __bool__(self) -> bool:
        raise RuntimeError("a tensor of 2 elements is neither true nor false")

    def __float__(self) -> float:
        raise RuntimeError("a tensor of 2 elements is no number")


# Each with three float32.
WRONG: dict[str, tuple[str, Call]] = {
    "all_to_all, more to itself than from itself": (
        "send_counts",
        lambda comm, x: comm.all_to_all(
            x, send_counts=[1] * SIZE, recv_counts=[2 if r == comm.rank else 1 for r in range(SIZE)]
        ),
    ),
    "all_gather of more than there can be": (
        "counts add up to 18446744073709551617, which no array has",
        lambda comm, x: comm.all_gather(
            x, x.copy(), counts=[3 if r == comm.rank else (1 << 63) - 1 for r in range(SIZE)]
        ),
    ),
    "all_to_all, more than there can be": (
        "counts add up to 18446744073709551615, which no array has",
        lambda comm, x: comm.all_to_all(
            x,
            x.copy(),
            send_counts=[1] * SIZE,
            recv_counts=[1 if r == comm.rank else (1 << 63) - 1 for r in range(SIZE)],
        ),
    ),
    "all_reduce, maybe at once": (
        "async_op must be True or False, got 'no'",
        lambda comm, x: comm.all_reduce(x, async_op="no"),
    ),
    "barrier, at once or not": (
        "async_op must be True or False, got None",
        lambda comm, _: comm.barrier(async_op=None),
    ),
    "send, maybe at once": (
        "async_op must be True or False, got 2",
        lambda comm, x: comm.send(x, 0, async_op=2),
    ),
    "all_reduce of rows that are one": (
        "x has elements that share memory",
        lambda comm, x: comm.all_reduce(np.lib.stride_tricks.as_strided(x, (2, 3), (0, 4))),
    ),
    "all_reduce_many of None": ("xs is a NoneType", lambda comm, _: comm.all_reduce_many(None)),
    "a way of GPUs that is a list": ("path", lambda comm, _: comm.use_gpu(path=["nccl"])),
    "broadcast from None": ("root", lambda comm, x: comm.broadcast(x, None)),
    "broadcast from 0.0": ("root", lambda comm, x: comm.broadcast(x, 0.0)),
    "broadcast from far": ("root", lambda comm, x: comm.broadcast(x, 1 << 70)),
    "reduce to None": ("root", lambda comm, x: comm.reduce(x, None)),
    "gather to 0.0": ("root", lambda comm, x: comm.gather(x, 0.0)),
    "scatter from None": ("root", lambda comm, x: comm.scatter(x, None)),
    "split by a float": ("color", lambda comm, _: comm.split(1.0)),
    "split by a large color": ("color", lambda comm, _: comm.split(1 << 70)),
    "split by a large key": ("key", lambda comm, _: comm.split(0, 1 << 70)),
    "split below": ("color", lambda comm, _: comm.split(-1)),
    "send to None": ("dst", lambda comm, x: comm.send(x, None)),
    "send with half a tag": ("tag", lambda comm, x: comm.send(x, 0, 1.5)),
    "send with a large tag": ("tag", lambda comm, x: comm.send(x, 0, 1 << 31)),
    "recv from a float": ("src", lambda comm, x: comm.recv(x, 1.0)),
    "subgroup of floats": ("ranks", lambda comm, _: comm.subgroup([0.0], "floats")),
    "subgroup of one number": ("ranks", lambda comm, _: comm.subgroup(0, "number")),
    "describe a float": ("rank", lambda comm, _: comm.describe(0.0)),
    "op a list": ("op", lambda comm, x: comm.all_reduce(x, ["sum"])),
    "op a number": ("op", lambda comm, x: comm.all_reduce(x, 0)),
    "algorithm a list": ("algorithm", lambda comm, x: comm.all_reduce(x, algorithm=["ring"])),
    "compress a list": ("compress", lambda comm, x: comm.all_reduce_compressed(x, ["bf16"])),
    "timeout as text": ("timeout", lambda comm, x: comm.all_reduce(x, timeout="5")),
    "tensors as timeouts": (
        "timeout",
        lambda comm, x: comm.all_reduce(x, timeout=Several()),
    ),
    "timeout beyond all numbers": (
        "timeout",
        lambda comm, x: comm.all_reduce(x, timeout=10**400),
    ),
    "a ratio as text": ("ratio", lambda comm, x: comm.all_reduce_compressed(x, gr.TopK("a"))),
    "parts that no host holds": (
        "no array has shape",
        lambda comm, x: comm.all_gather(x, counts=[3, 1 << 62, 0]),
    ),
    "empty of a long axis beside none": ("shape", lambda comm, _: comm.empty((0, 1 << 62))),
    "empty of many axes": ("shape", lambda comm, _: comm.empty((1,) * 99)),
    "timeouts": ("timeout", lambda comm, x: comm.all_reduce(x, timeout=np.ones(2))),
    "counts one number": ("counts", lambda comm, x: comm.reduce_scatter(x, counts=3)),
    "counts floats": ("counts", lambda comm, x: comm.reduce_scatter(x, counts=[1.9] * SIZE)),
    "counts as text": ("counts", lambda comm, x: comm.all_gather(x, counts="333")),
    "shard of a float": ("count", lambda comm, _: gr.shard(10.0, comm)),
    "empty of half a shape": ("shape", lambda comm, _: comm.empty((2.5,))),
    "empty of None": ("shape", lambda comm, _: comm.empty(None)),
    "empty of objects": ("objects", lambda comm, _: comm.empty(3, object)),
    "empty of nothing known": ("float99", lambda comm, _: comm.empty(3, "float99")),
    "all_reduce of what is masked": ("masked array", lambda comm, x: comm.all_reduce(masked(x))),
    "all_reduce to what is masked": (
        "out is a masked array",
        lambda comm, x: comm.all_reduce(x, out=masked(x)),
    ),
    "broadcast of what is masked": ("masked array", lambda comm, x: comm.broadcast(masked(x))),
    "all_gather of what is masked": (
        "masked array",
        lambda comm, x: comm.all_gather(masked(x), np.empty(3 * SIZE, np.float32)),
    ),
    "reduce_scatter of what is masked": (
        "masked array",
        lambda comm, x: comm.reduce_scatter(masked(x), np.empty(1, np.float32)),
    ),
    "many of which one is masked": (
        r"xs\[1\] is a masked array",
        lambda comm, x: comm.all_reduce_many([x, masked(x)]),
    ),
    "send what is masked": ("masked array", lambda comm, x: comm.send(masked(x), 1)),
    "no op of no arrays": ("op", lambda comm, _: comm.all_reduce_many([], "foo")),
}


@pytest.mark.parametrize(("name", "call"), WRONG.values(), ids=WRONG)
def test_it_is_named_and_the_other_ranks_do_not_notice(
    world: GetWorld, name: str, call: Call
) -> None:
    def refuse(comm: Any) -> float:
        if comm.rank == 0:
            with pytest.raises(gr.InvalidArgument, match=name):
                call(comm, np.ones(3, np.float32))
        return float(comm.all_reduce(np.ones(1))[0])

    assert world(SIZE, "shm").run(refuse) == [SIZE] * SIZE


@pytest.mark.parametrize(
    ("op", "odd"), [("bxor", np.ones(4, np.float32)), ("avg", np.ones(4, bool))]
)
def test_many_of_which_one_has_no_such_op_are_left_alone(
    world: GetWorld, op: str, odd: Any
) -> None:
    def refuse(comm: Any) -> list[Any]:
        xs = [np.full(4, comm.rank + 1, np.int32), np.full(2, comm.rank + 1, np.int32), odd.copy()]
        with pytest.raises(gr.InvalidArgument, match=rf"{op} is not defined for xs\[2\]"):
            comm.all_reduce_many(xs, op)
        return [xs[0].tolist(), xs[1].tolist(), float(comm.all_reduce(np.ones(1))[0])]

    found = world(SIZE, "shm").run(refuse)
    assert found == [[[rank + 1] * 4, [rank + 1] * 2, SIZE] for rank in range(SIZE)]


def test_a_timeout_may_be_any_one_number(world: GetWorld) -> None:
    torch = pytest.importorskip("torch")

    def use(comm: Any) -> float:
        for timeout in (torch.tensor(20.0), np.float32(20), Fraction(41, 2), Decimal("20.5")):
            comm.all_reduce(np.ones(1), async_op=True).wait(timeout)
        return float(comm.all_reduce(np.ones(1))[0])

    assert world(SIZE, "shm").run(use) == [SIZE] * SIZE


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_of_numpys_is_an_array_as_others(world: GetWorld) -> None:
    def use(comm: Any) -> list[Any]:
        matrix, beside = np.matrix(np.ones((2, 2))), np.ones(3)
        comm.all_reduce_many([matrix, beside])
        comm.all_reduce(matrix[:, 0])
        return [matrix.tolist(), beside.tolist()]

    expected = [[[SIZE**2, SIZE]] * 2, [SIZE] * 3]
    assert world(SIZE, "shm").run(use) == [expected] * SIZE


def test_whole_numbers_of_numpy_are_as_good_as_pythons(world: GetWorld) -> None:
    def use(comm: Any) -> list[Any]:
        one = np.int64(1)
        x = np.full(SIZE, comm.rank, np.float32)
        counts = np.full(SIZE, 1)
        return [
            comm.broadcast(x.copy(), one)[0],
            comm.reduce_scatter(x, counts=counts)[0],
            comm.split(one, np.uint8(5)).world_size,
            comm.empty(np.int64(5)).shape,
            comm.empty([one, 2], "float64").shape,
            comm.empty(3, "V0").shape,
            gr.shard(np.uint8(3), comm).size,
        ]

    expected = [1.0, 3.0, SIZE, (5,), (1, 2), (3,), 1]
    assert world(SIZE, "shm").run(use) == [expected] * SIZE


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "reduce"])
@pytest.mark.parametrize(
    ("dtype", "deterministic"), [("float16", None), ("float16", "rank_order"), (None, "rank_order")]
)
def test_algorithms_that_pass_partial_sums_on_are_refused_where_these_may_not_be(
    world: GetWorld, operation: str, dtype: str | None, deterministic: str | None
) -> None:
    def refuse(comm: Any) -> float:
        for algorithm in ("ring", "doubling", "halving"):
            with pytest.raises(gr.InvalidArgument):
                getattr(comm, operation)(
                    np.ones(3, dtype), algorithm=algorithm, deterministic=deterministic
                )
        return float(comm.all_reduce(np.ones(1))[0])

    assert world(SIZE, "shm").run(refuse) == [SIZE] * SIZE
