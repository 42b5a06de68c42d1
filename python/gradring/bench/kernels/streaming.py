"""The streaming kernels on buckets and vectors: pack, unpack, reduce, check, SGD, Adam."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradring.bench.kernels.measure import Bench, Case
from gradring.bench.kernels.options import Options
from gradring.dtypes import BFLOAT16, DTYPE_CODES
from gradring.gpu.kernels import ChunkTable, launch, scratch
from gradring.gpu.memory import Array

F32 = DTYPE_CODES["float32"]
_SOME = 0x3C  # Each byte of a vector: 0x3C3C3C3C and 0x3C3C are small numbers as floats.

# csrc/gpu/stream_calls.h, gradring_step_scalars.
STEP_SCALARS = np.dtype(
    [(name, "<f4") for name in (
        "descent", "root_correction", "clip_value", "weight_decay", "shrink", "momentum",
        "undampened", "mean_weight", "square_decay", "square_weight", "eps",
    )] + [("is_first_step", "<u4"), ("is_nesterov", "<u4"), ("unused", "<u4", 3)]
)  # fmt: skip


def cases(bench: Bench, options: Options) -> list[Case]:
    """Prepare all of them."""
    n = options.elements
    return [
        *_bucket_cases(bench, options, n),
        _reduce(bench, options, n),
        _check(bench, n, scale=False),
        _check(bench, n, scale=True),
        _step(bench, options, n, "sgd"),
        _step(bench, options, n, "adam"),
    ]


def tensor_counts(tensors: int, elements: int) -> list[int]:
    """Cut a number of elements into tensors from small to large, as a model's are."""
    weights = np.geomspace(1, 1000, tensors)
    counts = np.maximum(1, (weights / weights.sum() * elements).astype(int))
    counts[-1] += elements - int(counts.sum())
    return [int(count) for count in counts]


def _bucket_cases(bench: Bench, options: Options, n: int) -> list[Case]:
    counts = tensor_counts(options.tensors, n)
    sets = bench.sets_of(6 * n)
    tensors = [[bench.array(count, fill=_SOME) for count in counts] for _ in range(sets)]
    tables = [
        ChunkTable([one.pointer for one in each], counts, 4, bench.device) for each in tensors
    ]
    buckets = [bench.array(n, np.int16) for _ in range(sets)]
    residual = bench.array(n)
    scale = _word(bench, 0.125)
    keep = [tensors, tables, buckets, residual, scale]

    def go(name: str, index: int, **fields: Any) -> None:
        launch(
            name, bench.device, bench.stream.ptr, **tables[index].fields,
            bucket=buckets[index].pointer, scale=scale.pointer, **fields,
        )  # fmt: skip

    def pack(index: int) -> None:
        go("pack", index, from_dtype=F32, to_dtype=BFLOAT16)

    def pack_with_residual(index: int) -> None:
        go("pack", index, from_dtype=F32, to_dtype=BFLOAT16, residual=residual.pointer)

    def unpack(index: int) -> None:
        go("unpack", index, from_dtype=BFLOAT16, to_dtype=F32)

    what = f"{options.tensors} f32 tensors, bf16 bucket"
    return [
        Case(f"pack: {what}", 6 * n, pack, sets, keep=keep),
        Case(f"pack with error feedback: {what}", 14 * n, pack_with_residual, sets, keep=keep),
        Case(f"unpack: {what}", 6 * n, unpack, sets, keep=keep),
    ]


def _reduce(bench: Bench, options: Options, n: int) -> Case:
    k = options.sources
    sets = bench.sets_of((2 * k + 4) * n)
    sources = [[bench.array(n, np.int16, _SOME) for _ in range(k)] for _ in range(sets)]
    out, flag = bench.array(n), bench.array(1, np.int32)

    def reduce(index: int) -> None:
        launch(
            "reduce", bench.device, bench.stream.ptr,
            sources=[one.pointer for one in sources[index]], source_count=k, divisor=k,
            from_dtype=BFLOAT16, count=n, op=0, to_dtype=F32, dst=out.pointer,
            nonfinite=flag.pointer,
        )  # fmt: skip

    keep = [sources, out, flag]
    return Case(
        f"reduce: {k} bf16 to f32, average and check", (2 * k + 4) * n, reduce, sets, keep=keep
    )


def _check(bench: Bench, n: int, *, scale: bool) -> Case:
    sets = bench.sets_of(4 * n)
    vectors = [bench.array(n, fill=_SOME) for _ in range(sets)]
    tables = [ChunkTable([one.pointer], [n], 4, bench.device) for one in vectors]
    room = scratch("check", tables[0].count, bench.device)
    flag, norm, factor = bench.array(1, np.int32), bench.array(1, np.float64), _word(bench, 1.0)

    def check(index: int) -> None:
        fields: dict[str, int] = {"scale": factor.pointer} if scale else {}
        launch(
            "check", bench.device, bench.stream.ptr, **tables[index].fields, dtype=F32,
            nonfinite=flag.pointer, square_sum=norm.pointer, scratch=room.pointer, **fields,
        )  # fmt: skip

    name = "unscale, check and norm: f32 in place" if scale else "check and norm: f32"
    keep = [vectors, tables, room, flag, norm, factor]
    return Case(name, (8 if scale else 4) * n, check, sets, keep=keep)


def _step(bench: Bench, options: Options, n: int, kind: str) -> Case:
    k = options.sources
    states = 1 if kind == "sgd" else 2
    each = 2 * k + 8 + 8 * states + 2
    sets = bench.sets_of(each * n)
    gradients = [[bench.array(n, np.int16, _SOME) for _ in range(k)] for _ in range(sets)]
    weights = [bench.array(n, fill=_SOME) for _ in range(sets)]
    fields = [[bench.array(n) for _ in range(states)] for _ in range(sets)]
    copy = bench.array(n, np.int16)
    values = np.zeros(1, STEP_SCALARS)
    for name, value in (
        ("descent", 1e-3), ("root_correction", 1.0), ("shrink", 1.0),
        ("momentum", 0.9), ("undampened", 1.0), ("mean_weight", 0.1), ("square_decay", 0.999),
        ("square_weight", 0.001), ("eps", 1e-8),
    ):  # fmt: skip
        values[name] = value
    scalars = Array(STEP_SCALARS.itemsize, np.uint8, bench.device).copy_from(values.view(np.uint8))

    def step(index: int) -> None:
        launch(
            kind, bench.device, bench.stream.ptr,
            sources=[one.pointer for one in gradients[index]], source_count=k, divisor=k,
            from_dtype=BFLOAT16, count=n, weights=weights[index].pointer,
            fields=[one.pointer for one in fields[index]], copy=copy.pointer,
            copy_dtype=BFLOAT16, scalars=scalars.pointer,
        )  # fmt: skip

    what = "SGD with momentum" if kind == "sgd" else "Adam"
    keep = [gradients, weights, fields, copy, scalars]
    return Case(f"average {k} bf16 and {what}: f32, bf16 copy", each * n, step, sets, keep=keep)


def _word(bench: Bench, value: float) -> Array:
    return Array(1, np.float32, bench.device).copy_from(np.array([value], np.float32))
