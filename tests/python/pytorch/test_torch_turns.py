"""Which step the weight of a batch belongs to: loops that accumulate, look ahead or step later."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer
from torch_models import Clicks

Batch = tuple[float, int]  # The gradient of its mean loss, and its number of examples.
END: Any = object()
MODES = [None, gr.Sync(), gr.Sync(via="ps"), gr.Hybrid(gr.Sync(), gr.Sync(via="ps")),
         gr.Hybrid(gr.Sync(via="ps"), gr.Sync(via="ps"))]  # fmt: skip

# The second rank runs out, the third does so at once, the last one never has any.
BATCHES: list[list[Batch]] = [
    [(1, 4), (2, 3), (8, 2), (4, 5), (3, 1)],
    [(5, 4), (10, 1), (7, 8)],
    [(6, 2)],
    [],
]


def examples_of(batch: Batch) -> int:
    return batch[1]


class Job:
    """One rank's model whose gradients are those of a batch, and twice those for its row."""

    def __init__(self, comm: Any, server: ExactServer, mode: Any, **options: Any) -> None:
        self.has_rows = mode is not None
        self.model = Clicks()
        given = {"model": self.model, "ps": server.client(comm.rank)} if self.has_rows else {}
        self.optimizer = gt.distributed(
            torch.optim.SGD([self.model.weight], lr=1.0), gr.Sync() if mode is None else mode,
            comm=comm, **given, **options,
        )  # fmt: skip

    def backward(self, batch: Batch, factor: float = 1) -> None:
        loss = self.model.weight * batch[0]
        if self.has_rows:
            loss = self.model(batch[0], 2 * batch[0])
        (loss * factor).sum().backward()

    def end(self, comm: Any) -> tuple[float, float]:
        dense = self.model.weight.item()
        state = self.model.state() if self.has_rows else (dense, 2 * dense)
        comm.barrier()
        self.optimizer.close()
        return state


Loop = Callable[[Job, list[Batch]], None]


def plain(job: Job, batches: list[Batch]) -> None:
    for batch in job.optimizer.uneven(batches, weight=examples_of):
        job.optimizer.zero_grad()
        if batch is not None:
            job.backward(batch)
        job.optimizer.step()


def looking_ahead(job: Job, batches: list[Batch]) -> None:
    turns = job.optimizer.uneven(batches, weight=examples_of)
    batch = next(turns, END)
    while batch is not END:
        job.optimizer.zero_grad()
        if batch is not None:
            job.backward(batch)
        coming = next(turns, END)
        job.optimizer.step()
        batch = coming


def with_delayed_steps(job: Job, batches: list[Batch]) -> None:
    is_pending = False
    for batch in job.optimizer.uneven(batches, weight=examples_of):
        if is_pending:
            job.optimizer.step()
        job.optimizer.zero_grad()
        if batch is not None:
            job.backward(batch)
        is_pending = True
    job.optimizer.step()


def with_dropped_steps(job: Job, batches: list[Batch]) -> None:
    for batch in job.optimizer.uneven(batches, weight=examples_of):
        for _ in range(2):
            job.optimizer.zero_grad()
            if batch is not None:
                job.backward(batch)
            elif isinstance(job.optimizer, gt.DistributedOptimizer):
                job.optimizer.synchronize()
        job.optimizer.step()


def with_skipped_batches(job: Job, batches: list[Batch]) -> None:
    mine = [each for batch in batches for each in ((100, 9), (100, 7), batch)]
    for turn, batch in enumerate(job.optimizer.uneven(mine, weight=examples_of)):
        if turn % 3 < 2:
            continue
        job.optimizer.zero_grad()
        if batch is not None:
            job.backward(batch)
        job.optimizer.step()


def by_closure(job: Job, batches: list[Batch]) -> None:
    for batch in job.optimizer.uneven(batches, weight=examples_of):

        def closure(batch: Batch | None = batch) -> Any:
            job.optimizer.zero_grad()
            if batch is None:
                return None
            job.backward(batch)
            return torch.ones(())

        job.optimizer.step(closure)


def in_two_passes(job: Job, batches: list[Batch]) -> None:
    for batch in job.optimizer.uneven(batches, weight=examples_of):
        job.optimizer.zero_grad()
        if batch is not None:
            with job.optimizer.no_sync():
                job.backward(batch, 0.25)
            job.backward(batch, 0.75)
        job.optimizer.step()


def saying_it_oneself(job: Job, batches: list[Batch]) -> None:
    # The next batch is fetched before backward, where nobody can know whose weight is meant.
    turns = job.optimizer.uneven(batches, weight=examples_of)
    batch = next(turns, END)
    while batch is not END:
        coming = next(turns, END)
        job.optimizer.zero_grad()
        job.optimizer.set_weight(0 if batch is None else examples_of(batch))
        if batch is not None:
            job.backward(batch)
        job.optimizer.step()
        batch = coming


