"""`torch.amp.GradScaler` in every mode: rows are unscaled, and overflows are found in them too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from torch_models import Clicks

TOGETHER = [gr.Sync(), gr.Sync(via="ps"), gr.Hybrid(dense=gr.Sync(), sparse=gr.Async()),
            gr.Hybrid(dense=gr.Async(), sparse=gr.Sync(via="ps"))]  # fmt: skip
APART = [gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=1),
         gr.Hybrid(dense=gr.Geo(k_steps=1), sparse=gr.Async())]  # fmt: skip
NESTEROV = gr.Geo(k_steps=2, outer=gr.Nesterov(lr=1.0, momentum=0.5))
SCALE = 1024.0


def train(
    comm: Any, server: ExactServer, mode: Any, steps: list[tuple[float, float]], **options: Any
) -> tuple[tuple[float, float], list[float]]:
    """Run a step for each pair of gradients; the state and the scales."""
    model, scaling, scales = Clicks(), torch.amp.GradScaler("cpu", init_scale=SCALE), []
    optimizer = gt.distributed(
        torch.optim.SGD([model.weight], lr=1.0, **options), mode, model=model, comm=comm,
        ps=server.client(comm.rank),
    )  # fmt: skip
    for gradients in steps:
        optimizer.zero_grad()
        scaling.scale(model.train()(*gradients)).backward()
        scaling.step(optimizer)
        scaling.update()
        scales.append(scaling.get_scale())
    optimizer.flush()
    comm.barrier()
    optimizer.flush()
    comm.barrier()
    state = model.state()
    comm.barrier()
    optimizer.close()
    return state, scales


@pytest.mark.parametrize("mode", [*TOGETHER, *APART], ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_rows_and_dense_parameters_move_by_gradients_without_the_scale(
    world: GetWorld, mode: Any, fused: bool
) -> None:
    server = ExactServer()
    ((state, scales),) = world(1, "tcp").run(
        lambda comm: train(comm, server, mode, [(1, 2), (3, 4)], fused=fused)
    )
    assert state == (-4, -6)
    assert scales == [SCALE, SCALE]


@pytest.mark.parametrize("mode", TOGETHER, ids=str)
@pytest.mark.parametrize("broken", [(2.0, 1e38), (1e38, 2.0)], ids=["row", "dense"])
def test_workers_in_step_leave_out_a_step_together_whoever_has_an_overflow(
    world: GetWorld, mode: Any, broken: tuple[float, float]
) -> None:
    server = ExactServer()

    def on_rank(comm: Any) -> Any:
        return train(comm, server, mode, [(1, 2), broken if comm.rank else (1, 2), (3, 6)])

    # Asynchronous sides add up what others average.
    is_hybrid = isinstance(mode, gr.Hybrid)
    dense = 2 if is_hybrid and mode.dense == gr.Async() else 1
    sparse = 2 if is_hybrid and mode.sparse == gr.Async() else 1
    for state, scales in world(2, "shm").run(on_rank):
        assert state == (-4 * dense, -8 * sparse)
        assert scales == [SCALE, SCALE / 2, SCALE / 2]


@pytest.mark.parametrize("mode", [*APART, NESTEROV], ids=str)
@pytest.mark.parametrize("broken", [(2.0, 1e38), (1e38, 2.0)], ids=["row", "dense"])
def test_other_workers_leave_out_only_their_own_step(
    world: GetWorld, mode: Any, broken: tuple[float, float]
) -> None:
    server = ExactServer()

    def on_rank(comm: Any) -> Any:
        return train(comm, server, mode, [(1, 2), broken if comm.rank else (1, 2)])

    (state, scales), (other_state, other_scales) = world(2, "shm").run(on_rank)
    if mode != NESTEROV:  # Its momentum has a say.
        assert state == (-3, -6)
    assert state == other_state
    assert np.isfinite(state).all()
    assert scales == [SCALE, SCALE]
    assert other_scales == [SCALE, SCALE / 2]


@pytest.mark.parametrize("mode", [gr.Sync(), gr.Async(), gr.Geo()], ids=str)
def test_unscaling_before_the_step_is_refused_where_there_are_rows(
    world: GetWorld, mode: Any
) -> None:
    server = ExactServer()

    def on_rank(comm: Any) -> None:
        model, scaling = Clicks(), torch.amp.GradScaler("cpu", init_scale=SCALE)
        optimizer = gt.distributed(
            torch.optim.SGD([model.weight], lr=1.0), mode, model=model, comm=comm,
            ps=server.client(comm.rank),
        )  # fmt: skip
        scaling.scale(model(1, 1)).backward()
        scaling.unscale_(optimizer)
        with pytest.raises(
            gr.InvalidArgument, match=r"does not see the rows.* rows with their rule's"
        ):
            scaling.step(optimizer)
        optimizer.zero_grad()
        optimizer.step()
        comm.barrier()
        optimizer.close()

    world(2, "shm").run(on_rank)
