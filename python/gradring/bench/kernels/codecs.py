"""The codec kernels on one vector: int8 blocks and top-k."""

from __future__ import annotations

import numpy as np

from gradring.bench.kernels.measure import Bench, Case
from gradring.bench.kernels.options import Options
from gradring.gpu.kernels import launch, scratch
from gradring.gpu.memory import Array

_BLOCK = 256  # Values that share a scale (csrc/kernels/codec.h).
_KEPT = 100  # One value of so many.


def cases(bench: Bench, options: Options) -> list[Case]:
    """Prepare all of them."""
    n, k = options.elements, options.sources
    encoded = n + 4 * -(-n // _BLOCK)
    random = np.random.default_rng(1)
    values = Array(n, np.float32, bench.device)
    values.copy_from(np.resize(random.standard_normal(1 << 20).astype(np.float32), n))
    residual, out = bench.array(n), bench.array(n)
    codes = [bench.array(encoded, np.uint8) for _ in range(k + 1)]
    flag = bench.array(1, np.int32)
    room = scratch("sparsify", n, bench.device)
    kept = max(1, n // _KEPT)
    few = bench.array(8 * kept, np.uint8)
    where = (bench.device, bench.stream.ptr)

    def quantise(_: int) -> None:
        launch(
            "quantise", *where, values=values.pointer, residual=residual.pointer, count=n,
            out=codes[0].pointer, nonfinite=flag.pointer,
        )  # fmt: skip

    sources = [one.pointer for one in codes[:k]]

    def dequantise(_: int) -> None:
        launch(
            "dequantise", *where, sources=sources, source_count=k, count=n, dst=out.pointer,
            divisor=float(k),
        )  # fmt: skip

    def requantise(_: int) -> None:
        launch(
            "requantise", *where, sources=sources, source_count=k, count=n,
            residual=residual.pointer, out=codes[k].pointer, nonfinite=flag.pointer,
        )  # fmt: skip

    def sparsify(_: int) -> None:
        launch(
            "sparsify", *where, values=values.pointer, residual=residual.pointer, count=n,
            kept=kept, out=few.pointer, scratch=room.pointer,
        )  # fmt: skip

    def desparsify(_: int) -> None:
        launch("desparsify", *where, source=few.pointer, kept=kept, count=n, dst=out.pointer)

    for index in range(k):  # What is decoded below has been encoded.
        launch(
            "quantise", *where, values=values.pointer, count=n, out=codes[index].pointer
        )  # fmt: skip
    keep = [values, residual, out, codes, flag, room, few]
    return [
        Case("int8 quantise with error feedback: f32", 12 * n + encoded, quantise, keep=keep),
        Case(f"int8 dequantise and average {k}", k * encoded + 4 * n, dequantise, keep=keep),
        Case(
            f"int8 dequantise {k}, add, quantise", (k + 1) * encoded + 8 * n, requantise, keep=keep
        ),
        Case("top 1 % with error feedback: f32", 16 * n + 8 * kept, sparsify, keep=keep),
        Case("top 1 % to f32", 4 * n + 16 * kept, desparsify, keep=keep),
    ]
