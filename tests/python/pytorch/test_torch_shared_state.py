"""gradring.torch.broadcast_state: what one rank has for all, bit for bit, or an error for all."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from gradring.torch.state import sending
from torch_models import OPTIMIZERS, are_same, batch, mlp, values
from torch_ranks import on_ranks

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 3]),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, 20, cycle_momentum=False),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
}


def step(model: nn.Module, optimizer: Any, number: int, scheduler: Any = None) -> None:
    x, y = batch(number, 4)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step(*[1.0] * isinstance(scheduler, lr_scheduler.ReduceLROnPlateau))


def flat(value: Any) -> Any:
    """A value to compare: tensors and arrays as their dtypes, shapes and bits."""
    if isinstance(value, torch.Tensor):
        if value.is_sparse:
            return "sparse", flat(value.coalesce().indices()), flat(value.coalesce().values())
        return str(value.dtype), tuple(value.shape), repr(value.tolist())
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value), value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return type(value), [(key, flat(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [flat(each) for each in value]
    return type(value), repr(value)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_rank_that_has_never_stepped_trains_on_as_the_root_would(
    world: GetWorld, kind: str
) -> None:
    def train(comm: Any) -> list[torch.Tensor]:
        model = mlp(seed=comm.rank)
        optimizer = OPTIMIZERS[kind](model.parameters())
        for number in range(3 if comm.rank == 1 else 0):
            step(model, optimizer, number)
        gt.broadcast_state({"model": model, "optimizer": optimizer}, root=1, comm=comm)
        step(model, optimizer, 3)
        return values(model)

    expected = mlp(seed=1)
    optimizer = OPTIMIZERS[kind](expected.parameters())
    for number in range(4):
        step(expected, optimizer, number)
    assert all(are_same(each, values(expected)) for each in world(3, "shm").run(train))


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedules_and_scalers_go_on_where_the_root_is(world: GetWorld, kind: str) -> None:
    def train(comm: Any) -> Any:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
        scheduler = SCHEDULERS[kind](optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0 * (comm.rank + 1))
        for number in range(4 if comm.rank == 0 else 1):
            step(model, optimizer, number, scheduler)
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        gt.broadcast_state(parts, comm=comm)
        for number in range(4):
            step(model, optimizer, number, scheduler)
        return [flat(part.state_dict()) for part in parts.values()]

    first, second = world(2, "tcp").run(train)
    assert first == second
    assert "4.0" in str(first[3])


def test_plain_values_arrive_as_they_are_with_their_types_and_bits(world: GetWorld) -> None:
    square = torch.arange(6.0).view(2, 3)
    sent = [
        None, True, -0.0, float("nan"), 2**200, "\ud800ü", (1, [2, ()]), Counter("aab"),
        OrderedDict(b=1, a={3: "x", (1, "y"): None, 2.5: [], False: 0}),
        square.t(), square[:, 1], square.expand(2, 2, 3), torch.tensor(5.0), torch.empty(0, 3),
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.tensor([True, False]),
        square.bfloat16(), square.to(torch.float8_e4m3fn), torch.tensor([7], dtype=torch.uint64),
        torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag, torch.eye(3).to_sparse(),
        nn.Parameter(square), np.arange(4, dtype=">u2"), np.array("text"), np.float64(0.5),
        np.array(["2026-01-02"], "M8[D]"), np.empty((0, 2)), np.ones((2, 3), order="F"),
        np.random.default_rng(1).bit_generator.state, torch.get_rng_state(),
    ]  # fmt: skip

    def share(comm: Any) -> Any:
        mine = sent if comm.rank == 1 else object()
        root = 1 if comm.rank else np.int64(1)
        return gt.broadcast_state({"sent": mine, "step": comm.rank}, root=root, comm=comm)

    first, root, third = world(3, "shm").run(share)
    assert root["sent"] is sent
    assert flat(first) == flat(third) == flat({"sent": sent, "step": 1})
    assert first["sent"][14].is_contiguous(memory_format=torch.channels_last)


def test_tensors_arrive_on_the_cpu_whatever_the_default_device_is(world: GetWorld) -> None:
    sent = [torch.eye(3).to_sparse(), torch.eye(3), np.eye(3)]

    def share(comm: Any) -> Any:
        mine = sent if comm.rank == 0 else None
        with torch.device("meta"):
            return gt.broadcast_state({"sent": mine}, comm=comm)["sent"]

    assert all(flat(each) == flat(sent) for each in world(2, "shm").run(share))


def test_many_tensors_and_long_ones_travel_in_pieces(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_PIECE_BYTES", 64)
    sent = [torch.arange(count, dtype=torch.int16) for count in (1, 0, 31, 32, 33, 200, 3, 5)]

    def share(comm: Any) -> Any:
        return gt.broadcast_state({"sent": sent if comm.rank == 0 else None}, comm=comm)["sent"]

    assert all(are_same(each, sent) for each in world(2, "shm").run(share))


def test_a_tensor_that_is_there_twice_is_one_tensor_again(world: GetWorld) -> None:
    def share(comm: Any) -> Any:
        tensor = torch.ones(3)
        return gt.broadcast_state({"a": tensor, "b": [tensor, torch.ones(3)]}, comm=comm)

    for found in world(2, "shm").run(share):
        assert found["a"] is found["b"][0]
        assert found["a"] is not found["b"][1]


class Refusing:
    """Has a state, which it does not give or take as it is told."""

    def __init__(self, gives: Any = 1, error: Exception | None = None) -> None:
        self.gives, self.error = gives, error

    def state_dict(self) -> Any:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives

    def load_state_dict(self, _state: Any) -> None:
        if self.error is not None:
            raise self.error


# Made in the test, as PyTorch warns of some.
UNSENDABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "an object": (object, r"state\['x'\] is a builtins.object, which cannot be sent"),
    "a set deep inside": (lambda: [{"a": (1, {2})}], r"\['x'\]\[0\]\['a'\]\[1\] is a builtins.set"),
    "an array of objects": (lambda: np.array([object()]), "an array of object"),
    "itself": (lambda: [endless := [0], endless.append(endless)], "or contains itself"),
    "a quantized tensor": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8), "quantized"
    ),
    "a CSR tensor": (lambda: torch.eye(2).to_sparse_csr(), "torch.sparse_csr tensor"),
    "a tensor on meta": (lambda: torch.empty(2, device="meta"), "the device meta"),
    "a lazy layer": (lambda: nn.LazyLinear(3), r"\['x'\]\['weight'\] has no shape yet"),
    "a key": (lambda: {frozenset(): 1}, r"state\['x'\] has the key frozenset\(\)"),
    "a state_dict that fails": (lambda: Refusing(KeyError("gone")), "gone"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", UNSENDABLE)
def test_what_cannot_be_sent_is_an_error_on_all_ranks_before_anything_is(
    world: GetWorld, case: str
) -> None:
    make, text = UNSENDABLE[case]
    ranks, value, models = world(2, "shm"), make(), [mlp(seed=1), mlp(seed=2)]

    def share(comm: Any) -> str:
        mine = Refusing() if hasattr(value, "state_dict") else None
        if comm.rank == 1:
            mine = value
        with pytest.raises((gr.InvalidArgument, KeyError), match=text) as raised:
            gt.broadcast_state({"x": mine, "model": models[comm.rank]}, root=1, comm=comm)
        return str(raised.value)

    there, here = ranks.run(share)
    assert here in there
    assert "rank 1 (" in there
    assert ranks.is_usable
    assert are_same(values(models[0]), values(mlp(seed=1)))


def test_ranks_that_give_other_things_are_a_mismatch_that_names_the_first(world: GetWorld) -> None:
    ranks = world(2, "shm")
    for mine, text in (
        (({"a": 1}, {"a": 1, "b": 2}), "'b' is missing on rank 0, and a plain value on rank 1"),
        (({"m": mlp()}, {"m": None}), r"'m' is an object with state_dict\(\) on rank 0, and a pl"),
    ):
        for error in ranks.errors(lambda comm, m=mine: gt.broadcast_state(m[comm.rank], comm=comm)):
            assert isinstance(error, gr.Mismatch)
            assert error.args[0].startswith("broadcast_state: ")
            with pytest.raises(gr.Mismatch, match=text):
                raise error
    for error in ranks.errors(lambda comm: gt.broadcast_state({}, root=comm.rank, comm=comm)):
        assert "root is 0 on rank 0, and 1 on rank 1" in str(error)
    assert ranks.is_usable


@pytest.mark.parametrize(
    ("state", "root", "text"),
    [([1], 0, "state is a dict"), ({1: 2}, 0, "names as keys"), ({}, 2, "root 2 is not one of 0.."),
     ({}, -1, "root -1 is not"), ({}, "0", "root")],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 2])
def test_a_wrong_argument_is_refused_on_all_ranks(
    world: GetWorld, size: int, state: Any, root: Any, text: str
) -> None:
    for error in world(size, "shm").errors(
        lambda comm: gt.broadcast_state(state, root=root, comm=comm)
    ):
        assert isinstance(error, gr.InvalidArgument)
        assert text in str(error)


def test_a_state_that_one_rank_cannot_load_is_an_error_on_all_of_them(world: GetWorld) -> None:
    ranks = world(3, "shm")

    def share(comm: Any) -> str:
        model = nn.Linear(3 if comm.rank == 1 else 2, 2)
        error: Any = RuntimeError if comm.rank == 1 else gr.Mismatch
        with pytest.raises(error) as raised:
            gt.broadcast_state({"model": model}, comm=comm)
        return str(raised.value)

    first, second, third = ranks.run(share)
    assert "size mismatch for weight" in second
    assert first == third
    assert "could not load the state: RuntimeError: Error(s) in loading" in first
    assert "rank 1 (" in first
    assert ranks.is_usable


def test_a_rank_without_memory_for_what_comes_is_an_error_on_all_of_them(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = world(2, "shm")
    empty, without = torch.empty, set[int]()

    def empty_with_a_limit(*shape: Any, **options: Any) -> Any:
        if threading.get_ident() in without:
            raise RuntimeError("not enough memory")
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", empty_with_a_limit)

    def share(comm: Any) -> str:
        if comm.rank == 1:
            without.add(threading.get_ident())
        with pytest.raises((RuntimeError, gr.Mismatch)) as raised:
            gt.broadcast_state({"x": torch.ones(3)}, comm=comm)
        return str(raised.value)

    assert ranks.run(share)[0].endswith("make room for the state: RuntimeError: not enough memory")
    assert ranks.is_usable


def test_a_tensor_that_the_root_cannot_read_any_more_is_loaded_nowhere(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = world(2, "shm")
    monkeypatch.setattr(sending, "_joined", lambda _: 1 / 0)
    models = [mlp(seed=rank) for rank in range(2)]

    def share(comm: Any) -> str:
        with pytest.raises((ZeroDivisionError, gr.Mismatch)) as raised:
            gt.broadcast_state({"model": models[comm.rank]}, comm=comm)
        return str(raised.value)

    assert ranks.run(share)[1].endswith(
        "could not send the state: ZeroDivisionError: division by zero"
    )
    assert are_same(values(models[1]), values(mlp(seed=1)))
    assert ranks.is_usable


def test_a_root_that_is_lost_while_its_state_travels_leaves_the_others_as_they_were(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = world(3, "shm")
    monkeypatch.setattr(sending, "_PIECE_BYTES", 64)
    models = [mlp(seed=rank) for rank in range(3)]
    joined, pieces = sending._joined, []

    def joined_until_it_dies(members: Any) -> Any:
        pieces.append(members)
        if len(pieces) == 3:
            ranks.comms[0].close()
        return joined(members)

    monkeypatch.setattr(sending, "_joined", joined_until_it_dies)
    errors = ranks.errors(
        lambda comm: gt.broadcast_state({"model": models[comm.rank], "step": 1}, comm=comm)
    )
    assert [type(error) for error in errors] == [gr.Closed, gr.PeerLost, gr.PeerLost]
    assert all(are_same(values(models[seed]), values(mlp(seed=seed))) for seed in range(3))


def test_a_rank_that_takes_long_to_load_is_waited_for_as_long_as_is_said(world: GetWorld) -> None:
    ranks = world(2, "shm")
    is_over = threading.Event()

    class Slow(Refusing):
        def load_state_dict(self, state: Any) -> None:
            assert is_over.wait(30)
            super().load_state_dict(state)

    def share(comm: Any) -> None:
        try:
            gt.broadcast_state({"slow": Slow()}, comm=comm, timeout=0.2)
        finally:
            is_over.set()

    first, _ = ranks.errors(share)
    assert isinstance(first, gr.TimedOut)


def test_alone_what_is_given_comes_back_after_the_same_checks(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    assert gt.broadcast_state({"model": mlp(), "step": 3, "x": None}, comm=comm) == {
        "step": 3, "x": None,
    }  # fmt: skip
    with pytest.raises(gr.InvalidArgument, match="cannot be sent"):
        gt.broadcast_state({"model": mlp(), "step": object()}, comm=comm)


def _share_a_distributed_tensor() -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
    with gr.init(rank=0, world_size=1) as comm, pytest.raises(gr.InvalidArgument) as raised:
        gt.broadcast_state({"model": model}, comm=comm)
    return str(raised.value)


def test_a_tensor_of_which_each_rank_has_a_part_is_refused_by_name() -> None:
    (text,) = on_ranks(1, _share_a_distributed_tensor)
    assert "state['model']['weight'] is a DTensor, which is not all of a tensor" in text
