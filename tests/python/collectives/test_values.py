"""broadcast_value and all_gather_values: plain values, bit for bit, or an error on all ranks."""

from __future__ import annotations

import math
import re
import struct
import threading
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from gradring.collectives.values import travelling
from gradring.collectives.values.written import Reader
from rank_job import StartJob
from thread_ranks import TRANSPORTS, ThreadWorld

pytestmark = pytest.mark.timeout(60)

LONG = np.arange(100_000, dtype=np.float32)
(ODD_NAN,) = struct.unpack("<d", bytes.fromhex("2301000000f0ffff"))  # Negative, with a payload.

VALUES: dict[str, Any] = {
    "nothing": None,
    "empty ones": ["", b"", [], (), {}, np.empty((0, 3)), np.empty(0, "U1"), np.bytes_(b"")],
    "numbers": [True, 0, -1, 2**63, -(2**63), 2**64 + 1, -(2**20_000), 0.1, 5e-324, math.inf],
    "signs": [-0.0, math.nan, ODD_NAN, -math.inf],
    "texts": ["ü\0\n", "\ud800", b"\0\xff"],
    "dicts": {None: 1, True: 2, 3: [4], 2.5: {"": ()}, ("a", (1, -0.0)): OrderedDict(b=1, a=2)},
    "a counter": Counter("aab"),
    "arrays": [
        np.arange(6, dtype=">u2").reshape(2, 3), np.array(7), np.array([True]), np.eye(3).T[::2],
        np.array(["a", "ü"]), np.array([b"a"]), np.array([1 + 2j]), np.full(2, ODD_NAN),
        np.array(["2026-01-02"], "M8[D]"), np.ones((2, 3), order="F"), np.float16(0.5), np.bool_(1),
        np.uint64(2**64 - 1), np.str_("text"), np.datetime64("2026-01-02T03"),
        np.str_("ends\0\0"), np.bytes_(b"ends\0"),
    ],
    "a long text": "x" * 5000,
    "long memory": {"a": LONG, "b": [LONG[1:], b"\1" * 70_000, 3, np.int8(1)], "c": LONG[::2]},
    "a deep one": [[[[[[[[[[[[{"a": [[[[[LONG]]]]]}]]]]]]]]]]]],
}  # fmt: skip


