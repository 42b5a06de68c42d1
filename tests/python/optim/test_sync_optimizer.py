"""SyncOptimizer: n ranks train as one process does on all their batches put together."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from thread_ranks import TRANSPORTS

Array = np.ndarray[Any, Any]

# Their steps with dyadic numbers are exact for some steps, so equality is of bits.
DYADIC_RULES = [
    gr.optim.SGD(lr=0.5),
    gr.optim.SGD(lr=0.5, momentum=0.5, weight_decay=0.25),
    gr.optim.SGD(lr=0.5, momentum=0.5, nesterov=True),
]
RULES = [
    *DYADIC_RULES,
    gr.optim.Adam(lr=0.01),
    gr.optim.AdamW(lr=0.01),
    gr.optim.Adagrad(lr=0.01),
    gr.optim.RMSprop(lr=0.01),
    gr.optim.RowWiseAdagrad(lr=0.01),
]
SHAPES = [(3, 4), (5,), (), (2, 1, 3), (0,)]


def dyadic(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    # Before NumPy 2 a float32 of no dimension divided by an int is a float64.
    return random.integers(-8, 8, shape).astype(np.float32) / np.float32(4)


def gradient(step: int, example: int, *, is_dyadic: bool) -> list[Array]:
    """What one example contributes in a step."""
    random = np.random.default_rng([step, example])
    draw = dyadic if is_dyadic else lambda r, shape: r.standard_normal(shape).astype(np.float32)
    return [np.asarray(draw(random, shape)) for shape in SHAPES]


def mean(grads: list[list[Array]]) -> list[Array]:
    return [sum(parts[1:], parts[0]) / np.float32(len(parts)) for parts in zip(*grads, strict=True)]


def starts() -> list[Array]:
    return [np.asarray(dyadic(np.random.default_rng(index), s)) for index, s in enumerate(SHAPES)]


def train_alone(rule: Any, steps: int, examples: int, *, is_dyadic: bool) -> list[Array]:
    params = starts()
    with gr.init(rank=0, world_size=1) as comm:
        optimizer = gr.SyncOptimizer(params, rule, comm)
        for step in range(steps):
            batch = [gradient(step, example, is_dyadic=is_dyadic) for example in range(examples)]
            optimizer.step(mean(batch), weight=examples)
    return params


def train_on(
    comm: Any, rule: Any, steps: int, counts: list[int], *, is_dyadic: bool, **options: Any
) -> list[Array]:
    """The same with rank r taking the next counts[r] examples of each batch."""
    params = starts() if comm.rank == 0 else [np.full(shape, 7, np.float32) for shape in SHAPES]
    optimizer = gr.SyncOptimizer(params, rule, comm, **options)
    first = sum(counts[: comm.rank])
    mine = range(first, first + counts[comm.rank])
    for step in range(steps):
        batch = [gradient(step, example, is_dyadic=is_dyadic) for example in mine]
        if batch:
            optimizer.step(mean(batch), weight=len(batch))
        else:
            optimizer.step(None)
    return params


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("counts", [[4, 4], [2, 2, 4], [4, 0, 4], [2, 4, 1, 1]])
@pytest.mark.parametrize("rule", DYADIC_RULES)
def test_ranks_equal_one_process_bit_for_bit_where_additions_are_exact(
    world: GetWorld, rule: Any, counts: list[int], transport: str
) -> None:
    alone = train_alone(rule, 3, 8, is_dyadic=True)
    together = world(len(counts), transport).run(
        lambda comm: train_on(comm, rule, 3, counts, is_dyadic=True)
    )
    for params in together:
        assert all(np.array_equal(a, b) for a, b in zip(params, alone, strict=True))


@pytest.mark.parametrize("counts", [[8], [5, 3], [1, 0, 7], [3, 2, 2, 1]])
@pytest.mark.parametrize("rule", RULES)
def test_ranks_equal_one_process_up_to_rounding_with_any_numbers(
    world: GetWorld, rule: Any, counts: list[int]
) -> None:
    alone = train_alone(rule, 20, 8, is_dyadic=False)
    together = world(len(counts), "shm").run(
        lambda comm: train_on(comm, rule, 20, counts, is_dyadic=False)
    )
    for params in together:
        for ours, theirs, first in zip(params, alone, together[0], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
            assert np.array_equal(ours, first), "ranks differ in bits"


def test_the_size_of_buckets_does_not_change_the_result(world: GetWorld) -> None:
    def train(bucket_bytes: int) -> list[list[Array]]:
        return world(2, "shm").run(
            lambda comm: train_on(
                comm, RULES[3], 5, [3, 5], is_dyadic=False, bucket_bytes=bucket_bytes
            )
        )

    for small, large in zip(train(16), train(1 << 20), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(small, large, strict=True))


def test_a_parameter_without_gradient_counts_as_zero_and_is_left_alone_if_unused_everywhere(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> tuple[list[Array], Any]:
        params = [np.ones(2, np.float32) for _ in range(3)]
        optimizer = gr.SyncOptimizer(params, gr.optim.SGD(lr=1, weight_decay=1), comm)
        some = np.full(2, 4, np.float32)
        optimizer.step([some, some if comm.rank == 0 else None, None])
        return params, optimizer.state_dict()

    for params, _ in world(2, "shm").run(train):
        assert [float(param[0]) for param in params] == [1 - 4 - 1, 1 - 2 - 1, 1]


def test_gradients_of_a_rank_with_weight_zero_do_not_count_even_if_they_are_not_finite(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> float:
        param = np.zeros(1, np.float32)
        optimizer = gr.SyncOptimizer([param], gr.optim.SGD(lr=1), comm)
        grad = np.array([2 if comm.rank == 0 else math.nan], np.float32)
        optimizer.step([grad], weight=3 if comm.rank == 0 else 0)
        return float(param[0])

    assert world(2, "shm").run(train) == [-2, -2]


def test_ranks_that_run_out_go_round_until_all_have(world: GetWorld) -> None:
    def train(comm: Any) -> tuple[list[Any], float]:
        param = np.zeros(1, np.float32)
        optimizer = gr.SyncOptimizer([param], gr.optim.SGD(lr=1), comm)
        seen = []
        for batch in optimizer.uneven(range(1, 1 + comm.rank)):
            seen.append(batch)
            optimizer.step(None if batch is None else [np.array([-batch], np.float32)])
        return seen, float(param[0])

    results = world(3, "shm").run(train)
    assert [seen for seen, _ in results] == [[None, None], [1, None], [1, 2]]
    assert {value for _, value in results} == {1 + 2}


@pytest.mark.parametrize("rule", RULES)
def test_state_survives_a_save_and_a_load_bit_for_bit(world: GetWorld, rule: Any) -> None:
    def train(comm: Any) -> bool:
        def steps(optimizer: gr.SyncOptimizer, begin: int, end: int) -> None:
            for step in range(begin, end):
                optimizer.step(gradient(step, comm.rank, is_dyadic=False))

        through = gr.SyncOptimizer(starts(), rule, comm)
        steps(through, 0, 6)
        first = gr.SyncOptimizer(starts(), rule, comm)
        steps(first, 0, 3)
        saved = first.state_dict()
        second = gr.SyncOptimizer(first.params, rule, comm)
        second.load_state_dict(saved)
        steps(second, 3, 6)
        return all(np.array_equal(a, b) for a, b in zip(through.params, second.params, strict=True))

    assert world(2, "shm").run(train) == [True, True]


def test_a_state_of_something_else_is_refused(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    optimizer = gr.SyncOptimizer([np.zeros(2)], gr.optim.Adam(), comm)
    optimizer.step([np.ones(2)])
    saved = optimizer.state_dict()
    for params, rule in [
        ([np.zeros(2)], gr.optim.AdamW()),
        ([np.zeros(3)], gr.optim.Adam()),
        ([np.zeros(2), np.zeros(2)], gr.optim.Adam()),
    ]:
        with pytest.raises(gr.InvalidArgument):
            gr.SyncOptimizer(params, rule, comm).load_state_dict(saved)


def test_different_models_are_a_mismatch_on_every_rank_that_names_the_parameter(
    world: GetWorld,
) -> None:
    ranks = world(3, "shm")

    def shapes(comm: Any) -> None:
        odd = (4,) if comm.rank == 2 else (3,)
        gr.SyncOptimizer([np.zeros(2), np.zeros(odd)], gr.optim.SGD(lr=1), comm)

    def numbers(comm: Any) -> None:
        params = [np.zeros(2) for _ in range(1 + comm.rank // 2)]
        gr.SyncOptimizer(params, gr.optim.SGD(lr=1), comm)

    text = r"parameter 1 is float64\[3\] on rank 0, float64\[4\] on rank 2"
    for call, pattern in ((shapes, text), (numbers, "rank 0 has 1 parameters, rank 2 has 2")):
        for error in ranks.errors(call):
            assert isinstance(error, gr.Mismatch)
            assert pattern.replace("\\", "") in str(error)
    assert ranks.is_usable


def test_what_cannot_be_trained_or_averaged_is_refused(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    read_only = np.zeros(2)
    read_only.flags.writeable = False
    for param in (np.zeros(2, np.int64), np.zeros(2, np.float16), read_only, [1.0]):
        with pytest.raises(gr.InvalidArgument, match="parameter 0"):
            gr.SyncOptimizer([param], gr.optim.SGD(lr=1), comm)
    tensor = pytest.importorskip("torch").zeros(2)
    with pytest.raises(gr.InvalidArgument, match=r"a Tensor; give NumPy.* gradring\.torch\."):
        gr.SyncOptimizer([tensor], gr.optim.SGD(lr=1), comm)
    with pytest.raises(gr.InvalidArgument, match="bucket_bytes"):
        gr.SyncOptimizer([np.zeros(2)], gr.optim.SGD(lr=1), comm, bucket_bytes=0)
    optimizer = gr.SyncOptimizer([np.zeros(2)], gr.optim.SGD(lr=1), comm)
    for grads, weight in (
        ([np.zeros(3)], 1), ([], 1), ([np.zeros(2)], -1), ([np.zeros(2)], math.inf), (None, 1),
    ):  # fmt: skip
        with pytest.raises(gr.InvalidArgument):
            optimizer.step(grads, weight=weight)


def test_a_step_without_examples_on_any_rank_is_an_error_on_all(world: GetWorld) -> None:
    def train(comm: Any) -> None:
        gr.SyncOptimizer([np.zeros(2)], gr.optim.SGD(lr=1), comm).step(None)

    for error in world(2, "shm").errors(train):
        assert isinstance(error, gr.InvalidArgument)
        assert "weight 0" in str(error)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_gradients_of_any_float_are_multiplied_by_the_weight_in_the_wider_of_two_dtypes(
    world: GetWorld, dtype: Any
) -> None:
    # 200 * 512 is beyond float16, and the third number times 333 beyond bfloat16's 8 bits.
    grad = np.array([200, 1.0009765625, 1.0078125, -3.25], np.float32).astype(dtype)

    def average(comm: Any) -> bool:
        optimizer = gr.SyncOptimizer([np.zeros(4, np.float32)], gr.optim.SGD(lr=1), comm)
        for weight in (512.0, 333.0):
            (got,) = optimizer.average([grad], weight)
            # In float64 once, as exact as the parameter's dtype has it.
            exact = np.float32(grad.astype(np.float64) * weight)
            assert (got == (exact + exact) / np.float32(2 * weight)).all()
        return True

    assert world(2, "shm").run(average) == [True, True]


def test_averages_that_do_not_fit_change_no_parameter(world: GetWorld) -> None:
    def apply(comm: Any) -> None:
        params = [np.ones(3, np.float32), np.ones(2)]
        optimizer = gr.SyncOptimizer(params, gr.optim.SGD(lr=1.0), comm)
        first = np.ones(3, np.float32)
        for wrong in ([first], [first, None, None], [first, np.ones(3)], [first, np.ones(2) * 1j]):
            with pytest.raises(gr.InvalidArgument):
                optimizer.apply(wrong)
        with pytest.raises(gr.InvalidArgument):
            optimizer.apply(None)  # type: ignore[arg-type]
        assert all((param == 1).all() for param in params)
        optimizer.apply([first, None])
        assert [float(param.sum()) for param in params] == [0, 2]

    world(2, "auto").run(apply)


def test_a_masked_parameter_is_refused_in_a_world_of_one_too(world: GetWorld) -> None:
    masked = np.ma.masked_array(np.zeros(3, np.float32), [True, False, False])

    def refused(comm: Any) -> None:
        with pytest.raises(gr.InvalidArgument, match="parameter 0 is a masked array"):
            gr.SyncOptimizer([masked], gr.optim.SGD(lr=1.0), comm)

    for size in (1, 2):
        world(size, "auto").run(refused)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "wrong",
    [np.ones(2, complex), np.array([1, 2], object), [[1.0], [1.0, 2.0]], ["a", "b"]],
    ids=["complex", "object", "ragged", "text"],
)
def test_a_gradient_of_no_real_numbers_is_refused_before_anything_is_sent(
    world: GetWorld, size: int, wrong: Any
) -> None:
    def train(comm: Any) -> float:
        param = np.zeros(2, np.float32)
        optimizer = gr.SyncOptimizer([param], gr.optim.SGD(lr=1), comm)
        if comm.rank == 0:  # The others do not notice.
            with pytest.raises(gr.InvalidArgument, match="gradient 0"):
                optimizer.step([wrong])
        optimizer.step([np.full(2, -1.0)])
        return float(param[1])

    assert world(size, "shm").run(train) == [1.0] * size


def test_a_weight_that_is_no_number_is_refused(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    optimizer = gr.SyncOptimizer([np.zeros(2)], gr.optim.SGD(lr=1), comm)
    for weight in (None, "x", [1, 2]):
        with pytest.raises(gr.InvalidArgument, match="weight"):
            optimizer.step([np.zeros(2)], weight=weight)


def test_arrays_that_share_memory_are_refused(world: GetWorld) -> None:
    comm = world(1, "shm").comms[0]
    whole = np.zeros((4, 2), np.float32)
    for params, words in (
        ([whole, np.zeros(2, np.float32), whole], "parameter 0 and parameter 2 share memory"),
        ([whole[:3], whole[2:]], "parameter 0 and parameter 1 share memory"),
        ([np.lib.stride_tricks.as_strided(whole, (2, 2), (0, 4))], "parameter 0 has elements"),
    ):
        with pytest.raises(gr.InvalidArgument, match=words):
            gr.SyncOptimizer(params, gr.optim.SGD(lr=1), comm)
    gr.SyncOptimizer([whole[::2], whole[1::2]], gr.optim.SGD(lr=1), comm)


class OwnRule:
    """A rule of the user's."""

    def update(self, param: Array, grad: Array, state: dict[str, Any]) -> None:
        del state
        param -= grad


