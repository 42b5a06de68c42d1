"""Several tables in one call: whose they are, and one table several times."""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.errors import InvalidArgument, TimedOut
from gradring.ps import DenseTable, ParameterServer, SparseTable
from ps_servers import connected, join, serving, start_server, together

ONE = np.ones((1, 1), np.float32)


@pytest.mark.parametrize("call", [ParameterServer.push_many, SparseTable.push, DenseTable.push])
def test_type_checkers_know_what_a_push_returns(call: Any) -> None:
    # A union would have every caller say which of the two it is.
    said = [
        ast.unparse(node.returns)
        for node in ast.walk(ast.parse(Path(inspect.getfile(call)).read_text()))
        if isinstance(node, ast.FunctionDef)
        and node.name == call.__name__
        and node.returns
        and "overload" in map(ast.unparse, node.decorator_list)
    ]
    assert said == ["Pushed", "Pending[Pushed]", "Pushed | Pending[Pushed]"]


@pytest.fixture
def ps() -> Iterator[ParameterServer]:
    with connected(2) as client:
        yield client


def pushes_of(ps: ParameterServer, name: str, what: str) -> int:
    return sum(t[what] for shard in ps.stats() for t in shard["tables"] if t["name"] == name)


def test_a_table_of_another_connection_is_refused_before_anything_is_sent() -> None:
    with serving() as here, serving() as there, join(here) as ps, join(there) as other:
        users = ps.sparse_table("users", 1, gr.optim.SGD(lr=1))
        items = other.sparse_table("items", 1, gr.optim.SGD(lr=1))
        sizes = other.dense_table("sizes", 3, gr.optim.SGD(lr=1))
        assert items.number == users.number, "the number alone would name the wrong table"
        users.push([7], ONE)
        before = ps.calls.core.bytes_sent
        for call in (
            lambda: ps.pull_many([(users, [7]), (items, [7])]),
            lambda: ps.push_many([(items, [7], ONE)]),
            lambda: ps.shrink(items, least_score=9),
            lambda: ps.set_optimizers([(items, gr.optim.SGD(lr=9))]),
            lambda: ps.set_optimizers([(sizes, gr.optim.SGD(lr=9))]),
        ):
            with pytest.raises(InvalidArgument, match=r"'(items|sizes)' belongs to another connec"):
                call()
        assert ps.calls.core.bytes_sent == before
        assert (users.pull([7]).tolist(), items.pull([7]).tolist()) == ([[-1]], [[0]])


