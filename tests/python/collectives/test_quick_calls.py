"""Plain calls go from the interpreter into the core; everything special is the method's."""

from __future__ import annotations

import ctypes
import inspect
import warnings
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from gradring import _core
from thread_ranks import TRANSPORTS

SIZE = 3
SUM_OF_RANKS = 3  # 0 + 1 + 2

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


def test_arguments_by_name_need_no_python_unless_they_say_something_special(
    world: GetWorld, transport: str
) -> None:
    def scatter(comm: Any) -> None:
        asked: list[dict[str, Any]] = []
        quick = _core.quick(comm._core, "reduce_scatter", lambda _x, **named: asked.append(named))
        x, out = np.arange(float(SIZE)), np.empty(1)
        for call in (
            lambda: quick(x, out, op="max"),
            lambda: quick(x, op="max", out=out),
        ):
            out[:] = 99.0
            assert call() is out
            assert out == comm.rank
        assert quick(x, op="max").tolist() == [comm.rank]
        assert asked == []
        special = ({"op": "none"}, {"out": out, "timeout": 0}, {"out": out, "what": 0})
        for named in special:
            quick(x, **named)
        assert asked == list(special)

    world(SIZE, transport).run(scatter)


def test_timeouts_need_no_python_and_are_those_of_the_method(
    fresh_world: Any, transport: str
) -> None:
    def reduce(comm: Any) -> None:
        asked: list[Any] = []
        all_reduce, barrier = (
            _core.quick(comm._core, name, lambda *_, timeout: asked.append(timeout))
            for name in ("all_reduce", "barrier")
        )
        x = np.full(3, comm.rank)
        for timeout in (20, 20.5, 1e9, None):
            assert all_reduce(x, timeout=timeout) is x
            x[:] = comm.rank
            barrier(timeout=timeout)
        assert asked == []
        # Nothing of these is sent: the method words what is wrong with them.
        wrong = [0, -1, 0.0, float("nan"), float("inf"), 1e9 + 1, 10**400, "1", True, np.float64(1)]
        for timeout in wrong:
            all_reduce(x, timeout=timeout)
        assert [str(each) for each in asked] == [str(each) for each in wrong]
        if comm.rank == 0:
            with pytest.raises(gr.TimedOut, match=r"within its timeout of 0\.05 s"):
                comm.barrier(timeout=0.05)

    fresh_world(SIZE, transport).run(reduce)


def test_an_all_reduce_into_another_array_needs_no_python(world: GetWorld, transport: str) -> None:
    def reduce(comm: Any) -> None:
        asked: list[tuple[Any, ...]] = []
        quick = _core.quick(
            comm._core, "all_reduce", lambda *given, **named: asked.append((*given[1:], named))
        )
        x, out = np.full(3, comm.rank), np.empty(3, int)
        for call, expected in (
            (lambda: quick(x, out=out), SUM_OF_RANKS),
            (lambda: quick(x, "max", out=out), SIZE - 1),
            (lambda: quick(x, out=out, op="min"), 0),
        ):
            out[:] = 99
            assert call() is out
            assert (out == expected).all()
            assert (x == comm.rank).all()
        assert quick(x, out=None) is x
        assert (x == SUM_OF_RANKS).all()
        assert asked == []
        # Nothing of these is sent: the method words what is wrong with them.
        wrong = np.empty(4, int), np.empty(3)
        for other in wrong:
            quick(x, out=other)
            with pytest.raises(gr.InvalidArgument):
                comm.all_reduce(x, out=other)
        quick(x, "sum", out)
        quick(x, "sum", op="max")
        quick()
        assert [len(each) for each in asked] == [1, 1, 3, 2, 1]

    world(SIZE, transport).run(reduce)


DTYPES: list[Any] = [np.float32, np.float64, np.int64, np.uint8, np.float16]


