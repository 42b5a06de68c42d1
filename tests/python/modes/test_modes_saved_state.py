"""NumPy: the state of dense parameters is read from servers and set there, whatever the mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from exact_server import ExactServer
from gradring.modes.asynchronous import AsyncOptimizer
from mode_servers import Servers

SERVED = [gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async()]
RULES = [
    gr.optim.SGD(lr=0.5), gr.optim.SGD(lr=0.5, momentum=0.5), gr.optim.Adagrad(lr=0.5),
    gr.optim.Adam(lr=0.5), gr.optim.FTRL(lr=0.5), gr.optim.SparseAdam(lr=0.5),
]  # fmt: skip
SHAPES = ((3, 20), (), (2,))


@pytest.fixture
def comm(world: GetWorld) -> Any:
    """A communicator of one."""
    return world(1, "tcp").comms[0]


def made(mode: Any, rule: Any, comm: Any, store: Any, **options: Any) -> Any:
    params = [np.ones(shape, np.float32) for shape in SHAPES]
    return gr.distributed(params, rule, mode, ps=store, comm=comm, **options)


def trained(optimizer: Any, seed: int, steps: int = 3) -> list[Any]:
    """The parameters after some steps, in which the last has no gradient."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        optimizer.step([*(random.standard_normal(shape) for shape in SHAPES[:2]), None])
        optimizer.flush()
    return [param.copy() for param in optimizer.params]


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        entry.keys() == there.keys()
        and all(np.array_equal(entry[name], there[name]) for name in entry)
        for entry, there in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_what_one_mode_has_saved_another_goes_on_from(
    comm: Any, servers: Servers, rule: Any
) -> None:
    first = made(gr.Async(), rule, comm, servers.client(0), name="first")
    values = trained(first, 1)
    saved = first.state_dict()
    assert saved["rules"] == [type(rule).__name__] * 3
    assert saved["rows"] == {}
    assert bool(saved["dense"][0]) == (rule != RULES[0])  # Which keeps nothing.
    following = trained(first, 2)
    first.close()
    assert same(first.state_dict()["dense"], saved["dense"]) == (rule == RULES[0])
    for number, mode in enumerate([*SERVED, gr.Geo(1)]):
        optimizer = made(mode, rule, comm, servers.client(0), name=f"next {number}")
        optimizer.flush()
        if isinstance(mode, gr.Geo):
            for param, value in zip(optimizer.params, values, strict=True):
                param[...] = value
        else:
            for table, value in zip(optimizer.dense.tables, values, strict=True):
                optimizer.store.write(table, value)
        optimizer.load_state_dict(saved)
        if not isinstance(mode, gr.Geo):
            assert same(optimizer.state_dict()["dense"], saved["dense"])
            assert all(map(np.array_equal, optimizer.params, values))
        for one, other in zip(trained(optimizer, 2), following, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        optimizer.close()


@pytest.mark.parametrize("mode", SERVED, ids=str)
def test_a_wrong_state_is_refused_and_changes_nothing(comm: Any, mode: Any) -> None:
    optimizer = made(mode, gr.optim.Adam(), comm, ExactServer().client(0))
    trained(optimizer, 1)
    saved = optimizer.state_dict()
    for wrong, text in (
        ({}, "as state_dict returns it"),
        ({**saved, "dense": saved["dense"][:2]}, "of 2 parameters, there are 3"),
        ({**saved, "rules": ["SGD"] * 3}, "the state is of rules"),
        ({**saved, "rows": {"t": {"ids": []}}}, r"that of rows \(t\)"),
        ({**saved, "dense": [{}, {}, {}]}, "no state of parameter 0, and servers have stepped it"),
    ):
        with pytest.raises(gr.InvalidArgument, match=text):
            optimizer.load_state_dict(wrong)
    assert same(optimizer.state_dict()["dense"], saved["dense"])
    optimizer.close()


def test_workers_without_ranks_cannot_wait_for_each_other_and_are_refused() -> None:
    param = np.ones(2, np.float32)
    optimizer = AsyncOptimizer([param], gr.optim.Adam(), ExactServer().client(0), workers=7)
    with pytest.raises(gr.InvalidArgument, match=r"7 workers .*before distributed\(\).*gr.init\("):
        optimizer.load_state_dict(optimizer.state_dict())
    optimizer.close()


def test_a_worker_whose_step_goes_in_the_background_saves_it_all_the_same(
    comm: Any, servers: Servers
) -> None:
    optimizer = made(gr.Async(), gr.optim.Adam(), comm, servers.client(0))
    for steps in range(1, 9):
        optimizer.step([np.ones(shape, np.float32) for shape in SHAPES])
        assert [entry["step"] for entry in optimizer.state_dict()["dense"]] == [steps] * 3
    optimizer.close()


def test_the_dense_side_of_a_hybrid_has_a_state(comm: Any) -> None:
    server = ExactServer()
    for dense in (gr.Sync(), gr.Async()):
        optimizer = made(gr.Hybrid(dense, gr.Async()), gr.optim.Adam(), comm, server.client(0))
        trained(optimizer, 1)
        saved = optimizer.dense_side.state_dict()
        optimizer.dense_side.load_state_dict(saved)
        states = saved["state" if dense == gr.Sync() else "dense"]
        assert [state.get("step", 0) for state in states] == [3, 3, 0]
        optimizer.close()
