"""Ranks that train through servers: nothing of an earlier time they met, and as the right worker.

What is left there is a job's that was killed in the middle of a round, or an optimizer's that not
all ranks have closed.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from exact_server import ExactServer
from gradring.modes.bounded import BoundedOptimizer

SGD = gr.optim.SGD(lr=1.0)
ONE = np.ones(1, np.float32)
NESTEROV = gr.Geo(k_steps=1, outer=gr.Nesterov(lr=1.0, momentum=0.5))
WRONG = "is worker {} to the servers, .* ps=gr.ps.connect\\(client=comm.rank\\)"


@pytest.mark.parametrize("mode", [gr.Sync(via="ps"), NESTEROV, gr.Sync()], ids=str)
def test_half_a_round_of_an_earlier_run_is_in_no_round_of_the_next(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    server, ranks = ExactServer(), world(2, "tcp")

    def make(comm: Any) -> tuple[Any, Any]:
        store = server.client(comm.rank)
        optimizer = gr.distributed([np.zeros(1, np.float32)], SGD, mode, ps=store, comm=comm)
        return optimizer, optimizer.sparse_table("t", 1, SGD)

    def half_a_step(optimizer: Any, rows: Any) -> None:
        if mode != gr.Sync():
            optimizer.step([-100 * ONE], rows=rows)
            return
        optimizer.sparse_side.step(None, rows=rows)
        optimizer.sparse_side.flush()

    def begin(comm: Any) -> None:  # And end as a job does that is killed.
        optimizer, table = make(comm)
        if comm.rank == 0:
            rows = [(table, [1], np.full((1, 1), -100, np.float32))]
            with pytest.raises(gr.TimedOut, match=r"workers? \[?1"):
                half_a_step(optimizer, rows)
        optimizer.abandon()

    def train(comm: Any) -> list[float]:
        optimizer, table = make(comm)
        for _ in range(2):
            optimizer.step([-ONE], rows=[(table, [1], -ONE[None])])
        optimizer.flush()
        result = [float(optimizer.params[0][0]), float(table.pull([1])[0, 0])]
        optimizer.close()
        return result

    with monkeypatch.context() as patch:
        patch.setattr("exact_server.SECONDS", 0.05)
        ranks.run(begin)
    expected = 2 if mode != NESTEROV else 1.5 + 1.75
    assert ranks.run(train) == [[expected, expected]] * 2


@pytest.mark.parametrize("mode", [gr.Sync(via="ps"), NESTEROV], ids=str)
def test_workers_in_rounds_whose_numbers_are_not_their_ranks_are_refused_on_every_rank(
    world: GetWorld, mode: Any
) -> None:
    server = ExactServer()

    def make(comm: Any) -> None:
        store = server.client(comm.rank * 2)  # The last one alone is wrong.
        with pytest.raises(gr.InvalidArgument, match="rank 1 .*" + WRONG.format(2)):
            gr.distributed([ONE.copy()], SGD, mode, ps=store, comm=comm)

    world(2, "tcp").run(make)
    assert not server.tables


OTHER_PACE = gr.Geo(k_steps=2, outer=NESTEROV.outer)
OTHER_OUTER = gr.Geo(k_steps=1, outer=gr.Nesterov(lr=0.5, momentum=0.5))


@pytest.mark.parametrize(
    ("modes", "words"),
    [
        ((NESTEROV, OTHER_PACE), "rank 0 has mode Geo.k_steps=1, .* rank 1 has mode Geo.k_steps=2"),
        ((NESTEROV, OTHER_OUTER), r"rank 0 .*Nesterov\(lr=1\.0.* rank 1 .*Nesterov\(lr=0\.5"),
        ((NESTEROV, gr.Sync(via="ps")), "rank 0 has mode Geo.* rank 1 has mode Sync"),
        ((gr.Sync(), gr.Sync(via="ps")), "rank 0 has mode Hybrid.* rank 1 has mode Sync"),
        (
            (gr.Hybrid(gr.Async(), NESTEROV), gr.Hybrid(gr.Async(), OTHER_PACE)),
            "rank 0 .*k_steps=1.* rank 1 .*k_steps=2",
        ),
    ],
    ids=["pace", "outer", "mode", "via", "hybrid"],
)
def test_workers_in_rounds_with_other_modes_are_refused_on_every_rank(
    world: GetWorld, modes: tuple[Any, Any], words: str
) -> None:
    server = ExactServer()

    def make(comm: Any) -> None:
        store = server.client(comm.rank)
        with pytest.raises(gr.Mismatch, match=words):
            gr.distributed([ONE.copy()], SGD, modes[comm.rank], ps=store, comm=comm)

    world(2, "tcp").run(make)
    assert not server.tables


def test_workers_in_rounds_under_other_names_are_refused_on_every_rank(world: GetWorld) -> None:
    server = ExactServer()

    def make(comm: Any) -> None:
        store, name = server.client(comm.rank), f"model {comm.rank}"
        with pytest.raises(gr.Mismatch, match=r"name 'model 0', and rank 1 .* name 'model 1'"):
            gr.distributed([ONE.copy()], SGD, NESTEROV, ps=store, comm=comm, name=name)

    world(2, "tcp").run(make)
    assert not server.tables


@pytest.mark.parametrize("mode", [gr.BoundedStaleness(1), gr.Geo(), gr.Hybrid(gr.Geo())], ids=str)
def test_a_worker_whose_number_is_not_its_rank_is_refused(mode: Any) -> None:
    server, comm = ExactServer(), SimpleNamespace(rank=1, world_size=2)
    with pytest.raises(gr.InvalidArgument, match="rank 1 .*" + WRONG.format(2)):
        gr.distributed([ONE.copy()], SGD, mode, ps=server.client(2), comm=comm)
    assert not server.tables


def test_rows_in_rounds_are_refused_where_a_workers_number_is_not_its_rank(world: GetWorld) -> None:
    comm = world(1, "tcp").comms[0]
    optimizer = gr.distributed([ONE.copy()], SGD, ps=ExactServer().client(2), comm=comm)
    with pytest.raises(gr.InvalidArgument, match="rank 0 .*" + WRONG.format(2)):
        optimizer.sparse_table("t", 1, SGD)
    optimizer.close()


def test_workers_that_wait_for_nobody_take_the_first_of_their_ranks_values() -> None:
    server = ExactServer()
    comms: list[Any] = [SimpleNamespace(rank=rank, world_size=2) for rank in range(2)]
    params = [np.full(1, 7 + rank, np.float32) for rank in range(2)]
    for comm, param in zip(comms, params, strict=True):
        store = server.client(1 + 2 * comm.rank)
        gr.distributed([param], SGD, gr.Async(), ps=store, comm=comm, timeout=5).close()
    assert params[0] == params[1] == 7


TOLD = r"client 2147483653, .* `gradring run` .*ps=gr\.ps\.connect\(client=R\)"


BOUNDED = partial(BoundedOptimizer, staleness=1)


@pytest.mark.parametrize("make", [BOUNDED, gr.AsyncOptimizer, gr.GeoOptimizer])
def test_a_process_that_is_no_rank_is_told_how_to_become_a_worker(make: Any) -> None:
    with pytest.raises((gr.InvalidArgument, gr.TimedOut), match=TOLD):
        make([ONE.copy()], SGD, ExactServer().client(2**31 + 5), workers=1, timeout=0.05)


def test_rounds_of_a_process_that_is_no_rank_tell_it_how_to_become_a_worker(
    world: GetWorld,
) -> None:
    comm, store = world(1, "tcp").comms[0], ExactServer().client(2**31 + 5)
    with pytest.raises(gr.InvalidArgument, match=TOLD):
        gr.distributed([ONE.copy()], SGD, gr.Sync(via="ps"), ps=store, comm=comm)
