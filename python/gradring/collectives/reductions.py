"""Reductions: what combines the arrays of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from gradring import compression, operations
from gradring.arrays import buffers
from gradring.arrays.device_arrays import DeviceView
from gradring.collectives import calling
from gradring.collectives.fusion import reduce_many
from gradring.collectives.work import Work
from gradring.errors import DeviceError, InvalidArgument
from gradring.timeouts import milliseconds


class Reductions(calling.Caller):
    """The reducing methods of `gradring.Communicator`."""

    def all_reduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        async_op: bool = False,
        algorithm: str = "auto",
        deterministic: Literal["rank_order"] | None = None,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Combine ``x`` element by element over all ranks; every rank gets the same bits.

        The order of additions depends on the world size and on the element's place, never on the
        machine's load or the run; on the transport only where several hosts have several ranks
        each, which are added inside hosts first (docs/semantics.md). 16-bit floats are added in
        float32 and rounded once. Ring: Patarasuk and Yuan 2009; halving-doubling: Thakur,
        Rabenseifner and Gropp 2005.

        Args:
            x: Any supported dtype and shape; the same shape and dtype on every rank. Written in
                place unless ``out`` is given. May be strided on the CPU; on a CUDA device it must
                be contiguous.
            op: ``sum avg prod min max``, and for integers and bool ``band bor bxor``. ``avg`` of
                integers truncates towards zero.
            out: Array like ``x`` for the result; ``x`` is then left alone.
            async_op: Return a `Work` at once; ``x`` must not be touched until it is done.
            algorithm: ``auto ring doubling halving direct gather flat hierarchical``; the same on
                every rank. ``ring doubling halving hierarchical`` take no 16-bit floats; the last
                needs several hosts, one of them with several ranks.
            deterministic: ``"rank_order"`` adds x[0] + x[1] + ...; of floats ``ring doubling
                halving``, which have orders of their own, are refused with it.
            timeout: Seconds without progress before giving up; ``None`` is the communicator's.
                Counts also while the call waits for its turn behind others.
            stream: Of a device array (docs/gpu.md): what was put on it before has made ``x``. A
                number, or a stream of torch, CuPy or any library with ``__cuda_stream__``;
                ``None``: torch's current stream, else what the array says. Ignored for arrays on
                the CPU.

        Returns:
            ``x`` (or ``out``); with ``async_op`` a `Work` whose ``wait()`` returns it.

        Raises:
            InvalidArgument: The arguments make no sense; nothing was sent.
            DeviceError: ``x`` and ``out`` are on different devices, or on one that cannot be used
                from here.
            Mismatch: Ranks called different things; nothing was reduced.
            PeerLost: A rank died, froze or left.
            TimedOut: No progress within the timeout; the communicator is closed. Or no turn: what
                came before made no progress, nothing was sent, and the communicator is open.
            Closed: The communicator had failed or was closed before.

        Example:
            >>> import numpy as np, gradring as gr
            >>> with gr.init() as comm:
            ...     comm.all_reduce(np.array([comm.rank + 1.0, 2.0])).tolist()
            [1.0, 2.0]

            With two ranks it is ``[3.0, 4.0]`` on both.
        """
        options = calling.reduction(op, algorithm, deterministic)
        return self._elementwise(
            operations.ALL_REDUCE, x, out,
            async_op=async_op, timeout=timeout, stream=stream, **options,
        )  # fmt: skip

    def all_reduce_many(
        self,
        xs: Sequence[Any],
        op: str = "sum",
        *,
        bucket_bytes: int = 25 << 20,
        timeout: float | None = None,
        stream: Any = None,
    ) -> list[Any]:
        """Combine many arrays with few operations, by packing those of one dtype into buckets.

        Args:
            xs: Arrays as for `all_reduce`; the same list of shapes and dtypes on every rank. Only
                a bucket's dtype and total size are compared: other shapes with one total are not
                noticed. Each is written in place, so none may share memory with another.
            op: As for `all_reduce`.
            bucket_bytes: Most bytes in one operation; a larger array is an operation of its own.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            ``xs`` as a list.

        Raises:
            InvalidArgument: As `all_reduce`, ``bucket_bytes`` is not positive, or arrays overlap.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        return reduce_many(self, xs, op, bucket_bytes, timeout=timeout, stream=stream)

    def reduce_scatter(  # noqa: PLR0913 - what an operation can be told
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        algorithm: str = "auto",
        deterministic: Literal["rank_order"] | None = None,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Combine ``x`` over all ranks and leave each rank its own part.

        Args:
            x: As for `all_reduce`, seen flat; not written.
            out: Flat array of this rank's part; ``None`` allocates. It may be that part of ``x``.
            op: As for `all_reduce`.
            counts: Elements of each rank's part, the same list on every rank; ``None`` cuts evenly:
                part r is elements ``r*n//world_size`` to ``(r+1)*n//world_size``.
            async_op: As for `all_reduce`.
            algorithm: ``auto ring doubling halving direct flat``; as for `all_reduce`.
            deterministic: As for `all_reduce`.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            ``out``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``counts`` do not add up to the size of ``x``, or ``out`` does not fit.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        source = buffers.operand(x, "x", writes=False, stream=stream)
        total = source.count
        parts = self._parts("reduce_scatter", counts, total)
        out, target = calling.result_array(out, x, (parts[self.rank],), stream)
        return self._start(
            operations.REDUCE_SCATTER, source, target, out, async_op=async_op, timeout=timeout,
            count=total, counts=None if counts is None else parts,
            **calling.reduction(op, algorithm, deterministic),
        )  # fmt: skip

    def reduce(  # noqa: PLR0913 - what an operation can be told
        self,
        x: Any,
        root: int = 0,
        op: str = "sum",
        *,
        out: Any = None,
        async_op: bool = False,
        algorithm: str = "auto",
        deterministic: Literal["rank_order"] | None = None,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Combine ``x`` over all ranks; only the root gets the result.

        Args:
            x: As for `all_reduce`; written in place on the root, unless ``out`` is given.
            root: Who gets it.
            op: As for `all_reduce`.
            out: Array like ``x`` for the result; only used on the root.
            async_op: As for `all_reduce`.
            algorithm: ``auto ring halving direct gather flat``; as for `all_reduce`.
            deterministic: As for `all_reduce`.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            The result on the root, ``x`` elsewhere; with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``root`` is no rank, or ``out`` does not fit.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        root = calling.whole_number("reduce: root", root)
        options = {"root": root, **calling.reduction(op, algorithm, deterministic)}
        if self.rank == root:
            return self._elementwise(
                operations.REDUCE, x, out,
                async_op=async_op, timeout=timeout, stream=stream, **options,
            )  # fmt: skip
        source = buffers.operand(x, "x", writes=False, stream=stream)
        count = source.count
        return self._start(
            operations.REDUCE,
            source,
            None,
            x,
            async_op=async_op,
            timeout=timeout,
            count=count,
            **options,
        )

    def all_reduce_compressed(
        self,
        x: Any,
        compress: compression.Compression,
        residual: Any = None,
        *,
        op: Literal["sum", "avg"] = "sum",
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Combine ``x`` over all ranks with fewer bytes; every rank gets the same bits.

        Each rank sends the others their parts of ``x``, encoded; the owner of a part adds them to
        its own values in rank order, encodes the sum and sends that to all. What the encodings
        leave out is put into ``residual`` and takes part in the next call (`gradring.compression`).

        Args:
            x: Contiguous float32, the same size on every rank; written in place. On a GPU it is
                encoded there.
            compress: ``"bf16" "fp16" "int8"`` or `TopK`, the same on every rank.
            residual: float32 like ``x``, zeros before the first call, then kept by the caller from
                call to call. With ``x`` on a GPU: on the same one (on the CPU, ``x`` goes there to
                be encoded). Over all ranks, result + residuals is the sum of all ``x``
                and earlier residuals, but for the rounding of additions. ``None``: what is left out
                is lost.
            op: ``avg`` divides the decoded sum by the number of ranks.
            async_op: As for `all_reduce`; ``residual`` must not be touched either.
            timeout: As for `all_reduce`.

        Returns:
            ``x``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: As `all_reduce`, something is not contiguous float32, or ``residual``
                shares memory with ``x``.
            DeviceError: As `all_reduce`, or ``x`` is on the CPU and ``residual`` is not.
            Mismatch: As `all_reduce`, or the ranks chose different codecs.
            PeerLost: As `all_reduce`, and so for TimedOut and Closed.
        """
        if op not in ("sum", "avg"):
            raise InvalidArgument(f"op '{op}' is neither 'sum' nor 'avg'")
        total = np.array([self.world_size], np.float64) if op == "avg" else None
        work = self.average_compressed(x, total, compress, residual, timeout=timeout)
        return work if async_op else work.wait()

    def average_compressed(
        self,
        bucket: Any,
        total: Any,
        compress: compression.Compression,
        residual: Any,
        *,
        timeout: float | None = None,
    ) -> Work:
        """Do the work of `all_reduce_compressed`, as `average_bucket` does that of `all_reduce`.

        Raises:
            InvalidArgument: One of the arrays is not contiguous float32, or they overlap.
            DeviceError: One is on the CPU and the other is not.
        """
        values = buffers.operand(bucket, "x", writes=True)
        rest = None if residual is None else buffers.operand(residual, "residual", writes=True)
        if values.memory is not None or (rest is not None and rest.memory is not None):
            raise InvalidArgument("only contiguous arrays can be compressed")
        compression.require_float32("all_reduce_compressed", values, rest)
        compression.require_apart(values, rest)
        codec, timeout_ms = compression.code_of(compress), milliseconds(timeout)
        if isinstance(values, DeviceView):
            flight = self._device_calls().all_reduce_compressed(
                values, rest, codec, total, timeout_ms
            )
            return Work(flight, bucket)
        if isinstance(rest, DeviceView):
            raise DeviceError("x is on the CPU, so residual must be there too")
        left = None if rest is None else rest.buffer
        pending = self._core.all_reduce_compressed(values.buffer, *codec, left, total, timeout_ms)
        return Work(pending, bucket)

    def average_bucket(self, bucket: Any, total: Any) -> Work:
        """Add up a bucket in the background and divide it by ``total``; for the optimizers.

        Args:
            bucket: Contiguous floats; written in place.
            total: One float64 that an earlier operation of this communicator writes, and that is
                read when this one's turn has come. Only whole numbers from 1 to 2**24 count: with
                any other the sum stays a sum.

        Raises:
            InvalidArgument: The bucket is not contiguous.
        """
        view = buffers.view(bucket, "bucket", writes=True)
        if view.memory is not None:
            raise InvalidArgument("a bucket is contiguous")
        return Work(self._core.average(view.buffer, view.dtype, total), bucket)

    def settle(self, count: int, dtype: int, timeout: float | None) -> None:
        """Wait until what was started before is done, as an all_reduce waits for its turn.

        Raises:
            TimedOut: As `all_reduce`, of this many elements of the dtype with this code.
        """
        self._core.settle(count, dtype, milliseconds(timeout))

    def reduce_bucket(
        self, bucket: buffers.View | Sequence[DeviceView], op: str, timeout: float | None
    ) -> None:
        """Combine a packed bucket, or several device arrays, in place; for `fusion`."""
        options = calling.reduction(op, "auto", None)
        if isinstance(bucket, buffers.View):
            self._start(
                operations.ALL_REDUCE, bucket, bucket, None,
                async_op=False, timeout=timeout, count=bucket.count, **options,
            )  # fmt: skip
            return
        self._device_calls().all_reduce_many(
            bucket, dtype=bucket[0].dtype, timeout_ms=milliseconds(timeout),
            count=sum(view.count for view in bucket), **options,
        )  # fmt: skip
