"""gradring.torch: a script stays as it is in every mode: its hooks, closures and calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from mode_servers import RealServers
from torch_models import Clicks, are_same, values

ALL = [
    gr.Sync(), gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=2),
    gr.Hybrid(dense=gr.Sync(), sparse=gr.Async()),
]  # fmt: skip
SERVED = [gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=1)]


@pytest.fixture
def comm(world: GetWorld) -> Any:
    """A communicator of one."""
    return world(1, "tcp").comms[0]


@pytest.mark.parametrize("mode", ALL, ids=str)
def test_hooks_around_a_step_run_once_also_after_a_state_was_loaded(
    world: GetWorld, mode: Any
) -> None:
    server = ExactServer()

    def train(comm: Any) -> list[str]:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(
            torch.optim.SGD([param], lr=1.0), mode, comm=comm, ps=server.client(comm.rank)
        )
        seen: list[str] = []

        def double(hooked: Any, *_: Any) -> None:
            assert hooked is optimizer
            param.grad *= 2  # type: ignore[operator]
            seen.append("pre")

        optimizer.register_step_pre_hook(double)
        optimizer.register_step_post_hook(lambda *_: seen.append("post"))
        for _ in range(2):
            optimizer.zero_grad()
            param.backward()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        if mode != gr.Sync() and not isinstance(mode, gr.Hybrid):
            optimizer.flush()
        assert param.item() % 2 == 0  # The servers, too, had what the hook left.
        assert param.item() <= -4
        comm.barrier()
        optimizer.close()
        return seen

    assert world(2, "shm").run(train) == [["pre", "post"] * 2] * 2


def lbfgs_steps(model: nn.Module, optimizer: Any) -> list[float]:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((model(torch.eye(3)) - 1) ** 2).sum()
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(3)]


def test_one_worker_in_geo_searches_as_lbfgs_does_alone(comm: Any) -> None:
    def make() -> nn.Linear:
        torch.manual_seed(1)
        return nn.Linear(3, 2)

    model, alone = make(), make()
    optimizer = gt.distributed(
        torch.optim.LBFGS(model.parameters()), gr.Geo(k_steps=2), comm=comm,
        ps=ExactServer().client(0),
    )  # fmt: skip
    losses = lbfgs_steps(model, optimizer)
    assert losses == lbfgs_steps(alone, torch.optim.LBFGS(alone.parameters()))
    assert losses[-1] < losses[0] / 10
    assert are_same(values(model), values(alone))
    optimizer.close()


@pytest.mark.parametrize("mode", [*ALL[:1], *ALL[2:]], ids=str)
@pytest.mark.parametrize(("row_clip", "moved"), [(None, -4), (2.0, -2)])
def test_clip_norm_is_of_parameters_and_rows_have_their_rules(
    comm: Any, mode: Any, row_clip: float | None, moved: float
) -> None:
    model, server = Clicks(), ExactServer()
    rule = gr.optim.SGD(lr=1.0, clip_norm=row_clip)
    model.rows = gt.Embedding("rows", 1, optimizer=rule)
    optimizer = gt.distributed(
        torch.optim.SGD(model.parameters(), lr=1.0), mode, model=model, comm=comm,
        ps=server.client(0), clip_norm=1.5,
    )  # fmt: skip
    model(3, 4).backward()
    optimizer.step()
    optimizer.flush()
    assert optimizer.grad_norm == 3
    assert model.state() == pytest.approx((-1.5, moved), rel=1e-5)
    optimizer.close()


def test_clip_norm_clips_what_a_closure_brought(comm: Any) -> None:
    param = nn.Parameter(torch.zeros(4))
    optimizer = gt.distributed(
        torch.optim.SGD([param], lr=1.0), gr.Geo(), clip_norm=1.0, comm=comm,
        ps=ExactServer().client(0),
    )  # fmt: skip

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (param * 5).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(param.detach(), torch.full((4,), -0.5))
    assert float(optimizer.grad_norm) == 10
    optimizer.close()


@pytest.mark.parametrize("mode", [gr.Sync(), *SERVED], ids=str)
def test_accumulating_unfreezing_and_sharing_buffers_is_written_alike(
    world: GetWorld, mode: Any
) -> None:
    server = ExactServer()

    def train(comm: Any) -> tuple[list[float], list[float]]:
        model = nn.Module()
        model.first, model.second = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        model.register_buffer("mean", torch.full((2,), float(comm.rank + 3)))
        model.second.requires_grad_(False)
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=0.5), mode, model=model, comm=comm,
            ps=server.client(comm.rank),
        )  # fmt: skip
        with optimizer.no_sync():
            model.first.backward()
        model.first.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.second.requires_grad_(True)
        optimizer.refresh()
        model.second.backward()
        optimizer.step()
        optimizer.flush()
        comm.barrier()
        optimizer.flush()
        model.mean += comm.rank
        optimizer.share_buffers()
        comm.barrier()
        optimizer.close()
        return [model.first.item(), model.second.item()], model.mean.tolist()

    # Averages once, and every worker's own on top of each other else.
    both = 1 if isinstance(mode, gr.Sync) else 2
    for params, buffers in world(2, "shm").run(train):
        assert params == [-1.0 * both, -0.5 * both]
        assert buffers == [3, 3]


@pytest.mark.parametrize("mode", SERVED, ids=str)
def test_synchronize_has_nothing_to_do_or_says_that_servers_average(
    world: GetWorld, mode: Any
) -> None:
    server = ExactServer()

    def train(comm: Any) -> None:
        param = nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(
            torch.optim.SGD([param], lr=1.0), mode, comm=comm, ps=server.client(comm.rank)
        )
        param.backward()
        if isinstance(mode, gr.Sync):
            with pytest.raises(gr.InvalidArgument, match=r"only servers have.*gradring.Sync\(\)"):
                optimizer.synchronize()
        else:
            optimizer.synchronize()
        optimizer.step()
        with pytest.raises(gr.InvalidArgument, match="model"):
            optimizer.share_buffers()
        comm.barrier()
        optimizer.close()

    world(2, "shm").run(train)


def test_rows_in_rounds_have_all_workers_go_round_equally_often(world: GetWorld) -> None:
    server = ExactServer()

    def train(comm: Any) -> list[int | None]:
        layer = gt.Embedding("e", 1, optimizer=gr.optim.SGD(lr=1.0))
        model = nn.ModuleList([layer, nn.Linear(1, 1)])
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=1.0),
            gr.Hybrid(dense=gr.Async(), sparse=gr.Sync(via="ps")), model=model, comm=comm,
            ps=server.client(comm.rank),
        )  # fmt: skip
        seen = []
        for batch in optimizer.uneven(range(1 + 2 * comm.rank)):
            seen.append(batch)
            optimizer.zero_grad()
            if batch is not None:
                model[1](layer(torch.tensor([batch]))).sum().backward()
            optimizer.step()
        comm.barrier()
        optimizer.close()
        return seen

    assert world(2, "shm").run(train) == [[0, None, None], [0, 1, 2]]


class Sign(torch.optim.SGD):
    """Goes against the sign of each gradient, however large it is."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for param in group["params"]:
                param.sub_(group["lr"] * param.grad.sign())


