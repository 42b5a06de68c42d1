"""Codecs: nothing is lost but delayed, sizes are known before, and all ranks get the same bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as any_array

import gradring as gr
from conftest import GetWorld
from gradring.compression import decode, encode, wire_bytes
from thread_ranks import TRANSPORTS

CODECS: list[Any] = ["bf16", "fp16", "int8", gr.TopK(0.01), gr.TopK(0.3), gr.TopK(1)]
NAMES = [str(codec) for codec in CODECS]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=NAMES)

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
# float16 ends at 65504: further away than that the difference itself is rounded.
within_fp16 = st.floats(-(2.0**29 - 32), 2.0**29 - 32, width=32)


def same_bits(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


def conserves(x: Any, codec: Any) -> None:
    residual = np.zeros_like(x)
    encoded = encode(x, codec, residual)
    decoded = decode(encoded, codec, x.size)
    # In exact arithmetic, not only as floats are added. (float64 holds every such sum but the
    # widest; what it cannot hold is compared as float32.)
    exact = decoded.astype(np.float64) + residual.astype(np.float64)
    assert np.array_equal(exact, x.astype(np.float64))
    assert np.array_equal(decoded + residual, x)


@every_codec
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_decoded_plus_residual_is_the_input(codec: Any, data: st.DataObject) -> None:
    elements = within_fp16 if codec == "fp16" else finite
    shape = st.integers(1, 600)
    conserves(data.draw(any_array(np.float32, shape, elements=elements)), codec)


@pytest.mark.parametrize(
    ("codec", "exponent"),
    [(c, e) for c in CODECS for e in range(-149, 128, 6) if c != "fp16" or e < 28],
    ids=str,
)
def test_that_holds_for_random_mantissas_of_every_magnitude(codec: Any, exponent: int) -> None:
    random = np.random.default_rng(exponent + 200)
    spread = random.integers(0, 12, 1111)
    x = np.ldexp(random.uniform(-1, 1, 1111), exponent - spread).astype(np.float32)
    conserves(x, codec)
    conserves(np.ldexp(random.integers(-255, 256, 999) / 254, exponent).astype(np.float32), codec)


@every_codec
def test_what_is_left_out_comes_with_the_next(codec: Any) -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    residual = np.zeros_like(x)
    total = np.zeros(1000)
    for _ in range(200):
        total += decode(encode(x, codec, residual), codec, 1000)
    assert np.allclose(total + residual, 200.0 * x, rtol=1e-4, atol=1e-3)
    assert np.abs(total / 200 - x).max() < (0.6 if isinstance(codec, gr.TopK) else 1e-3)


def test_16_bits_are_rounded_to_nearest_even_as_everywhere_else() -> None:
    random = np.random.default_rng(1)
    x = np.ldexp(random.standard_normal(20_000), random.integers(-30, 15, 20_000))
    x = np.concatenate([x, [0, -0.0, 1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 2**-24 * 1.5, 65519]])
    x = x.astype(np.float32)
    for codec, dtype in (("bf16", ml_dtypes.bfloat16), ("fp16", np.float16)):
        expected = x.astype(dtype)
        expected = np.where(np.isinf(expected), np.copysign(np.float32(65504), x), expected)
        assert same_bits(decode(encode(x, codec), codec, x.size), expected.astype(np.float32))


def test_top_k_takes_the_largest_and_of_equals_the_first() -> None:
    x = np.array([1, -3, 2, 3, 0, -3, 0.5, 0], np.float32)
    assert decode(encode(x, gr.TopK(0.25)), gr.TopK(0.25), 8).tolist() == [0, -3, 0, 3, 0, 0, 0, 0]
    many = np.random.default_rng(2).standard_normal(100_000).astype(np.float32)
    kept = decode(encode(many, gr.TopK(0.01)), gr.TopK(0.01), many.size)
    border = np.sort(np.abs(many))[-1000]
    assert np.array_equal(kept, np.where(np.abs(many) >= border, many, 0))


@every_codec
def test_what_is_not_finite_arrives_and_leaves_nothing_behind(codec: Any) -> None:
    x = np.ones(1000, np.float32)
    x[[3, 500, 700]] = np.nan, np.inf, -np.inf
    residual = np.zeros_like(x)
    decoded = decode(encode(x, codec, residual), codec, 1000)
    assert not np.isfinite(decoded[[3, 500, 700]]).any()
    assert np.isfinite(residual).all()
    again = decode(encode(np.ones(1000, np.float32), codec, residual), codec, 1000)
    assert np.isfinite(again).all()


@every_codec
def test_the_size_depends_on_codec_and_count_alone(codec: Any) -> None:
    for count in (0, 1, 255, 256, 257, 1000):
        zeros = encode(np.zeros(count, np.float32), codec)
        noise = encode(np.random.default_rng(0).standard_normal(count).astype(np.float32), codec)
        assert len(zeros) == len(noise)
    sizes = {"bf16": 2000, "fp16": 2000, "int8": 1016}
    expected = sizes[codec] if isinstance(codec, str) else round(codec.ratio * 1000) * 8
    assert len(zeros) == expected


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@every_codec
def test_ranks_agree_in_bits_and_the_sum_is_conserved(
    world: GetWorld, size: int, transport: str, codec: Any
) -> None:
    count = 5003
    rounds = [np.random.default_rng(s).standard_normal((size, count)) for s in range(4)]
    rounds = [values.astype(np.float32) for values in rounds]

    def reduce(comm: Any) -> tuple[Any, Any]:
        residual = np.zeros(count, np.float32)
        results = []
        for values in rounds:
            x = values[comm.rank].copy()
            assert comm.all_reduce_compressed(x, codec, residual) is x
            results.append(x)
        return np.array(results), residual

    answers = world(size, transport).run(reduce)
    for results, _ in answers:
        assert same_bits(results, answers[0][0])
    wanted = sum(values.astype(np.float64).sum(0) for values in rounds)
    late = sum(residual.astype(np.float64) for _, residual in answers)
    assert np.allclose(answers[0][0].astype(np.float64).sum(0) + late, wanted, rtol=0, atol=1e-4)


def test_an_average_is_the_sum_divided_once(world: GetWorld) -> None:
    def reduce(comm: Any) -> tuple[Any, Any]:
        x = np.arange(999, dtype=np.float32) * (comm.rank + 1)
        total, mean = (x.copy() for _ in range(2))
        comm.all_reduce_compressed(total, "int8")
        comm.all_reduce_compressed(mean, "int8", op="avg", async_op=True).wait()
        return total, mean

    for total, mean in world(3, "tcp").run(reduce):
        assert same_bits(mean, total / np.float32(3))


def test_ranks_that_compress_differently_are_told(fresh_world: Any) -> None:
    for codecs, names in (
        (["bf16", "fp16"], ["bf16", "fp16"]),
        (["bf16", "int8"], ["bf16", "int8"]),
        ([gr.TopK(0.5), gr.TopK(0.9)], ["top-k (ratio 0.5)", "top-k (ratio 0.9)"]),
    ):
        ranks = fresh_world(2, "shm")
        errors = ranks.errors(
            lambda comm, codecs=codecs: comm.all_reduce_compressed(
                np.ones(100, np.float32), codecs[comm.rank]
            )
        )
        assert all(isinstance(error, gr.Error) for error in errors), errors
        told = {rank: str(e) for rank, e in enumerate(errors) if isinstance(e, gr.Mismatch)}
        assert told, errors
        assert all(names[rank] in text for rank, text in told.items()), told


@pytest.mark.parametrize(
    ("codec", "counts", "ops", "words"),
    [
        ("bf16", (100, 100), ("sum", "avg"), "for the sum of 100 values"),
        (gr.TopK(1e-6), (10, 12), ("sum", "sum"), "of 12 values"),
        (gr.TopK(0.01), (990, 1000), ("avg", "avg"), "for the average of 990 values"),
    ],
    ids=["sum and average", "few of few", "few of many"],
)
def test_ranks_whose_parts_only_have_equally_many_bytes_are_told(
    fresh_world: Any, codec: Any, counts: tuple[int, int], ops: tuple[str, str], words: str
) -> None:
    errors = fresh_world(2, "shm").errors(
        lambda comm: comm.all_reduce_compressed(
            np.ones(counts[comm.rank], np.float32), codec, op=ops[comm.rank]
        )
    )
    assert [type(error) for error in errors] == [gr.Mismatch] * 2
    assert words in str(errors[0])


def test_bytes_on_the_wire_are_counted() -> None:
    count = 1_000_000
    plain = wire_bytes(count, None, 0, 2)
    assert plain == 4 * count
    for codec, ratio in (("bf16", 2), ("fp16", 2), ("int8", 3.93), (gr.TopK(0.01), 49)):
        assert plain / wire_bytes(count, codec, 0, 2) == pytest.approx(ratio, rel=0.03)
    assert wire_bytes(count, "int8", 0, 1) == 0


def test_what_cannot_be_compressed_is_refused(world: GetWorld) -> None:
    (comm,) = world(1, "shm").comms
    for call in (
        lambda: gr.TopK(0),
        lambda: gr.TopK(1.5),
        lambda: encode(np.ones(3, np.float32), "int4"),  # type: ignore[arg-type]
        lambda: encode(np.ones(3), "int8"),
        lambda: decode(b"123", "bf16", 2),
        lambda: comm.all_reduce_compressed(np.ones(4, np.float32)[::2], "bf16"),
        lambda: comm.all_reduce_compressed(np.ones(4), "bf16"),
        lambda: comm.all_reduce_compressed(np.ones(4, np.float32), "bf16", np.ones(3, "f4")),
        lambda: comm.all_reduce_compressed(np.ones(4, np.float32), "bf16", op="max"),
    ):
        with pytest.raises(gr.InvalidArgument):
            call()


@every_codec
def test_a_residual_that_could_not_be_kept_is_refused(codec: Any) -> None:
    x = np.linspace(-1, 1, 6, dtype=np.float32)
    memory = np.zeros(12, np.float32)
    shared = np.zeros(9, np.float32)
    with pytest.raises(gr.InvalidArgument, match="contiguous"):
        encode(x, codec, memory[::2])
    for values, residual in ((x, x), (shared[:6], shared[3:])):
        with pytest.raises(gr.InvalidArgument, match="overlaps"):
            encode(values, codec, residual)


def test_a_residual_is_memory_of_its_own(world: GetWorld) -> None:
    def reduce(comm: Any) -> float:
        memory = np.zeros(24, np.float32)
        for residual in (memory[:16], memory[8:]):
            with pytest.raises(gr.InvalidArgument, match="overlaps"):
                comm.all_reduce_compressed(memory[:16], "int8", residual)
        comm.all_reduce_compressed(memory[:12], "int8", memory[12:])
        return float(comm.all_reduce(np.ones(1))[0])

    assert world(2, "shm").run(reduce) == [2.0, 2.0]


def test_top_k_sends_as_many_infinities_as_it_has_places_and_at_least_one(world: GetWorld) -> None:
    def reduce(comm: Any) -> int:
        x, residual = np.zeros(1000, np.float32), np.zeros(1000, np.float32)
        x[:50] = np.inf if comm.rank == 0 else 0
        comm.all_reduce_compressed(x, gr.TopK(0.01), residual)
        assert not residual.any()
        return int((~np.isfinite(x)).sum())

    # A part of 500 elements has 5 places.
    assert world(2, "shm").run(reduce) == [5, 5]
