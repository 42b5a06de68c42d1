"""Any array goes in: strided, transposed, 0-d, torch, DLPack and bare buffers, in place or not."""

from __future__ import annotations

import array
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from exporters import OnDevice, OnlyDlpack
from thread_ranks import TRANSPORTS

SIZE = 3
SUM_OF_RANKS = 3  # 0 + 1 + 2

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


def test_out_gets_the_result_and_x_is_left_alone(world: GetWorld, transport: str) -> None:
    def reduce(comm: Any) -> None:
        x = np.full((4, 5), float(comm.rank))
        out = np.full((4, 5), 99.0)
        assert comm.all_reduce(x, out=out) is out
        assert (x == comm.rank).all()
        assert (out == SUM_OF_RANKS).all()

    world(SIZE, transport).run(reduce)


def test_a_users_own_class_of_tensors_is_a_tensor(world: GetWorld, transport: str) -> None:
    torch = pytest.importorskip("torch")
    kinds = [type("Mine", (base,), {}) for base in (torch.Tensor, torch.nn.Parameter)]

    def reduce(comm: Any) -> None:
        for kind in kinds:
            for dtype in (torch.float32, torch.bfloat16):
                x = torch.ones(3, dtype=dtype).as_subclass(kind)
                assert comm.all_reduce(x) is x
                assert (x == SIZE).all()
                assert isinstance(comm.all_gather(x), torch.Tensor)

    world(SIZE, transport).run(reduce)


def test_strided_and_transposed_arrays_are_reduced_in_place_and_nothing_beside_them(
    world: GetWorld, transport: str
) -> None:
    def reduce(comm: Any) -> None:
        ramp = np.arange(60.0).reshape(6, 10)
        for pick in (np.s_[::2, 1::3], np.s_[::-1, ::-1], np.s_[:, 4], np.s_[1:1, :]):
            base = ramp + comm.rank
            x = base[pick]
            assert comm.all_reduce(x) is x
            expected = ramp + comm.rank
            expected[pick] = 3 * ramp[pick] + SUM_OF_RANKS
            assert (base == expected).all(), pick
        x = np.asfortranarray(ramp + comm.rank)
        comm.all_reduce(x)
        assert (x == 3 * ramp + SUM_OF_RANKS).all()
        assert x.flags.f_contiguous

    world(SIZE, transport).run(reduce)


def test_strided_output_is_written_and_nothing_beside_it(world: GetWorld, transport: str) -> None:
    def reduce(comm: Any) -> None:
        base = np.zeros((4, 6))
        comm.all_reduce(np.full((4, 3), comm.rank + 1.0), out=base[:, ::2])
        assert base.tolist() == [[6.0, 0.0] * 3] * 4
        rows = np.zeros((2 * SIZE, 2))
        comm.all_gather(np.full(2, comm.rank + 1.0), rows[::2])
        assert rows[::2].tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
        assert not rows[1::2].any()

    world(SIZE, transport).run(reduce)


def test_a_0d_array_is_an_array_of_one_element(world: GetWorld, transport: str) -> None:
    def reduce(comm: Any) -> None:
        x = np.array(comm.rank + 0.5, np.float32)
        assert comm.all_reduce(x) is x
        assert x == 4.5
        assert x.shape == ()
        assert comm.all_gather(np.array(comm.rank)).tolist() == [0, 1, 2]

    world(SIZE, transport).run(reduce)


def test_x_may_be_its_own_part_of_out(world: GetWorld, transport: str) -> None:
    def gather(comm: Any) -> None:
        for count in (5, 100_000):
            every = np.full((SIZE, count), -1)
            every[comm.rank] = comm.rank
            comm.all_gather(every[comm.rank], every)
            assert (every == np.arange(SIZE)[:, None]).all()
            x = np.full(SIZE * count, comm.rank)
            part = x[comm.rank * count : (comm.rank + 1) * count]
            assert comm.reduce_scatter(x, part) is part
            assert (part == SUM_OF_RANKS).all()

    world(SIZE, transport).run(gather)


