"""Arrays on a CUDA device are seen as they say they are; nothing here needs a GPU or a driver."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from gradring.arrays import buffers, device_arrays, dlpack
from gradring.arrays.device_arrays import UNKNOWN_DEVICE, DeviceView, find, stream_handle
from gradring.dtypes import DTYPE_CODES
from gradring.errors import DeviceError, InvalidArgument

ADDRESS = 0x7F00_0000_1000


class Exported:
    """An array that gives out what it is told to, over memory that nobody reads."""

    def __init__(self, shape: tuple[int, ...] = (4, 3), typestr: str = "<f4", **more: Any) -> None:
        self.shape = shape
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "data": (ADDRESS, False),
            "strides": None,
            "stream": None,
            **more,
        }


class OnlyDlpack:
    """A device array without the older protocol: a capsule whose device says CUDA."""

    def __init__(self, values: Any, kind: int = dlpack.CUDA, number: int = 1) -> None:
        self._values = values
        self._device = (kind, number)
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        self.asked.append((stream, max_version))
        options = {} if max_version is None else {"max_version": max_version}
        capsule = self._values.__dlpack__(**options)
        _relabel(capsule, *self._device)
        return capsule


class OldDlpack(OnlyDlpack):
    """The same, from before capsules had versions."""

    def __dlpack__(self, *, stream: Any = None) -> Any:  # type: ignore[override]
        return super().__dlpack__(stream=stream)


def _relabel(capsule: Any, kind: int, number: int) -> None:
    # The capsule of a CPU array, made to say that it is of a device.
    name = b"dltensor_versioned" if "versioned" in repr(capsule) else b"dltensor"
    place = dlpack._pointer_of(capsule, name)
    if name == b"dltensor":
        tensor = ctypes.cast(place, ctypes.POINTER(dlpack._Tensor)).contents
    else:
        tensor = ctypes.cast(place, ctypes.POINTER(dlpack._Versioned)).contents.tensor
    tensor.device.kind, tensor.device.number = kind, number


def seen(x: Any, **options: Any) -> DeviceView:
    found = find(x, "x", **{"writes": True, **options})
    assert found is not None
    return found


class OnCuda:
    """What a tensor on a CUDA device says of itself."""

    is_nested = False

    def __init__(
        self, is_neg: bool = False, layout: torch.layout = torch.strided, address: int = ADDRESS
    ) -> None:
        self._is_neg = is_neg
        self._address = address
        self.layout = layout
        self.device = torch.device("cuda", 0)
        self.dtype = torch.float32
        self.shape = torch.Size((3,))

    def is_contiguous(self) -> bool:
        return True

    def is_neg(self) -> bool:
        return self._is_neg

    def data_ptr(self) -> int:
        return self._address

    def numel(self) -> int:
        return 3


OnCuda.__module__ = "torch"


def test_a_tensor_with_its_signs_turned_is_refused_on_a_device_too() -> None:
    assert find(OnCuda(is_neg=False), "x", writes=True, stream=5) is not None
    with pytest.raises(InvalidArgument, match=r"signs turned; use x\.resolve_neg\(\)"):
        find(OnCuda(is_neg=True), "x", writes=True, stream=5)


def test_tensors_without_memory_of_their_own_are_refused_on_a_device_too() -> None:
    with pytest.raises(InvalidArgument, match=r"OnCuda without memory of its own; .*to_local\(\)"):
        find(OnCuda(address=0), "x", writes=True, stream=5)
    with pytest.raises(InvalidArgument, match=r"x is a torch\.sparse_coo tensor; .*coalesce"):
        find(OnCuda(layout=torch.sparse_coo), "x", writes=True, stream=5)


def test_what_is_on_the_cpu_is_left_to_others() -> None:
    for x in (np.zeros(3), torch.zeros(3), b"bytes", [1, 2], None, 7):
        assert find(x, "x", writes=False) is None


@pytest.mark.parametrize("name", [name for name in DTYPE_CODES if name != "bfloat16"])
def test_every_dtype_is_known_by_its_typestr(name: str) -> None:
    found = seen(Exported(typestr=np.dtype(name).str))
    assert (found.dtype, found.pointer) == (DTYPE_CODES[name], ADDRESS)
    assert (found.shape, found.count) == ((4, 3), 12)
    assert found.nbytes == 12 * np.dtype(name).itemsize
    assert found.device == UNKNOWN_DEVICE


def test_two_bytes_without_a_name_are_bfloat16_only_if_the_array_says_so() -> None:
    x = Exported(typestr="<V2")
    with pytest.raises(InvalidArgument, match="<V2, which cannot be sent"):
        seen(x)
    x.dtype = np.dtype(ml_dtypes.bfloat16)  # type: ignore[attr-defined]
    found = seen(x)
    assert (found.dtype, found.nbytes) == (DTYPE_CODES["bfloat16"], 24)


@pytest.mark.parametrize("typestr", [">f4", "<c8", "<U4", "|O", "<u4", "<M8[s]", "nonsense"])
def test_other_dtypes_are_refused_by_name(typestr: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be sent; use float64"):
        seen(Exported(typestr=typestr))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((4, 3), (12, 4)), ((1, 3), (999, 4)), ((4, 1), (4, 64)), ((0, 3), (8, 8)), ((), ())],
)
def test_strides_that_leave_no_gaps_are_contiguous(shape: Any, strides: Any) -> None:
    assert seen(Exported(shape, strides=strides)).shape == shape


@pytest.mark.parametrize(
    ("shape", "strides"), [((4, 3), (4, 16)), ((4, 3), (24, 8)), ((3,), (-4,)), ((2, 2), (0, 4))]
)
def test_gaps_are_refused_with_what_to_do(shape: Any, strides: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"not contiguous; pass .*contiguous"):
        seen(Exported(shape, strides=strides))


def test_read_only_memory_may_be_read_but_not_written() -> None:
    x = Exported(data=(ADDRESS, True))
    assert seen(x, writes=False).pointer == ADDRESS
    with pytest.raises(InvalidArgument, match="x is read-only, but the operation writes it"):
        seen(x)


def test_an_empty_array_has_no_address() -> None:
    found = seen(Exported((0, 5), data=(0, False)))
    assert (found.pointer, found.count, found.nbytes) == (0, 0, 0)


def test_masks_and_protocols_before_version_2_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="version 1"):
        seen(Exported(version=1))
    with pytest.raises(InvalidArgument, match="mask"):
        seen(Exported(mask=Exported()))


def test_the_producer_s_stream_counts_unless_the_user_names_one() -> None:
    assert seen(Exported(stream=None)).stream == 1
    assert seen(Exported(stream=2)).stream == 2
    assert seen(Exported(stream=0x5550)).stream == 0x5550
    assert seen(Exported(stream=0x5550), stream=0x7770).stream == 0x7770
    without = Exported()
    del without.__cuda_array_interface__["stream"]
    without.__cuda_array_interface__["version"] = 2
    assert seen(without).stream == 1
    with pytest.raises(InvalidArgument, match="must be 1 or 2"):
        seen(Exported(stream=0))


def test_streams_of_all_libraries_are_understood() -> None:
    class Cupy:
        ptr = 0

    class Torch:
        cuda_stream = 0x1230

    class Other:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 0x4560)

    assert stream_handle(None) is None
    assert [stream_handle(x) for x in (0, 1, 2, 77, np.int64(5))] == [1, 1, 2, 77, 5]
    assert [stream_handle(x()) for x in (Cupy, Torch, Other)] == [1, 0x1230, 0x4560]


def test_what_is_no_stream_is_refused() -> None:
    class Later:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (1, 0x4560)

    for x in (-1, True, "current", 1.5, object()):
        with pytest.raises(InvalidArgument, match="pass None, a cudaStream_t as a number"):
            stream_handle(x)
    with pytest.raises(InvalidArgument, match="no version 0"):
        stream_handle(Later())


@pytest.mark.parametrize("exporter", [OnlyDlpack, OldDlpack])
@pytest.mark.parametrize("name", ["float64", "float16", "int8", "int64", "uint8", "bool"])
def test_dlpack_says_the_same_as_the_memory(exporter: Any, name: str) -> None:
    values = np.ones((2, 3), name)
    found = seen(exporter(values))
    assert (found.pointer, found.dtype) == (values.ctypes.data, DTYPE_CODES[name])
    assert (found.shape, found.device) == ((2, 3), 1)


def test_dlpack_knows_bfloat16() -> None:
    tensor = torch.ones(5, dtype=torch.bfloat16)
    found = seen(OnlyDlpack(tensor, dlpack.CUDA_MANAGED, 3))
    assert (found.pointer, found.dtype, found.device) == (tensor.data_ptr(), 3, 3)


def test_dlpack_orders_the_stream_that_is_asked_for() -> None:
    x = OnlyDlpack(np.ones(3))
    assert seen(x).stream == 1
    assert seen(x, stream=0x990).stream == 0x990
    assert x.asked == [(1, (1, 0)), (0x990, (1, 0))]


def test_dlpack_keeps_the_memory_and_frees_it_once() -> None:
    values = np.ones(100)
    found = seen(OnlyDlpack(values))
    address = values.ctypes.data
    held = values.base if values.base is not None else values
    del values
    assert found.pointer == address
    assert (np.asarray(held) == 1).all()
    del found


def test_dlpack_refuses_gaps_read_only_memory_and_what_cannot_be_exported() -> None:
    with pytest.raises(InvalidArgument, match="not contiguous"):
        seen(OnlyDlpack(np.ones((4, 4))[:, ::2]))
    frozen = np.ones(3)
    frozen.flags.writeable = False
    with pytest.raises(InvalidArgument, match="read-only"):
        seen(OnlyDlpack(frozen))
    with pytest.raises(InvalidArgument, match="cannot be read through DLPack"):
        seen(OnlyDlpack(torch.ones(3, requires_grad=True)))
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        seen(OnlyDlpack(np.ones(3, np.complex64)))


def test_a_capsule_that_somebody_took_is_no_array() -> None:
    values = np.ones(3)

    class Taken:
        def __dlpack__(self, **options: Any) -> Any:
            return capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    capsule = values.__dlpack__()
    np.from_dlpack(Taken())
    with pytest.raises(BufferError, match="taken over"):
        dlpack.read_capsule(capsule)
    with pytest.raises(BufferError, match="no DLPack capsule"):
        dlpack.read_capsule(values)


def test_a_protocol_that_raises_becomes_an_invalid_argument() -> None:
    class Tracked:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise RuntimeError("requires grad; use detach()")

    with pytest.raises(InvalidArgument, match="does not give out its memory: requires grad"):
        seen(Tracked())


def test_tensors_elsewhere_are_refused() -> None:
    with pytest.raises(DeviceError, match="x is on meta; tensors on the CPU or CUDA"):
        seen(torch.empty(3, device="meta"))


def test_one_call_has_one_device() -> None:
    first = seen(OnlyDlpack(np.ones(3), number=0))
    second = seen(OnlyDlpack(np.ones(3), number=1))
    unknown = seen(Exported())
    host = buffers.view(np.ones(3), "out", writes=True)
    device_arrays.require_same_device({"x": first, "out": None})
    device_arrays.require_same_device({"x": first, "out": unknown})
    device_arrays.require_same_device({"x": unknown, "out": unknown})
    for other in (second, host):
        with pytest.raises(DeviceError, match=r"x is on cuda:0, out is on .*must be on one device"):
            device_arrays.require_same_device({"x": first, "out": other})
    with pytest.raises(DeviceError, match="x is on a CUDA device, out is on the CPU"):
        device_arrays.require_same_device({"x": unknown, "out": host})


def test_calls_for_arrays_on_the_cpu_say_where_the_array_is() -> None:
    with pytest.raises(DeviceError, match="takes arrays on the CPU"):
        buffers.view(OnlyDlpack(np.ones(3)), "x", writes=False)


def test_operands_overlap_where_their_bytes_do() -> None:
    whole = seen(Exported((10,)))
    part = seen(Exported((2,), data=(ADDRESS + 36, False)))
    behind = seen(Exported((2,), data=(ADDRESS + 40, False)))
    host = buffers.view(np.ones(3), "x", writes=False)
    assert buffers.overlap(whole, part)
    assert buffers.overlap(part, whole)
    assert not buffers.overlap(whole, behind)
    assert not buffers.overlap(whole, host)
    assert buffers.overlap(host, host)


def test_a_result_of_an_unknown_library_has_to_be_given() -> None:
    with pytest.raises(InvalidArgument, match="pass out="):
        buffers.empty_like(Exported(), (3,))
