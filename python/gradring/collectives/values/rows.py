"""Rows of which ranks have different numbers: the ranks tell each other how many there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradring import operations
from gradring.arrays import buffers
from gradring.collectives import calling
from gradring.collectives.exchanges import Exchanges
from gradring.collectives.values.agreement import named
from gradring.collectives.values.travelling import Exchange
from gradring.dtypes import name_of
from gradring.errors import InvalidArgument, Mismatch


class Rows(Exchanges):
    """The methods of `gradring.Communicator` that go by rows, and learn their numbers."""

    def all_gather_rows(self, x: Any, *, timeout: float | None = None, stream: Any = None) -> Any:
        """Give every rank everybody's rows, in rank order; a collective call.

        `all_gather` with ``counts`` does the same where all ranks know the sizes.

        Args:
            x: Any supported dtype, with at least one axis: that of the rows, of which each rank has
                as many as it likes, or none. The other axes are the same on every rank. May be
                strided on the CPU.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            A new array of the library, dtype and device of ``x``, of shape
            ``(rows of all ranks, *x.shape[1:])``.

        Raises:
            InvalidArgument: A rank's ``x`` is no array that can be sent, or has no axes; names the
                rank, on every rank, and the communicator stays open.
            Mismatch: Ranks differ in dtype or in the axes after the first: names two of them, on
                every rank, and the communicator stays open. Or as `all_reduce`.
            PeerLost: As `all_reduce`, and so for TimedOut and Closed.
        """
        call = "all_gather_rows"
        sources: list[buffers.Operand] = []

        def look() -> list[Any]:
            sources.append(_rows_of(x, stream))
            return [name_of(sources[0].dtype), list(sources[0].shape)]

        shapes = self._shapes(call, look, timeout)
        row = shapes[self.rank][1:]
        out, target = calling.result_array(
            None, x, (sum(shape[0] for shape in shapes), *row), stream
        )
        counts = [math.prod(shape) for shape in shapes]
        with named(call):
            return self._start(
                operations.ALL_GATHER, sources[0], target, out, async_op=False, timeout=timeout,
                count=sum(counts), counts=counts, algorithm=calling.algorithm_code("auto"),
            )  # fmt: skip

    def all_to_all_rows(
        self, x: Any, splits: Sequence[int], *, timeout: float | None = None, stream: Any = None
    ) -> tuple[Any, list[int]]:
        """Send the first ``splits[0]`` rows to rank 0, the next to rank 1; a collective call.

        Args:
            x: Any supported dtype, with at least one axis; not written. The other axes are the same
                on every rank. May be strided on the CPU.
            splits: Rows for each rank; they add up to those of ``x``.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            The rows that came, in rank order, as a new array of the library, dtype and device of
            ``x``; and how many each rank has sent, which are the splits for the way back.

        Raises:
            InvalidArgument: As `all_gather_rows`, or a rank's ``splits`` do not fit its rows.
            Mismatch: As `all_gather_rows`, and so for PeerLost, TimedOut and Closed.
        """
        call = "all_to_all_rows"
        sources: list[buffers.Operand] = []
        sent: list[int] = []

        def look() -> list[Any]:
            source = _rows_of(x, stream)
            sent.extend(self._splits(splits, source.shape[0]))
            sources.append(source)
            return [name_of(source.dtype), list(source.shape)]

        row = self._shapes(call, look, timeout)[self.rank][1:]
        with named(call):
            coming = self.all_to_all(np.array(sent, np.int64), timeout=timeout).tolist()
        out, target = calling.result_array(None, x, (sum(coming), *row), stream)
        size = math.prod(row)
        with named(call):
            rows = self._start(
                operations.ALL_TO_ALL, sources[0], target, out, async_op=False, timeout=timeout,
                counts=[count * size for count in sent],
                recv_counts=[count * size for count in coming],
            )  # fmt: skip
        return rows, coming

    def _shapes(
        self, call: str, look: Callable[[], list[Any]], timeout: float | None
    ) -> list[list[int]]:
        told = Exchange(self, call, timeout=timeout).values(look)
        for rank, (dtype, shape) in enumerate(told):
            if dtype != told[0][0] or shape[1:] != told[0][1][1:]:
                first, other = (f"{told[each][0]}{told[each][1]}" for each in (0, rank))
                raise Mismatch(
                    f"{call}: {self.describe(0)} has {first}, and {self.describe(rank)} has "
                    f"{other}; only the first axis may differ between ranks"
                )
        return [shape for _, shape in told]

    def _splits(self, splits: Sequence[int], rows: int) -> list[int]:
        parts = calling.whole_numbers("splits", splits)
        if len(parts) != self.world_size or any(part < 0 for part in parts):
            raise InvalidArgument(
                f"splits must be {self.world_size} non-negative numbers, got {parts}"
            )
        if sum(parts) != rows:
            raise InvalidArgument(f"splits add up to {sum(parts)}, x has {rows} rows")
        return parts


def _rows_of(x: Any, stream: Any) -> buffers.Operand:
    source = buffers.operand(x, "x", writes=False, stream=stream)
    if not source.shape:
        raise InvalidArgument("x has no axes; the first one is that of the rows")
    return source