@pytest.mark.parametrize("make", [bytearray, lambda raw: memoryview(bytearray(raw))])
def test_bare_buffers_are_bytes(world: GetWorld, transport: str, make: Any) -> None:
    def reduce(comm: Any) -> None:
        x = make(bytes([comm.rank, 100 + comm.rank, 255]))
        assert comm.all_reduce(x) is x
        assert bytes(x) == bytes([3, (303) % 256, (3 * 255) % 256])

    world(SIZE, transport).run(reduce)


@pytest.mark.parametrize("code", ["d", "f", "b", "B", "h", "i", "l", "q"])
def test_arrays_of_the_array_module_keep_their_type(
    world: GetWorld, transport: str, code: str
) -> None:
    def reduce(comm: Any) -> None:
        x = array.array(code, [1, 2, comm.rank])
        comm.all_reduce(x)
        assert x == array.array(code, [3, 6, 3])

    world(SIZE, transport).run(reduce)


@pytest.mark.parametrize(
    "name",
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "bool",
    ],
)
def test_torch_tensors_of_every_dtype_are_reduced_in_place(
    world: GetWorld, transport: str, name: str
) -> None:
    torch = pytest.importorskip("torch")

    def reduce(comm: Any) -> None:
        base = torch.zeros(4, 6, dtype=getattr(torch, name))
        x = base[:, ::2]
        x.fill_(1)
        assert comm.all_reduce(x) is x
        whole = torch.ones(7, dtype=base.dtype)
        comm.all_reduce(whole)
        expected = 1 if name == "bool" else 3
        assert base.to(torch.float32).tolist() == [[expected, 0] * 3] * 4
        assert whole.to(torch.float32).tolist() == [expected] * 7
        gathered = comm.all_gather(whole)
        assert (gathered.dtype, tuple(gathered.shape)) == (base.dtype, (SIZE, 7))

    world(SIZE, transport).run(reduce)


def test_a_tensor_of_numbers_with_their_signs_turned_is_refused_before_anything_is_sent(
    world: GetWorld, transport: str
) -> None:
    torch = pytest.importorskip("torch")

    def reduce(comm: Any) -> None:
        turned = torch.full((3,), 1 + 2j).conj().imag
        assert turned.is_neg()
        with pytest.raises(gr.InvalidArgument, match=r"resolve_neg\(\)"):
            comm.all_reduce(turned)
        with pytest.raises(gr.InvalidArgument, match=r"resolve_neg\(\)"):
            comm.all_reduce(turned.as_subclass(type("Own", (torch.Tensor,), {})))
        assert comm.all_reduce(turned.resolve_neg()).tolist() == [-2.0 * SIZE] * 3

    world(SIZE, transport).run(reduce)


def test_a_parameter_that_requires_gradients_can_be_broadcast(
    world: GetWorld, transport: str
) -> None:
    torch = pytest.importorskip("torch")

    def broadcast(comm: Any) -> None:
        x = torch.nn.Parameter(torch.full((5,), float(comm.rank)))
        comm.broadcast(x, 2)
        assert x.tolist() == [2.0] * 5
        assert x.requires_grad

    world(SIZE, transport).run(broadcast)


def test_dlpack_exporters_on_the_cpu_are_reduced_and_others_refused(
    world: GetWorld, transport: str
) -> None:
    def reduce(comm: Any) -> None:
        x = np.full(5, comm.rank, np.float32)
        comm.all_gather(OnlyDlpack(x))
        with pytest.raises(gr.DeviceError, match="CPU"):
            comm.all_reduce(OnDevice(x))
        assert comm.all_gather(OnlyDlpack(x)).tolist() == [[0.0] * 5, [1.0] * 5, [2.0] * 5]

    world(SIZE, transport).run(reduce)