def test_what_is_no_list_of_tables_and_what_they_need_is_refused(ps: ParameterServer) -> None:
    rows = ps.sparse_table("rows", 1, gr.optim.Sum())
    array = ps.dense_table("array", 1, gr.optim.Sum())
    before = ps.calls.core.bytes_sent
    for call, words in (
        (lambda: ps.pull_many([(array, [1])]), "pull_many takes sparse tables, not DenseTable"),
        (lambda: ps.push_many([(array, [1], ONE)]), "push_many takes sparse tables"),
        (lambda: ps.shrink(array, least_score=1), "shrink takes sparse tables, not DenseTable"),
        (lambda: ps.pull_many([("rows", [1])]), "not a str"),
        (lambda: ps.pull_many([rows]), r"list of \(table, ids\); one of them is a SparseTable"),
        (lambda: ps.push_many([(rows, [1])]), r"list of \(table, ids, gradients\)"),
        (lambda: ps.set_optimizers([("rows", gr.optim.Sum())]), "takes tables, not a str"),
        (lambda: ps.set_optimizers([rows]), r"list of \(table, rule\)"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            call()
    assert ps.calls.core.bytes_sent == before


@pytest.mark.parametrize("distinct", [False, True])
def test_a_table_twice_in_one_push_is_one_update(ps: ParameterServer, distinct: bool) -> None:
    # Adagrad's first step is of length lr whatever the gradient, its second one shorter.
    table = ps.sparse_table("t", 1, gr.optim.Adagrad(lr=1.0))
    other = ps.sparse_table("o", 1, gr.optim.Sum())
    again = ps.sparse_table("t", 1, gr.optim.Adagrad(lr=1.0))
    report = ps.push_many(
        [
            (table, [1, 2], np.ones((2, 1))),
            (other, [1], ONE),
            (again, [[3], [1]], [[[1]], [[3.0]]]),
        ],
        distinct=distinct,
    )
    assert isinstance(report, gr.ps.Pushed)
    assert report.rows == 4
    assert table.pull([1, 2, 3]).ravel().tolist() == [-1, -1, -1]
    state = table.state_dict()
    assert state["step"].tolist() == [1, 1, 1]
    assert state["state"]["sum"].ravel().tolist() == [16, 1, 1]
    assert other.pull([1]).tolist() == [[1]]
    assert pushes_of(ps, "t", "pushes") == 2, "one on each shard"


@pytest.mark.parametrize("async_op", [False, True])
def test_a_table_twice_in_one_pull_is_asked_once_and_fills_both(
    ps: ParameterServer, async_op: bool
) -> None:
    torch = pytest.importorskip("torch")
    table = ps.sparse_table("t", 2, gr.optim.Sum(), init=gr.init.Uniform(1))
    other = ps.sparse_table("o", 1, gr.optim.Sum())
    ids = torch.tensor([[2, 3, 1]])
    result = ps.pull_many([(table, [1, 2]), (other, [1]), (table, ids)], async_op=async_op)
    first, second, third = result.wait() if async_op else result
    assert pushes_of(ps, "t", "rows_pulled") == 3, "ids 1, 2 and 3"
    assert (first == table.pull([1, 2])).all()
    assert second.tolist() == [[0]]
    assert (type(third), tuple(third.shape)) == (torch.Tensor, (1, 3, 2))
    assert (third == table.pull(ids)).all()


def test_handles_of_one_table_with_other_codecs_do_not_share_a_round_trip(
    ps: ParameterServer,
) -> None:
    plain = ps.sparse_table("t", 1, gr.optim.Sum())
    packed = ps.sparse_table("t", 1, gr.optim.Sum(), codec="bf16")
    with pytest.raises(InvalidArgument, match="one round trip has one codec"):
        ps.push_many([(plain, [1], ONE), (packed, [1], ONE)])


def test_settings_that_workers_give_a_table_at_once_are_those_of_one_on_all_servers() -> None:
    with serving(3) as addresses, join(addresses, client=0) as a, join(addresses, client=1) as b:
        made = [(ps, ps.sparse_table("t", 1, gr.optim.SGD(lr=1.0))) for ps in (a, b)]

        def in_force() -> set[float]:
            return {shard["tables"][0]["lr"] for shard in a.stats()}

        for _ in range(40):
            together(
                [lambda ps=ps, table=table, lr=lr: ps.set_optimizers([(table, gr.optim.SGD(lr=lr))])
                 for (ps, table), lr in zip(made, (2.0, 4.0), strict=True)]
            )  # fmt: skip
            assert in_force() in ({2.0}, {4.0})
        # Who comes later has its way, whatever the other's number.
        for lr, (_, table) in ((8.0, made[0]), (16.0, made[1]), (8.0, made[0])):
            table.set_optimizer(gr.optim.SGD(lr=lr))
            assert in_force() == {lr}


def test_a_worker_that_dies_over_a_change_of_a_rule_leaves_no_servers_that_differ() -> None:
    with start_server(0, 2) as first, contextlib.ExitStack() as stack:
        second = start_server(1, 2)
        addresses = [first.address, second.address]
        with join(addresses, client=1) as dying:
            table = dying.sparse_table("t", 2, gr.optim.SGD(lr=1.0))
            second.stop()
            with pytest.raises(TimedOut, match=f"without acknowledgement.*{second.address}"):
                table.set_optimizer(gr.optim.SGD(lr=0.25), timeout=0.5)
        port = int(second.address.rpartition(":")[2])
        stack.enter_context(start_server(1, 2, port=port))
        with join(addresses) as ps:
            ps.sparse_table("t", 2, gr.optim.SGD(lr=1.0))
            assert [shard["tables"][0]["lr"] for shard in ps.stats()] == [0.25, 0.25]
