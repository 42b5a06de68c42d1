"""The row kernels on a batch of ids: unique, segment sum, gather, put, and the rules' steps."""

from __future__ import annotations

import numpy as np

from gradring.bench.kernels.measure import Bench, Case
from gradring.bench.kernels.options import Options
from gradring.bench.rows.ids import zipf_ids
from gradring.dtypes import DTYPE_CODES
from gradring.gpu.kernels import launch, scratch
from gradring.gpu.memory import Array

F32 = DTYPE_CODES["float32"]
_SECTOR = 32  # Bytes that memory gives at the least: short rows cost no less.
_SGD, _ADAGRAD, _ADAM = "sgd", "adagrad", "adam"
_KINDS = {"sgd": 1, "adagrad": 2, "adam": 4}  # kernels::RuleKind


def cases(bench: Bench, options: Options) -> list[Case]:
    """Prepare all of them."""
    batch = Batch(bench, options)
    dim, row = options.dim, max(4 * options.dim, _SECTOR)
    n, u = batch.n, batch.u
    where = (bench.device, bench.stream.ptr)
    slots = {
        "slots": batch.slots.pointer, "slot_bytes": 8, "dim": dim, "rows_of_table": batch.rows,
        "most": u,
    }  # fmt: skip

    def unique(_: int) -> None:
        batch.unique()

    def segment_sum(_: int) -> None:
        launch(
            "segment_sum", *where, rows=batch.gradients.pointer, dtype=F32, dim=dim,
            starts=batch.starts.pointer, positions=batch.positions.pointer,
            unique_count=batch.unique_count.pointer, most=n, sums=batch.sums.pointer,
        )  # fmt: skip

    def gather(_: int) -> None:
        launch(
            "gather_rows", *where, **slots, table=batch.table.pointer, table_dtype=F32,
            out_dtype=F32, stride=dim, out=batch.sums.pointer,
        )  # fmt: skip

    def put(_: int) -> None:
        launch(
            "put_rows", *where, **slots, table=batch.table.pointer, stride=dim,
            rows=batch.sums.pointer,
        )  # fmt: skip

    # The least a sort by 8 bits at a time moves, over the bits that these ids have.
    passes = -(-int(batch.rows).bit_length() // 8)
    found = [
        Case("unique ids", passes * 2 * n * 12 + n * 8, unique, keep=[batch]),
        Case(
            f"segment sum: rows of {dim} f32", n * (row + 12) + u * row, segment_sum, keep=[batch]
        ),
        Case(f"gather: rows of {dim} f32", u * (2 * row + 8), gather, keep=[batch]),
        Case(f"put: rows of {dim} f32", u * (2 * row + 8), put, keep=[batch]),
    ]
    for kind, states in ((_SGD, 0), (_ADAGRAD, 1), (_ADAM, 2)):
        found.append(_apply(batch, slots, kind, states, row))
    return found


class Batch:
    """Ids that repeat as words do, the rows they name, and room for everything."""

    def __init__(self, bench: Bench, options: Options) -> None:
        """Upload them."""
        self.bench = bench
        self.n, self.dim = options.rows, options.dim
        self.rows = 8 * options.rows
        ids = zipf_ids(self.rows, self.n, 1.05, 0).astype(np.uint64) % np.uint64(self.rows)
        distinct = np.unique(ids)
        self.u = len(distinct)
        device = bench.device
        self.ids = Array(self.n, np.int64, device).copy_from(ids.view(np.int64))
        self.slots = Array(self.u, np.int64, device).copy_from(distinct.view(np.int64))
        self.unique_ids = bench.array(self.n, np.int64)
        self.starts = bench.array(self.n + 1, np.int32)
        self.positions = bench.array(self.n, np.int32)
        self.unique_count = bench.array(1, np.int32)
        self.scratch = scratch("unique", self.n, device)
        self.gradients = bench.array(self.n * self.dim, fill=0x3C)
        self.sums = bench.array(self.n * self.dim, fill=0x3C)
        self.table = bench.array(self.rows * self.dim, fill=0x3C)
        self.unique()  # The sums need its answer.

    def unique(self) -> None:
        """Group equal ids."""
        launch(
            "unique", self.bench.device, self.bench.stream.ptr, ids=self.ids.pointer, count=self.n,
            unique_ids=self.unique_ids.pointer, starts=self.starts.pointer,
            positions=self.positions.pointer, unique_count=self.unique_count.pointer,
            scratch=self.scratch.pointer,
        )  # fmt: skip


def _apply(batch: Batch, slots: dict[str, int], kind: str, states: int, row: int) -> Case:
    bench, dim = batch.bench, batch.dim
    fields = [bench.array(batch.rows * dim, fill=0x3C) for _ in range(states)]
    corrections = Array(2, np.float64, bench.device).copy_from(np.ones(2))

    def apply(_: int) -> None:
        launch(
            "apply_rows", bench.device, bench.stream.ptr, **slots, kind=_KINDS[kind], lr=1e-3,
            step=1, eps=1e-8, mean_weight=0.1, square_decay=0.999, square_weight=0.001,
            corrections=corrections.pointer, correction_count=1,
            gradients=batch.sums.pointer, weights=batch.table.pointer, stride=dim,
            fields=[one.pointer for one in fields], field_stride=dim,
        )  # fmt: skip

    floor = batch.u * (row * (3 + 2 * states) + 8)
    return Case(f"apply {kind}: rows of {dim} f32", floor, apply, keep=[batch, fields, corrections])
