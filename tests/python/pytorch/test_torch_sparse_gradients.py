"""Sparse gradients in gradring.torch: n ranks train as one process does on all their examples."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from torch_models import Tensors, are_same, values

# Torch's own Adagrad makes sparse tensors without saying whether they are to be checked.
pytestmark = [pytest.mark.filterwarnings("ignore:Sparse invariant checks")]

# Rows by step and rank: some of one rank only, some of two, some twice in one batch.
IDS = [
    [[0, 2, 2, 5], [5, 1, 2, 0], [7, 7, 0, 2]],
    [[3, 3, 3, 3], [0, 1, 2, 3], [9, 2, 9, 9]],
    [[2, 0, 2, 0], [2, 8, 8, 1], [1, 1, 1, 1]],
]
TYPES = pytest.mark.parametrize(
    "kind",
    [
        lambda params: torch.optim.SGD(params, lr=0.5),
        lambda params: torch.optim.SGD(params, lr=0.5, momentum=0.5),
        lambda params: torch.optim.Adagrad(params, lr=0.5),
        lambda params: torch.optim.SparseAdam(list(params), lr=0.5),
    ],
    ids=["SGD", "momentum", "Adagrad", "SparseAdam"],
)
HINTED = pytest.mark.parametrize("is_told", [False, True], ids=["learned", "told"])


class Rows(nn.Module):
    """A table whose gradients are quarters of what a row stands for: nothing is rounded."""

    def __init__(self, rows: int = 10, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 2, sparse=True, dtype=dtype)
        with torch.no_grad():
            self.table.weight.copy_(torch.arange(2.0 * rows).view(rows, 2) / 4)

    def forward(self, ids: list[int]) -> torch.Tensor:
        factors = torch.tensor([0.25 * (1 + place % 4) for place in range(len(ids))])
        return (self.table(torch.tensor(ids)).float().sum(1) * factors).sum()


class RowsAndMore(Rows):
    """Dense parameters beside the table."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, ids: list[int]) -> torch.Tensor:
        return super().forward(ids) + (self.bias * len(ids)).sum()


Kind = Callable[[Any], torch.optim.Optimizer]


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.5)


def distributed(module: nn.Module, comm: Any, kind: Kind = sgd, **options: Any) -> Any:
    return gt.distributed(kind(module.parameters()), comm=comm, **options)


def alone(kind: Kind, size: int, make: Callable[[], nn.Module] = Rows) -> Tensors:
    model = make()
    optimizer = kind(model.parameters())
    for step in IDS:
        optimizer.zero_grad()
        for ids in step[:size]:
            (model(ids) / size).backward()
        optimizer.step()
    return values(model)


@TYPES
@HINTED
def test_two_ranks_train_as_one_process(world: GetWorld, kind: Kind, is_told: bool) -> None:
    def train(comm: Any) -> Tensors:
        model = Rows()
        optimizer = distributed(model, comm, kind, model=model if is_told else None)
        for step in IDS:
            optimizer.zero_grad()
            model(step[comm.rank]).backward()
            assert model.table.weight.grad is not None
            assert model.table.weight.grad.is_sparse
            optimizer.step()
        assert optimizer._averager._layout.buckets == []
        return values(model)

    for result in world(2, "shm").run(train):
        assert are_same(result, alone(kind, 2))


@HINTED
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"compress": "int8"}], ids=str)
def test_three_ranks_hold_the_same_bits_with_dense_gradients_beside(
    world: GetWorld, is_told: bool, options: Any
) -> None:
    def train(comm: Any) -> Tensors:
        model = RowsAndMore()
        given = {"model": model if is_told else None, **options}
        optimizer = distributed(model, comm, **given)
        for step in IDS:
            optimizer.zero_grad()
            model(step[comm.rank]).backward()
            optimizer.step()
        assert optimizer._averager._layout.groups == [[0]]  # The bias alone has a bucket.
        return values(model)

    results = world(3, "tcp").run(train)
    assert all(are_same(result, results[0]) for result in results)
    wanted = alone(sgd, 3, RowsAndMore)
    torch.testing.assert_close(results[0][1], wanted[1])  # Compressed or not.
    torch.testing.assert_close(results[0][0], wanted[0], atol=0.1, rtol=0.05)


