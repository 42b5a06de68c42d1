"""Hybrid: two optimizers that behave as one, in schedules and at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from exact_server import ExactServer

SLOW, FAST = gr.optim.SGD(lr=0.5), gr.optim.SGD(lr=1.0)
ONE = np.ones(1, np.float32)


def two_params() -> list[Any]:
    return [np.zeros(1, np.float32) for _ in range(2)]


@pytest.mark.parametrize("dense", [gr.Sync(), gr.Sync(via="ps"), gr.Async()], ids=str)
def test_a_rule_for_each_parameter_may_be_given(world: GetWorld, dense: Any) -> None:
    comm, params = world(1, "tcp").comms[0], two_params()
    mode, store = gr.Hybrid(dense, gr.Async()), ExactServer().client(0)
    with gr.distributed(params, [FAST, FAST], mode, ps=store, comm=comm) as optimizer:
        optimizer.set_rule([SLOW, SLOW])
        optimizer.step([ONE, ONE])
        optimizer.flush()
        assert params == [-0.5, -0.5]
        with pytest.raises(gr.InvalidArgument, match="1 rules for 2 parameters"):
            optimizer.set_rule([SLOW])


def test_all_reduce_has_one_rule_for_all_parameters_and_says_so(world: GetWorld) -> None:
    comm, params = world(1, "tcp").comms[0], two_params()
    with gr.distributed(params, FAST, comm=comm, ps="nobody") as optimizer:
        with pytest.raises(gr.InvalidArgument, match="one rule for all parameters"):
            optimizer.set_rule([SLOW, FAST])
        optimizer.step([ONE, ONE])
        assert params == [-1, -1]


def test_a_closed_hybrid_hands_nothing_out(world: GetWorld) -> None:
    comm = world(1, "tcp").comms[0]
    for mode in (gr.Sync(), gr.Hybrid(), gr.Hybrid(gr.Async(), gr.Async())):
        store = ExactServer().client(0)
        with gr.distributed([], FAST, mode, ps=store, comm=comm) as optimizer:
            assert list(optimizer.hand_out("open", 3)) == [0, 1, 2]
        with pytest.raises(gr.Closed, match="'model' is closed"):
            list(optimizer.hand_out("closed", 3))


@pytest.mark.parametrize("end", ["flush", "close"])
def test_dense_parameters_end_well_where_rows_do_not(end: str) -> None:
    comm: Any = SimpleNamespace(rank=0, world_size=1)
    param, mode = np.zeros(1, np.float32), gr.Hybrid(gr.Async(), gr.Async())
    optimizer = gr.distributed([param], FAST, mode, ps=ExactServer().client(0), comm=comm)
    optimizer.sparse_table("t", 1, FAST)
    optimizer.step([ONE])

    def fail() -> None:
        raise gr.PeerLost("server 1 is gone")

    optimizer.sparse_side.flush = fail
    with pytest.raises(gr.PeerLost, match="server 1"):
        getattr(optimizer, end)()
    assert param == -1
    assert optimizer.dense_side.is_closed == (end == "close")
    optimizer.abandon()


@pytest.mark.parametrize(
    ("mode", "is_in_step"),
    [
        (gr.Hybrid(gr.Async(), gr.Sync(via="ps")), True),
        (gr.Hybrid(gr.Geo(), gr.BoundedStaleness(1)), True),
        (gr.Hybrid(gr.BoundedStaleness(1), gr.Async()), True),
        (gr.Hybrid(gr.Async(), gr.Geo(k_steps=3, outer=gr.Nesterov())), True),
        (gr.Hybrid(gr.Async(), gr.Geo()), False),
        (gr.Sync(), True),
    ],
    ids=str,
)
def test_a_hybrid_is_what_its_mode_says_before_and_after_its_first_table(
    world: GetWorld, mode: Any, is_in_step: bool
) -> None:
    first = ExactServer().client(0)
    # The other one is never asked for anything else.
    pair = SimpleNamespace(
        rank=0, world_size=2, all_gather=lambda own: np.array([own, [0, 1, own[2]]])
    )
    comm: Any = world(1, "tcp").comms[0] if mode == gr.Sync() else pair
    optimizer = gr.distributed([np.zeros(1, np.float32)], FAST, mode, ps=first, comm=comm)
    assert optimizer.is_in_step == is_in_step
    mine = list(optimizer.hand_out("before", 4))
    optimizer.sparse_table("t", 1, FAST)
    assert optimizer.is_in_step == is_in_step
    assert list(optimizer.hand_out("after", 4)) == mine
    if mode != gr.Sync():
        assert mine == ([0, 2] if is_in_step else [0, 1, 2, 3])
    optimizer.abandon()


def test_workers_of_a_hybrid_in_rounds_go_round_equally_often_before_the_first_table(
    world: GetWorld,
) -> None:
    servers, mode = ExactServer(), gr.Hybrid(gr.Async(), gr.Sync(via="ps"))

    def go_round(comm: Any) -> int:
        store = servers.client(comm.rank)
        with gr.distributed([np.zeros(1, np.float32)], FAST, mode, ps=store, comm=comm) as own:
            return len(list(own.uneven(range(3 if comm.rank else 1))))

    assert world(2, "tcp").run(go_round) == [3, 3]
