"""gradring.torch: the state that servers have is saved and loaded in torch's own format."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from mode_servers import Servers
from torch_models import OPTIMIZERS
from torch_ranks import plain

SERVED = [
    gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Hybrid(gr.Async(), gr.Geo(2)),
]  # fmt: skip
SHAPES = ((3, 40), (), (2,))
STEPS = 5


@pytest.fixture
def comm(world: GetWorld) -> Any:
    """A communicator of one."""
    return world(1, "tcp").comms[0]


def made(kind: str) -> tuple[list[Any], Any]:
    """Parameters, of which the last never has a gradient, and their optimizer."""
    params = [nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    return params, OPTIMIZERS[kind](params)


def trained(params: list[Any], optimizer: Any, seed: int, steps: int = STEPS) -> list[Any]:
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for param in params[:2]:
            param.grad = torch.randn(param.shape, generator=random)
        optimizer.step()
        if hasattr(optimizer, "flush"):
            optimizer.flush()
    return values_of(params)


def values_of(params: list[Any]) -> list[Any]:
    return [param.detach().numpy().copy() for param in params]


def stored(state: Any) -> Any:
    """What torch.load returns of it, without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def saved_by(server: Any, comm: Any, mode: Any, kind: str = "Adam") -> tuple[Any, Any, Any]:
    """Parameters and state after some steps, and the optimizer."""
    params, optimizer = made(kind)
    optimizer = gt.distributed(optimizer, mode, comm=comm, ps=server.client(comm.rank))
    values = trained(params, optimizer, 1)
    return values, stored(optimizer.state_dict()), optimizer


def same(one: Any, other: Any) -> bool:
    """Whether two states agree bit for bit."""
    one, other = plain(one), plain(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other))


def assert_close(one: Any, other: Any, kind: str) -> None:
    if kind == "SGD":  # Whose steps are rounded as torch's.
        np.testing.assert_array_equal(one, other)
    else:
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("mode", SERVED, ids=str)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_state_of_servers_is_torchs_own_and_goes_on_in_a_plain_optimizer(
    comm: Any, servers: Servers, mode: Any, kind: str
) -> None:
    params, optimizer = made(kind)
    trained(params, optimizer, 1)
    expected = optimizer.state_dict()
    values, saved, ours = saved_by(servers, comm, mode, kind)
    assert saved["param_groups"] == expected["param_groups"]
    assert saved["state"].keys() == expected["state"].keys()
    for place, entry in expected["state"].items():
        assert saved["state"][place].keys() == entry.keys()
        for name, value in entry.items():
            there = saved["state"][place][name]
            assert (there.dtype, there.shape) == (value.dtype, value.shape)
            assert_close(there, value, kind)
    ours.close()
    assert same(ours.state_dict(), saved)

    params, optimizer = made(kind)
    for param, value in zip(params, values, strict=True):
        param.data.copy_(torch.from_numpy(value))
    optimizer.load_state_dict(saved)
    following = trained(params, optimizer, 2)
    params, optimizer = made(kind)
    trained(params, optimizer, 1)
    for one, other in zip(following, trained(params, optimizer, 2), strict=True):
        assert_close(one, other, kind)


@pytest.mark.parametrize("mode", SERVED, ids=str)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_saved_state_goes_on_bit_for_bit_before_and_after_distributed(
    comm: Any, servers: Servers, mode: Any, kind: str
) -> None:
    values, saved, ours = saved_by(servers, comm, gr.Async(), kind)
    following = trained(ours._params, ours, 2)
    ours.close()
    for when in ("before", "after"):
        params, optimizer = made(kind)

        def load(params: list[Any] = params, optimizer: Any = optimizer) -> None:
            with torch.no_grad():
                for param, value in zip(params, values, strict=True):
                    param.copy_(torch.from_numpy(value))  # As a model's load_state_dict does it.
            optimizer.load_state_dict(saved)

        if when == "before":
            load()
        optimizer = gt.distributed(
            optimizer, mode, comm=comm, ps=servers.client(0), name=f"loaded {when}"
        )
        if when == "after":
            load()
        assert same(optimizer.state_dict()["state"], saved["state"])
        assert optimizer.state == {}
        assert all(map(np.array_equal, plain(params), values))
        assert all(map(np.array_equal, trained(params, optimizer, 2), following))
        optimizer.close()