@HINTED
def test_a_rank_without_a_batch_counts_as_none_and_gets_all_rows(
    world: GetWorld, is_told: bool
) -> None:
    """Weights 3 and 1: one process has four examples."""

    def train(comm: Any) -> Tensors:
        model = Rows()
        optimizer = distributed(model, comm, model=model if is_told else None)
        batches = [[0, 1, 2], [4, 4, 5]] if comm.rank == 1 else [[2]]
        for ids in optimizer.uneven(batches, weight=len):
            optimizer.zero_grad()
            if ids is not None:
                (model(ids) / len(ids)).backward()
            optimizer.step()
        return values(model)

    model = Rows()
    optimizer = sgd(model.parameters())
    for batch in ([[2], [0, 1, 2]], [[4, 4, 5]]):
        optimizer.zero_grad()
        for ids in batch:
            (model(ids) / sum(map(len, batch))).backward()
        optimizer.step()
    for result in world(2, "shm").run(train):
        torch.testing.assert_close(result, values(model))


@HINTED
def test_a_rank_that_has_not_used_the_table_sends_no_entries(
    world: GetWorld, is_told: bool
) -> None:
    def train(comm: Any) -> tuple[Any, Any]:
        model = RowsAndMore()
        optimizer = distributed(model, comm, model=model if is_told else None)
        for step in range(3):
            optimizer.zero_grad()
            used = model([6]) if step == comm.rank else (model.bias * 1).sum()
            used.backward()
            if step == 2:
                assert model.table.weight.grad is None  # Nobody has one.
            optimizer.step()
        return model.table.weight[6].tolist(), optimizer.sent_bytes

    for rows, _ in world(2, "tcp").run(train):
        assert rows == [3 - 0.125, 3.25 - 0.125]


