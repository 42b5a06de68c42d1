"""Dense parameters on servers: whose values come first, and which are refused before any are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from exact_server import ExactServer
from gradring.modes.factory import over_servers
from mode_servers import Servers
from worker_threads import on_workers

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