def test_ranks_that_begin_with_other_settings_are_told_which(world: GetWorld) -> None:
    slow, fast, buckets = gr.optim.SGD(lr=0.5), gr.optim.SGD(lr=1), {"bucket_bytes": 8}
    for *rules, options, words in (
        (slow, fast, {}, r"rank 0 has lr=0\.5, and rank 1 has lr=1\.0"),
        (slow, gr.optim.Adam(lr=0.5), {}, r"rank 0 has the rule .*SGD, and rank 1 .*Adam"),
        (slow, OwnRule(), {}, "rank 0 has the rule .*SGD, and rank 1 .*OwnRule"),
        (slow, slow, buckets, "rank 0 has bucket_bytes=4194304, and rank 1 has bucket_bytes=8"),
    ):

        def make(comm: Any, rules: Any = rules, given: Any = options) -> None:
            mine = given if comm.rank else {}
            gr.SyncOptimizer([np.ones(2, np.float32)], rules[comm.rank], comm, **mine)

        errors = world(2, "shm").errors(make)
        assert all(re.search(words, str(error)) for error in errors), (words, errors)
    # 1 and 1.0 are one number.
    world(2, "shm").run(
        lambda comm: gr.SyncOptimizer([np.zeros(1)], gr.optim.SGD(lr=(1, 1.0)[comm.rank]), comm)
    )