def test_gradients_accumulate_over_several_backwards(world: GetWorld) -> None:
    def train(comm: Any) -> Tensors:
        model = Rows()
        optimizer = distributed(model, comm, model=model)
        with optimizer.no_sync():
            for step in IDS[:2]:
                model(step[comm.rank]).backward()
        model(IDS[2][comm.rank]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        model([comm.rank]).backward()
        optimizer.step()
        return values(model)

    model = Rows()
    optimizer = sgd(model.parameters())
    for batches in ([ids for step in IDS for ids in step[:2]], [[0], [1]]):
        optimizer.zero_grad()
        for ids in batches:
            (model(ids) / 2).backward()
        optimizer.step()
    for result in world(2, "shm").run(train):
        assert are_same(result, values(model))


@HINTED
@pytest.mark.parametrize("dense_rank", [0, 1])
def test_a_gradient_sparse_here_and_dense_there_is_named_on_every_rank(
    world: GetWorld, is_told: bool, dense_rank: int
) -> None:
    def train(comm: Any) -> Tensors:
        model = Rows()
        optimizer = distributed(model, comm, model=model if is_told else None)
        model.table.sparse = comm.rank != dense_rank
        sides = f"sparse gradient on rank {1 - dense_rank} and a dense one on rank {dense_rank}"
        with pytest.raises(gr.Mismatch, match=sides):
            model(IDS[0][comm.rank]).backward()
        model.table.sparse = True
        optimizer.zero_grad()
        model([0]).backward()
        optimizer.step()
        return values(model)

    first, second = world(2, "shm").run(train)
    assert are_same(first, second)


def test_a_table_that_turns_dense_and_sparse_again_trains_on(world: GetWorld) -> None:
    def train(comm: Any) -> Tensors:
        model = Rows()
        optimizer = distributed(model, comm, model=model)
        buckets = []
        for turn, is_sparse in enumerate([False, False, True, True]):
            model.table.sparse = is_sparse
            optimizer.zero_grad()
            if turn > 0 or comm.rank == 0:
                model([turn, comm.rank]).backward()
            optimizer.step()
            buckets.append(len(optimizer._averager._layout.buckets))
        assert buckets == [1, 1, 0, 0]
        return values(model)

    model = Rows()
    optimizer = sgd(model.parameters())
    for turn in range(4):
        optimizer.zero_grad()
        for rank in range(2):
            if turn > 0 or rank == 0:
                (model([turn, rank]) / 2).backward()
        optimizer.step()
    for result in world(2, "shm").run(train):
        assert are_same(result, values(model))


def test_clip_norm_takes_sparse_gradients(world: GetWorld) -> None:
    def train(comm: Any) -> tuple[float, Tensors]:
        model = RowsAndMore()
        optimizer = distributed(model, comm, model=model, clip_norm=0.5)
        model([1, 2, 1]).backward()
        optimizer.step()
        return float(optimizer.grad_norm), values(model)

    model = RowsAndMore()
    model.table.sparse = False
    model([1, 2, 1]).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    sgd(model.parameters()).step()
    for size in (1, 2):
        for found, result in world(size, "shm").run(train):
            assert found == pytest.approx(float(norm))
            torch.testing.assert_close(result, values(model))


def test_an_overflow_on_one_rank_leaves_out_the_step_on_all(world: GetWorld) -> None:
    def train(comm: Any) -> tuple[Tensors, float]:
        model = Rows()
        optimizer = distributed(model, comm, model=model)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (torch.inf if comm.rank == 1 else 1.0, 1.0):
            optimizer.zero_grad()
            scaler.scale(model([comm.rank, 2]) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        return values(model), scaler.get_scale()

    model = Rows()
    for rank in range(2):
        (model([rank, 2]) / 2).backward()
    sgd(model.parameters()).step()
    for result, scale in world(2, "shm").run(train):
        assert scale == 2
        assert are_same(result, values(model))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_values_of_any_float_are_averaged_and_16_bit_ones_rounded_once(
    world: GetWorld, dtype: torch.dtype
) -> None:
    full = 2048.0 if dtype == torch.float16 else 256.0

    def average(comm: Any) -> tuple[Any, Any]:
        param = nn.Parameter(torch.zeros(4, 1, dtype=dtype))
        optimizer: Any = gt.distributed(torch.optim.SGD([param], lr=1), comm=comm, overlap=False)
        part = [full, 2.0, 2.0][comm.rank]  # A third of 2052 or 260, however it is added up.
        param.grad = torch.sparse_coo_tensor(
            torch.tensor([[1, 1]]), torch.tensor([[part - 1], [1.0]], dtype=dtype), (4, 1),
            check_invariants=True,
        )  # fmt: skip
        optimizer.synchronize()
        return param.grad.dtype, param.grad.to_dense()[1].item()

    expected = torch.tensor((full + 4) / 3, dtype=torch.float64).to(dtype).item()
    for found, value in world(3, "shm").run(average):
        assert found == dtype
        assert value == pytest.approx(expected, rel=1e-12)


def test_backward_may_end_optimizers_in_another_order_than_a_rank_without_a_batch(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> Tensors:
        tables = [Rows() for _ in range(2)]
        optimizers = [distributed(table, comm, model=table) for table in tables]
        for _ in range(2):
            if comm.rank == 1:
                (tables[0]([1]) + tables[1]([2])).backward()  # The second one's come first.
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return [value for table in tables for value in values(table)]

    first, second = world(2, "shm").run(train)
    assert are_same(first, second)


def test_ranks_that_differ_in_which_tables_are_sparse_are_told_at_the_start(
    world: GetWorld,
) -> None:
    def start(comm: Any) -> None:
        model = Rows()
        model.table.sparse = comm.rank == 0
        with pytest.raises(gr.Mismatch, match="with sparse gradients"):
            distributed(model, comm, model=model)

    world(2, "shm").run(start)


def test_refresh_keeps_what_is_known_of_sparse_gradients(world: GetWorld) -> None:
    def train(comm: Any) -> Tensors:
        model = RowsAndMore()
        optimizer = distributed(model, comm)
        for step in IDS:
            optimizer.zero_grad()
            model(step[comm.rank]).backward()
            optimizer.step()
            optimizer.refresh()
            assert optimizer._averager._layout.groups == [[0]]
        return values(model)

    for result in world(2, "shm").run(train):
        assert are_same(result, alone(sgd, 2, RowsAndMore))


@HINTED
def test_a_step_that_is_dropped_leaves_no_entries_behind(world: GetWorld, is_told: bool) -> None:
    def train(comm: Any) -> Tensors:
        model = Rows()
        optimizer = distributed(model, comm, model=model if is_told else None, overlap=False)
        model([comm.rank, 7]).backward()
        optimizer.zero_grad()
        model([4, 5]).backward()
        optimizer.synchronize()
        model.zero_grad()
        model([comm.rank, 2]).backward()
        optimizer.step()
        return values(model)

    model = Rows()
    for rank in range(2):
        (model([rank, 2]) / 2).backward()
    sgd(model.parameters()).step()
    for result in world(2, "shm").run(train):
        assert are_same(result, values(model))


def test_a_closed_optimizer_ends_its_thread(world: GetWorld) -> None:
    ranks, before = world(2, "shm"), set(threading.enumerate())

    def threads(comm: Any) -> set[threading.Thread]:
        model = Rows()
        optimizer = distributed(model, comm, model=model)
        model([comm.rank]).backward()
        comm.barrier()
        found = {each for each in threading.enumerate() if "sparse grad" in each.name} - before
        comm.barrier()
        optimizer.close()
        return found

    (found, _) = ranks.run(threads)
    assert len(found) == 2
    for thread in found:
        thread.join(30)
        assert not thread.is_alive()
