"""What tables are given: ids, gradients, addresses, initializers, entry rules. Nothing is sent."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from exporters import OnDevice, OnlyDlpack
from gradring.arrays import buffers
from gradring.core_arguments import OwnName
from gradring.errors import DeviceError, InvalidArgument
from gradring.ps.arguments import checks, specs
from gradring.ps.arguments.entries import Count, Probability, Slot, Slots
from gradring.ps.arguments.requests import pull_request, push_request
from gradring.settings import server_addresses


def test_ids_keep_their_bits_and_shape() -> None:
    signed = np.array([[-1, 2], [3, np.iinfo(np.int64).min]])
    seen = buffers.as_ids(signed)
    assert (seen.dtype, seen.shape) == (np.uint64, (2, 2))
    assert seen.ravel().tolist() == [2**64 - 1, 2, 3, 2**63]
    assert np.shares_memory(seen, signed)
    huge = np.array([2**64 - 1], np.uint64)
    assert buffers.as_ids(huge) is huge


@pytest.mark.parametrize(
    "ids",
    [[7, -1], (7, -1), np.array([7, -1], np.int32), np.array([7, 0, -1])[::2], memoryview],
    ids=["list", "tuple", "int32", "strided", "buffer"],
)
def test_ids_come_in_many_forms(ids: object) -> None:
    given = memoryview(np.array([7, -1])) if ids is memoryview else ids
    assert buffers.as_ids(given).tolist() == [7, 2**64 - 1]


def test_no_ids_are_ids() -> None:
    assert buffers.as_ids([]).shape == (0,)
    assert buffers.as_ids(5).shape == ()
    assert buffers.as_ids([1, 2**64 - 1]).tolist() == [1, 2**64 - 1]
    assert buffers.as_ids([np.int64(3), np.uint64(2**63)]).tolist() == [3, 2**63]
    assert buffers.as_ids(np.empty((0, 3), np.int64)).shape == (0, 3)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([0.5], "dtype float64; ids are int64 or uint64"),
        (np.array([True]), "dtype bool"),
        (OnlyDlpack(np.array([0.5])), "dtype float64"),
        ("abc", "ids is str; gr.ps.ids_of makes ids of strings"),
        (["alice"], "dtype <U5; ids are int64 or uint64: gr.ps.ids_of makes them of strings"),
        (np.array([b"alice"]), "gr.ps.ids_of"),
        (np.array(["alice", 5], object), "gr.ps.ids_of"),
        ({1, 2}, "is a set"),
        ([[1], [2, 3]], "is a list that makes no array"),
        ([2**64], "ids are int64 or uint64"),
        ([1, True, 2**63, -1], "dtype"),
    ],
)
def test_what_is_no_id_is_refused(ids: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        buffers.as_ids(ids)


def test_what_looks_like_an_array_and_is_none_is_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    masked = np.ma.masked_array([1, 2], [False, True])
    sparse = torch.sparse_coo_tensor([[1, 2]], torch.ones(2, 4), (9, 4), check_invariants=True)
    with warnings.catch_warnings(action="ignore"):  # That it is a prototype.
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for call, words in (
        (lambda: buffers.as_ids(b"abc"), "ids is bytes"),
        (lambda: buffers.as_ids(masked), "ids is a masked array"),
        (lambda: buffers.as_float32(masked.astype(np.float32), "g"), "g is a masked array"),
        (lambda: buffers.as_float32(sparse, "g"), "sparse_coo tensor; give x.coalesce"),
        (lambda: buffers.as_float32(nested, "g"), "g is a nested tensor"),
        (lambda: gr.ps.connect(5), "not int"),  # type: ignore[arg-type]
        (lambda: gr.ps.connect([1]), "server 0 is a int"),  # type: ignore[list-item]
        (lambda: gr.ps.connect(b"a:1"), "not bytes"),  # type: ignore[arg-type]
    ):
        with pytest.raises(gr.InvalidArgument, match=words):
            call()


def test_ids_on_a_device_are_refused_as_other_arrays_there_are() -> None:
    with pytest.raises(DeviceError, match="ids is on a device"):
        buffers.as_ids(OnDevice(np.array([1])))
    assert buffers.as_ids(OnlyDlpack(np.array([1]))).tolist() == [1]


def test_torch_ids_and_gradients_are_seen_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    ids = torch.tensor([[5, -1]])
    seen = buffers.as_ids(ids)
    assert seen.tolist() == [[5, 2**64 - 1]]
    assert seen.ctypes.data == ids.data_ptr()
    assert buffers.as_ids(torch.tensor([3], dtype=torch.int32)).tolist() == [3]
    for wrong in (torch.bfloat16, torch.float32, torch.bool):
        with pytest.raises(InvalidArgument, match="ids are int64 or uint64"):
            buffers.as_ids(torch.zeros(2, dtype=wrong))
    gradient = torch.ones(2, 3)
    assert buffers.as_float32(gradient, "grads").ctypes.data == gradient.data_ptr()
    halves = torch.tensor([1.5, -0.25], dtype=torch.bfloat16)
    assert buffers.as_float32(halves, "grads").tolist() == [1.5, -0.25]
    rows = buffers.new_float32(ids, (1, 2, 4))
    assert (type(rows), rows.dtype, tuple(rows.shape)) == (torch.Tensor, torch.float32, (1, 2, 4))


def test_gradients_become_float32() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        seen = buffers.as_float32(np.array([1.5, -2], dtype), "grads")
        assert (seen.dtype, seen.tolist()) == (np.float32, [1.5, -2])
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert buffers.as_float32(np.array([1.5], ml_dtypes.bfloat16), "grads").tolist() == [1.5]
    with pytest.raises(InvalidArgument, match="grads has dtype int64; use float32"):
        buffers.as_float32(np.array([1, 2]), "grads")
    assert buffers.as_float32([[1, 2.5]], "grads").tolist() == [[1, 2.5]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([["1", "2"]], "grads is a list of <U1"),
        ([[None, None]], "grads is a list of object"),
        ([None, {}], "grads is a list of object"),
        ([[1.0], [1.0, 2.0]], "grads makes no array"),
        ([[10**400, 1]], "grads is a list of object"),
        ([[True, False]], "grads is a list of bool"),
        (np.ones(2, np.int64), "dtype int64; use float32, float16, bfloat16 or float64"),
        (np.ones(2, np.uint16), "dtype uint16; use float32"),
        (np.ones(2, np.complex64), "dtype complex64; use float32"),
        (np.ones(2, ">f4"), "dtype >f4; use float32"),
    ],
)
def test_what_is_no_gradient_is_refused(given: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        buffers.as_float32(given, "grads")


def test_ids_of_both_signs_that_need_64_bits_are_refused() -> None:
    with pytest.raises(
        InvalidArgument, match="ids go from -1 to 9223372036854775808; ids are int64"
    ):
        buffers.as_ids([2**63, -1])


def test_names_of_the_librarys_own_tables_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="are the library's own"):
        specs.dense_spec("gradring/x", 2, gr.optim.Sum())
    with pytest.raises(InvalidArgument, match="are the library's own"):
        checks.table_name("gradring/removals")
    assert checks.table_name(OwnName("gradring/x")) == "gradring/x"
    assert checks.table_name("gradrings/x") == "gradrings/x"


def test_a_pull_fits_its_ids() -> None:
    request = pull_request("user", 4, np.array([[1, 2, 3]]), None)
    assert (request.ids.tolist(), request.result.shape) == ([1, 2, 3], (1, 3, 4))
    out = np.zeros((3, 8), np.float32)[:, ::2]
    request = pull_request("user", 4, [1, 2, 3], out)
    request.view.buffer[:] = 7
    assert request.finish() is out
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.zeros((3, 4)), "'user': out must be float32"),
        (
            np.zeros((4, 3), np.float32),
            r"out has shape \(4, 3\), ids of shape \(3,\) need \(3, 4\)",
        ),
        (np.broadcast_to(np.float32(0), (3, 4)), "out is read-only"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        pull_request("user", 4, [1, 2, 3], out)


def test_a_push_has_a_row_for_every_id() -> None:
    for shape in ((2, 3, 4), (6, 4)):
        ids, rows = push_request("user", 4, np.ones((2, 3), np.int64), np.ones(shape, np.float16))
        assert (ids.shape, rows.shape, rows.dtype) == ((6,), (6, 4), np.float32)
    for shape in ((6,), (6, 5), (5, 4), (3, 2, 4)):
        with pytest.raises(InvalidArgument, match="push to table 'user': gradients have shape"):
            push_request("user", 4, np.ones((2, 3), np.int64), np.ones(shape, np.float32))


def test_servers_are_found_in_their_variable_and_in_order() -> None:
    assert server_addresses.find({}) is None
    assert server_addresses.find({"GRADRING_SERVERS": ""}) is None
    found = server_addresses.find({"GRADRING_SERVERS": "b:2, [::1]:4000"})
    assert found == ("b:2", "[::1]:4000")
    assert server_addresses.parse(["a:1"], "servers") == ("a:1",)


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ("a:1,,b:2", "the address of server 1 of 3 is empty"),
        ("a:1,b", r"\(server 1\)='b' is not host:port"),
        ("a:1,b:0", "a port is a number from 1 to 65535"),
        ("a:1,b:2,a:1", "servers 0 and 2 are both a:1"),
        ([], "no server in it"),
    ],
)
def test_servers_that_make_no_sense_are_refused(servers: str | list[str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        server_addresses.parse(servers, "servers")


def test_importing_gradring_loads_neither_the_core_nor_numpy() -> None:
    program = (
        "import sys, gradring\n"
        "print([m for m in ('gradring._core', 'gradring.ps', 'numpy') if m in sys.modules])\n"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout == b"[]\n"


def test_init_joins_a_job_and_names_the_initializers() -> None:
    assert inspect.isfunction(gr.init)
    assert "rendezvous" in inspect.signature(gr.init).parameters
    assert specs.initializer_spec(None) == (0, 0, 0)
    assert specs.initializer_spec(0.5) == (0, 0.5, 0)
    assert specs.initializer_spec(gr.init.Constant(2)) == (0, 2, 0)
    assert specs.initializer_spec(gr.init.Uniform(0.01)) == (1, -0.01, 0.01)
    assert specs.initializer_spec(gr.init.Uniform(0, 1)) == (1, 0, 1)
    assert specs.initializer_spec(gr.init.Normal(1, 0.5)) == (2, 1, 0.5)


def test_initializers_and_entry_rules_refuse_nonsense() -> None:
    for make in (
        lambda: gr.init.Uniform(2, 1),
        lambda: gr.init.Normal(0, -1),
        lambda: gr.init.Constant(float("nan")),
        lambda: Count(0),
        lambda: Probability(0),
        lambda: Probability(1.5),
        lambda: Slot(lr_scale=-1),
        lambda: Slots(64),
        lambda: Slots(62, {4: Slot()}),
        lambda: specs.initializer_spec("zeros"),  # type: ignore[arg-type]
        lambda: specs.entry_spec(3),  # type: ignore[arg-type]
        lambda: specs.codec_number("zip"),
        lambda: specs.sparse_extras(None, -1, 1, None),
        lambda: specs.sparse_extras(None, 1, 1.5, None),
        lambda: gr.optim.SGD(lr=np.array([0.1])),
    ):
        with pytest.raises(InvalidArgument):
            make()


@pytest.mark.parametrize(
    "make",
    [
        gr.init.Constant,
        gr.init.Uniform,
        lambda huge: gr.init.Normal(0, huge),
        specs.initializer_spec,
        Probability,
        lambda huge: Slot(lr_scale=huge),
        gr.optim.SGD,
        lambda huge: gr.optim.Adam(betas=(huge, 0.5)),
    ],
)
def test_numbers_that_no_float_holds_are_refused(make: Callable[[int], Any]) -> None:
    with pytest.raises(InvalidArgument):
        make(10**400)


def test_settings_of_other_types_are_refused_by_name() -> None:
    odd: Any = "a"
    for make, words in (
        (lambda: Count(2.5), "Count: pushes is a whole number from 1 .* got 2.5"),  # type: ignore[arg-type]
        (lambda: Probability(odd), "Probability: p is a number, got 'a'"),
        (lambda: Slot(lr_scale=odd), "Slot: lr_scale is a number"),
        (lambda: Slot(entry=odd), "entry is a str"),
        (lambda: Slot(expire_after=1.5), "Slot: expire_after is a whole number"),  # type: ignore[arg-type]
        (lambda: Slots(2.5), "Slots: shift is a whole number from 1 to 63"),  # type: ignore[arg-type]
        (lambda: Slots(8, odd), "Slots: settings is a str"),
        (lambda: Slots(8, {0.5: Slot()}), "above their lower 8 bits is a whole number"),  # type: ignore[dict-item]
        (
            lambda: Slots(8, dict.fromkeys(range(4097), Slot())),
            "for 4097 slots; a table takes 4096",
        ),
        (lambda: Slots(8, {5: odd}), "the settings of slot 5 are a str; use gr.ps.Slot"),
        (lambda: specs.sparse_extras(None, odd, 1, None), "expire_after, in ticks, is a whole"),
        (lambda: specs.sparse_extras(None, 1, odd, None), "score_decay is a number"),
        (lambda: specs.sparse_extras(None, 1, 1, {7: Slot()}), "slots is a dict; use gr.ps.Slots"),  # type: ignore[arg-type]
        (lambda: specs.codec_number([1]), r"codec \[1\] is none of"),  # type: ignore[arg-type]
        (lambda: specs.rule_spec(gr.optim.Sum), "optimizer is a class; use a rule"),
        (lambda: gr.init.Uniform(odd), "Uniform: low is no number: 'a'"),
        (lambda: gr.init.Constant(odd), "Constant: value is no number"),
        (lambda: gr.optim.SGD(lr=odd), "SGD: lr is no number: 'a'"),
        (lambda: gr.optim.SGD(lr=1, dampening=odd), "SGD: dampening is no number"),
        (lambda: gr.optim.Adam(betas=0.5), "Adam: betas is no number"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument, match=words):
            make()


def test_settings_of_tables_are_whole_numbers_of_any_type() -> None:
    settings: dict[str, Any] = {
        "init": np.float32(0.5), "seed": np.uint64(2**64 - 1), "entry": Count(np.int64(2)),
        "expire_after": np.int32(3), "score_decay": np.float32(0.5),
        "slots": Slots(np.int8(48), {np.int64(7): Slot(expire_after=np.int16(1))}),  # type: ignore[arg-type, dict-item]
    }  # fmt: skip
    spec = specs.sparse_spec("t", np.int64(4), gr.optim.Sum(), **settings)
    assert (spec["dim"], spec["seed"], spec["init"]) == (4, 2**64 - 1, (0, 0.5, 0))
    assert spec["slots"][0]["slot"] == 7
    for shape, seen in ((np.int64(4), (4,)), ((np.int8(3), 4), (3, 4)), ([2], (2,)), ((), ())):
        assert specs.dense_spec("d", shape, gr.optim.Sum())[0] == seen
    for name, value in (("seed", -1), ("seed", 2**64), ("seed", "a"), ("seed", 1.0)):
        with pytest.raises(InvalidArgument, match=f"table 't': {name} is a whole number from 0"):
            specs.sparse_spec("t", 4, gr.optim.Sum(), **{**settings, name: value})
    for dim in (2.0, "a", None, 1 << 32):
        with pytest.raises(InvalidArgument, match="table 't': dim is a whole number from 1"):
            specs.sparse_spec("t", dim, gr.optim.Sum(), **settings)
    with pytest.raises(InvalidArgument, match="a table's name is a string, got 5"):
        specs.dense_spec(5, 4, gr.optim.Sum())
    for shape in ("3", 2.5, (2.7, 3), None, [[1], [2]]):
        with pytest.raises(InvalidArgument, match="table 'd': shape is a whole number or a seq"):
            specs.dense_spec("d", shape, gr.optim.Sum())
    for shape in (0, -1, (3, 0)):
        with pytest.raises(InvalidArgument, match="has no place for a number"):
            specs.dense_spec("d", shape, gr.optim.Sum())
    with pytest.raises(InvalidArgument, match="the number of floats is a whole number"):
        specs.dense_spec("d", (1 << 32, 1 << 32), gr.optim.Sum())


def test_settings_of_features_are_in_the_order_of_their_slots() -> None:
    slots = Slots(48, {7: Slot(expire_after=9), 2: Slot(lr_scale=0.5, entry=Count(3))})
    assert specs.sparse_extras(Probability(0.5), 4, 0.9, slots) == {
        "entry": (0, 0.5),
        "unseen_ticks": 4,
        "score_decay": 0.9,
        "slot_shift": 48,
        "slots": [
            {"slot": 2, "lr_scale": 0.5, "entry": (3, 1.0), "unseen_ticks": 0},
            {"slot": 7, "lr_scale": 1.0, "entry": (0, 1.0), "unseen_ticks": 9},
        ],
    }


def test_a_slot_that_scales_a_rate_which_the_rule_does_not_have_is_refused() -> None:
    rest: dict[str, Any] = {
        "init": None, "seed": 0, "entry": None, "expire_after": None, "score_decay": 1,
    }  # fmt: skip
    slots = Slots(48, {7: Slot(lr_scale=0.5)})
    with pytest.raises(InvalidArgument, match=r"'t': slot 7 scales the learning rate, and Sum\("):
        specs.sparse_spec("t", 2, gr.optim.Sum(), slots=slots, **rest)
    specs.sparse_spec("t", 2, gr.optim.SGD(lr=1), slots=slots, **rest)
    slots = Slots(48, {7: Slot(expire_after=1)})
    specs.sparse_spec("t", 2, gr.optim.Sum(), slots=slots, **rest)
