"""Tables on real servers, from Python: rows begin, change, expire and are counted as promised."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

import gradring as gr
from gradring.errors import Closed, InvalidArgument, Mismatch
from gradring.ps import ParameterServer
from ps_servers import connected, join, serving, together

IDS = np.array([3, 2**63, 17, 3, 2**64 - 1], np.uint64)


@pytest.fixture(params=[1, 3], ids=["one-shard", "three-shards"])
def ps(request: pytest.FixtureRequest) -> Iterator[ParameterServer]:
    with connected(request.param) as client:
        yield client


def test_a_pull_makes_no_row_and_a_push_does(ps: ParameterServer) -> None:
    table = ps.sparse_table("user", 4, gr.optim.SGD(lr=1), init=gr.init.Uniform(0.5), seed=9)
    begin = table.pull(IDS)
    assert (begin.shape, begin.dtype) == ((5, 4), np.float32)
    assert (np.abs(begin) <= 0.5).all()
    assert len(np.unique(begin)) == 16  # Of four distinct ids.
    assert len(table) == 0
    report = table.push(IDS, np.ones((5, 4), np.float32))
    assert (report.rows, report.refused, report.not_admitted) == (4, 0, 0)
    assert len(table) == 4
    # Id 3 is there twice: its gradients are added up before the one update.
    steps = np.array([2, 1, 1, 2, 1], np.float32)[:, None]
    assert (table.pull(IDS) == begin - steps).all()


def test_initial_values_are_the_same_on_any_number_of_servers() -> None:
    def values(count: int, threads: int) -> object:
        with connected(count, threads=threads) as client:
            table = client.sparse_table("t", 3, gr.optim.Sum(), init=gr.init.Normal(0, 1), seed=5)
            dense = client.dense_table("d", 100, gr.optim.Sum(), init=gr.init.Uniform(1), seed=5)
            return table.pull(np.arange(50)).tobytes() + dense.pull().tobytes()

    assert values(1, 1) == values(2, 2) == values(3, 1)


def test_ids_and_rows_have_any_shape_and_library(ps: ParameterServer) -> None:
    table = ps.sparse_table("t", 2, gr.optim.Sum())
    ids = np.arange(6).reshape(2, 3)
    table.push(ids, np.arange(12, dtype=np.float32).reshape(2, 3, 2))
    out = np.full((2, 3, 4), -1, np.float32)
    assert table.pull(ids, out[:, :, ::2]) is not None
    assert out[:, :, ::2].ravel().tolist() == list(range(12))
    assert (out[:, :, 1::2] == -1).all()
    assert table.pull([]).shape == (0, 2)
    assert table.push([], np.empty((0, 2), np.float32)).rows == 0

    torch = pytest.importorskip("torch")
    rows = table.pull(torch.tensor([[5, 0]]))
    assert (type(rows), rows.tolist()) == (torch.Tensor, [[[10, 11], [0, 1]]])
    table.push(torch.tensor([5]), torch.tensor([[0.5, 1]], dtype=torch.bfloat16))
    assert table.pull([5]).tolist() == [[10.5, 12]]


def test_asynchronous_calls_are_done_in_order(ps: ParameterServer) -> None:
    table = ps.sparse_table("t", 8, gr.optim.Sum())
    ids = np.arange(1000)
    pushes = [table.push(ids, np.ones((1000, 8), np.float32), async_op=True) for _ in range(5)]
    seen = table.pull(ids, async_op=True)
    assert (seen.wait() == 5).all()
    assert seen.wait() is seen.wait()
    assert seen.done()
    assert [push.wait().rows for push in pushes] == [1000] * 5
    table.push(ids, np.ones((1000, 8), np.float32), async_op=True)
    ps.flush()
    assert (table.pull(ids) == 6).all()


def test_a_dense_table_is_one_parameter(ps: ParameterServer) -> None:
    rule = gr.optim.Adam(lr=0.1)
    table = ps.dense_table("w", (7, 30), rule, init=0.5)
    assert table.version == 0
    expected = np.full((7, 30), 0.5, np.float32)
    state: dict[str, object] = {}
    random = np.random.default_rng(0)
    for _ in range(3):
        gradient = random.standard_normal((7, 30)).astype(np.float32)
        rule.update(expected, gradient, state)
        table.push(gradient)
    out = np.empty((7, 30), np.float32)
    assert table.pull(out) is out
    assert (out == expected).all()
    assert table.version == 3
    work = table.pull(async_op=True)
    assert (work.wait() == expected).all()


def test_every_row_steps_as_a_parameter_of_its_own(ps: ParameterServer) -> None:
    rule = gr.optim.Adam(lr=0.1, weight_decay=0.01)
    table = ps.sparse_table("t", 5, rule, init=0.25)
    rows = {id_: np.full(5, 0.25, np.float32) for id_ in range(6)}
    states: dict[int, dict[str, object]] = {id_: {} for id_ in rows}
    random = np.random.default_rng(1)
    for _ in range(8):
        ids = random.choice(6, 3, replace=False)
        gradients = random.standard_normal((3, 5)).astype(np.float32)
        table.push(ids, gradients)
        for id_, gradient in zip(ids, gradients, strict=True):
            rule.update(rows[id_], gradient, states[id_])
    assert (table.pull(range_ := np.arange(6)) == np.stack([rows[i] for i in range_])).all()


def test_several_tables_travel_together(ps: ParameterServer) -> None:
    users = ps.sparse_table("user", 2, gr.optim.Sum(), init=1)
    items = ps.sparse_table("item", 3, gr.optim.Sum())
    report = ps.push_many(
        [(users, [1, 2], np.ones((2, 2))), (items, [[7]], np.full((1, 1, 3), 5.0))]
    )
    assert report.rows == 3
    first, second = ps.pull_many([(users, [1, 9]), (items, [[7]])])
    assert first.tolist() == [[2, 2], [1, 1]]
    assert second.tolist() == [[[5, 5, 5]]]
    pending = ps.pull_many([(users, [1])], async_op=True)
    assert pending.wait()[0].tolist() == [[2, 2]]
    halves = ps.sparse_table("halves", 2, gr.optim.Sum(), codec="bf16")
    with pytest.raises(InvalidArgument, match="one round trip has one codec"):
        ps.pull_many([(users, [1]), (halves, [1])])


@pytest.mark.parametrize("codec", ["bf16", "fp16", "int8"])
def test_rows_may_travel_in_fewer_bytes(codec: str) -> None:
    with connected() as ps:
        plain = ps.sparse_table("plain", 64, gr.optim.Sum())
        small = ps.sparse_table("small", 64, gr.optim.Sum(), codec=codec)
        ids = np.arange(500)
        rows = np.tile(np.linspace(-127, 127, 64).round().astype(np.float32), (500, 1))
        sent = []
        for table in (plain, small):
            before = ps.calls.core.bytes_sent
            table.push(ids, rows)
            sent.append(ps.calls.core.bytes_sent - before)
        assert sent[1] < 0.6 * sent[0]
        assert (small.pull(ids) == rows).all()  # Whole numbers up to 127 fit into each of them.


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_what_rounding_leaves_out_of_a_push_is_in_the_next_one(codec: str) -> None:
    with connected(2) as ps:
        table = ps.sparse_table("t", 8, gr.optim.Sum(), codec=codec)
        exact = ps.sparse_table("t", 8, gr.optim.Sum(), codec=None)  # The same rows, in float32.
        ids = np.arange(40)
        gradient = np.random.default_rng(0).uniform(0.1, 1, (40, 8)).astype(np.float32)
        for _ in range(200):
            table.push(ids, gradient)
        # 200 roundings of up to 1/256 each the same way would be off by far more than one.
        assert np.abs(exact.pull(ids) - 200 * gradient).max() < 0.02


def test_a_gradient_that_was_only_counted_is_in_no_later_push() -> None:
    with connected() as ps:
        options = {"entry": gr.ps.Count(3), "codec": "bf16"}
        table = ps.sparse_table("t", 1, gr.optim.Sum(), **options)
        exact = ps.sparse_table("t", 1, gr.optim.Sum(), entry=gr.ps.Count(3), codec=None)
        # A quarter of what bfloat16 tells apart at 1: the rest of two of them would tip the third.
        ids, gradient = np.arange(100), np.full((100, 1), 1 + 2.0**-9, np.float32)
        assert [table.push(ids, gradient).not_admitted for _ in range(3)] == [100, 100, 0]
        assert (exact.pull(ids) == 1).all()
        # Some are rows by now and some are not, in one push.
        both = np.arange(50, 150)
        assert table.push(both, gradient).not_admitted == 50
        assert (exact.pull(ids)[50:] == 2).all()
        for _ in range(2):
            table.push(both, gradient)
        rows = exact.pull(both)
        assert (rows[:50] == 4 + 2.0**-7).all(), "four quarters are one"
        assert (rows[50:] == 1).all()


def test_rows_with_nan_are_left_alone_and_counted(ps: ParameterServer) -> None:
    table = ps.sparse_table("t", 2, gr.optim.Sum())
    report = table.push([1, 2, 3, 1], [[1.0, 2], [np.nan, 1], [3, np.inf], [0, 0]])
    assert (report.rows, report.refused) == (3, 2)
    assert table.pull([1, 2, 3]).tolist() == [[1, 2], [0, 0], [0, 0]]
    dense = ps.dense_table("d", (5, 4), gr.optim.Sum())
    assert dense.push(np.zeros((5, 4), np.float32)).rows == 20
    assert dense.push(np.full((5, 4), np.nan, np.float32)).refused == 1
    assert not dense.pull().any()


def test_a_push_counts_what_it_sent_and_what_did_not_become_an_update(ps: ParameterServer) -> None:
    table = ps.sparse_table("t", 1, gr.optim.Sum(), entry=gr.ps.Count(2))
    assert table.push([1, 2, 1], np.ones((3, 1), np.float32)).not_admitted == 2
    report = table.push([1, 2, 3], [[1.0], [np.nan], [1.0]])
    assert (report.rows, report.refused, report.not_admitted) == (3, 1, 1)
    assert len(table) == report.rows - report.refused - report.not_admitted


@pytest.mark.parametrize("place", [0, 99])
def test_a_dense_gradient_with_nan_is_refused_by_every_shard_or_none(place: int) -> None:
    with connected(3) as ps:
        table = ps.dense_table("d", (100,), gr.optim.Adam(lr=0.5))
        good, bad = np.ones(100, np.float32), np.ones(100, np.float32)
        bad[place] = np.nan
        given = bad.copy()
        assert table.push(good).refused == 0
        before = table.pull()
        assert table.push(bad).refused == 1
        assert np.array_equal(table.pull(), before)
        assert np.array_equal(bad, given, equal_nan=True), "the caller's array is as it was"
        table.push(good)
        assert len(np.unique(table.pull())) == 1, "all parts have done two steps"


def test_entry_expiry_and_features(ps: ParameterServer) -> None:
    slots = gr.ps.Slots(32, {1: gr.ps.Slot(lr_scale=0.5)})
    table = ps.sparse_table(
        "t", 1, gr.optim.SGD(lr=1), entry=gr.ps.Count(2), expire_after=2, slots=slots
    )
    one, other = 5, (1 << 32) + 5
    report = table.push([one, other], [[1.0], [1.0]])
    assert (report.not_admitted, len(table)) == (1, 1)  # The feature's ids enter at once.
    assert table.pull([one, other]).tolist() == [[0], [-0.5]]
    table.push([one], [[1.0]])
    assert (table.pull([one]).tolist(), len(table)) == ([[-1]], 2)
    ps.tick(1)
    table.push([one], [[1.0]])
    assert ps.tick(3) == 0
    assert ps.tick(3) == 0
    assert ps.tick(4) == 1
    assert len(table) == 1  # The feature's never expire.
    kept = ps.sparse_table("kept", 1, gr.optim.Sum())
    kept.push([1], [[1.0]])
    assert ps.shrink(table, unseen_ticks=1) == 1
    assert (len(table), len(kept)) == (0, 1)
    assert ps.shrink(least_score=2) == 1


def test_pushes_of_several_clients_are_all_counted() -> None:
    with serving(2) as addresses:

        def work(client: int) -> None:
            with join(addresses, client=client) as ps:
                table = ps.sparse_table("hot", 4, gr.optim.Sum())
                dense = ps.dense_table("sum", 40, gr.optim.Sum())
                for _ in range(50):
                    table.push([0, 1, client], np.ones((3, 4), np.float32), async_op=True)
                    dense.push(np.ones(40, np.float32), async_op=True)
                ps.flush()

        together([lambda client=client: work(client) for client in range(2, 6)])
        with join(addresses, client=9) as ps:
            table = ps.sparse_table("hot", 4, gr.optim.Sum())
            assert table.pull(np.arange(6))[:, 0].tolist() == [200, 200, 50, 50, 50, 50]
            assert (ps.dense_table("sum", 40, gr.optim.Sum()).pull() == 200).all()
            pushes = [t["pushes"] for s in ps.stats() for t in s["tables"] if t["name"] == "sum"]
            assert pushes == [200, 200]


def test_staleness_counts_the_pushes_in_between() -> None:
    with serving() as addresses, join(addresses, client=0) as a, join(addresses, client=1) as b:
        mine, theirs = (ps.sparse_table("t", 1, gr.optim.Sum()) for ps in (a, b))
        mine.pull([1])
        for _ in range(3):
            theirs.pull([1])
            assert theirs.push([1], [[1.0]]).staleness == 0
        assert mine.push([1], [[1.0]]).staleness == 3


def test_other_settings_for_a_name_are_a_mismatch_that_shows_both(ps: ParameterServer) -> None:
    sgd = gr.optim.SGD(lr=0.5)
    slots = [gr.ps.Slots(8, {5: gr.ps.Slot(expire_after=ticks)}) for ticks in (1, 2)]
    ps.sparse_table("t", 4, sgd, slots=slots[0])
    ps.sparse_table("t", 4, sgd, slots=slots[0])
    for dim, rule, options, words in (
        (8, sgd, {}, "dim: 4 there, 8 here"),
        (4, gr.optim.SGD(lr=0.25), {}, "sgd with lr=0.5 there, 0.25 here"),
        (4, gr.optim.Adam(), {}, "optimizer: sgd there, adam here"),
        (4, sgd, {"seed": 3}, "seed: 0 there, 3 here"),
        (4, sgd, {"init": 0.5}, "initial values: 0 there, 0.5 here"),
        (4, sgd, {"init": gr.init.Normal(1, 2)}, "0 there, normal of mean 1 and deviation 2 here"),
        (4, sgd, {"expire_after": 2}, "expire_after: 0 there, 2 here"),
        (4, sgd, {"entry": gr.ps.Count(3)}, "count 0, p 1 there, count 3"),
        (4, sgd, {"slots": slots[1]}, "slot 5: .* expire_after 1 there; .* expire_after 2 here"),
    ):
        with pytest.raises(Mismatch, match=f"'t' is there already .*{words}"):
            ps.sparse_table("t", dim, rule, **{"slots": slots[0], **options})
    with pytest.raises(Mismatch, match="kind: sparse there, dense here"):
        ps.dense_table("t", 4, sgd)


def test_of_workers_that_make_a_table_differently_at_once_one_has_its_way_on_all_servers() -> None:
    rules = [gr.optim.SGD(lr=0.1), gr.optim.SGD(lr=0.1 + 1e-9)]
    with serving(3) as addresses, join(addresses, client=0) as a, join(addresses, client=1) as b:

        def make(ps: ParameterServer, rule: object, name: str) -> str:
            try:
                ps.sparse_table(name, 2, rule)
            except Mismatch as error:
                return str(error)
            return ""

        for number in range(40):
            name = f"t{number}"
            said = together(
                [lambda ps=ps, rule=rule, name=name: make(ps, rule, name)
                 for ps, rule in zip((a, b), rules, strict=True)]
            )  # fmt: skip
            assert sorted(map(bool, said)) == [False, True]
            assert set(re.findall(r"0\.1\d*", max(said))) == {"0.1", "0.100000001"}
            winner = rules[said.index("")]
            assert make(a, winner, name) == make(b, winner, name) == ""


def test_other_settings_of_a_rule_hold_for_everybody_from_the_next_push_on() -> None:
    slots = gr.ps.Slots(48, {1: gr.ps.Slot(lr_scale=0.5)})
    rule = gr.optim.SGD(lr=1.0)
    with serving(2) as addresses, join(addresses) as ps, join(addresses, client=1) as other:
        table = ps.sparse_table("t", 1, rule, slots=slots)
        dense = ps.dense_table("d", 40, rule)
        same = other.sparse_table("t", 1, rule, slots=slots)
        ids = [3, (1 << 48) + 3]
        table.push(ids, np.ones((2, 1)), async_op=True)
        table.set_optimizer(gr.optim.SGD(lr=0.25))
        same.push(ids, np.ones((2, 1)))
        assert table.pull(ids).ravel().tolist() == [-1.25, -0.625]
        ps.set_optimizers([(table, gr.optim.SGD(lr=2.0)), (dense, gr.optim.SGD(lr=4.0))])
        assert (table.optimizer.lr, dense.optimizer.lr) == (2, 4)
        same.push(ids, np.ones((2, 1)))
        dense.push(np.ones(40, np.float32))
        assert table.pull(ids).ravel().tolist() == [-3.25, -1.625]
        assert (dense.pull() == -4).all()
        in_force = {
            (t["name"], t["rule"], t["lr"]) for shard in ps.stats() for t in shard["tables"]
        }
        assert in_force == {("t", "sgd", 2), ("d", "sgd", 4)}
        # A worker that begins now may say either what the table was made with or what is in force.
        for lr in (1.0, 2.0):
            other.sparse_table("t", 1, gr.optim.SGD(lr=lr), slots=slots)
        before = ps.calls.core.bytes_sent
        for wrong in (gr.optim.Adam(), gr.optim.SGD(lr=1.0, momentum=0.5), "sgd"):
            with pytest.raises(InvalidArgument):
                ps.set_optimizers([(dense, gr.optim.SGD(lr=1.0)), (table, wrong)])
        assert ps.calls.core.bytes_sent == before
        assert (table.optimizer.lr, dense.optimizer.lr) == (2, 4)


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    with connected() as ps:
        table = ps.sparse_table("t", 4, gr.optim.Sum())
        dense = ps.dense_table("d", (3, 2), gr.optim.Sum())
        table.push([1], np.ones((1, 4)))
        before = ps.calls.core.bytes_sent
        for call in (
            lambda: table.pull([0.5]),
            lambda: table.pull([1], np.zeros((1, 4))),
            lambda: table.pull([1], np.zeros((2, 4), np.float32)),
            lambda: table.pull([1], timeout=0),
            lambda: table.push([1, 2], np.ones((1, 4))),
            lambda: table.push([1], np.ones((1, 4), np.int64)),
            lambda: dense.pull(np.zeros((2, 3), np.float32)),
            lambda: dense.push(np.zeros(6, np.float32)),
            lambda: ps.sparse_table("u", 0, gr.optim.Sum()),
            lambda: ps.sparse_table("", 4, gr.optim.Sum()),
            lambda: ps.sparse_table("u", 4, "adam"),
            lambda: ps.sparse_table("u", 4, gr.optim.Sum(), codec="zip"),
            lambda: ps.sparse_table("u", 4, gr.optim.Sum(), expire_after=-1),
            lambda: ps.dense_table("u", (3, 0), gr.optim.Sum()),
            lambda: ps.dense_table("u", 3, gr.optim.RowWiseAdagrad(lr=1)),
            lambda: ps.sparse_table("u", 2.0, gr.optim.Sum()),
            lambda: ps.dense_table("u", "3", gr.optim.Sum()),
            lambda: ps.tick(-1),
            lambda: ps.tick(1.5),
            lambda: ps.shrink(least_score=-1),
            lambda: ps.shrink(least_score="a"),
            lambda: ps.shrink(unseen_ticks=1.5),
        ):
            with pytest.raises(InvalidArgument):
                call()
        assert ps.calls.core.bytes_sent == before
        assert table.pull([1, 2])[:, 0].tolist() == [1, 0]


def test_nothing_works_after_close() -> None:
    with serving() as addresses:
        ps = join(addresses)
        table = ps.sparse_table("t", 1, gr.optim.Sum())
        ps.close()
        ps.close()
        with pytest.raises(Closed):
            table.pull([1])
        with pytest.raises(Closed):
            table.push([1], [[1.0]])
