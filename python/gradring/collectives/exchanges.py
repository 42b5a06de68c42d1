"""Exchanges: what moves arrays between all ranks without adding them up, and the barrier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradring import operations
from gradring.arrays import buffers
from gradring.collectives import calling
from gradring.errors import InvalidArgument


class Exchanges(calling.Caller):
    """The moving methods of `gradring.Communicator`."""

    def all_gather(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        algorithm: str = "auto",
        timeout: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Give every rank everybody's ``x``, in rank order.

        Args:
            x: Any supported dtype and shape; the same on every rank unless ``counts`` is given.
            out: Array for all parts; ``None`` allocates ``(world_size, *x.shape)``, flat with
                ``counts``. ``x`` may be this rank's part of it.
            counts: Elements of each rank's part where they differ, the same list on every rank.
            async_op: As for `all_reduce`.
            algorithm: ``auto ring doubling direct flat``.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            ``out``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``counts`` or ``out`` do not fit.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.

        Example:
            >>> import numpy as np, gradring as gr
            >>> with gr.init() as comm:
            ...     comm.all_gather(np.array([comm.rank, 7])).tolist()
            [[0, 7]]

            With two ranks it is ``[[0, 7], [1, 7]]`` on both.
        """
        source = buffers.operand(x, "x", writes=False, stream=stream)
        if counts is None:
            total = source.count * self.world_size
            shape: tuple[int, ...] = (self.world_size, *source.shape)
            parts = None
        else:
            parts = self._parts("all_gather", counts, None)
            if parts[self.rank] != source.count:
                raise InvalidArgument(
                    f"all_gather: counts[{self.rank}] is {parts[self.rank]}, but x has "
                    f"{source.count} elements"
                )
            total = sum(parts)
            shape = (total,)
        out, target = calling.result_array(out, x, shape, stream)
        return self._start(
            operations.ALL_GATHER, source, target, out, async_op=async_op, timeout=timeout,
            count=total, counts=parts, algorithm=calling.algorithm_code(algorithm),
        )  # fmt: skip

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        async_op: bool = False,
        algorithm: str = "auto",
        timeout: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Give every rank the root's ``x``.

        Args:
            x: Any supported dtype and shape, the same on every rank; written but on the root.
            root: Whose ``x`` it is.
            async_op: As for `all_reduce`.
            algorithm: ``auto doubling ring direct flat hierarchical``; the last as there.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            ``x``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``root`` is no rank, or ``x`` is read-only where it is written.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        root = calling.whole_number("broadcast: root", root)
        options = {"root": root, "algorithm": calling.algorithm_code(algorithm)}
        return self._elementwise(
            operations.BROADCAST, x, None,
            async_op=async_op, timeout=timeout, stream=stream, **options,
        )  # fmt: skip

    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Give the root everybody's ``x``, in rank order.

        Args:
            x: Any supported dtype and shape, the same on every rank; not written.
            root: Who gets them.
            out: Array for all parts, on the root; ``None`` allocates ``(world_size, *x.shape)``.
            async_op: As for `all_reduce`.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            ``out`` on the root, ``None`` elsewhere; with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``root`` is no rank, or ``out`` does not fit.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        root = calling.whole_number("gather: root", root)
        source = buffers.operand(x, "x", writes=False, stream=stream)
        target = None
        if self.rank == root:
            shape = (self.world_size, *source.shape)
            out, target = calling.result_array(out, x, shape, stream)
        else:
            out = None
        count = source.count
        return self._start(
            operations.GATHER,
            source,
            target,
            out,
            async_op=async_op,
            timeout=timeout,
            count=count,
            root=root,
        )

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Give each rank its part of the root's ``x``.

        Args:
            x: On the root: shape ``(world_size, ...)``; row r goes to rank r. Elsewhere ignored,
                but where ``out`` is ``None`` an array of that shape says what to allocate.
            root: Whose ``x`` it is.
            out: Array for this rank's part; ``None`` allocates one like a row of ``x``.
            async_op: As for `all_reduce`.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            ``out``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``root`` is no rank, sizes do not fit, or ``out`` has no shape.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        root = calling.whole_number("scatter: root", root)
        shape: tuple[int, ...] = ()
        if out is None:
            if x is None:
                raise InvalidArgument("scatter: pass out= (or x of the root's shape) on every rank")
            shape = buffers.shape_of(x, "x")
            if not shape or shape[0] != self.world_size:
                raise InvalidArgument(
                    f"scatter: x has shape {shape}; its first axis must be {self.world_size}"
                )
        out, target = calling.result_array(out, x, shape[1:], stream)
        source = buffers.operand(x, "x", writes=False, stream=stream) if self.rank == root else None
        count = target.count
        return self._start(
            operations.SCATTER,
            source,
            target,
            out,
            async_op=async_op,
            timeout=timeout,
            count=count,
            root=root,
        )

    def all_to_all(
        self,
        x: Any,
        out: Any = None,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Send part r of ``x`` to rank r, and get one part from every rank, in rank order.

        Args:
            x: Any supported dtype, seen flat; not written. Without counts its size must be a
                multiple of the world size.
            out: Array for the parts; ``None`` allocates, like ``x`` or flat with counts. Not ``x``.
            send_counts: Elements for each rank; with ``recv_counts``.
            recv_counts: Elements from each rank; what that rank sends here, so this rank's own is
                the same in both.
            async_op: As for `all_reduce`.
            timeout: As for `all_reduce`.
            stream: As for `all_reduce`.

        Returns:
            ``out``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: Counts do not add up or one list is missing, or ``out`` does not fit.
            Mismatch: As `all_reduce`; also where two ranks disagree about a count between them, but
                for one that is 0 on one of them: then nothing is sent, and the other waits until
                TimedOut.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        source = buffers.operand(x, "x", writes=False, stream=stream)
        if (send_counts is None) != (recv_counts is None):
            raise InvalidArgument("all_to_all: send_counts and recv_counts belong together")
        if send_counts is None or recv_counts is None:
            if source.count % self.world_size != 0:
                raise InvalidArgument(
                    f"all_to_all: {source.count} elements cannot be cut into "
                    f"{self.world_size} equal parts; pass send_counts and recv_counts"
                )
            sent = received = [source.count // self.world_size] * self.world_size
            shape = source.shape
        else:
            sent = self._parts("all_to_all", send_counts, source.count)
            received = self._parts("all_to_all", recv_counts, None)
            if sent[self.rank] != received[self.rank]:
                raise InvalidArgument(
                    f"all_to_all: send_counts[{self.rank}] is {sent[self.rank]}, but recv_counts"
                    f"[{self.rank}] is {received[self.rank]}: what a rank sends to itself it gets"
                )
            shape = (sum(received),)
        out, target = calling.result_array(out, x, shape, stream)
        if buffers.overlap(source, target):
            raise InvalidArgument("all_to_all: out must not be x; parts would overwrite each other")
        return self._start(
            operations.ALL_TO_ALL,
            source,
            target,
            out,
            async_op=async_op,
            timeout=timeout,
            counts=sent,
            recv_counts=received,
        )

    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Wait until every rank has come here.

        Args:
            async_op: Return a `Work` at once.
            timeout: As for `all_reduce`.

        Raises:
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: Names the ranks that had not come.
            Closed: As `all_reduce`.
        """
        return self._start(operations.BARRIER, None, None, None, async_op=async_op, timeout=timeout)