def test_a_rule_that_is_changed_on_one_rank_alone_steps_nowhere(world: GetWorld) -> None:
    def train(comm: Any) -> float:
        param, one = np.zeros(1, np.float32), np.ones(1, np.float32)
        optimizer = gr.SyncOptimizer([param], gr.optim.SGD(lr=1), comm)
        optimizer.step([one])
        optimizer.rule = gr.optim.SGD(lr=2)
        optimizer.step([one])
        if comm.rank == 1:
            optimizer.rule = gr.optim.SGD(lr=4)
        for _ in range(2):
            with pytest.raises(gr.Mismatch, match=r"rank 0 has lr=2\.0, and rank 1 has lr=4\.0"):
                optimizer.step([one] if comm.rank else None)
        optimizer.rule = gr.optim.SGD(lr=4)
        optimizer.step([one])
        return float(param[0])

    assert world(2, "shm").run(train) == [-1 - 2 - 4] * 2


def test_a_schedule_of_hybrid_that_differs_between_ranks_is_told(world: GetWorld) -> None:
    def train(comm: Any) -> None:
        param = np.zeros(1, np.float32)
        with gr.distributed([param], gr.optim.SGD(lr=1), comm=comm, ps="nobody") as optimizer:
            optimizer.set_rule(gr.optim.SGD(lr=1 + comm.rank))
            with pytest.raises(gr.Mismatch, match=r"rank 1 has lr=2\.0"):
                optimizer.step([np.ones(1, np.float32)])

    world(3, "shm").run(train)
