"""all_gather_rows and all_to_all_rows: ranks have different numbers of rows, and learn them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from rank_job import StartJob
from thread_ranks import TRANSPORTS, ThreadWorld

pytestmark = pytest.mark.timeout(60)

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "different numbers": [(3, 2), (1, 2), (4, 2)],
    "one axis": [(3,), (1,), (70_000,)],
    "none on some": [(0, 2, 3), (5, 2, 3), (0, 2, 3)],
    "none on all": [(0, 4), (0, 4), (0, 4)],
    "nothing in a row": [(2, 0), (3, 0), (0, 0)],
    "equal numbers": [(2, 2), (2, 2), (2, 2)],
}
DTYPES = ["float32", "float64", "int64", "uint8", "bool", "float16"]


def rows(rank: int, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return (np.arange(np.prod(shape)).reshape(shape) % 97 * 3 + rank).astype(dtype)


def dealt(rank: int, shape: tuple[int, ...]) -> list[int]:
    """How a rank splits its rows: unevenly, some get none."""
    first = shape[0] // 2 * (rank % 2)
    return [first, 0, shape[0] - first]


def taken(whole: list[Any], rank: int) -> tuple[Any, list[int]]:
    """What that has to come to."""
    splits = [dealt(sender, x.shape) for sender, x in enumerate(whole)]
    parts = [np.split(x, np.cumsum(s)[:-1])[rank] for x, s in zip(whole, splits, strict=True)]
    return np.concatenate(parts), [each[rank] for each in splits]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case", SHAPES)
def test_rows_of_all_ranks_come_in_rank_order(world: GetWorld, transport: str, case: str) -> None:
    whole = [rows(rank, shape) for rank, shape in enumerate(SHAPES[case])]

    def gather(comm: Any) -> tuple[Any, Any, list[int]]:
        mine = whole[comm.rank]
        return comm.all_gather_rows(mine), *comm.all_to_all_rows(mine, dealt(comm.rank, mine.shape))

    for rank, (gathered, came, splits) in enumerate(world(3, transport).run(gather)):
        expected, expected_splits = taken(whole, rank)
        assert gathered.dtype == came.dtype == np.float32
        assert np.array_equal(gathered, np.concatenate(whole))
        assert np.array_equal(came, expected)
        assert splits == expected_splits


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_keep_their_dtype_and_the_library(world: GetWorld, dtype: str) -> None:
    torch = pytest.importorskip("torch")

    def gather(comm: Any) -> Any:
        mine = torch.from_numpy(rows(comm.rank, (comm.rank + 1, 4), dtype))
        splits = torch.tensor([comm.rank, 1])
        return comm.all_gather_rows(mine), comm.all_to_all_rows(mine, splits)[0]

    every = [rows(rank, (rank + 1, 4), dtype) for rank in range(2)]
    expected = [every[1][:1], np.concatenate([every[0], every[1][1:]])]
    for rank, (gathered, came) in enumerate(world(2, "shm").run(gather)):
        assert isinstance(gathered, torch.Tensor)
        assert str(gathered.dtype) == str(came.dtype) == f"torch.{dtype}"
        assert np.array_equal(gathered.numpy(), np.concatenate(every))
        assert np.array_equal(came.numpy(), expected[rank])


def test_rows_may_be_strided_and_of_bfloat16(world: GetWorld) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(24.0).bfloat16().reshape(4, 6)

    def gather(comm: Any) -> list[Any]:
        mine = whole.t()[:: comm.rank + 1]
        return [
            comm.all_gather_rows(mine),
            comm.all_gather_rows(np.arange(12).reshape(3, 4).T[::2])[:, 1],
            comm.all_to_all_rows(mine, [len(mine), 0])[0],
        ]

    expected = torch.cat([whole.t(), whole.t()[::2]])
    for rank, (gathered, column, came) in enumerate(world(2, "shm").run(gather)):
        assert torch.equal(gathered, expected)
        assert column.tolist() == [4, 6, 4, 6]
        assert torch.equal(came, expected if rank == 0 else expected[:0])


def test_received_splits_are_those_of_the_way_back(world: GetWorld) -> None:
    def there_and_back(comm: Any) -> bool:
        mine = rows(comm.rank, (7, 3), "int64")
        came, splits = comm.all_to_all_rows(mine, dealt(comm.rank, mine.shape))
        back, own = comm.all_to_all_rows(came, splits)
        return np.array_equal(back, mine) and own == dealt(comm.rank, mine.shape)

    assert world(3, "shm").run(there_and_back) == [True] * 3


@pytest.mark.parametrize(
    ("shapes", "dtypes", "text"),
    [
        ([(2, 3), (2, 3), (2, 4)], "fff", r"float32\[2, 3\], and rank 2 .* has float32\[2, 4\]"),
        ([(2, 3), (2,), (2, 3)], "fff", r"rank 0 .* has float32\[2, 3\], and rank 1 .*32\[2\]"),
        ([(2, 3), (2, 3), (0, 3)], "ffd", r"and rank 2 .* has float64\[0, 3\]; only the first"),
    ],
)
def test_rows_that_differ_are_a_mismatch_that_names_ranks_and_shapes(
    world: GetWorld, shapes: list[tuple[int, ...]], dtypes: str, text: str
) -> None:
    ranks = world(3, "shm")

    def gather(comm: Any) -> None:
        mine = np.zeros(shapes[comm.rank], dtypes[comm.rank])
        with pytest.raises(gr.Mismatch, match=text):
            comm.all_gather_rows(mine)
        with pytest.raises(gr.Mismatch, match=text):
            comm.all_to_all_rows(mine, [len(mine), 0, 0])

    ranks.run(gather)
    assert ranks.is_usable


# The call, what one rank gives it, and what it is told.
BAD: dict[str, tuple[str, Any, str]] = {
    "no axes": ("all_gather_rows", [np.float32(1)], "x has no axes; the first one is"),
    "no array": ("all_gather_rows", [[1.0]], "x is a list; pass an array"),
    "a dtype": ("all_gather_rows", [np.ones(3, "c8")], "x has dtype complex64"),
    "splits of too few": ("all_to_all_rows", [np.ones(3), [1, 1]], "add up to 2, x has 3 rows"),
    "one split": ("all_to_all_rows", [np.ones(3), [3]], r"2 non-negative numbers, got \[3\]"),
    "a negative split": ("all_to_all_rows", [np.ones(3), [4, -1]], r"got \[4, -1\]"),
    "a float": ("all_to_all_rows", [np.ones(3), [1.0, 2]], r"splits\[0\] is 1\.0, not a whole"),
    "no splits": ("all_to_all_rows", [np.ones(3), None], "None is not a list of whole"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_one_rank_cannot_give_is_an_error_on_all_before_rows_are_sent(
    world: GetWorld, case: str
) -> None:
    name, bad, text = BAD[case]
    good = [np.ones(3), [1, 2]][: len(bad)]
    ranks = world(2, "tcp")

    def call(comm: Any) -> str:
        given = bad if comm.rank == 1 else good
        with pytest.raises(gr.InvalidArgument, match=text) as raised:
            getattr(comm, name)(*given)
        return str(raised.value)

    first, second = ranks.run(call)
    assert first.startswith(f"{name}: rank 1 (")
    assert second.startswith(f"{name}: ")
    assert ranks.is_usable


def test_alone_rows_are_copied(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    mine = rows(0, (3, 2))
    gathered, (came, splits) = comm.all_gather_rows(mine), comm.all_to_all_rows(mine, [3])
    for each in (gathered, came):
        assert np.array_equal(each, mine)
        assert not np.shares_memory(each, mine)
    assert splits == [3]
    with pytest.raises(gr.InvalidArgument, match="all_to_all_rows: splits add up to 2"):
        comm.all_to_all_rows(mine, [2])


def test_groups_have_rows_of_their_own(world: GetWorld) -> None:
    def gather(comm: Any) -> Any:
        with comm.split(comm.rank % 2) as group:
            return group.all_gather_rows(np.full(comm.rank, comm.rank)).tolist()

    assert world(4, "shm").run(gather) == [[2, 2], [1, 3, 3, 3], [2, 2], [1, 3, 3, 3]]


def test_a_rank_that_left_is_named_with_the_call_of_its_host(
    fresh_world: Callable[..., ThreadWorld],
) -> None:
    def split(comm: Any) -> None:
        if comm.rank == 1:
            comm.close()
        else:
            comm.split_by_host()

    error, _ = fresh_world(2, "tcp").errors(split)
    assert isinstance(error, gr.PeerLost)
    assert str(error).startswith("split_by_host: ")


def test_a_rank_that_dies_is_named_with_the_call(job: StartJob) -> None:
    ranks = job(3, transport="shm")
    ranks.begin("x = np.ones((comm.rank + 1, 1_000_000))\nwhile True: comm.all_gather_rows(x)")
    ranks.ranks[1].kill()
    for outcome in ranks.outcomes(ranks.others(1)):
        assert (outcome.error, outcome.lost) == ("PeerLost", 1)
        assert outcome.text.startswith("all_gather_rows: ")
