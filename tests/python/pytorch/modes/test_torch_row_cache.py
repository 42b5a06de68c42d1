"""Rows on a device: what the cache keeps, drops and asks for, and that training stays the same."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from gradring.torch.embeddings.row_cache import RowCache
from mode_servers import Servers

DIM = 3
CPU = torch.device("cpu")


class Table:
    """Rows that say their id and how often the table has changed; counts what it is asked."""

    def __init__(self) -> None:
        self.version = 0
        self.asked: list[int] = []

    def pull(self, ids: Any) -> Any:
        self.asked += ids.tolist()
        return np.repeat(ids.astype(np.float32) + 1000 * self.version, DIM).reshape(-1, DIM)


def bring(cache: RowCache, table: Table, *ids: int) -> list[float]:
    slots = cache.bring(np.array(ids, np.uint64), table.pull)
    rows = cache.weights[slots]
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()


def test_a_row_is_asked_for_once_in_its_steps() -> None:
    cache, table = RowCache(DIM, 8, 2, CPU), Table()
    assert bring(cache, table, 5, 7) == [5, 7]
    table.version = 1
    assert bring(cache, table, 7, 5) == [7, 5]
    cache.advance()
    assert bring(cache, table, 5) == [5]
    cache.advance()
    assert bring(cache, table, 5, 9) == [1005, 1009]
    assert table.asked == [5, 7, 5, 9]
    assert (cache.hits, cache.misses) == (3, 4)


def test_rows_that_need_more_room_are_float32_whatever_the_default_is() -> None:
    cache, table = RowCache(DIM, 1, 1, CPU), Table()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert bring(cache, table, 5, 7, 9) == [5, 7, 9]
    finally:
        torch.set_default_dtype(before)
    assert cache.weights.dtype == torch.float32


def test_with_age_one_every_step_asks_anew() -> None:
    cache, table = RowCache(DIM, 8, 1, CPU), Table()
    for step in range(4):
        table.version = step
        assert bring(cache, table, 1, 2) == [1 + 1000 * step, 2 + 1000 * step]
        cache.advance()
    assert table.asked == [1, 2] * 4


def test_the_rows_used_longest_ago_go_first() -> None:
    cache, table = RowCache(DIM, 3, 100, CPU), Table()
    for ids in ([1, 2, 3], [1], [3], [4]):  # 2 was used longest ago.
        bring(cache, table, *ids)
        cache.advance()
    table.asked.clear()
    bring(cache, table, 1, 3, 4)
    assert table.asked == []
    bring(cache, table, 2)
    assert table.asked == [2]


def test_rows_of_one_batch_never_push_each_other_out() -> None:
    cache, table = RowCache(DIM, 4, 100, CPU), Table()
    bring(cache, table, 1, 2, 3, 4)
    cache.advance()
    assert bring(cache, table, 1, 2, 7, 8) == [1, 2, 7, 8]
    assert bring(cache, table, 8, 7, 2, 1) == [8, 7, 2, 1]


def test_a_batch_larger_than_the_cache_makes_it_larger() -> None:
    cache, table = RowCache(DIM, 2, 100, CPU), Table()
    many = list(range(50))
    assert bring(cache, table, *many) == many
    assert len(cache.weights) >= len(many)
    assert bring(cache, table, *many) == many
    assert table.asked == many


def test_clearing_asks_for_everything_anew() -> None:
    cache, table = RowCache(DIM, 8, 100, CPU), Table()
    bring(cache, table, 1, 2)
    cache.clear()
    table.version = 1
    assert bring(cache, table, 2, 1) == [1002, 1001]


def test_what_will_be_missing_can_be_asked_a_step_ahead() -> None:
    cache, table = RowCache(DIM, 8, 2, CPU), Table()
    bring(cache, table, 1)
    ids = np.array([1, 2], np.uint64)
    assert cache.missing(ids).tolist() == [2]
    assert cache.missing(ids, ahead=1).tolist() == [2]
    assert cache.missing(ids, ahead=2).tolist() == [1, 2]


def test_the_cache_is_a_map_whatever_comes_and_goes() -> None:
    random = np.random.default_rng(7)
    cache, table = RowCache(DIM, 16, 5, CPU), Table()
    came: dict[int, tuple[int, int]] = {}  # Step and version of each row's last pull.
    for step in range(400):
        ids = random.choice(2000 if step % 7 == 0 else 40, random.integers(1, 17), replace=False)
        table.version, table.asked = step, []
        values = bring(cache, table, *ids.tolist())
        came.update(dict.fromkeys(table.asked, (step, step)))
        for each, value in zip(ids.tolist(), values, strict=True):
            pulled, version = came[each]
            assert step - pulled < 5
            assert value == np.float32(each + 1000 * version)
        cache.advance()


def test_a_step_changes_the_rows_that_are_here() -> None:
    cache, table = RowCache(DIM, 2, 100, CPU), Table()
    bring(cache, table, 1, 2)
    bring(cache, table, 2, 3)  # 1 is gone.
    cache.descend(np.array([1, 2], np.uint64), np.ones((2, DIM), np.float32), 0.5)
    assert bring(cache, table, 2, 3) == [1.5, 3]


def test_a_pull_that_fails_leaves_no_row_under_anothers_id() -> None:
    cache, table = RowCache(DIM, 2, 100, CPU), Table()
    bring(cache, table, 1, 2)

    def fail(ids: Any) -> Any:
        raise gr.TimedOut(f"no {ids}")

    with pytest.raises(gr.TimedOut):
        cache.bring(np.array([3, 4], np.uint64), fail)
    assert bring(cache, table, 3, 4) == [3, 4]


def test_gradients_that_servers_refuse_change_no_row_here() -> None:
    cache, table = RowCache(DIM, 3, 100, CPU), Table()
    bring(cache, table, 1, 2, 3)
    grads = np.ones((3, DIM), np.float32)
    grads[0, 1], grads[2, 0] = np.nan, -np.inf
    cache.descend(np.array([1, 2, 3], np.uint64), grads, 0.5)
    assert bring(cache, table, 1, 2, 3) == [1, 1.5, 3]


def test_a_cache_without_room_or_steps_is_refused() -> None:
    for capacity, age in ((0, 1), (1, 0)):
        with pytest.raises(gr.InvalidArgument, match="both are 1 or more"):
            RowCache(DIM, capacity, age, CPU)


def layer_of(client: Any, rule: Any, **options: Any) -> gt.Embedding:
    init = gr.init.Uniform(0.5)
    return gt.Embedding("e", DIM, optimizer=rule, ps=client, init=init, **options)


def train(layer: gt.Embedding, steps: int, *, flushes: bool) -> list[float]:
    """Steps on bags and single ids that come again and again; the losses."""
    losses = []
    for step in range(steps):
        random = np.random.default_rng(step)
        ids = torch.from_numpy(random.zipf(1.5, (6, 4)) % 50)
        out = layer(ids)
        loss = ((out - torch.from_numpy(random.standard_normal(out.shape)).float()) ** 2).mean()
        losses.append(float(loss.detach()))
        loss.backward()
        if flushes:
            assert layer._driver is not None
            layer._driver.flush()
    layer.flush()
    return losses


OPTIONS: list[dict[str, Any]] = [{}, {"padding_idx": 1}]
OPTIONS += [{"pooling": pooling} for pooling in ("sum", "mean", "max")]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rule", [gr.optim.SGD(lr=0.3), gr.optim.Adagrad(lr=0.1)], ids=str)
def test_rows_on_a_device_train_as_those_without_one(rule: Any, options: Any) -> None:
    plain, cached = ExactServer(), ExactServer()
    expected = train(layer_of(plain.client(0), rule, **options), 12, flushes=True)
    layer = layer_of(cached.client(0), rule, device="cpu", cache_rows=16, **options)
    assert train(layer, 12, flushes=True) == expected
    assert_same_rows(plain, cached)


def assert_same_rows(one: ExactServer, other: ExactServer) -> None:
    rows, others = one.values("e"), other.values("e")
    assert rows.keys() == others.keys()
    for key, row in rows.items():
        np.testing.assert_array_equal(row, others[key])


def test_with_sgd_a_worker_sees_its_own_steps_without_asking() -> None:
    plain, cached = ExactServer(), ExactServer()
    rule = gr.optim.SGD(lr=0.3)
    expected = train(layer_of(plain.client(0), rule), 30, flushes=True)
    layer = layer_of(cached.client(0), rule, device="cpu", cache_rows=64, cache_age=1000)
    assert train(layer, 30, flushes=True) == expected
    assert_same_rows(plain, cached)
    assert layer.cache is not None
    assert layer.cache.misses == len(cached.values("e"))  # Each id once.


def test_after_a_flush_rows_are_what_servers_have(servers: Servers) -> None:
    rule = gr.optim.Adam(lr=0.1)
    layer = layer_of(servers.client(0), rule, device="cpu", cache_rows=8, cache_age=5)
    other = layer_of(servers.client(1), rule)
    train(layer, 4, flushes=False)
    train(other, 4, flushes=False)
    layer.flush()
    ids = torch.arange(50)
    with torch.no_grad():
        np.testing.assert_array_equal(layer(ids).numpy(), other(ids).numpy())


@pytest.mark.parametrize("mode", [gr.Hybrid(gr.Sync(), gr.Async()), gr.Async()], ids=str)
def test_after_an_optimizers_flush_rows_are_what_servers_have(world: GetWorld, mode: Any) -> None:
    server, rule = ExactServer(), gr.optim.SGD(lr=0.5)
    layer = layer_of(None, rule, device="cpu", cache_age=5)
    other = layer_of(server.client(1), rule)
    weight = torch.nn.Parameter(torch.ones(2))
    model = torch.nn.ModuleList([layer, torch.nn.ParameterList([weight])])
    optimizer = gt.distributed(
        torch.optim.SGD([weight], lr=0.5), mode, model=model, comm=world(1, "tcp").comms[0],
        ps=server.client(0),
    )  # fmt: skip
    ids = torch.tensor([3])
    layer.eval()
    before = layer(ids)
    other(ids).sum().backward()
    other.flush()
    assert torch.equal(layer(ids), before), "the row is kept"
    optimizer.flush()
    assert torch.equal(layer(ids), before - 0.5)
    optimizer.close()


@pytest.mark.parametrize("mode", [gr.Hybrid(gr.Sync(), gr.Async()), gr.Async(),
                                  gr.Hybrid(gr.Async(), gr.Async())], ids=str)  # fmt: skip
def test_a_step_that_a_scaler_leaves_out_makes_rows_older_too(world: GetWorld, mode: Any) -> None:
    server, rule = ExactServer(), gr.optim.SGD(lr=1.0)
    layer = gt.Embedding("e", DIM, optimizer=rule, device="cpu", cache_age=2)
    other = gt.Embedding("e", DIM, optimizer=rule, ps=server.client(1))
    weight = torch.nn.Parameter(torch.ones(1))
    model = torch.nn.ModuleList([layer, torch.nn.ParameterList([weight])])
    optimizer = gt.distributed(
        torch.optim.SGD([weight], lr=1.0), mode, model=model, comm=world(1, "tcp").comms[0],
        ps=server.client(0),
    )  # fmt: skip
    scaling, ids = torch.amp.GradScaler("cpu", init_scale=1024.0), torch.tensor([3])
    with torch.no_grad():
        layer(ids)
    other(ids).sum().backward()
    other.flush()
    for step in range(2):
        optimizer.zero_grad()
        rows = layer(ids)
        assert rows.tolist() == [[0.0] * DIM], f"kept in step {step}"
        scaling.scale((rows.sum() + weight) * torch.inf).sum().backward()
        scaling.step(optimizer)
        scaling.update()
    assert layer(ids).tolist() == [[-1.0] * DIM]
    optimizer.close()
    other.flush()


def test_prefetched_rows_are_those_that_are_missing() -> None:
    server = ExactServer()
    layer = layer_of(server.client(0), gr.optim.SGD(lr=0.5), device="cpu", cache_age=10)
    with torch.no_grad():
        layer(torch.tensor([1, 2]))
        layer.prefetch(torch.tensor([2, 3, 3]))
        assert layer.table._coming is not None
        assert layer.table._coming.ids.tolist() == [3]
        layer(torch.tensor([3, 2]))
    assert layer.table._coming is None


def test_modes_that_promise_newer_rows_refuse_older_ones(world: GetWorld) -> None:
    comm = world(1, "tcp").comms[0]

    def attach(mode: Any, age: int) -> None:
        layer = gt.Embedding("e", DIM, optimizer=gr.optim.SGD(lr=0.5), device="cpu", cache_age=age)
        weight = torch.nn.Parameter(torch.ones(2))
        model = torch.nn.ModuleList([layer, torch.nn.ParameterList([weight])])
        optimizer = torch.optim.SGD([weight], lr=0.5)
        client = ExactServer().client(0)
        gt.distributed(optimizer, mode, model=model, comm=comm, ps=client).close()

    attach(gr.Async(), 100)
    attach(gr.BoundedStaleness(3), 4)
    attach(gr.Sync(via="ps"), 1)
    for mode, age in ((gr.BoundedStaleness(3), 5), (gr.Sync(via="ps"), 2)):
        with pytest.raises(gr.InvalidArgument, match=f"cache_age={age}, but the mode allows"):
            attach(mode, age)


@pytest.mark.gpu
def test_rows_on_cuda_train_as_those_on_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    plain, cached = ExactServer(), ExactServer()
    rule = gr.optim.SGD(lr=0.25)
    expected = train(layer_of(plain.client(0), rule), 12, flushes=True)
    layer = layer_of(cached.client(0), rule, device="cuda", cache_age=5)
    losses = []
    for step in range(12):
        random = np.random.default_rng(step)
        out = layer(torch.from_numpy(random.zipf(1.5, (6, 4)) % 50))
        assert out.is_cuda
        target = torch.from_numpy(random.standard_normal(out.shape)).float().cuda()
        loss = ((out - target) ** 2).mean()
        losses.append(float(loss.detach()))
        loss.backward()
        assert layer._driver is not None
        layer._driver.flush()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_layer_and_its_copy_in_one_collection_bring_what_neither_has() -> None:
    ps = ExactServer().client(0)
    init: Any = gr.init.Uniform(0.5)
    student = gt.Embedding("e", DIM, optimizer=gr.optim.SGD(1.0), init=init, ps=ps, device="cpu")
    with torch.no_grad():
        student(torch.tensor([1, 2, 3]))
        teacher = copy.deepcopy(student)
        both = gt.EmbeddingCollection({"student": student, "teacher": teacher})
        ids = {"student": torch.tensor([1, 4, 5]), "teacher": torch.tensor([4, 5, 6, 7])}
        for _ in range(2):
            rows = both(ids)
            for name, each in ids.items():
                torch.testing.assert_close(rows[name], student(each), rtol=0, atol=0)
            both.prefetch(ids)
