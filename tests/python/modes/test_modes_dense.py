"""Dense parameters on servers: whose values come first, and which are refused before any are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from exact_server import ExactServer
from gradring.modes.factory import over_servers
from mode_servers import Servers
from thread_ranks import on_workers

SGD = gr.optim.SGD(lr=0.5)
MODES = [
    gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=2),
    gr.Geo(k_steps=2, outer=gr.Nesterov()),
]  # fmt: skip


def ones(count: int) -> list[Any]:
    return [np.ones(3, np.float32) for _ in range(count)]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("count", [1, 3])
def test_a_worker_with_another_number_of_parameters_than_worker_0_is_refused(
    servers: Servers, mode: Any, count: int
) -> None:
    params = [ones(2), ones(count)]

    def make(rank: int) -> Any:
        store = servers.client(rank)
        return over_servers(mode, params[rank], SGD, store, workers=2, timeout=10)

    def outcome(rank: int) -> str:
        try:
            make(rank).abandon()
        except gr.Mismatch as error:
            return str(error)
        return "made"

    first, second = on_workers(2, outcome)
    assert first == "made"
    assert f"worker 1 has {count} dense parameters, and 2 are on the servers" in second
    assert all((param == 1).all() for param in params[1])


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_model_that_has_grown_does_not_take_zeros_for_its_new_parameters(mode: Any) -> None:
    server = ExactServer()
    over_servers(mode, ones(1), SGD, server.client(0), workers=1).close()
    params = ones(2)
    with pytest.raises(gr.Mismatch, match="worker 0 has 2 dense parameters, and 1 are on the"):
        over_servers(mode, params, SGD, server.client(0), workers=1)
    assert (params[1] == 1).all()
    assert "model/1" not in server.tables


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_arrays_that_share_memory_are_refused_by_their_numbers(mode: Any) -> None:
    def nobody(*_: Any) -> Any:
        raise AssertionError

    whole, other = np.zeros(6, np.float32), np.zeros(2, np.float32)
    for first, second in ((whole, whole), (whole[:4], whole[3:]), (whole, whole[2:4])):
        for params in ([first, other, second], [second, other, first]):
            with pytest.raises(gr.InvalidArgument, match="model/0 and model/2 share memory"):
                gr.distributed(params, SGD, mode, ps=nobody, comm=gr.init())


def test_parts_of_an_array_that_do_not_overlap_are_trained_as_arrays_of_their_own() -> None:
    whole = np.zeros(4, np.float32)
    optimizer = over_servers(
        gr.Geo(k_steps=1), [whole[2:], whole[:2]], SGD, ExactServer().client(0), workers=1
    )
    optimizer.step([np.full(2, -2, np.float32), np.full(2, -4, np.float32)])
    optimizer.close()
    assert whole.tolist() == [2, 2, 1, 1]
