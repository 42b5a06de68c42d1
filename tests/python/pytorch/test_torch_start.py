"""gradring.torch.distributed at its start: who is who on all ranks, and rank 0's values for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from torch_models import are_same, mlp, sgd, values


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))


def in_another_order(comm: Any) -> None:
    model = two_layers()
    params = list(model.parameters())
    sgd(params[:: -1 if comm.rank else 1], comm, model=model)


def named_in_another_order(comm: Any) -> None:
    named = list(two_layers().named_parameters())
    sgd(named[:: -1 if comm.rank else 1], comm)


def with_another_frozen(comm: Any) -> None:
    params = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    params[comm.rank].requires_grad_(False)
    sgd(params, comm)


def refreshed_with_another_frozen(comm: Any) -> None:
    model = two_layers()
    optimizer = sgd(model.parameters(), comm, model=model)
    model[comm.rank].requires_grad_(False)
    try:
        optimizer.refresh()
    finally:
        model.requires_grad_(True)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()  # It goes on as before.


def added_with_another_frozen(comm: Any) -> None:
    optimizer = sgd(mlp().parameters(), comm)
    added = nn.Parameter(torch.ones(3), requires_grad=comm.rank == 0)
    optimizer.add_param_group({"params": [added]})


OTHER_MODELS: list[tuple[Callable[[Any], None], str, str]] = [
    (in_another_order, "tensors is 0.weight, float32[4, 4]", "1.weight, float32[4, 4]"),
    (named_in_another_order, "tensors is 0.weight, float32[4, 4]", "1.weight, float32[4, 4]"),
    (
        with_another_frozen,
        "number 0 of the tensors is parameter 0 of group 0, frozen, float32[3]",
        "parameter 0 of group 0, float32[3]",
    ),
    (refreshed_with_another_frozen, "is 0.weight, frozen, float32[4, 4]", "0.weight, float32[4"),
    (added_with_another_frozen, "parameter 0 of group 1, float32[3]", "0 of group 1, frozen, "),
]


@pytest.mark.parametrize(("start", "here", "there"), OTHER_MODELS)
def test_parameters_that_are_others_on_another_rank_are_a_mismatch_that_names_the_first(
    world: GetWorld, start: Callable[[Any], None], here: str, there: str
) -> None:
    ranks = world(2, "shm")
    for error in ranks.errors(start):
        assert isinstance(error, gr.Mismatch)
        first, second = str(error).split(", on rank 0 and ")
        assert here in first
        assert there in second
        assert second.endswith("on rank 1")
    assert ranks.is_usable


def with_another_rate(comm: Any) -> None:
    params = mlp().parameters()
    gt.distributed(torch.optim.SGD([{"params": params}], lr=0.5 * (1 + comm.rank)), comm=comm)


def of_another_kind(comm: Any) -> None:
    kind = torch.optim.Adam if comm.rank else torch.optim.SGD
    gt.distributed(kind(mlp().parameters(), lr=1.0), comm=comm)


def with_state_on_one_rank(comm: Any) -> None:
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    if comm.rank == 0:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    gt.distributed(optimizer, model=model, comm=comm)


def after_another_number_of_steps(comm: Any) -> None:
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    for _ in range(1 + comm.rank):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    gt.distributed(optimizer, model=model, comm=comm)


def clipped_on_one_rank(comm: Any) -> None:
    sgd(mlp().parameters(), comm, clip_norm=0.5 if comm.rank else None)


@pytest.mark.parametrize(
    ("start", "here", "there"),
    [
        (with_another_rate, "lr=0.5 in group 0", "lr=1.0 in group 0"),
        (of_another_kind, "the optimizer SGD", "the optimizer Adam"),
        (
            with_state_on_one_rank,
            "exp_avg, exp_avg_sq, step=1.0 as the state of 0.weight",
            "nothing as the state of 0.weight",
        ),
        (after_another_number_of_steps, "exp_avg, exp_avg_sq, step=1.0", "step=2.0 as the state"),
        (clipped_on_one_rank, "clip_norm=None", "clip_norm=0.5"),
    ],
)
def test_ranks_that_would_step_differently_are_a_mismatch_before_anything_is_overwritten(
    world: GetWorld, start: Callable[[Any], None], here: str, there: str
) -> None:
    ranks = world(2, "shm")
    for error in ranks.errors(start):
        assert isinstance(error, gr.Mismatch)
        first, second = str(error).split(", and rank 1 has ")
        assert f"rank 0 has {here}" in first
        assert there in second
        assert "load a saved state on all" in second
    assert ranks.is_usable


def test_ranks_may_compute_the_same_step_in_other_ways(world: GetWorld) -> None:
    def start(comm: Any) -> bool:
        rate = torch.tensor(1) if comm.rank else 1.0
        optimizer = torch.optim.SGD(
            mlp().parameters(), lr=rate, foreach=False if comm.rank else None
        )
        gt.distributed(optimizer, comm=comm).close()
        return True

    assert all(world(2, "shm").run(start))


def test_ranks_may_freeze_what_only_servers_add_up(world: GetWorld) -> None:
    server = ExactServer()

    def train(comm: Any) -> list[float]:
        params = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        params[comm.rank].requires_grad_(False)
        optimizer = gt.distributed(
            torch.optim.SGD(params, lr=1.0), gr.Async(), comm=comm, ps=server.client(comm.rank)
        )
        params[1 - comm.rank].backward()
        optimizer.step()
        optimizer.flush()
        comm.barrier()
        optimizer.flush()
        optimizer.close()
        return [param.item() for param in params]

    assert world(2, "shm").run(train) == [[-1, -1], [-1, -1]]


def test_what_the_optimizer_and_the_model_call_alike_is_shared_both(world: GetWorld) -> None:
    def start(comm: Any) -> list[torch.Tensor]:
        head, backbone = (nn.Linear(2, 2) for _ in range(2))
        with torch.no_grad():
            for param in [*head.parameters(), *backbone.parameters()]:
                param.fill_(comm.rank + 1)
        sgd(head.named_parameters(), comm, model=backbone)
        return values(head) + values(backbone)

    for tensors in world(2, "shm").run(start):
        assert all((tensor == 1).all() for tensor in tensors)


def buffers_of(rank: int) -> dict[str, torch.Tensor]:
    complexes = torch.arange(3) + 1j * (rank + 1)
    indices = torch.tensor([[rank, 2, rank], [0, 1, 0]])  # Not coalesced: one index comes twice.
    return {
        "conjugated": complexes.conj(),
        "negated": complexes.conj().imag,
        "sparse": torch.sparse_coo_tensor(
            indices, torch.ones(3) * (rank + 1), (3, 2), check_invariants=True
        ),
        "sparse rows": torch.sparse_coo_tensor(
            torch.arange(rank + 1)[None],
            torch.full((rank + 1, 2), 1j * rank),
            (3, 2),
            check_invariants=True,
        ),
    }


@pytest.mark.parametrize("name", ["conjugated", "negated", "sparse", "sparse rows"])
def test_buffers_that_are_views_of_other_numbers_or_sparse_become_rank_0s(
    world: GetWorld, name: str
) -> None:
    def start(comm: Any) -> torch.Tensor:
        model = nn.Linear(2, 1)
        model.register_buffer("b", buffers_of(comm.rank)[name])
        optimizer = sgd(model.parameters(), comm, model=model)
        model.b.mul_(comm.rank + 1)  # type: ignore[operator]
        optimizer.share_buffers()
        return model.b.to_dense()  # type: ignore[operator]

    for buffer in world(2, "shm").run(start):
        torch.testing.assert_close(buffer, buffers_of(0)[name].to_dense(), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_sparse_frozen_parameter_is_shared_and_others_are_refused_by_name(
    world: GetWorld,
) -> None:
    def start(comm: Any) -> torch.Tensor:
        model = nn.ParameterDict({"weight": nn.Parameter(torch.ones(2))})
        frozen = (torch.eye(3) * (comm.rank + 1)).to_sparse()
        model["graph"] = nn.Parameter(frozen, requires_grad=False)
        sgd(model.parameters(), comm, model=model)
        with pytest.raises(gr.InvalidArgument, match=r"graph is a torch.sparse_coo tensor"):
            sgd([model["weight"], model["graph"].requires_grad_(True)], comm, model=model)
        model["rows"] = nn.Parameter(torch.eye(3).to_sparse_csr(), requires_grad=False)
        with pytest.raises(gr.InvalidArgument, match=r"rows is a torch.sparse_csr tensor"):
            sgd([model["weight"]], comm, model=model)
        return model["graph"].detach().to_dense()

    results = world(2, "shm").run(start)
    assert are_same(results, [torch.eye(3)] * 2)


def test_conjugated_gradients_are_averaged(world: GetWorld) -> None:
    weights = torch.arange(9).view(3, 3) + 1j

    def train(comm: Any) -> list[torch.Tensor]:
        param = nn.Parameter(weights.clone())
        optimizer = sgd([param], comm)
        (param.mH @ torch.full((3, 2), 1.0 + comm.rank * 1j)).real.sum().backward()
        assert param.grad is not None
        first = param.grad.clone()
        optimizer.zero_grad()
        optimizer.set_weight(1 + 2 * comm.rank)
        param.backward(torch.full((3, 3), 2.0 * comm.rank + 1j).conj())
        return [first, param.grad]

    alone = nn.Parameter(weights.clone())
    (alone.mH @ torch.full((3, 2), 1 + 0.5j)).real.sum().backward()
    assert alone.grad is not None
    assert alone.grad.is_conj()
    for first, second in world(2, "shm").run(train):
        torch.testing.assert_close(first, alone.grad.resolve_conj())
        assert second.tolist() == [[1.5 - 1j] * 3] * 3