def evaluate(job: Job, batches: list[Batch]) -> None:
    # As many turns as there are none of training: some ranks run out of these first, one has none.
    list(job.optimizer.uneven([(100, 50)] * (5 - len(batches)), weight=examples_of))


def with_evaluations(job: Job, batches: list[Batch]) -> None:
    for batch in job.optimizer.uneven(batches, weight=examples_of):
        evaluate(job, batches)
        job.optimizer.zero_grad()
        if batch is not None:
            job.backward(batch)
        evaluate(job, batches)
        job.optimizer.step()
        evaluate(job, batches)


def mean_of(batches: list[Batch]) -> float:
    return sum(value * count for value, count in batches) / sum(count for _, count in batches)


def on_ranks(world: GetWorld, work: Callable[[Any, ExactServer], Any], size: int = 4) -> Any:
    server = ExactServer()
    return world(size, "shm").run(lambda comm: work(comm, server))


def assert_all_at(states: Any, dense: float) -> None:
    for state in states:
        assert state == pytest.approx((dense, 2 * dense), rel=1e-5)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    "loop",
    [plain, looking_ahead, with_delayed_steps, with_dropped_steps, with_skipped_batches,
     by_closure, in_two_passes, saying_it_oneself, with_evaluations],
)  # fmt: skip
def test_every_step_is_of_all_batches_put_together_whenever_the_next_ones_are_fetched(
    world: GetWorld, mode: Any, loop: Loop
) -> None:
    def work(comm: Any, server: ExactServer) -> tuple[float, float]:
        job = Job(comm, server, mode)
        loop(job, BATCHES[comm.rank])
        loop(job, BATCHES[comm.rank][::-1])
        return job.end(comm)

    expected = 0.0
    for lists in (BATCHES, [each[::-1] for each in BATCHES]):
        for step in range(5):
            expected -= mean_of([each[step] for each in lists if step < len(each)])
    assert_all_at(on_ranks(world, work), expected)


def accumulating(job: Job, batches: list[Batch], window: int, *, is_ahead: bool) -> None:
    """Do a step for every so many batches, with losses divided by that.

    A rank that runs out has trained fewer, and makes up for the division.
    """
    turns = job.optimizer.uneven(batches, weight=examples_of)
    batch, turn, trained = next(turns, END), 0, 0
    while batch is not END:
        turn += 1
        is_last = turn % window == 0
        with contextlib.nullcontext() if is_last else job.optimizer.no_sync():
            if batch is not None:
                job.backward(batch, 1 / window)
                trained += 1
        grad = job.model.weight.grad
        if is_last and 0 < trained < window and grad is not None:
            grad.mul_(window / trained)
        coming = next(turns, END) if is_ahead else None
        if is_last:
            job.optimizer.step()
            job.optimizer.zero_grad()
            trained = 0
        batch = coming if is_ahead else next(turns, END)


@pytest.mark.parametrize("mode", [None, gr.Sync(via="ps")], ids=str)
@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_weights_of_accumulated_batches_add_up_and_a_rank_that_runs_out_loses_none(
    world: GetWorld, mode: Any, is_ahead: bool, overlap: bool
) -> None:
    # Batches of one rank have one size here: what is divided by their number is their mean.
    lists: list[list[Batch]] = [
        [(1, 4), (2, 4), (8, 4), (4, 4), (3, 4), (5, 4), (6, 4), (7, 4)],
        [(5, 2), (10, 2), (7, 2)],
        [(6, 3)],
        [],
    ]

    def work(comm: Any, server: ExactServer) -> float:
        job = Job(comm, server, mode, overlap=overlap)
        for _ in range(2):
            accumulating(job, lists[comm.rank], 4, is_ahead=is_ahead)
        return job.end(comm)[0]

    steps = [[batch for each in lists for batch in each[first : first + 4]] for first in (0, 4)]
    expected = -2 * sum(mean_of(step) for step in steps)
    assert on_ranks(world, work) == pytest.approx([expected] * 4, rel=1e-5)