def test_results_that_nobody_gave_memory_for_need_no_python_either(
    world: GetWorld, transport: str
) -> None:
    def run(comm: Any) -> None:
        asked: list[Any] = []
        gather, scatter = (
            _core.quick(comm._core, name, lambda x, *_, **__: asked.append(x))
            for name in ("all_gather", "reduce_scatter")
        )
        for dtype in DTYPES:
            for shape in ((), (2,), (2, 3), (0,), (2, 0)):
                x = np.full(shape, comm.rank, dtype)
                got = gather(x)
                assert (got.dtype, got.shape) == (x.dtype, (SIZE, *shape))
                for rank in range(SIZE):
                    assert (got[rank] == rank).all()
                part = scatter(x)
                begin, end = (rank * x.size // SIZE for rank in (comm.rank, comm.rank + 1))
                assert (part.dtype, part.shape) == (x.dtype, (end - begin,))
                assert (part == SUM_OF_RANKS).all()
            assert (scatter(np.ones(SIZE, dtype), None, "max") == 1).all()
        assert asked == []
        # The method makes what is special: of a class's own kind, or of no library at all.
        special = [np.ones(2).view(np.matrix), bytearray(8), np.ones(2, ">f4"), np.ones(4)[::2]]
        for odd in special:
            gather(odd)
        assert all(x is odd for x, odd in zip(asked, special, strict=True))

    world(SIZE, transport).run(run)


@pytest.mark.parametrize("root", range(SIZE))
def test_calls_with_a_root_and_exchanges_need_no_python(
    world: GetWorld, transport: str, root: int
) -> None:
    def run(comm: Any) -> None:
        asked: list[Any] = []
        names = ("reduce", "gather", "scatter", "all_to_all")
        reduce, gather, scatter, all_to_all = (
            _core.quick(comm._core, name, lambda x, *_, **__: asked.append(x)) for name in names
        )
        is_root = comm.rank == root
        x = np.arange(6.0).reshape(2, 3) + comm.rank
        sums = SIZE * np.arange(6.0).reshape(2, 3) + SUM_OF_RANKS

        out = np.empty_like(x)
        assert reduce(x, root, out=out) is (out if is_root else x)
        assert not is_root or (out == sums).all()
        in_place = x.copy()
        assert reduce(in_place, op="max", root=root) is in_place
        assert (in_place == (x - comm.rank + SIZE - 1 if is_root else x)).all()

        parts = gather(x, root)
        assert (parts is not None) == is_root
        into = np.empty((SIZE, 2, 3))
        assert gather(x, root=root, out=into) is (into if is_root else None)
        for given in (parts, into) if is_root else ():
            assert given.shape == (SIZE, 2, 3)
            assert (given == np.arange(6.0).reshape(2, 3) + np.arange(SIZE)[:, None, None]).all()

        rows = np.arange(SIZE * 4.0).reshape(SIZE, 4)
        row = np.empty(4)
        assert scatter(rows if is_root else None, root, out=row) is row
        assert (row == rows[comm.rank]).all()

        sent = np.arange(SIZE, dtype=np.int32) + 10 * comm.rank
        got, taken = all_to_all(sent), np.empty_like(sent)
        assert all_to_all(sent, out=taken) is taken
        for each in (got, taken):
            assert each.tolist() == [10 * rank + comm.rank for rank in range(SIZE)]
        assert asked == []

    world(SIZE, transport).run(run)


def test_what_is_wrong_with_an_exchange_is_the_method_s_to_say(
    world: GetWorld, transport: str
) -> None:
    def run(comm: Any) -> None:
        x, read_only = np.zeros(SIZE), np.zeros(SIZE)
        read_only.flags.writeable = False
        for wrong in (
            lambda: comm.reduce(x, SIZE),
            lambda: comm.reduce(x, -1),
            lambda: comm.reduce(x, 1.0),
            lambda: comm.reduce(x, comm.rank, "most"),
            lambda: comm.reduce(x, comm.rank, out=np.empty(SIZE + 1)),
            lambda: comm.reduce(read_only, comm.rank),
            lambda: comm.gather(x, 1 << 40),
            lambda: comm.gather(x, comm.rank, out=np.empty(SIZE)),
            lambda: comm.scatter(x, comm.rank, out=np.empty(2)),
            lambda: comm.scatter(None, comm.rank, out=np.empty(1)),
            lambda: comm.scatter(np.zeros(SIZE + 1)),
            lambda: comm.all_to_all(np.zeros(SIZE + 1)),
            lambda: comm.all_to_all(x, x),
            lambda: comm.all_to_all(x, np.empty(SIZE, np.float32)),
        ):
            with pytest.raises(gr.InvalidArgument):
                wrong()
        assert comm.all_reduce(np.ones(1))[0] == SIZE  # Nothing of all that was sent.

    world(SIZE, transport).run(run)


def test_messages_need_no_python_unless_they_say_something_special(
    world: GetWorld, transport: str
) -> None:
    def run(comm: Any) -> None:
        asked: list[Any] = []
        send, recv = (
            _core.quick(comm._core, name, lambda *given, **_: asked.append(given[1:]))
            for name in ("send", "recv")
        )
        x, into = np.arange(4.0) + comm.rank, np.empty(4)
        after, before = (comm.rank + 1) % SIZE, (comm.rank - 1) % SIZE
        for tag in ({}, {"tag": 5}):
            if comm.rank == 0:
                assert send(x, after, **tag) is None
                assert recv(into, src=before, **tag) is into
            else:
                assert recv(into, before, **tag) is into
                assert send(x, dst=after, **tag) is None
            assert (into == np.arange(4.0) + before).all()
        assert asked == []
        for odd in ((None,), (SIZE,), (-1,), (1 << 40,), (0.0,), (after, 1 << 31), (after, None)):
            recv(into, *odd)
        assert len(asked) == 7
        into.flags.writeable = False
        for wrong in (
            lambda: comm.recv(into, before),
            lambda: comm.recv(x, -1),
            lambda: comm.send(x, SIZE),
            lambda: comm.send(x, None),
            lambda: comm.send(x, after, 1 << 31),
        ):
            with pytest.raises(gr.InvalidArgument):
                wrong()

    world(SIZE, transport).run(run)


def test_a_tensor_s_results_are_tensors(world: GetWorld, transport: str) -> None:
    torch = pytest.importorskip("torch")

    def run(comm: Any) -> None:
        comm.barrier()
        comm.all_reduce(torch.ones(1))  # From here on tensors are known.
        asked: list[Any] = []
        gather = _core.quick(comm._core, "all_gather", lambda x, *_, **__: asked.append(x))
        for dtype in (torch.float32, torch.bfloat16):
            weights = torch.nn.Parameter(torch.full((2, 3), float(comm.rank), dtype=dtype))
            got = gather(weights)
            assert type(got) is torch.Tensor
            assert (got.dtype, tuple(got.shape), got.requires_grad) == (dtype, (SIZE, 2, 3), False)
            assert got[:, 0, 0].tolist() == [0.0, 1.0, 2.0]
        assert asked == []

    world(SIZE, transport).run(run)


@pytest.mark.parametrize("size", [1, SIZE])
def test_nothing_is_sent_of_nothing_and_to_nobody(
    world: GetWorld, transport: str, size: int
) -> None:
    def run(comm: Any) -> None:
        empty, into = np.empty(0), np.empty(0)
        for result in (
            comm.all_reduce(empty, out=into), comm.all_gather(empty, into),
            comm.reduce_scatter(empty, into),
        ):  # fmt: skip
            assert result is into
        assert comm.broadcast(empty) is empty
        assert comm.all_reduce(empty) is empty
        x, out = np.arange(3.0), np.empty(3)
        assert comm.all_reduce(x, out=out) is out
        assert (x.tolist(), out.tolist()) == ([0.0, 1.0, 2.0], [0.0, size, 2.0 * size])

    world(size, transport).run(run)


class Packed(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("one", ctypes.c_uint8), ("other", ctypes.c_uint32))


class Nothing(ctypes.Structure):
    _fields_ = ()


@pytest.mark.filterwarnings("ignore:A builtin ctypes object:RuntimeWarning")  # NumPy's, rightly.
def test_items_that_only_call_themselves_bytes_are_refused(world: GetWorld, transport: str) -> None:
    def reduce(comm: Any) -> None:
        for items in (np.empty(3, "V0"), np.empty(3, []), (Packed * 8)(), (Nothing * 2)()):
            for call in (comm.all_reduce, comm.broadcast, comm.all_gather):
                with pytest.raises(gr.InvalidArgument):
                    call(items)
            with pytest.raises(gr.InvalidArgument):
                comm.all_reduce(np.ones(8, np.uint8), out=items)

    world(SIZE, transport).run(reduce)


def test_plain_tensors_need_no_python_and_all_others_are_looked_at(
    world: GetWorld, transport: str
) -> None:
    torch = pytest.importorskip("torch")

    class Special(torch.Tensor):  # type: ignore[misc, name-defined]
        pass

    def reduce(comm: Any) -> None:
        comm.all_reduce(torch.zeros(1))  # From now on it is known what a tensor is.
        asked: list[Any] = []
        quick = _core.quick(comm._core, "all_reduce", lambda x, **_named: asked.append(x))
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            x, out = torch.ones(2, 3, dtype=dtype), torch.zeros(6, dtype=dtype)
            assert quick(x, out=out) is out
            assert out.tolist() == [dtype == torch.bool or SIZE] * 6
            assert quick(x, op="min") is x
        parameter = torch.nn.Parameter(torch.ones(3))
        assert quick(parameter).tolist() == [SIZE] * 3
        into = np.zeros(3, np.float32)
        assert quick(torch.ones(3), out=into) is into
        assert into.tolist() == [SIZE] * 3
        assert asked == []
        others = [
            torch.ones(4, 4).t(),
            torch.ones(3).expand(3, 3)[:, :2],
            torch.empty(0),
            torch.ones(3, device="meta"),
            torch.ones(3, dtype=torch.complex64),
            torch.ones(3).to_sparse(),
            torch.zeros(3, dtype=torch.complex64).conj().imag,
            torch.ones(3).as_subclass(Special),
        ]
        others[0] = others[0][:, 1:]
        for other in others:
            quick(other)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # They are "in prototype stage".
            others.append(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
        quick(others[-1])
        assert len(asked) == len(others)
        assert all(one is other for one, other in zip(asked, others, strict=True))

    world(SIZE, transport).run(reduce)


def test_help_of_a_communicators_methods_is_that_of_its_class(
    world: GetWorld, transport: str
) -> None:
    def look(comm: gr.Communicator) -> None:
        for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "barrier"):
            method, of_class = getattr(comm, name), getattr(gr.Communicator, name)
            assert inspect.getdoc(method) == inspect.getdoc(of_class)
            expected = list(inspect.signature(of_class).parameters.values())[1:]
            found = list(inspect.signature(method).parameters.values())
            assert [(p.name, p.kind, p.default) for p in found] == [
                (p.name, p.kind, p.default) for p in expected
            ]

    world(2, transport).run(look)
