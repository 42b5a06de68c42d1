"""gradring.torch: what an optimizer saves holds the state of the rows that its worker trains."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from mode_servers import RealServers

GEO_ROWS = [
    gr.Geo(3), gr.Hybrid(gr.Geo(2), gr.Geo(3)), gr.Hybrid(gr.Sync(), gr.Geo(3)),
    gr.Hybrid(gr.Async(), gr.Geo(3)),
]  # fmt: skip
RULES = [gr.optim.Adagrad(lr=0.1), gr.optim.Adam(lr=0.1), gr.optim.SparseAdam(lr=0.1)]
IDS = torch.arange(30)


@pytest.fixture
def comm(world: GetWorld) -> Any:
    """A communicator of one."""
    return world(1, "tcp").comms[0]


class Clicks(torch.nn.Module):
    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rows = gt.Embedding("rows", 4, optimizer=rule, init=gr.init.Normal(0, 1))
        self.weight = torch.nn.Parameter(torch.full((4,), 0.5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ((self.rows(ids) @ self.weight) ** 2).sum()


def made(comm: Any, server: ExactServer, mode: Any, rule: Any = RULES[0]) -> tuple[Clicks, Any]:
    model = Clicks(rule)
    return model, gt.distributed(
        torch.optim.Adam([model.weight], lr=0.1), mode, model=model, comm=comm, ps=server.client(0)
    )


def trained(model: Clicks, optimizer: Any, seed: int) -> list[torch.Tensor]:
    random = np.random.default_rng(seed)
    for _ in range(7):
        optimizer.zero_grad()
        # Ids of 64 bits, of which torch's have a sign.
        model(torch.tensor(random.integers(0, len(IDS), 6)) - 10).backward()
        optimizer.step()
    optimizer.flush()
    return [model.weight.detach().clone(), model.rows(IDS - 10).detach().clone()]


def stored(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("mode", GEO_ROWS, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_training_goes_on_bit_for_bit_from_what_was_saved(
    comm: Any, mode: Any, rule: Any
) -> None:
    model, optimizer = made(comm, ExactServer(), mode, rule)
    trained(model, optimizer, 1)
    expected = trained(model, optimizer, 2)
    optimizer.close()

    server = ExactServer()
    model, optimizer = made(comm, server, mode, rule)
    trained(model, optimizer, 1)
    saved = [stored(model.state_dict()), stored(optimizer.state_dict())]
    optimizer.close()
    model, optimizer = made(comm, server, mode, rule)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    results = trained(model, optimizer, 2)
    optimizer.close()
    for one, other in zip(results, expected, strict=True):
        assert torch.equal(one, other)


def plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return state.tolist() if torch.is_tensor(state) else state


def broken(state: dict[str, Any], **rows: Any) -> dict[str, Any]:
    return {**state, "gradring_rows": rows}


@pytest.mark.parametrize("mode", [GEO_ROWS[0], GEO_ROWS[2]], ids=str)
def test_a_state_without_that_of_the_rows_is_refused_and_nothing_is_loaded(
    comm: Any, mode: Any
) -> None:
    model, optimizer = made(comm, ExactServer(), mode)
    trained(model, optimizer, 1)
    saved = copy.deepcopy(optimizer.state_dict())
    without = {key: value for key, value in saved.items() if key != "gradring_rows"}
    trained(model, optimizer, 2)
    for wrong, told in (
        (without, "no 'gradring_rows', and this worker trains rows of rows"),
        (broken(saved), r"tables \[\]"),
        (broken(saved, rows=1), "no dict of tables' states"),
        (broken(saved, other=saved["gradring_rows"]["rows"]), "'other'"),
    ):
        before = plain(optimizer.state_dict())
        with pytest.raises(gr.InvalidArgument, match=told):
            optimizer.load_state_dict(wrong)
        assert plain(optimizer.state_dict()) == before
    optimizer.close()


@pytest.mark.parametrize("mode", [GEO_ROWS[0], GEO_ROWS[2]], ids=str)
def test_a_state_that_torch_refuses_changes_nothing_of_the_rows_either(
    comm: Any, mode: Any
) -> None:
    model, optimizer = made(comm, ExactServer(), mode)
    trained(model, optimizer, 1)
    saved = copy.deepcopy(optimizer.state_dict())
    trained(model, optimizer, 2)
    for wrong, error in (
        ({**saved, "param_groups": saved["param_groups"] * 2}, ValueError),
        ({**saved, "param_groups": [{**saved["param_groups"][0], "params": []}]}, ValueError),
        ({key: value for key, value in saved.items() if key != "param_groups"}, KeyError),
        ({**saved, "state": {0: {"exp_avg": object(), "step": range(2)}}}, TypeError),
    ):
        before = plain(copy.deepcopy(optimizer.state_dict()))
        with pytest.raises(error):
            optimizer.load_state_dict(wrong)
        assert plain(optimizer.state_dict()) == before
    optimizer.load_state_dict(saved)
    assert plain(optimizer.state_dict()) == plain(saved)
    optimizer.close()


@pytest.mark.parametrize("mode", [gr.Sync(), gr.Async()], ids=str)
def test_state_of_rows_is_refused_where_servers_train_them(comm: Any, mode: Any) -> None:
    model, optimizer = made(comm, ExactServer(), GEO_ROWS[0])
    trained(model, optimizer, 1)
    saved = {**optimizer.state_dict(), "state": {}}
    optimizer.close()
    _, optimizer = made(comm, ExactServer(), mode)
    assert "gradring_rows" not in optimizer.state_dict()
    with pytest.raises(gr.InvalidArgument, match=r"in GEO \(rows\)"):
        optimizer.load_state_dict(saved)
    optimizer.close()


def test_a_state_that_servers_cannot_take_leaves_the_rows_state_as_it_was(comm: Any) -> None:
    model, optimizer = made(comm, ExactServer(), gr.Hybrid(gr.Async(), gr.Geo(3)))
    trained(model, optimizer, 1)
    earlier = stored(optimizer.state_dict())
    trained(model, optimizer, 2)
    before = stored(optimizer.state_dict())
    with pytest.raises(gr.InvalidArgument, match="there is no state of weight"):
        optimizer.load_state_dict({**earlier, "state": {}})
    after = stored(optimizer.state_dict())
    assert str(after["gradring_rows"]) == str(before["gradring_rows"])
    assert str(before["gradring_rows"]) != str(earlier["gradring_rows"])
    optimizer.close()


@pytest.mark.one_transport
@pytest.mark.parametrize("mode", [
    gr.Sync(), gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Geo(2),
    gr.Geo(2, outer=gr.Nesterov()), gr.Hybrid(dense=gr.Sync(), sparse=gr.Async()),
], ids=str)  # fmt: skip
def test_every_worker_s_layer_has_the_rows_that_one_has_brought_from_elsewhere(
    world: GetWorld, real_servers: RealServers, mode: Any
) -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)

    def read(comm: Any) -> list[Any]:
        layer = gt.Embedding("e", 2, optimizer=gr.optim.Adagrad(lr=0.1))
        model = torch.nn.Sequential(layer, torch.nn.Linear(2, 1))
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=0.1), mode, model=model, comm=comm,
            ps=real_servers.client(comm.rank),
        )  # fmt: skip
        if comm.rank == 1:
            layer.table.table.load_state_dict({"ids": [-1, 7, 2**60], "rows": vectors})
        comm.barrier()
        rows: list[Any] = layer(torch.tensor([7, 2**60, -1, 8])).tolist()
        comm.barrier()
        optimizer.close()
        return rows

    assert world(2, "tcp").run(read) == 2 * [[[2, 3], [4, 5], [0, 1], [0, 0]]]