@pytest.mark.parametrize("mode", SERVED[:3], ids=str)
def test_one_worker_saves_alone_and_all_load_what_one_of_them_writes(
    world: GetWorld, servers: Servers, mode: Any
) -> None:
    def work(comm: Any) -> Any:
        params, optimizer = made("Adam")
        client = servers.client(comm.rank)
        optimizer = gt.distributed(optimizer, mode, comm=comm, ps=client)
        trained(params, optimizer, 1)
        comm.barrier()
        optimizer.flush()
        comm.barrier()
        saved = [stored(optimizer.state_dict())] if comm.rank == 0 else []
        comm.barrier()
        values = values_of(params)
        trained(params, optimizer, 2)
        saved = gt.broadcast_state({"saved": saved}, comm=comm)["saved"]
        if comm.rank == 1:
            optimizer.driver.store.write = None  # It would be an error here.
        optimizer.load_state_dict(saved[0])
        comm.barrier()
        now = stored(optimizer.state_dict())
        comm.barrier()
        optimizer.close()
        return same(now, saved[0]), values, values_of(params), len(saved[0]["state"])

    for is_same, before, after, states in world(2, "tcp").run(work):
        assert is_same
        assert states == 2
        assert not np.array_equal(before[0], after[0])  # Values stay the servers'.


@pytest.mark.parametrize("mode", SERVED, ids=str)
def test_a_state_that_lacks_that_of_stepped_parameters_is_refused(comm: Any, mode: Any) -> None:
    server = ExactServer()
    _, saved, optimizer = saved_by(server, comm, mode)
    settings = {**saved, "state": {}}
    for wrong, text in (
        (settings, r"no state of parameter 0 of group 0, and servers have stepped it 5 times"),
        ({**saved, "state": {0: saved["state"][0]}}, "no state of parameter 1 of group 0"),
        ({**saved, "state": {**saved["state"], 1: {"step": torch.tensor(3.0)}}}, "parameter 1 of"),
        (changed(saved, "exp_avg", torch.zeros(7)), r"exp_avg of parameter 0 of group 0 has shape"),
        (changed(saved, "max_exp_avg_sq", torch.zeros(3, 40)), "max_exp_avg_sq, which servers do"),
        ({**saved, "param_groups": [saved["param_groups"][0] | {"maximize": True}]}, "maximize=T"),
    ):
        wrong["param_groups"][0]["lr"] = 7.0
        with pytest.raises(gr.InvalidArgument, match=text):
            optimizer.load_state_dict(wrong)
        saved["param_groups"][0]["lr"] = 0.01
        assert same(optimizer.state_dict(), saved)
    optimizer.close()
    _, optimizer = made("Adam")
    optimizer = gt.distributed(optimizer, mode, comm=comm, ps=ExactServer().client(0))
    settings["param_groups"][0]["lr"] = 7.0
    optimizer.load_state_dict(settings)  # Nothing was stepped here.
    assert optimizer.param_groups[0]["lr"] == 7
    optimizer.close()
    with pytest.raises(gr.Closed):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("mode", SERVED[:2], ids=str)
def test_values_loaded_after_a_step_that_timed_out_are_kept_with_the_state(
    comm: Any, mode: Any
) -> None:
    values, saved, optimizer = saved_by(ExactServer(), comm, mode)
    store, params = optimizer.driver.store, optimizer._params
    pull = store.pull

    def late(*_: Any) -> None:
        store.pull = pull
        raise gr.TimedOut("late")

    store.pull = late
    with pytest.raises(gr.TimedOut, match="is done all the same"):
        trained(params, optimizer, 2, 1)
    with torch.no_grad():
        for param, value in zip(params, values, strict=True):
            param.copy_(torch.from_numpy(value))
    optimizer.load_state_dict(saved)
    assert all(map(np.array_equal, values_of(params), values))
    assert same(optimizer.state_dict(), saved)
    optimizer.close()


def changed(saved: Any, name: str, value: Any) -> Any:
    wrong = copy.deepcopy(saved)
    wrong["state"][0][name] = value
    return wrong


@pytest.mark.parametrize("mode", SERVED[:3], ids=str)
def test_a_state_that_one_worker_cannot_take_changes_nothing_on_any(
    world: GetWorld, mode: Any
) -> None:
    server, ranks = ExactServer(), world(2, "tcp")
    optimizers: dict[int, Any] = {}

    def load(comm: Any) -> None:
        params, optimizer = made("Adam")
        optimizers[comm.rank] = gt.distributed(
            optimizer, mode, comm=comm, ps=server.client(comm.rank)
        )
        trained(params, optimizer, 1)
        comm.barrier()
        saved = stored(optimizer.state_dict())
        saved["param_groups"][0]["lr"] = 7.0
        optimizer.load_state_dict({**saved, "state": {}} if comm.rank == 1 else saved)

    mine, theirs = ranks.errors(load)
    assert isinstance(theirs, gr.InvalidArgument)
    assert isinstance(mine, gr.Mismatch)
    assert "load_state_dict: rank 1 (" in str(mine)
    assert f"could not take the state: InvalidArgument: {theirs}" in str(mine)
    for optimizer in optimizers.values():
        assert optimizer.param_groups[0]["lr"] == 0.01
        optimizer.abandon()