def windows(batches: list[Batch], count: int) -> Iterator[list[Batch]]:
    source = iter(batches)
    return iter(lambda: list(islice(source, count)), [])


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_turn_may_be_all_batches_of_a_step_and_is_then_of_all_of_them_put_together(
    world: GetWorld, mode: Any
) -> None:
    def work(comm: Any, server: ExactServer) -> tuple[float, float]:
        job = Job(comm, server, mode)
        optimizer = job.optimizer
        mine = windows(BATCHES[comm.rank], 3)
        for window in optimizer.uneven(mine, weight=lambda each: sum(map(examples_of, each))):
            optimizer.zero_grad()
            if window is not None:
                examples = sum(map(examples_of, window))
                with optimizer.no_sync():
                    for batch in window[:-1]:
                        job.backward(batch, examples_of(batch) / examples)
                job.backward(window[-1], examples_of(window[-1]) / examples)
            optimizer.step()
        return job.end(comm)

    steps = [[batch for each in BATCHES for batch in each[first : first + 3]] for first in (0, 3)]
    assert_all_at(on_ranks(world, work), -sum(mean_of(step) for step in steps))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_after_a_loop_that_accumulated_ranks_count_as_one_again(world: GetWorld, mode: Any) -> None:
    def work(comm: Any, server: ExactServer) -> tuple[float, float]:
        job = Job(comm, server, mode)
        for turn, batch in enumerate(job.optimizer.uneven([(0, 3)] * (2 - comm.rank))):
            if batch is not None:
                with job.optimizer.no_sync():
                    job.backward(batch)
            if turn == 1:
                job.optimizer.step()
        job.optimizer.zero_grad()
        job.backward((4 * comm.rank, 1))
        job.optimizer.step()
        return job.end(comm)

    assert_all_at(on_ranks(world, work, 2), -2)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("most", [4, 1], ids=["whole", "left early"])
def test_an_evaluation_changes_no_weight_of_the_training_after_it(
    world: GetWorld, mode: Any, most: int
) -> None:
    def work(comm: Any, server: ExactServer) -> tuple[float, float]:
        job = Job(comm, server, mode)
        for step in range(2):
            if step == 1:
                job.optimizer.set_weight(1 + comm.rank)
            batches = [(100, 50)] * (1 + 2 * comm.rank)
            list(islice(job.optimizer.uneven(batches, weight=examples_of), most))
            job.optimizer.zero_grad()
            job.backward((6 * comm.rank, 1))
            job.optimizer.step()
        return job.end(comm)

    assert_all_at(on_ranks(world, work, 2), -3 - 4)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_gradients_that_the_model_has_forgotten_have_no_weight(world: GetWorld, mode: Any) -> None:
    def work(comm: Any, server: ExactServer) -> tuple[float, float]:
        job = Job(comm, server, mode)
        counts = [3, 1] if comm.rank else [100, 3]
        for count in job.optimizer.uneven(counts, weight=float):
            job.model.zero_grad()
            job.model.rows.forget_gradients()
            with job.optimizer.no_sync():
                job.backward((4 * comm.rank, count))
        job.optimizer.step()
        return job.end(comm)

    assert_all_at(on_ranks(world, work, 2), -1)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_weight_that_was_refused_is_not_remembered(world: GetWorld, mode: Any) -> None:
    def work(comm: Any, server: ExactServer) -> tuple[float, float]:
        job = Job(comm, server, mode)
        job.backward((4 * comm.rank, 1))
        if isinstance(job.optimizer, gt.DistributedOptimizer):
            with pytest.raises(gr.InvalidArgument, match="too late"):
                job.optimizer.set_weight(2 + comm.rank)
            with pytest.raises(gr.InvalidArgument, match="too late"):
                job.optimizer.step(weight=2 + comm.rank)
        for wrong in (-1, float("nan")):
            with pytest.raises(gr.InvalidArgument, match="number of examples"):
                job.optimizer.step(weight=wrong)
        job.optimizer.step()
        return job.end(comm)

    assert_all_at(on_ranks(world, work, 2), -2)


def test_the_weight_of_a_step_that_was_refused_is_forgotten(world: GetWorld) -> None:
    def work(comm: Any, server: ExactServer) -> tuple[float, float]:
        job = Job(comm, server, gr.Sync(via="ps"))
        job.backward((4 * comm.rank, 1))
        group = job.optimizer.param_groups[0]
        group["momentum"] = 0.5  # Servers have kept none.
        with pytest.raises(gr.InvalidArgument):
            job.optimizer.step(weight=1 + 2 * comm.rank)
        group["momentum"] = 0
        job.optimizer.step()
        return job.end(comm)

    assert_all_at(on_ranks(world, work, 2), -2)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_rank_may_be_without_batches_for_many_steps(world: GetWorld, mode: Any) -> None:
    def work(comm: Any, server: ExactServer) -> tuple[float, float]:
        job = Job(comm, server, mode)
        plain(job, [(1, 3)] * (0 if comm.rank else 40))
        return job.end(comm)

    assert_all_at(on_ranks(world, work, 2), -40)


def test_a_rank_without_a_batch_that_does_not_drop_the_others_steps_is_found_out(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> None:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = gt.distributed(torch.optim.SGD([weight], lr=1.0), comm=comm)
        for batch in optimizer.uneven([1.0] * (2 - 2 * comm.rank)):
            for _ in range(2):
                optimizer.zero_grad()
                if batch is not None:
                    (weight * batch).backward()
            optimizer.step()

    for error in world(2, "shm").errors(train):
        assert isinstance(error, gr.Mismatch)
        assert "some ranks are at step 0 and others at step 1" in str(error)
