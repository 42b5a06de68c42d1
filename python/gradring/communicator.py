"""`init()` and `Communicator`: collectives and messages between the ranks of one job.

The compiled core does the work; this module names it, checks arguments before anything is sent, and
turns arrays into buffers (`gradring.arrays`). Every method may be called from any thread and lets
the GIL go while it waits. `timeout` is in seconds and is the longest time without progress.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from gradring import _core, arrays, config, job_secret, roles
from gradring.errors import InvalidArgument
from gradring.fusion import reduce_many
from gradring.work import Work

_REDUCE_OPS = {
    "sum": 0, "avg": 1, "prod": 2, "min": 3, "max": 4, "band": 5, "bor": 6, "bxor": 7,
}  # fmt: skip
_ALGORITHMS = {
    "auto": 0, "ring": 1, "doubling": 2, "halving": 3, "direct": 4, "gather": 5, "flat": 6,
    "hierarchical": 7,
}  # fmt: skip
_BARRIER, _ALL_REDUCE, _REDUCE_SCATTER, _ALL_GATHER, _BROADCAST = range(5)
_REDUCE, _GATHER, _SCATTER, _ALL_TO_ALL = range(5, 9)

_FAST_DTYPES = frozenset(
    np.dtype(name) for name in ("float64", "float32", "float16", "int32", "int64")
)

_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator:
    """A group of ranks that call the same operations in the same order.

    Made by `init` and `split`. Also a context manager that closes at the end of the block.
    """

    def __init__(self, core: _core.Communicator) -> None:
        """Wrap a compiled communicator; use `init`."""
        self._core = core
        self._all_reduce = core.all_reduce
        self.rank: int = core.rank
        self.world_size: int = core.world_size
        _open.add(self)

    def __repr__(self) -> str:
        """Say which rank of how many this is."""
        state = ", closed" if self._core.is_closed else ""
        return f"Communicator(rank={self.rank}, world_size={self.world_size}{state})"

    def __enter__(self) -> Communicator:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @property
    def local_rank(self) -> int:
        """Rank among those on this host, from 0."""
        return self._core.local_rank

    @property
    def local_world_size(self) -> int:
        """Number of ranks on this host."""
        return self._core.local_world_size

    @property
    def timeout(self) -> float:
        """Seconds without progress after which a call gives up, where it does not say otherwise."""
        return self._core.timeout_ms / 1000

    @property
    def is_closed(self) -> bool:
        """Whether a failure or `close` has ended it."""
        return self._core.is_closed

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
    ) -> Any:
        """Combine ``x`` element by element over all ranks; every rank gets the same bits.

        The order of additions depends on the world size and on the element's place only, never on
        the transport, the machine's load or the run (docs/semantics.md); 16-bit floats are added in
        float32 and rounded once. Ring: Patarasuk and Yuan 2009; halving-doubling: Thakur,
        Rabenseifner and Gropp 2005.

        Args:
            x: Any supported dtype and shape, on the CPU; the same shape and dtype on every rank.
                Written in place unless ``out`` is given. May be strided.
            op: ``sum avg prod min max``, and for integers and bool ``band bor bxor``. ``avg`` of
                integers truncates towards zero.
            out: Array like ``x`` for the result; ``x`` is then left alone.
            async_op: Return a `Work` at once; ``x`` must not be touched until it is done.
            algorithm: ``auto ring doubling halving direct gather flat``; the same on every rank.
            deterministic: ``"rank_order"`` adds x[0] + x[1] + ... whatever the algorithm.
            timeout: Seconds without progress before giving up; ``None`` is the communicator's.

        Returns:
            ``x`` (or ``out``); with ``async_op`` a `Work` whose ``wait()`` returns it.

        Raises:
            InvalidArgument: The arguments make no sense; nothing was sent.
            Mismatch: Ranks called different things; nothing was reduced.
            PeerLost: A rank died, froze or left.
            TimedOut: No progress within the timeout.
            Closed: The communicator had failed or was closed before.
        """
        if (
            type(x) is np.ndarray
            and x.dtype in _FAST_DTYPES
            and x.flags.c_contiguous
            and out is None
            and not async_op
            and algorithm == "auto"
            and deterministic is None
            and timeout is None
            and op in _REDUCE_OPS
        ):
            self._all_reduce(x, _REDUCE_OPS[op])
            return x
        options = _reduction(op, algorithm, deterministic)
        return self._elementwise(_ALL_REDUCE, x, out, async_op, timeout, **options)

    def all_reduce_many(
        self,
        xs: Sequence[Any],
        op: str = "sum",
        *,
        bucket_bytes: int = 25 << 20,
        timeout: float | None = None,
    ) -> list[Any]:
        """Combine many arrays with few operations, by packing those of one dtype into buckets.

        Args:
            xs: Arrays as for `all_reduce`; the same list of shapes and dtypes on every rank. Each is
                written in place.
            op: As for `all_reduce`.
            bucket_bytes: Most bytes in one operation; a larger array is an operation of its own.
            timeout: As for `all_reduce`.

        Returns:
            ``xs`` as a list.

        Raises:
            InvalidArgument: As `all_reduce`, or ``bucket_bytes`` is not positive.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        return reduce_many(self, xs, op, bucket_bytes, timeout)

    def reduce_scatter(
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
    ) -> Any:
        """Combine ``x`` over all ranks and leave each rank its own part.

        Args:
            x: As for `all_reduce`, seen flat; not written.
            out: Flat array of this rank's part; ``None`` allocates. It may be that part of ``x``.
            op: As for `all_reduce`.
            counts: Elements of each rank's part, the same list on every rank; ``None`` cuts evenly:
                part r is elements ``r*n//world_size`` to ``(r+1)*n//world_size``.
            async_op: As for `all_reduce`.
            algorithm: ``auto ring direct flat``.
            deterministic: As for `all_reduce`.
            timeout: As for `all_reduce`.

        Returns:
            ``out``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``counts`` do not add up to the size of ``x``, or ``out`` does not fit.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        source = arrays.view(x, "x", writes=False)
        total = source.buffer.size
        parts = self._parts("reduce_scatter", counts, total)
        if out is None:
            out = arrays.empty_like(x, (parts[self.rank],))
        target = arrays.view(out, "out", writes=True)
        return self._start(
            _REDUCE_SCATTER, source, target, out, async_op, timeout,
            count=total, counts=None if counts is None else parts,
            **_reduction(op, algorithm, deterministic),
        )  # fmt: skip

    def all_gather(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        algorithm: str = "auto",
        timeout: float | None = None,
    ) -> Any:
        """Give every rank everybody's ``x``, in rank order.

        Args:
            x: Any supported dtype and shape; the same shape on every rank unless ``counts`` is given.
            out: Array for all parts; ``None`` allocates one of shape ``(world_size, *x.shape)``, flat
                with ``counts``. ``x`` may be this rank's part of it.
            counts: Elements of each rank's part where they differ, the same list on every rank.
            async_op: As for `all_reduce`.
            algorithm: ``auto ring doubling direct flat``.
            timeout: As for `all_reduce`.

        Returns:
            ``out``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``counts`` or ``out`` do not fit.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        source = arrays.view(x, "x", writes=False)
        if counts is None:
            total = source.buffer.size * self.world_size
            shape: tuple[int, ...] = (self.world_size, *source.shape)
            parts = None
        else:
            parts = self._parts("all_gather", counts, None)
            if parts[self.rank] != source.buffer.size:
                raise InvalidArgument(
                    f"all_gather: counts[{self.rank}] is {parts[self.rank]}, but x has "
                    f"{source.buffer.size} elements"
                )
            total = sum(parts)
            shape = (total,)
        if out is None:
            out = arrays.empty_like(x, shape)
        target = arrays.view(out, "out", writes=True)
        return self._start(
            _ALL_GATHER, source, target, out, async_op, timeout,
            count=total, counts=parts, algorithm=_algorithm(algorithm),
        )  # fmt: skip

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        async_op: bool = False,
        algorithm: str = "auto",
        timeout: float | None = None,
    ) -> Any:
        """Give every rank the root's ``x``.

        Args:
            x: Any supported dtype and shape, the same on every rank; written in place, but on the root.
            root: Whose ``x`` it is.
            async_op: As for `all_reduce`.
            algorithm: ``auto doubling ring direct flat``.
            timeout: As for `all_reduce`.

        Returns:
            ``x``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``root`` is no rank, or ``x`` is read-only where it is written.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        options = {"root": root, "algorithm": _algorithm(algorithm)}
        return self._elementwise(_BROADCAST, x, None, async_op, timeout, **options)

    def reduce(
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
    ) -> Any:
        """Combine ``x`` over all ranks; only the root gets the result.

        Args:
            x: As for `all_reduce`; written in place on the root unless ``out`` is given, elsewhere not.
            root: Who gets it.
            op: As for `all_reduce`.
            out: Array like ``x`` for the result; only used on the root.
            async_op: As for `all_reduce`.
            algorithm: ``auto ring direct gather flat``.
            deterministic: As for `all_reduce`.
            timeout: As for `all_reduce`.

        Returns:
            The result on the root, ``x`` elsewhere; with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``root`` is no rank, or ``out`` does not fit.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        options = {"root": root, **_reduction(op, algorithm, deterministic)}
        if self.rank == root:
            return self._elementwise(_REDUCE, x, out, async_op, timeout, **options)
        source = arrays.view(x, "x", writes=False)
        count = source.buffer.size
        return self._start(_REDUCE, source, None, x, async_op, timeout, count=count, **options)

    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Give the root everybody's ``x``, in rank order.

        Args:
            x: Any supported dtype and shape, the same on every rank; not written.
            root: Who gets them.
            out: Array for all parts, on the root; ``None`` allocates ``(world_size, *x.shape)``.
            async_op: As for `all_reduce`.
            timeout: As for `all_reduce`.

        Returns:
            ``out`` on the root, ``None`` elsewhere; with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``root`` is no rank, or ``out`` does not fit.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        source = arrays.view(x, "x", writes=False)
        target = None
        if self.rank == root:
            if out is None:
                out = arrays.empty_like(x, (self.world_size, *source.shape))
            target = arrays.view(out, "out", writes=True)
        else:
            out = None
        count = source.buffer.size
        return self._start(
            _GATHER, source, target, out, async_op, timeout, count=count, root=root
        )

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Give each rank its part of the root's ``x``.

        Args:
            x: On the root: shape ``(world_size, ...)``; row r goes to rank r. Elsewhere ignored, but
                where ``out`` is ``None`` an array of that shape says what to allocate.
            root: Whose ``x`` it is.
            out: Array for this rank's part; ``None`` allocates one like a row of ``x``.
            async_op: As for `all_reduce`.
            timeout: As for `all_reduce`.

        Returns:
            ``out``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``root`` is no rank, nothing says what to allocate, or sizes do not fit.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        if out is None:
            if x is None:
                raise InvalidArgument("scatter: pass out= (or x of the root's shape) on every rank")
            shape = arrays.shape_of(x)
            if not shape or shape[0] != self.world_size:
                raise InvalidArgument(
                    f"scatter: x has shape {shape}, its first axis must be {self.world_size} ranks"
                )
            out = arrays.empty_like(x, shape[1:])
        target = arrays.view(out, "out", writes=True)
        source = arrays.view(x, "x", writes=False) if self.rank == root else None
        count = target.buffer.size
        return self._start(
            _SCATTER, source, target, out, async_op, timeout, count=count, root=root
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
    ) -> Any:
        """Send part r of ``x`` to rank r, and get one part from every rank, in rank order.

        Args:
            x: Any supported dtype, seen flat; not written. Without counts its size must be a multiple
                of the world size.
            out: Array for the parts; ``None`` allocates, like ``x`` or flat with counts. Not ``x``.
            send_counts: Elements for each rank; with ``recv_counts``.
            recv_counts: Elements from each rank; what that rank sends here.
            async_op: As for `all_reduce`.
            timeout: As for `all_reduce`.

        Returns:
            ``out``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: Counts do not add up or one list is missing, or ``out`` does not fit.
            Mismatch: As `all_reduce`; also where two ranks disagree about a count between them.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        source = arrays.view(x, "x", writes=False)
        if (send_counts is None) != (recv_counts is None):
            raise InvalidArgument("all_to_all: send_counts and recv_counts belong together")
        if send_counts is None or recv_counts is None:
            if source.buffer.size % self.world_size != 0:
                raise InvalidArgument(
                    f"all_to_all: {source.buffer.size} elements cannot be cut into {self.world_size} "
                    "equal parts; pass send_counts and recv_counts"
                )
            sent = received = [source.buffer.size // self.world_size] * self.world_size
            shape = source.shape
        else:
            sent = self._parts("all_to_all", send_counts, source.buffer.size)
            received = self._parts("all_to_all", recv_counts, None)
            shape = (sum(received),)
        if out is None:
            out = arrays.empty_like(x, shape)
        target = arrays.view(out, "out", writes=True)
        if source.buffer.size and np.may_share_memory(source.buffer, target.buffer):
            raise InvalidArgument("all_to_all: out must not be x; parts would overwrite each other")
        return self._start(
            _ALL_TO_ALL, source, target, out, async_op, timeout, counts=sent, recv_counts=received
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
        return self._start(_BARRIER, None, None, None, async_op, timeout)

    def send(
        self,
        x: Any,
        dst: int,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Send ``x`` to rank ``dst``; returns when ``x`` may be reused.

        Messages between two ranks with one tag arrive in order. They have links of their own, so a
        rank may wait in `recv` while another of its threads runs collectives.

        Args:
            x: Any supported dtype and shape; not written.
            dst: Rank; may be this one.
            tag: 32-bit integer that the receiver asks for.
            async_op: Return a `Work` at once.
            timeout: As for `all_reduce`.

        Raises:
            InvalidArgument: ``dst`` is no rank, or ``tag`` is out of range.
            PeerLost: As `all_reduce`.
            TimedOut: Nobody received it in time; the communicator is closed.
            Closed: As `all_reduce`.
        """
        return self._transfer(False, arrays.view(x, "x", writes=False), x, dst, tag, async_op, timeout)

    def recv(
        self,
        x: Any,
        src: int,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Receive the next message with this tag from rank ``src`` into ``x``.

        Args:
            x: Dtype and size of the message; written in place. May be strided.
            src: Rank; may be this one.
            tag: What the sender gave.
            async_op: Return a `Work` at once.
            timeout: As for `all_reduce`.

        Returns:
            ``x``, or with ``async_op`` a `Work`.

        Raises:
            InvalidArgument: ``src`` is no rank, or ``tag`` is out of range.
            Mismatch: The message has another dtype or size.
            PeerLost: As `all_reduce`.
            TimedOut: It did not come in time; the communicator is closed.
            Closed: As `all_reduce`.
        """
        return self._transfer(True, arrays.view(x, "x", writes=True), x, src, tag, async_op, timeout)

    def split(
        self, color: int | None, key: int | None = None, *, timeout: float | None = None
    ) -> Communicator | None:
        """Divide the ranks into groups; a collective call.

        Args:
            color: Ranks with one color form a group; ``None`` joins none.
            key: Order within the group; ties and ``None`` go by rank.
            timeout: As for `all_reduce`.

        Returns:
            The group's communicator, to be closed by itself; ``None`` for ``color=None``.

        Raises:
            InvalidArgument: ``color`` is negative.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.
        """
        if color is not None and color < 0:
            raise InvalidArgument(f"split: color {color} is negative; None joins no group")
        child = self._core.split(
            -1 if color is None else color, self.rank if key is None else key,
            _milliseconds(timeout),
        )  # fmt: skip
        return None if child is None else Communicator(child)

    def shrink(self, *, timeout: float | None = None) -> Communicator:
        """Go on without the ranks that were lost; every surviving rank calls it.

        This communicator is closed by it. The new one has the survivors, in their old order.

        Args:
            timeout: Seconds until all survivors must have called it.

        Raises:
            TimedOut: Some survivor did not call it in time.
        """
        return Communicator(self._core.shrink(_milliseconds(timeout)))

    def describe(self, rank: int) -> str:
        """Return ``rank N (address)`` as errors show it."""
        if not 0 <= rank < self.world_size:
            raise InvalidArgument(f"rank {rank} is not one of 0..{self.world_size - 1}")
        return self._core.describe(rank)

    def close(self) -> None:
        """Leave. Operations that run or wait raise `Closed`; calling it again does nothing."""
        self._core.close()
        _open.discard(self)

    def _elementwise(
        self, op: int, x: Any, out: Any, async_op: bool, timeout: float | None, **options: Any
    ) -> Any:
        is_source = op == _BROADCAST and options["root"] == self.rank
        if out is None:
            both = arrays.view(x, "x", writes=not is_source)
            source, target, result = both, both, x
        else:
            source = arrays.view(x, "x", writes=False)
            target, result = arrays.view(out, "out", writes=True), out
        if is_source:
            target = None
        count = source.buffer.size
        if target is not None and target.buffer.size != count:
            raise InvalidArgument(f"out has {target.buffer.size} elements, x has {count}")
        return self._start(op, source, target, result, async_op, timeout, count=count, **options)

    def _reduce_bucket(self, bucket: arrays.View, op: str, timeout: float | None) -> None:
        options = _reduction(op, "auto", None)
        count = bucket.buffer.size
        self._start(
            _ALL_REDUCE, bucket, bucket, None, False, timeout, count=count, **options
        )

    def _start(
        self,
        op: int,
        source: arrays.View | None,
        target: arrays.View | None,
        result: Any,
        async_op: bool,
        timeout: float | None,
        **options: Any,
    ) -> Any:
        either = source or target
        dtype = -1 if either is None else either.dtype
        if source is not None and target is not None and source.dtype != target.dtype:
            raise InvalidArgument("x and out have different dtypes")
        pending = self._core.run(
            op,
            None if source is None else source.buffer,
            None if target is None else target.buffer,
            dtype=dtype, timeout_ms=_milliseconds(timeout), in_background=async_op, **options,
        )  # fmt: skip
        return _finish(pending, result, target)

    def _transfer(
        self,
        is_recv: bool,
        view: arrays.View,
        result: Any,
        peer: int,
        tag: int,
        async_op: bool,
        timeout: float | None,
    ) -> Any:
        if not -(2**31) <= tag < 2**31:
            raise InvalidArgument(f"tag {tag} does not fit into 32 bits")
        pending = self._core.transfer(
            is_recv, view.buffer, view.dtype, peer, tag,
            _milliseconds(timeout), async_op,
        )  # fmt: skip
        return _finish(pending, result if is_recv else None, view if is_recv else None)

    def _parts(self, name: str, counts: Sequence[int] | None, total: int | None) -> list[int]:
        if counts is None:
            size = total or 0
            edges = [rank * size // self.world_size for rank in range(self.world_size + 1)]
            return [end - begin for begin, end in zip(edges, edges[1:], strict=False)]
        parts = [int(count) for count in counts]
        if len(parts) != self.world_size or any(count < 0 for count in parts):
            raise InvalidArgument(
                f"{name}: counts must be {self.world_size} non-negative numbers, got {parts}"
            )
        if total is not None and sum(parts) != total:
            raise InvalidArgument(f"{name}: counts add up to {sum(parts)}, x has {total} elements")
        return parts


def init(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    rendezvous: str | None = None,
    secret: str | bytes | None = None,
    transport: str | None = None,
    timeout: float | None = None,
    heartbeat_timeout: float | None = None,
    interface: str | None = None,
    listen_fd: int | None = None,
) -> Communicator:
    """Join the job and return the communicator of all its ranks.

    The role is found in the launcher's variables (``gradring run``, torchrun, Open MPI, MPICH, Intel
    MPI, Slurm: docs/launchers.md); alone it is a world of one. Explicit arguments win. Blocks until
    every rank has come. Several ranks may live in one process, each with a thread of its own.

    Args:
        rank: This rank, from 0.
        world_size: Number of ranks.
        rendezvous: ``HOST:PORT`` where rank 0 listens.
        secret: What every rank of the job knows; see `GRADRING_SECRET`.
        transport: ``auto`` (shared memory on one host, TCP between hosts), ``shm`` or ``tcp``.
        timeout: Seconds to wait for the other ranks here, and later the longest time without progress
            in any call.
        heartbeat_timeout: Seconds of silence after which a rank counts as frozen.
        interface: ``NAME`` or ``CIDR`` of the interface that other ranks should reach this one by.
        listen_fd: Rank 0: a socket that already listens at ``rendezvous``; it now belongs to us.

    Raises:
        InvalidArgument: The role is incomplete or makes no sense; two processes have one rank.
        AuthError: The secrets differ.
        TimedOut: Names the ranks that did not come.
    """
    role = roles.discover(os.environ, rank=rank, world_size=world_size, rendezvous=rendezvous)
    settings = config.Settings.from_environ(
        os.environ,
        transport=transport,
        timeout=timeout,
        heartbeat_timeout=heartbeat_timeout,
        interface=interface,
    )
    if secret is None:
        secret = job_secret.secret_for(role, os.environ)
    if listen_fd is None and role is not None and role.listen_fd is not None:
        listen_fd = role.listen_fd
    core = _core.join(
        rank=0 if role is None else role.rank,
        world_size=1 if role is None else role.world_size,
        rendezvous="" if role is None else role.rendezvous,
        secret=secret.encode() if isinstance(secret, str) else secret,
        transport=settings.transport,
        timeout_ms=round(settings.timeout * 1000),
        heartbeat_timeout_ms=round(settings.heartbeat_timeout * 1000),
        interface=settings.interface or "",
        listen_fd=-1 if listen_fd is None else listen_fd,
    )
    return Communicator(core)


def _reduction(op: str, algorithm: str, deterministic: str | None) -> dict[str, Any]:
    if op not in _REDUCE_OPS:
        raise InvalidArgument(f"op '{op}' is none of {', '.join(_REDUCE_OPS)}")
    if deterministic not in (None, "rank_order"):
        raise InvalidArgument(f"deterministic '{deterministic}' is neither None nor 'rank_order'")
    return {
        "reduce_op": _REDUCE_OPS[op],
        "algorithm": _algorithm(algorithm),
        "is_rank_ordered": deterministic == "rank_order",
    }


def _algorithm(name: str) -> int:
    if name not in _ALGORITHMS:
        raise InvalidArgument(f"algorithm '{name}' is none of {', '.join(_ALGORITHMS)}")
    return _ALGORITHMS[name]


def _milliseconds(timeout: float | None) -> int:
    if timeout is None:
        return -1
    if not timeout > 0:
        raise InvalidArgument(f"timeout must be positive seconds, got {timeout}")
    return max(1, round(timeout * 1000))


def _finish(pending: _core.Work | None, result: Any, target: arrays.View | None) -> Any:
    unpack = None if target is None else target.unpack
    if pending is not None:
        return Work(pending, result, unpack)
    if unpack is not None:
        unpack()
    return result


@atexit.register
def _close_all() -> None:
    # The others learn that this rank left in good order, rather than that it died.
    for communicator in list(_open):
        communicator.close()