class Tied(nn.Module):
    """One weight at two places, one frozen, rows, and a bias that a script wants slower."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = gt.Embedding("rows", 2, optimizer=gr.optim.Adagrad(lr=0.5))
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.rows(ids)))

    def groups(self) -> list[dict[str, Any]]:
        frozen = self.second.bias
        return [
            {"params": [self.first.weight, frozen]},
            {"params": [self.first.bias], "lr": 0.001, "name": "slow"},
        ]


def test_groups_tied_and_frozen_parameters_and_a_scalers_dropped_step_are_saved(comm: Any) -> None:
    with gr.ps.connect() as ps:  # A server inside this process.
        model = Tied()
        optimizer = gt.distributed(
            torch.optim.Adam(model.groups(), lr=0.01), gr.Async(), model=model, comm=comm, ps=ps
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(5):
            optimizer.zero_grad()
            scale = float("inf") if step == 2 else 1.0
            scaler.scale(model(torch.tensor([1, 2])).sum() * scale).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.flush()
        saved = stored(optimizer.state_dict())
        states, groups = saved["state"], saved["param_groups"]
        assert list(states) == [0, 2]  # Neither the frozen one nor rows, whose state is theirs.
        assert [state["step"] for state in states.values()] == [4, 4]
        assert [group["params"] for group in groups] == [[0, 1], [2]]
        assert groups[1]["name"] == "slow"
        optimizer.load_state_dict(saved)
        assert same(optimizer.state_dict(), saved)
        optimizer.close()

    alone: Any = torch.optim.Adam(model.groups(), lr=0.01)
    alone.load_state_dict(saved)
    assert same(alone.state_dict(), saved)


def test_a_worker_that_loads_alone_is_told_who_has_to(world: GetWorld) -> None:
    server = ExactServer()

    def load(comm: Any) -> str:
        _, optimizer = made("Adam")
        optimizer = gt.distributed(
            optimizer, gr.Async(), comm=comm, ps=server.client(comm.rank), timeout=0.2
        )
        text = ""
        if comm.rank == 0:
            with pytest.raises(gr.TimedOut) as raised:
                optimizer.load_state_dict(optimizer.state_dict())
            text = str(raised.value)
        optimizer.abandon()
        return text

    ranks = world(2, "tcp")
    text, _ = ranks.run(load)
    assert "a call of all workers" in text
    assert "before distributed()" in text


def test_broadcast_state_leaves_out_what_servers_have_for_all(world: GetWorld) -> None:
    server = ExactServer()

    def share(comm: Any) -> None:
        _, optimizer = made("Adam")
        optimizer = gt.distributed(optimizer, gr.Async(), comm=comm, ps=server.client(comm.rank))
        try:
            gt.broadcast_state({"optimizer": optimizer}, comm=comm)
        finally:
            optimizer.abandon()

    for error in world(2, "shm").errors(share):
        assert isinstance(error, gr.InvalidArgument)
        assert "'optimizer' is on parameter servers" in str(error)


ALL = [gr.Sync(), *SERVED[:3], gr.Geo(1), gr.Hybrid(gr.Async(), gr.Async())]


@pytest.mark.parametrize("mode", ALL, ids=str)
@pytest.mark.parametrize("after", ALL, ids=str)
def test_a_run_goes_on_from_a_file_as_if_it_had_not_ended_whatever_the_mode(
    comm: Any, mode: Any, after: Any
) -> None:
    def epochs(mode: Any, first: int, last: int, saved: Any) -> tuple[Any, list[Any]]:
        params, optimizer = made("Adam")
        if saved:
            for param, value in zip(params, saved["values"], strict=True):
                param.data.copy_(value)
            optimizer.load_state_dict(saved["optimizer"])
        optimizer = gt.distributed(optimizer, mode, comm=comm, ps=ExactServer().client(0))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
        if saved:
            schedule.load_state_dict(saved["schedule"])
            # As the recipe of docs/training.md has it: making one has set the rates and the betas.
            groups = saved["optimizer"]["param_groups"]
            for group, was in zip(optimizer.param_groups, groups, strict=True):
                group.update({name: was[name] for name in was if name != "params"})
        for epoch in range(first, last):
            trained(params, optimizer, epoch, 3)
            schedule.step()
        state = {"values": params, "optimizer": optimizer, "schedule": schedule}
        kept = {name: getattr(one, "state_dict", lambda: params)() for name, one in state.items()}
        kept = stored(kept)
        optimizer.close()
        return kept, values_of(params)

    saved, _ = epochs(mode, 0, 2, None)
    _, resumed = epochs(after, 2, 4, saved)
    _, expected = epochs(mode, 0, 4, None)
    for one, other in zip(resumed, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)
        if mode == after:
            np.testing.assert_array_equal(one, other)