def flat(value: Any) -> Any:
    """A value to compare: types, and bits."""
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value), value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return type(value), [(flat(key), flat(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [flat(each) for each in value]
    if isinstance(value, float):
        return struct.pack("<d", value)
    return type(value), hex(value) if isinstance(value, int) else value


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case", VALUES)
def test_a_value_arrives_with_its_types_and_bits(
    world: GetWorld, transport: str, case: str
) -> None:
    def share(comm: Any) -> tuple[Any, Any]:
        value = VALUES[case] if comm.rank == 1 else object()
        every = [comm.rank, VALUES[case]][comm.rank % 2]
        return comm.broadcast_value(value, 1), comm.all_gather_values(every)

    for one, every in world(3, transport).run(share):
        assert flat(one) == flat(VALUES[case])
        assert flat(every) == flat([0, VALUES[case], 2])


def test_values_of_all_ranks_differ_in_kind_and_length(world: GetWorld) -> None:
    mine = [None, "x" * 2000, {"a": LONG}, LONG[:0], [LONG[:9000], b"\2" * 66_000]]

    def share(comm: Any) -> Any:
        return comm.all_gather_values(mine[comm.rank])

    assert all(flat(each) == flat(mine) for each in world(5, "shm").run(share))


def test_what_arrives_can_be_written_and_shares_no_memory_with_what_was_sent(
    world: GetWorld,
) -> None:
    fixed = np.ones(3)
    fixed.flags.writeable = False

    def share(comm: Any) -> Any:
        found = comm.broadcast_value([fixed, LONG, fixed], 0)
        if comm.rank == 0:
            assert found[1] is LONG
            return None
        assert found[0].flags.owndata or found[0].base.flags.owndata
        found[0][:], found[1][:] = 2, 3
        assert found[2].tolist() == [2, 2, 2]  # There twice, one memory again.
        return None

    world(2, "shm").run(share)
    assert fixed.tolist() == [1, 1, 1]
    assert LONG[:3].tolist() == [0, 1, 2]


def test_a_short_value_takes_one_operation(world: GetWorld) -> None:
    def share(comm: Any) -> list[int]:
        began = [comm.activity()[1]]
        comm.broadcast_value({"step": 3, "rng": np.arange(9)}, 0)
        began.append(comm.activity()[1])
        comm.all_gather_values(comm.rank)
        began.append(comm.activity()[1])
        return np.diff(began).tolist()

    assert world(2, "shm").run(share) == [[1, 1]] * 2


class Metres(np.float64):
    pass


class Colour(IntEnum):
    RED = 1


Pair = namedtuple("Pair", "a b")

UNSENDABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "an object": (object, r"value is a builtins.object, which cannot be sent; what can are NumPy"),
    "a set deep inside": (lambda: [{"a": (1, {2})}], r"value\[0\]\['a'\]\[1\] is a builtins.set"),
    "an array of objects": (lambda: {"x": np.array([None])}, r"value\['x'\] is an array of object"),
    "a structured array": (lambda: np.zeros(1, "i4,i4"), "an array of"),
    "a derived scalar": (lambda: Metres(1), "test_values.Metres"),
    "another library's": (
        lambda: np.ones(2, pytest.importorskip("ml_dtypes").float8_e5m2),
        "an array of float8_e5m2",
    ),
    "a masked array": (lambda: np.ma.array([1.0], mask=[1]), "MaskedArray"),
    "itself": (lambda: [endless := [0], endless.append(endless)], "or contains itself"),
    "a key": (lambda: {frozenset(): 1}, r"value has the key frozenset\(\)"),
    "a class of numbers": (lambda: Colour.RED, "test_values.Colour"),
    "a named tuple": (lambda: Pair(1, 2), "test_values.Pair"),
    "a function": (lambda: len, "builtins.builtin_function_or_method"),
    "a long place": (lambda: {"x" * 3000: len}, r"value\['xxx"),
}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("case", UNSENDABLE)
def test_what_cannot_be_sent_is_an_error_on_all_ranks_at_once(
    world: GetWorld, case: str, size: int
) -> None:
    make, text = UNSENDABLE[case]
    ranks, value, bad = world(size, "tcp"), make(), size - 1

    def refused(call: Callable[[], Any]) -> str:
        with pytest.raises(gr.InvalidArgument, match=text) as raised:
            call()
        return str(raised.value)

    def share(comm: Any) -> list[str]:
        mine = value if comm.rank == bad else LONG
        return [
            refused(lambda: comm.broadcast_value(mine, bad)),
            refused(lambda: comm.all_gather_values(mine)),
        ]

    for rank, told in enumerate(ranks.run(share)):
        for call, each in zip(("broadcast_value", "all_gather_values"), told, strict=True):
            assert each.startswith(f"{call}: value" if rank == bad else f"{call}: rank {bad} (")
    assert ranks.is_usable


def test_a_tensor_is_refused_with_the_call_that_takes_it(world: GetWorld) -> None:
    torch = pytest.importorskip("torch")
    (comm,) = world(1, "shm").comms
    with pytest.raises(gr.InvalidArgument, match=r"tensors go with gradring\.torch\.broadcast_sta"):
        comm.broadcast_value({"x": torch.ones(3)})


@pytest.mark.parametrize("root", [-1, 2, "0", 0.0])
def test_a_root_that_is_none_is_refused(world: GetWorld, root: Any) -> None:
    for error in world(2, "shm").errors(lambda comm: comm.broadcast_value(1, root)):
        assert isinstance(error, gr.InvalidArgument)
        assert str(error).startswith("broadcast_value: root")


@pytest.mark.parametrize("size", [1, 2])
def test_a_timeout_that_is_none_is_refused(world: GetWorld, size: int) -> None:
    for call in (
        lambda comm: comm.broadcast_value(1, timeout=0),
        lambda comm: comm.all_gather_values(1, timeout=-1.0),
    ):
        for error in world(size, "shm").errors(call):
            assert isinstance(error, gr.InvalidArgument)


@pytest.mark.parametrize("size", [1, 2])
def test_a_communicator_that_is_closed_says_so(
    fresh_world: Callable[..., ThreadWorld], size: int
) -> None:
    def call(comm: Any) -> None:
        comm.close()
        for late in (
            lambda: comm.broadcast_value(1),
            lambda: comm.all_gather_values(1),
            lambda: comm.all_gather_rows(LONG),
            lambda: comm.all_to_all_rows(LONG[:size], [1] * size),
            comm.split_by_host,
        ):
            with pytest.raises(gr.Closed):
                late()

    fresh_world(size, "shm").run(call)


def test_groups_have_values_of_their_own(world: GetWorld) -> None:
    def share(comm: Any) -> Any:
        with comm.split(comm.rank % 2) as group:
            return group.all_gather_values(comm.rank), group.broadcast_value({"r": comm.rank}, 1)

    assert world(5, "shm").run(share) == [
        ([0, 2, 4], {"r": 2}), ([1, 3], {"r": 3}), ([0, 2, 4], {"r": 2}), ([1, 3], {"r": 3}),
        ([0, 2, 4], {"r": 2}),
    ]  # fmt: skip


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_rank_without_memory_for_what_comes_is_an_error_on_all_of_them(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    ranks, without, agreed = world(3, "shm"), set[int](), travelling.agreed

    def agreed_with_a_limit(comm: Any, call: str, doing: str, do: Any, timeout: Any) -> Any:
        stages[comm.rank] += 1

        def fail() -> Any:
            raise MemoryError("not enough memory")

        is_full = threading.get_ident() in without and stages[comm.rank] == stage
        return agreed(comm, call, doing, fail if is_full else do, timeout)

    monkeypatch.setattr(travelling, "agreed", agreed_with_a_limit)
    stages = [-1] * 3

    def share(comm: Any) -> str:
        if comm.rank == 1:
            without.add(threading.get_ident())
        with pytest.raises((MemoryError, gr.Mismatch)) as raised:
            comm.all_gather_values(LONG)
        return str(raised.value)

    first, second, third = ranks.run(share)
    assert second == "not enough memory"
    assert first == third
    assert first.startswith("all_gather_values: rank 1 (")
    doing = "take the values" if stage == 2 else "make room for the values"
    assert first.endswith(f"could not {doing}: MemoryError: not enough memory")
    assert ranks.is_usable


def test_ranks_that_call_different_things_are_a_mismatch(
    fresh_world: Callable[..., ThreadWorld],
) -> None:
    def call(comm: Any) -> None:
        if comm.rank == 0:
            comm.all_gather_values(3)
        else:
            comm.broadcast_value(3, 1)
        comm.barrier()

    errors = fresh_world(2, "shm").errors(call)
    assert any(isinstance(error, gr.Mismatch) for error in errors)
    assert all(isinstance(error, (gr.Mismatch, gr.Closed)) for error in errors)
    assert str(errors[0]).startswith("all_gather_values: ")


def test_calls_that_begin_alike_are_a_mismatch_on_all_ranks(world: GetWorld) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda comm: comm.all_gather_values(3),
        lambda comm: comm.all_gather_rows(LONG),
        lambda comm: comm.all_to_all_rows(LONG[:3], [1, 1, 1]),
    ]
    ranks = world(3, "shm")
    for error in ranks.errors(lambda comm: calls[comm.rank](comm)):
        assert isinstance(error, gr.Mismatch)
        text = r"\w+: rank 0 .* called all_gather_values, and rank 1 .* called all_gather_rows; all"
        assert re.match(text, str(error))
    assert ranks.is_usable


# No text, of one number too many, of a wrong key, and so on: what a broken rank may send.
@pytest.mark.parametrize(
    "node",
    ["[", '["bytes",3]', '["list"]', '["dict",[[["list",[]],1]]]', '["nan","z"]', '["int","z"]',
     "[]", '[["x"]]', '["array","O",[1],false,0]', '["array","f8",[2],false,0]', '["new",1]'],
)  # fmt: skip
def test_what_is_no_value_is_said_to_be_none(node: str) -> None:
    with pytest.raises(gr.ProtocolError, match="a value arrived"):
        Reader(f"[[8],{node}]").value()


def test_a_rank_that_does_not_come_is_named_when_the_deadline_passes(
    fresh_world: Callable[..., ThreadWorld],
) -> None:
    is_over = threading.Event()

    def share(comm: Any) -> None:
        if comm.rank == 1:
            assert is_over.wait(30)
            return
        try:
            comm.broadcast_value(LONG, 1, timeout=0.2)
        finally:
            is_over.set()

    error, _ = fresh_world(2, "tcp").errors(share)
    assert isinstance(error, gr.TimedOut)
    assert str(error).startswith("broadcast_value: broadcast #1 ")
    assert "rank 1" in str(error)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_dies_is_named_with_the_call(job: StartJob, transport: str) -> None:
    ranks = job(3, transport=transport)
    ranks.begin("big = np.ones(10_000_000)\nwhile True: comm.all_gather_values([comm.rank, big])")
    ranks.ranks[1].kill()
    for outcome in ranks.outcomes(ranks.others(1)):
        assert outcome.error == "PeerLost"
        assert outcome.lost == 1
        assert outcome.text.startswith("all_gather_values: ")