@pytest.mark.parametrize("mode", ALL, ids=str)
def test_an_optimizer_with_a_step_of_its_own_does_it_or_is_refused_by_name(
    comm: Any, mode: Any
) -> None:
    param, server = nn.Parameter(torch.zeros(2)), ExactServer()
    options = {"comm": comm, "ps": server.client(0)}
    if mode in SERVED[:3]:  # Servers step.
        with pytest.raises(gr.InvalidArgument, match=r"no rule for Sign.*own step\(\) would not"):
            gt.distributed(Sign([param], lr=1.0), mode, **options)
        return
    optimizer = gt.distributed(Sign([param], lr=1.0), mode, **options)
    param.grad = torch.tensor([5.0, -3.0])
    optimizer.step()
    assert param.tolist() == [-1, 1]
    optimizer.close()


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_subclass_that_only_adds_to_an_optimizer_keeps_its_rule(
    comm: Any, monkeypatch: pytest.MonkeyPatch, is_wrapped: bool
) -> None:
    class Named(torch.optim.SGD):
        name = "mine"

    param, server = nn.Parameter(torch.zeros(1)), ExactServer()
    torch.optim.SGD([param])
    if is_wrapped:  # As torch does it where no SGD was made before.
        monkeypatch.delattr(torch.optim.SGD.step, "hooked")
    inner = Named([param], lr=1.0)
    assert ("step" in vars(Named)) == is_wrapped
    optimizer = gt.distributed(inner, gr.Async(), comm=comm, ps=server.client(0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(2):
        param.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
    optimizer.flush()
    assert param.item() == -1.5
    optimizer.close()


@pytest.mark.parametrize("mode", SERVED, ids=str)
def test_a_parameter_whose_memory_was_replaced_is_named_and_trains_on_when_it_is_back(
    comm: Any, mode: Any
) -> None:
    model, server = nn.Linear(2, 1), ExactServer()
    nn.init.zeros_(model.weight)
    optimizer = gt.distributed(
        torch.optim.SGD(model.parameters(), lr=1.0), mode, model=model, comm=comm,
        ps=server.client(0),
    )  # fmt: skip
    own = [param.data for param in model.parameters()]
    nn.utils.vector_to_parameters(torch.ones(3), model.parameters())
    model(torch.ones(2)).backward()
    # What is written in place stays where workers step, and is the servers' where they do.
    way_out = r"with copy_\(\)" if isinstance(mode, gr.Geo) else "have it back.* before distributed"
    for call in (optimizer.step, optimizer.flush):
        with pytest.raises(gr.InvalidArgument, match=f"^weight: its memory was .*{way_out}"):
            call()
    for param, data in zip(model.parameters(), own, strict=True):
        param.data = data
    optimizer.step()
    optimizer.flush()
    assert model.weight.tolist() == [[-1, -1]]
    assert server.values("model/0").tolist() == [[-1, -1]]
    optimizer.close()


@pytest.mark.parametrize("mode", SERVED[:3], ids=str)
def test_an_option_that_servers_do_not_know_is_refused_when_it_is_turned_on_later(
    comm: Any, mode: Any
) -> None:
    model, server = nn.Linear(2, 1), ExactServer()
    optimizer = gt.distributed(
        torch.optim.Adam(model.parameters()), mode, model=model, comm=comm, ps=server.client(0)
    )
    saved = optimizer.state_dict()
    saved["param_groups"][0]["maximize"] = True
    before = [param.detach().clone() for param in model.parameters()]
    with pytest.raises(gr.InvalidArgument, match="Adam: servers do not know maximize=True"):
        optimizer.load_state_dict(saved)
    optimizer.param_groups[0]["maximize"] = True
    model(torch.ones(2)).backward()
    for _ in range(2):
        with pytest.raises(gr.InvalidArgument, match="Adam: servers do not know maximize=True"):
            optimizer.step()
    assert are_same(before, values(model))
    optimizer.param_groups[0]["maximize"] = False
    optimizer.step()
    optimizer.close()
    assert not are_same(before, values(model))


@pytest.mark.parametrize("mode", ALL, ids=str)
def test_a_model_is_evaluated_alike_before_and_after_its_optimizer_was_closed(
    world: GetWorld, real_servers: RealServers, mode: Any
) -> None:
    def train(comm: Any) -> list[Any]:
        model = nn.Sequential(gt.Embedding("e", 2, optimizer=gr.optim.SGD(lr=1)), nn.Linear(2, 1))
        optimizer = gt.distributed(
            torch.optim.SGD(model.parameters(), lr=1), mode, model=model, comm=comm,
            ps=real_servers.client(comm.rank),
        )  # fmt: skip
        ids = torch.tensor([1, 2])
        model(ids).sum().backward()
        optimizer.step()
        for _ in range(2):  # Then everybody has what everybody has pushed.
            optimizer.flush()
            comm.barrier()
        seen = [model.eval()(ids).tolist()]
        comm.barrier()
        optimizer.close()
        comm.barrier()
        seen.append(model(ids).tolist())
        with pytest.raises(gr.Closed):
            optimizer.step()
        return seen

    for before, after in world(2, "shm").run(train):
        assert before == after


@pytest.mark.parametrize("mode", [gr.Sync(via="ps"), gr.BoundedStaleness(1)], ids=str)
def test_ranks_that_servers_count_otherwise_are_told_before_anything_is_trained(
    world: GetWorld, mode: Any
) -> None:
    server = ExactServer()

    def train(comm: Any) -> None:
        param = nn.Parameter(torch.zeros(1))
        plain = torch.optim.SGD([param], lr=1.0)
        with pytest.raises(gr.InvalidArgument, match=r"rank \d of this .* is worker \d to the ser"):
            gt.distributed(plain, mode, comm=comm, ps=server.client(comm.rank + 1))
        assert type(plain) is torch.optim.SGD
        gt.distributed(plain, mode, comm=comm, ps=server.client(comm.rank)).close()

    world(2, "tcp").run(train)
