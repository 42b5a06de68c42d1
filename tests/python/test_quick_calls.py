"""Plain calls go from the interpreter into the core; everything special is the method's."""

from __future__ import annotations

import ctypes
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
        assert asked == []
        special = ({"op": "max"}, {"out": out, "timeout": 1.0}, {"out": out, "what": 0})
        for named in special:
            quick(x, **named)
        assert asked == list(special)

    world(SIZE, transport).run(scatter)


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
