"""Runs every kernel of the GPU plugin on odd numbers and prints a digest of what each has written.

``python kernel_digests.py [N]``, of every N-th case: a JSON object, cases by name. The plugin is
$GRADRING_GPU_PLUGIN, or the package's own. test_kernel_digests.py compares the emulated GPU's
digests, whose kernels the tests in C++ compare with the CPU's, with a real one's.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from gradring import _core, gpu
from gradring.arrays.device_arrays import LEGACY_STREAM
from gradring.bench.kernels.streaming import STEP_SCALARS
from gradring.dtypes import BFLOAT16, DTYPE_CODES
from gradring.gpu.kernels import ChunkTable, launch, scratch

F32, F16, F64 = (DTYPE_CODES[name] for name in ("float32", "float16", "float64"))
DTYPES = {F32: np.float32, F16: np.float16, F64: np.float64, BFLOAT16: ml_dtypes.bfloat16}
FLOATS = [np.dtype(dtype) for dtype in DTYPES.values()]
SUM, AVG, PROD, MIN, MAX = range(5)  # csrc/base/types.h
Case = tuple[str, Callable[[], list[Any]]]

random = np.random.default_rng(20)


def odd(count: int, code: int = F32) -> Any:
    """Draw numbers of any exponent, and some that are none."""
    dtype = np.dtype(DTYPES[code])
    values = (random.standard_normal(count) * 50).astype(dtype)
    strange = random.random(count) < 0.2
    noise = random.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
    return np.where(strange, noise, values).astype(dtype)


def tame(count: int) -> Any:
    """Draw finite numbers, some of them too small to be normal."""
    values = (random.standard_normal(count) * 3).astype(np.float32)
    return np.where(random.random(count) < 0.1, values * np.float32(1e-39), values)


def up(values: Any, shift: int = 0) -> Any:
    """Copy to the device, ``shift`` elements behind a place that is aligned well."""
    values = np.ascontiguousarray(values)
    whole = gpu.from_numpy(np.concatenate([np.zeros(shift, values.dtype), values]))
    whole.at = whole.pointer + shift * values.itemsize
    return whole


def zeros(count: int, dtype: Any = np.float32, shift: int = 0) -> Any:
    return up(np.zeros(count, dtype), shift)


def run(name: str, **fields: Any) -> None:
    launch(name, 0, LEGACY_STREAM, **fields)
    _core.gpu_stream_synchronize(0, LEGACY_STREAM)  # Who gave the memory may free it now.


SIZES = ((1, 0), (255, 1), (8192, 0), (20_003, 0), (20_003, 3))


COUNTS = (3, 0, 700)  # Of the other tensors of a bucket.


class Bucket:
    """Tensors of one dtype beside room for them in another."""

    def __init__(self, tensor: int, bucket: int, count: int, shift: int) -> None:
        self.tensor, self.bucket, self.is_aligned = tensor, bucket, shift == 0
        counts = [count, *COUNTS]
        self.total = sum(counts)
        self.tensors = [up(odd(n, tensor), shift) for n in counts]
        item_bytes = np.dtype(DTYPES[tensor]).itemsize
        self.table = ChunkTable([one.at for one in self.tensors], counts, item_bytes, 0)
        self.flag = zeros(1, np.int32)

    def go(self, name: str, where: Any, scale: float | None, **fields: Any) -> None:
        if scale is not None:
            factor = up(np.array([scale], np.float32))
            fields |= {"scale": factor.at}
        run(name, **self.table.fields, bucket=where.at, nonfinite=self.flag.at, **fields)


def pack(pair: Any, size: Any, scale: float | None, has_residual: bool) -> list[Any]:
    it = Bucket(*pair, *size)
    out = zeros(it.total, DTYPES[it.bucket])
    residual = up(odd(it.total))
    fields = {"residual": residual.at} if has_residual else {}
    it.go(
        "pack", out, scale, from_dtype=it.tensor, to_dtype=it.bucket, saturates=it.is_aligned,
        **fields,
    )  # fmt: skip
    return [out, it.flag, residual]


def unpack(pair: Any, size: Any, scale: float | None, adds: bool) -> list[Any]:
    it = Bucket(*pair, *size)
    source = up(odd(it.total, it.bucket))
    it.go("unpack", source, scale, from_dtype=it.bucket, to_dtype=it.tensor, adds=adds)
    return [*it.tensors, it.flag]


def buckets() -> Iterator[Case]:
    codes = [F32, F16, BFLOAT16]
    pairs = [*itertools.product(codes, codes), (F64, F64)]
    for pair, size in itertools.product(pairs, SIZES[1:]):
        for scale, is_more in ((None, False), (0.37, False), (0.37, True)):
            name = f"{pair} {size} scale={scale} {'residual, adds' if is_more else ''}"
            if not is_more or (pair[1] in (F16, BFLOAT16) and pair[0] != F64):
                yield f"pack {name}", partial(pack, pair, size, scale, is_more)
            yield f"unpack {name}", partial(unpack, pair, size, scale, is_more)


def reduce(pair: Any, op: int, k: int, size: Any) -> list[Any]:
    (code, target), (count, shift) = pair, size
    sources = [up(odd(count, code), shift) for _ in range(k)]
    out, flag = zeros(count, DTYPES[target]), zeros(1, np.int32)
    run(
        "reduce", sources=[one.at for one in sources], source_count=k,
        divisor=k if op == AVG else 1, from_dtype=code, count=count, op=op, to_dtype=target,
        dst=out.at, nonfinite=flag.at,
    )  # fmt: skip
    return [out, flag]


def sums() -> Iterator[Case]:
    for code, op, k, size in itertools.product(
        DTYPES, (SUM, AVG, PROD, MIN, MAX), (1, 2, 5), SIZES
    ):
        targets = (code, F32) if op in (SUM, AVG) and code in (F16, BFLOAT16) else (code,)
        for target in targets:
            name = f"reduce {code}>{target} op={op} k={k} {size}"
            yield name, partial(reduce, (code, target), op, k, size)


def check(code: int, scale: float | None, size: Any) -> list[Any]:
    count, shift = size
    x = up((random.standard_normal(count) * 3).astype(DTYPES[code]), shift)
    table = ChunkTable([x.at], [count], np.dtype(DTYPES[code]).itemsize, 0)
    room, flag = scratch("check", table.count, 0), zeros(1, np.int32)
    square, factor = zeros(1, np.float64), up(np.array([scale or 1], np.float32))
    fields = {} if scale is None else {"scale": factor.at}
    run(
        "check", **table.fields, dtype=code, nonfinite=flag.at, square_sum=square.at,
        scratch=room.pointer, **fields,
    )  # fmt: skip
    return [x, flag, square]


def checks() -> Iterator[Case]:
    for code, scale, size in itertools.product(DTYPES, (None, 0.5), SIZES):
        yield f"check {code} scale={scale} {size}", partial(check, code, scale, size)


def step(kind: str, code: int, k: int, first: int, size: Any) -> list[Any]:
    count, shift = size
    values = np.zeros(1, STEP_SCALARS)
    for name, value in (
        ("descent", -1e-2), ("root_correction", 0.3), ("shrink", 0.99), ("momentum", 0.9),
        ("undampened", 0.8), ("mean_weight", 0.1), ("square_decay", 0.999),
        ("square_weight", 0.001), ("eps", 1e-8), ("weight_decay", 0.01), ("clip_value", 2.0),
        ("is_first_step", first), ("is_nesterov", shift == 0),
    ):  # fmt: skip
        values[name] = value
    sources = [up(tame(count).astype(DTYPES[code]), shift) for _ in range(k)]
    weights = up(tame(count), shift)
    fields = [up(np.abs(tame(count))) for _ in range(1 if kind == "sgd" else 2)]
    copy, scalars = zeros(count, ml_dtypes.bfloat16), up(values.view(np.uint8))
    run(
        kind, sources=[one.at for one in sources], source_count=k, divisor=k, from_dtype=code,
        count=count, weights=weights.at, fields=[one.at for one in fields], copy=copy.at,
        copy_dtype=BFLOAT16, scalars=scalars.at,
    )  # fmt: skip
    return [weights, *fields, copy]


def steps() -> Iterator[Case]:
    for kind, code, k, first, size in itertools.product(
        ("sgd", "adam"), (F32, BFLOAT16, F16), (1, 3), (0, 1), SIZES
    ):
        name = f"{kind} {code} k={k} first={first} {size}"
        yield name, partial(step, kind, code, k, first, size)


def int8(k: int, start: int, size: Any) -> list[Any]:
    count, shift = size
    encoded_bytes = count + 4 * -(-count // 256)
    codes, flag = [], zeros(1, np.int32)
    residuals = [up(tame(count), shift) for _ in range(k)]
    for residual in residuals:
        x = up(odd(count) if start else tame(count), shift)
        codes.append(zeros(encoded_bytes, np.uint8, shift))
        run(
            "quantise", values=x.at, residual=residual.at, count=count, out=codes[-1].at,
            nonfinite=flag.at,
        )  # fmt: skip
    out, again = zeros(count), zeros(encoded_bytes, np.uint8)
    sources = [one.at for one in codes]
    run(
        "dequantise", sources=sources, source_count=k, count=count, dst=out.at, divisor=float(k),
        start=start,
    )  # fmt: skip
    run(
        "requantise", sources=sources, source_count=k, count=count, residual=residuals[0].at,
        out=again.at, start=start, nonfinite=flag.at,
    )  # fmt: skip
    blocks = -(-count // 256)
    halves = [np.split(one.to_numpy(), [4 * blocks]) for one in (*codes, again)]
    scales = [one[0].view(np.float32) for one in halves]
    return [*scales, *(one[1] for one in halves), *residuals, out, flag]


def top(share: int, is_odd: bool, size: Any) -> list[Any]:
    count, shift = size
    x, residual = up(odd(count) if is_odd else tame(count), shift), up(tame(count))
    kept = max(1, count // share)
    few, room, out = zeros(8 * kept, np.uint8), scratch("sparsify", count, 0), zeros(count)
    run(
        "sparsify", values=x.at, residual=residual.at, count=count, kept=kept, out=few.at,
        scratch=room.pointer,
    )  # fmt: skip
    run("desparsify", source=few.at, kept=kept, count=count, dst=out.at)
    indices, values = np.split(few.to_numpy(), 2)
    return [indices, values.view(np.float32), residual, out]


def codecs() -> Iterator[Case]:
    for size, k, start in itertools.product(SIZES, (1, 4), (0, 1)):
        yield f"int8 k={k} start={start} {size}", partial(int8, k, start, size)
    for size, share, is_odd in itertools.product(SIZES, (100, 7, 1), (False, True)):
        yield f"top 1/{share} odd={is_odd} {size}", partial(top, share, is_odd, size)


class Batch:
    """Ids, some of them often, and their groups on the device."""

    def __init__(self, count: int, of: int) -> None:
        self.ids = up((random.zipf(1.2, count) % of).astype(np.uint64).view(np.int64))
        self.unique_ids = zeros(count, np.int64)
        self.starts, self.positions = zeros(count + 1, np.int32), zeros(count, np.int32)
        self.places, self.count = zeros(count, np.int32), zeros(1, np.int32)
        self.scratch = scratch("unique", count, 0)
        run(
            "unique", ids=self.ids.at, count=count, unique_ids=self.unique_ids.at,
            starts=self.starts.at, positions=self.positions.at, places=self.places.at,
            unique_count=self.count.at, scratch=self.scratch.pointer,
        )  # fmt: skip
        self.groups = int(self.count.to_numpy()[0])


def pulled_and_pushed(count: int, dim: int, code: int) -> list[Any]:
    batch = Batch(count, 2000)
    n = batch.groups
    given, sums = up(odd(count * dim, code)), zeros(n * dim)
    run(
        "segment_sum", rows=given.at, dtype=code, dim=dim, starts=batch.starts.at,
        positions=batch.positions.at, unique_count=batch.count.at, most=n, sums=sums.at,
    )  # fmt: skip
    table, out, missing = up(odd(2000 * dim)), zeros(n * dim, DTYPES[code]), zeros(1, np.int64)
    where = {
        "slots": batch.unique_ids.at, "slot_bytes": 8, "dim": dim, "rows_of_table": 1990,
        "most": n, "count_at": batch.count.at, "missing": missing.at,
    }  # fmt: skip
    run(
        "gather_rows", **where, table=table.at, table_dtype=F32, out_dtype=code, stride=dim,
        out=out.at,
    )  # fmt: skip
    run("put_rows", **where, table=table.at, stride=dim, rows=sums.at)
    ids, starts = batch.unique_ids.to_numpy()[:n], batch.starts.to_numpy()[: n + 1]
    return [ids, starts, batch.positions, batch.places, batch.count, sums, table, out, missing]


def apply(kind: int, dim: int) -> list[Any]:
    batch = Batch(900, 500)
    n = batch.groups
    weights, gradients = up(tame(500 * dim)), up(tame(n * dim))
    fields = [up(np.abs(tame(500 * dim))) for _ in range(STATES[kind])]
    counted, refused = up(np.arange(500, dtype=np.int32)), zeros(1, np.int64)
    corrections = up(random.random(20))
    run(
        "apply_rows", slots=batch.unique_ids.at, slot_bytes=8, dim=dim, rows_of_table=490, most=n,
        count_at=batch.count.at, kind=kind, lr=1e-2, step=3, eps=1e-8, weight_decay=0.01,
        lr_decay=0.1, mean_weight=0.1, square_decay=0.999, square_weight=0.001,
        corrections=corrections.at, correction_count=10, gradients=gradients.at,
        weights=weights.at, stride=dim, fields=[one.at for one in fields], field_stride=dim,
        steps=counted.at, refused=refused.at,
    )  # fmt: skip
    return [weights, *fields, counted, refused]


STATES = {0: 0, 1: 0, 2: 1, 4: 2, 5: 2, 6: 2}  # Fields of a kernels::RuleKind.


def rows() -> Iterator[Case]:
    for count, dim, code in itertools.product(
        (1, 700, 5000), (1, 4, 20, 64, 300), (F32, BFLOAT16, F16)
    ):
        yield f"rows {count}x{dim} {code}", partial(pulled_and_pushed, count, dim, code)
    for kind, dim in itertools.product(STATES, (1, 4, 20, 64, 128, 300)):
        yield f"apply {kind} dim={dim}", partial(apply, kind, dim)


def digest(arrays: list[Any]) -> str:
    total = hashlib.blake2b(digest_size=8)
    for array in arrays:
        host = array if isinstance(array, np.ndarray) else array.to_numpy()
        if host.dtype in FLOATS:  # Which NaN comes out of NaNs is the processor's choice.
            host = np.where(np.isnan(host), np.array(np.nan, host.dtype), host)
        total.update(np.ascontiguousarray(host).tobytes())
    return total.hexdigest()


def main() -> None:
    found: dict[str, str] = {}
    cases = itertools.chain(buckets(), sums(), checks(), steps(), codecs(), rows())
    for name, case in itertools.islice(cases, 0, None, int((*sys.argv[1:], "1")[0])):
        try:
            found[name] = digest(case())
        except Exception as error:  # noqa: BLE001 - the others run all the same
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
