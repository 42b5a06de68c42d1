"""Steps of PyTorch models that time out: done in all their parts, or not at all and repeatable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from torch_models import IDS, Clicks

SECONDS = 20.0
LATE_ROWS = [gr.Hybrid(dense, gr.BoundedStaleness(0))
             for dense in (gr.Sync(), gr.Async(), gr.Geo(k_steps=1))]  # fmt: skip


def made(comm: Any, server: ExactServer, mode: Any) -> tuple[Clicks, Any]:
    model = Clicks()
    return model, gt.distributed(
        torch.optim.SGD([model.weight], lr=1.0), mode, model=model, comm=comm,
        ps=server.client(comm.rank),
    )  # fmt: skip


@pytest.mark.parametrize("mode", LATE_ROWS, ids=str)
@pytest.mark.parametrize("called", ["plain", "with a closure", "by a scaler"])
def test_dense_parameters_take_the_step_to_which_rows_came_too_late(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch, mode: Any, called: str
) -> None:
    has_closure = called == "with a closure"
    monkeypatch.setattr("exact_server.SECONDS", 0.05)
    server, has_timed_out = ExactServer(), threading.Event()

    def train(comm: Any) -> float:
        model, optimizer = made(comm, server, mode)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=called == "by a scaler")

        # With a closure of averaged gradients rank 0 waits for rank 1's loss before it comes to
        # the rows; with a scaler for what rank 1's has found.
        is_averaged = mode.dense == gr.Sync()
        is_to_wait_later = is_averaged and called != "plain"

        def wait(*_: Any) -> None:
            if comm.rank == 1:
                assert has_timed_out.wait(SECONDS)

        def backward() -> None:
            scaler.scale(model(1, 2)).backward()
            if not is_to_wait_later:
                wait()

        if is_to_wait_later and has_closure:
            optimizer.register_step_post_hook(wait)
        elif is_to_wait_later:
            optimizer.rows.driver.make_room = wait

        def step() -> None:
            if has_closure:
                optimizer.step(backward)
            else:
                backward()
                scaler.step(optimizer)

        if comm.rank == 0:
            try:
                with pytest.raises(gr.TimedOut, match="Step 1 is done all the same"):
                    step()
                assert vars(optimizer).keys().isdisjoint({"grad_scale", "found_inf"})
                if mode.dense == gr.Async():
                    optimizer.driver.flush()
                weight = model.weight.item()
            finally:
                monkeypatch.setattr("exact_server.SECONDS", SECONDS)
                has_timed_out.set()
        else:
            step()
            weight = model.weight.item()
        scaler.update()
        optimizer.zero_grad()
        step()
        comm.barrier()
        optimizer.close()
        return weight

    weights = world(2, "shm").run(train)
    assert weights[0] == -1
    if mode.dense == gr.Sync():
        assert weights[1] == -1
    if mode.dense == gr.Async():
        assert server.values("model/0") == -4
    assert server.values("rows")[7] == -8


def by_settings(optimizer: Any, _: Clicks) -> Callable[[], None]:
    optimizer.param_groups[0]["momentum"] = 0.5

    def repair() -> None:
        optimizer.param_groups[0]["momentum"] = 0

    return repair


def by_sparse_gradient(_: Any, model: Clicks) -> Callable[[], None]:
    dense = model.weight.grad
    assert dense is not None
    model.weight.grad = dense.to_sparse()

    def repair() -> None:
        model.weight.grad = dense

    return repair


def by_servers(optimizer: Any, _: Clicks) -> Callable[[], None]:
    driver = optimizer.rows.driver
    step = driver.step

    def fail(*_: Any) -> None:
        raise gr.TimedOut("nothing new was sent: make the same call again")

    driver.step = fail

    def repair() -> None:
        driver.step = step

    return repair


THROUGH_SERVERS = [gr.Sync(via="ps"), gr.Hybrid(gr.Sync(via="ps"), gr.Sync(via="ps"))]


@pytest.mark.parametrize(
    ("fail", "mode"),
    [
        *((by_servers, mode) for mode in (gr.Sync(), *THROUGH_SERVERS)),
        *((by_settings, mode) for mode in THROUGH_SERVERS),
        *((by_sparse_gradient, mode) for mode in THROUGH_SERVERS),
    ],
)
@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_step_that_was_not_done_is_repeated_with_its_rows_and_its_weight(
    world: GetWorld, fail: Callable[[Any, Clicks], Callable[[], None]], mode: Any, is_scaled: bool
) -> None:
    server = ExactServer()

    def train(comm: Any) -> tuple[float, float]:
        model, optimizer = made(comm, server, mode)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=is_scaled)
        optimizer.set_weight(1 if comm.rank else 3)
        scaler.scale(model(*((5, 10) if comm.rank else (1, 2)))).backward()
        if comm.rank == 0:
            repair = fail(optimizer, model)
            with pytest.raises((gr.TimedOut, gr.InvalidArgument)):
                scaler.step(optimizer)
            repair()
        scaler.step(optimizer)
        state = model.weight.item(), model.rows.eval()(IDS).item()
        comm.barrier()
        optimizer.close()
        return state

    # By hand: (3 * 1 + 5) / 4, and twice that.
    assert world(2, "shm").run(train) == [(-2, -4)] * 2


def unfreeze(model: Clicks) -> None:
    model.later.requires_grad_(True)
    model.later.grad = torch.ones(1)


def make_double(model: Clicks) -> None:
    model.weight.data = model.weight.data.double()


def leave(_: Clicks) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "options"),
    [
        *((change, {"overlap": False}) for change in (unfreeze, make_double)),
        (leave, {"dtype": torch.float16}),
    ],
)
def test_a_step_whose_gradients_are_refused_has_pushed_no_rows(
    world: GetWorld, change: Callable[[Clicks], None], options: dict[str, Any]
) -> None:
    dtype = options.get("dtype", torch.float32)
    server = ExactServer()

    def train(comm: Any) -> None:
        model = Clicks()
        model.weight.data = model.weight.data.to(dtype)
        model.later = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        # Scalers refuse float16.
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=dtype == torch.float16)
        optimizer = gt.distributed(
            torch.optim.SGD([model.weight, model.later], lr=1.0), model=model, comm=comm,
            ps=server.client(comm.rank), overlap=options.get("overlap", True),
        )  # fmt: skip
        scaler.scale(model(1, 2)).backward()
        change(model)
        with pytest.raises(gr.InvalidArgument):
            scaler.step(optimizer)
        assert optimizer.rows.driver.clock == 0
        assert len(optimizer.rows.gradients()) == 1
        comm.barrier()
        optimizer.close()

    world(2, "shm").run(train)
    assert not server.values("rows")


def test_a_step_of_geo_whose_rows_are_refused_is_not_done(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = world(1, "tcp").comms[0]
    model, optimizer = made(comm, ExactServer(), gr.Geo(k_steps=1))
    model(1, 2).backward()

    def refuse(*_: Any) -> None:
        raise gr.TimedOut("servers did not answer")

    with monkeypatch.context() as broken:
        broken.setattr(optimizer.driver, "train_rows", refuse)
        with pytest.raises(gr.TimedOut):
            optimizer.step()
    assert model.weight.item() == 0
    optimizer.step()
    optimizer.flush()
    assert (model.weight.item(), model.rows.eval()(IDS).item()) == (-1, -2)
    optimizer.close()


@pytest.mark.parametrize(
    "mode",
    [gr.Async(queue=1), gr.Hybrid(dense=gr.Async(queue=1), sparse=gr.BoundedStaleness(0))],
    ids=str,
)
@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_step_for_which_there_was_no_room_is_repeated_whole(
    world: GetWorld, mode: Any, is_scaled: bool
) -> None:
    comm, server = world(1, "tcp").comms[0], ExactServer()
    model, optimizer = made(comm, server, mode)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=is_scaled)
    goes_on, is_sending = threading.Event(), threading.Event()
    driver = optimizer.driver
    push = driver.store.push

    def slow_push(*arguments: Any) -> Any:
        if threading.current_thread().name.startswith("gradring sender"):
            is_sending.set()
            assert goes_on.wait(SECONDS)
        return push(*arguments)

    driver.store.push = slow_push

    def backward() -> None:
        optimizer.zero_grad()
        scaler.scale(model(1, 2)).backward()

    def step() -> None:
        scaler.step(optimizer)
        scaler.update()

    backward()
    step()
    assert is_sending.wait(SECONDS)
    backward()
    step()
    backward()
    driver.timeout = 0.1
    with pytest.raises(gr.TimedOut, match="the queue was full"):
        step()
    goes_on.set()
    driver.timeout = SECONDS
    step()
    optimizer.flush()
    assert (model.weight.item(), model.rows.eval()(IDS).item()) == (-3, -6)
    optimizer.close()