def test_bfloat16_of_ml_dtypes_and_of_torch_are_one_dtype(world: GetWorld, transport: str) -> None:
    torch = pytest.importorskip("torch")

    def reduce(comm: Any) -> None:
        if comm.rank == 0:
            x = torch.full((3,), 1.5, dtype=torch.bfloat16)
            comm.all_reduce(x)
            assert x.tolist() == [4.5] * 3
        else:
            y = np.full(3, 1.5, ml_dtypes.bfloat16)
            comm.all_reduce(y)
            assert y.astype(float).tolist() == [4.5] * 3

    world(SIZE, transport).run(reduce)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.zeros(3, np.complex64), "complex64"),
        (np.zeros(3, np.uint32), "uint32"),
        (np.zeros(3, ">f4"), ">f4"),
        (np.zeros(3, "U1"), "U1"),
        (np.array([None]), "object"),
        ([1.0, 2.0], "list"),
        (1.0, "float"),
        (b"read-only", "read-only"),
    ],
)
def test_what_cannot_be_reduced_is_refused_and_the_communicator_lives_on(
    world: GetWorld, transport: str, x: Any, text: str
) -> None:
    def reduce(comm: Any) -> None:
        with pytest.raises(gr.InvalidArgument, match=text):
            comm.all_reduce(x)
        comm.barrier()

    world(SIZE, transport).run(reduce)


def test_a_read_only_array_is_sent_but_never_written(world: GetWorld, transport: str) -> None:
    def reduce(comm: Any) -> None:
        x = np.full(3, comm.rank)
        x.flags.writeable = False
        with pytest.raises(gr.InvalidArgument, match="read-only"):
            comm.all_reduce(x)
        assert comm.all_reduce(x, out=np.empty_like(x)).tolist() == [SUM_OF_RANKS] * 3
        assert comm.all_gather(x)[:, 0].tolist() == [0, 1, 2]

    world(SIZE, transport).run(reduce)


def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(
    world: GetWorld, transport: str
) -> None:
    x = np.zeros(6)
    wrong: list[Any] = [
        lambda comm: comm.all_reduce(x, "mean"),
        lambda comm: comm.scatter([1.0, 2.0, 3.0]),
        lambda comm: comm.all_reduce(x, "band"),
        lambda comm: comm.all_reduce(np.zeros(2, bool), "avg"),
        lambda comm: comm.all_reduce(x, algorithm="rings"),
        lambda comm: comm.all_reduce(np.zeros(2, np.float16), algorithm="ring"),
        lambda comm: comm.all_reduce(x, deterministic="yes"),
        lambda comm: comm.all_reduce(x, algorithm="ring", deterministic="rank_order"),
        lambda comm: comm.all_reduce(x, out=np.zeros(5)),
        lambda comm: comm.all_reduce(x, out=np.zeros(6, np.float32)),
        lambda comm: comm.all_reduce(x, timeout=0),
        lambda comm: comm.all_reduce(x, timeout=-1.0),
        lambda comm: comm.all_reduce(x, timeout=math.inf),
        lambda comm: comm.all_reduce(x, timeout=math.nan),
        lambda comm: comm.barrier(timeout=1e300),
        lambda comm: comm.reduce_scatter(x, counts=[1, 2]),
        lambda comm: comm.reduce_scatter(x, counts=[1, 2, 4]),
        lambda comm: comm.reduce_scatter(x, counts=[-1, 3, 4]),
        lambda comm: comm.reduce_scatter(x, np.zeros(5)),
        lambda comm: comm.all_gather(x, np.zeros(17)),
        lambda comm: comm.all_gather(x, counts=[1, 1, 1]),
        lambda comm: comm.broadcast(x, 3),
        lambda comm: comm.broadcast(x, -1),
        lambda comm: comm.reduce(x, 3),
        lambda comm: comm.gather(x, 3),
        lambda comm: comm.scatter(root=0),
        lambda comm: comm.scatter(np.zeros((2, 2))),
        lambda comm: comm.all_to_all(np.zeros(7)),
        lambda comm: comm.all_to_all(x, send_counts=[2, 2, 2]),
        lambda comm: comm.all_to_all(x, x),
        lambda comm: comm.all_reduce_many([x], bucket_bytes=0),
        lambda comm: comm.split(-2),
        lambda comm: comm.describe(3),
    ]

    def try_all(comm: Any) -> None:
        for call in wrong:
            with pytest.raises(gr.InvalidArgument, match=r".{15}"):
                call(comm)
        comm.barrier()

    world(SIZE, transport).run(try_all)
