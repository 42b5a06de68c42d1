"""`Communicator`: a group of ranks, from joining to closing.

The compiled core does the work. Its Python side names it (`gradring.collectives.reductions`,
`gradring.collectives.exchanges`, `gradring.collectives.messages`, `gradring.collectives.values`),
checks arguments before anything is sent (`gradring.collectives.calling`) and turns arrays into
buffers (`gradring.arrays.buffers`).
Every method may be called from any thread and lets the GIL go while it waits. `timeout` is in
seconds and is the longest time without progress.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import math
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gradring import _core
from gradring.arrays import buffers
from gradring.collectives import calling, measured, memberships, shapes
from gradring.collectives.exchanges import Exchanges
from gradring.collectives.hosts import host_number
from gradring.collectives.messages import Messages
from gradring.collectives.reductions import Reductions
from gradring.collectives.values.agreement import named
from gradring.collectives.values.calls import Values
from gradring.collectives.values.rows import Rows
from gradring.errors import InvalidArgument
from gradring.timeouts import milliseconds

if TYPE_CHECKING:
    from gradring.gpu.calls import DeviceCalls

_QUICK = (
    Reductions.all_reduce,
    Reductions.reduce_scatter,
    Reductions.reduce,
    Exchanges.all_gather,
    Exchanges.broadcast,
    Exchanges.gather,
    Exchanges.scatter,
    Exchanges.all_to_all,
    Exchanges.barrier,
    Messages.send,
    Messages.recv,
)

_open: weakref.WeakSet[Communicator] = weakref.WeakSet()
measured.begin(_open)


@functools.cache
def _text_of(method: Callable[..., Any]) -> str:
    """Return a method's signature and documentation as builtins have them, for help()."""
    signature = inspect.signature(method)
    plain = [
        each.replace(annotation=inspect.Parameter.empty)
        for name, each in signature.parameters.items()
        if name != "self"
    ]
    text = signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)
    return f"{method.__name__}{text}\n--\n\n{inspect.getdoc(method)}"


class Communicator(Reductions, Values, Rows, Messages):
    """A group of ranks that call the same operations in the same order.

    Made by `init` and `split`. Also a context manager that closes at the end of the block.
    """

    def __init__(self, core: _core.Communicator, devices: list[DeviceCalls] | None = None) -> None:
        """Wrap a compiled communicator; use `init`."""
        self._core = core
        self._devices = [] if devices is None else devices
        # Small arrays: compiled callables take the plain calls and hand the others to the methods.
        # They must not keep this object alive, or dropping it would not leave the job.
        for method in _QUICK:
            slow = self._weakly_bound(method)
            name = method.__name__
            self.__dict__[name] = _core.quick(core, name, slow, _text_of(method))
        self.rank: int = core.rank
        self.world_size: int = core.world_size
        _close_at_the_end_of_a_worker(os.getpid())
        _open.add(self)

    def __repr__(self) -> str:
        """Say which rank of how many this is."""
        state = ", closed" if self._core.is_closed else ""
        return f"Communicator(rank={self.rank}, world_size={self.world_size}{state})"

    def _weakly_bound(self, method: Callable[..., Any]) -> Callable[..., Any]:
        # A call may be all that is left of a communicator (`comm.split(0).all_reduce(x)`): its core
        # is still held, and what was agreed about GPUs, so another one is made over them.
        core, devices, found = self._core, self._devices, weakref.ref(self)

        def call(*given: Any, **named: Any) -> Any:
            alive = found()
            return method(Communicator(core, devices) if alive is None else alive, *given, **named)

        return call

    def __copy__(self) -> Communicator:
        """Return itself: a membership in a group has one communicator, which leaves it."""
        return self

    def __enter__(self) -> Communicator:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def activity(self) -> tuple[str, int, int, int]:
        """Return what metrics tell of it (docs/metrics.md).

        Returns:
            Its id as records have it, collectives begun, messages begun, and nanoseconds that the
            oldest collective under way has taken so far (0: none is).
        """
        return self._core.activity()

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
            InvalidArgument: ``color`` is negative, or one of them is no whole number of 64 bits.
            Mismatch: As `all_reduce`.
            PeerLost: As `all_reduce`.
            TimedOut: As `all_reduce`.
            Closed: As `all_reduce`.

        Example:
            >>> import gradring as gr
            >>> with gr.init() as comm, comm.split(comm.rank % 2) as half:
            ...     half.world_size
            1
        """
        group = -1 if color is None else calling.whole_number("color", color, bits=64)
        if color is not None and group < 0:
            raise InvalidArgument(f"split: color {color} is negative; None joins no group")
        place = self.rank if key is None else calling.whole_number("key", key, bits=64)
        child = self._core.split(group, place, milliseconds(timeout))
        return None if child is None else Communicator(child)

    def split_by_host(
        self, key: int | None = None, *, timeout: float | None = None
    ) -> Communicator:
        """Make a group of the ranks on each host; a collective call.

        Its ranks and their number are `local_rank` and `local_world_size`, but for ``key``.

        Args:
            key: As for `split`.
            timeout: As for `all_reduce`.

        Returns:
            The communicator of this rank's host, to be closed by itself.

        Raises:
            InvalidArgument: As `split`, and so for its other errors.
        """
        place = self.rank if key is None else calling.whole_number("key", key, bits=64)
        with named("split_by_host"):
            group = self.split(host_number(self, timeout), place, timeout=timeout)
        assert group is not None
        return group

    def empty(
        self, shape: int | tuple[int, ...], dtype: Any = "float32", *, timeout: float | None = None
    ) -> Any:
        """Allocate an array that the other ranks of the host can reach; a collective call.

        Where all ranks share one host's memory, an `all_reduce` in place of such an array, or of
        the same part of it on every rank, adds the ranks' values where they lie, without copying
        them first. The result has the same bits as that of any other array. Elsewhere it is an
        ordinary array. The memory goes when no rank has an array over it any more.

        Args:
            shape: The same on every rank.
            dtype: NumPy's, the same on every rank.
            timeout: As for `all_reduce`.

        Returns:
            A C-contiguous NumPy array; contents undefined. `torch.from_numpy` shares its memory.

        Raises:
            InvalidArgument: ``timeout`` is not positive, ``shape`` is negative or beyond what any
                host has, or ``dtype`` is none of plain bytes.
            DeviceError: The host of a rank has less memory, or its limits do not allow so much;
                raised on every rank, and the communicator stays open. Where ranks share no memory
                that is NumPy's `MemoryError`, on the rank alone.
            Mismatch: The ranks ask for different amounts.
            PeerLost: As `all_reduce`, and so for TimedOut and Closed.
        """
        wanted, sizes = shapes.plain_dtype(dtype), shapes.sizes_of(shape)
        count = math.prod(sizes)
        if count * wanted.itemsize > buffers.LARGEST_BYTES or not shapes.is_shape(sizes, wanted):
            raise InvalidArgument(f"empty: no array has shape {sizes} of {wanted}")
        memory = self._core.share_memory(count * wanted.itemsize, milliseconds(timeout))
        if memory is None or count * wanted.itemsize == 0:
            return np.empty(sizes, wanted)
        return np.frombuffer(memoryview(memory), wanted, count).reshape(sizes)

    def use_gpu(
        self,
        device: int | None = None,
        *,
        path: Literal["auto", "nccl", "nccl_in_hosts", "staged"] = "auto",
        timeout: float | None = None,
    ) -> str:
        """Agree how arrays on GPUs travel; a collective call, also of ranks without a GPU.

        Without it they are staged through the host's memory. With it NCCL takes the collectives
        that it has, where every rank has a GPU of its own and NCCL; or, where the hosts' NCCLs
        differ, the part of an all_reduce that is inside a host (docs/gpu.md).

        Args:
            device: This rank's GPU; ``None``: by its number among those of its host.
            path: ``auto nccl nccl_in_hosts staged``, the same on every rank.
            timeout: As for `all_reduce`.

        Returns:
            The way and why: ``"staged: rank 1 has no GPU"``, say.

        Raises:
            InvalidArgument: There is no such way.
            DeviceError: The way that was asked for cannot be had, a rank has not the device it was
                told, or the ranks did not meet in NCCL; says which rank is the reason.
            PeerLost: As `all_reduce`, and so for its other errors.
        """
        from gradring.gpu.agreement import agree

        choice = agree(self, device, path, timeout)
        self._device_calls().take(choice, milliseconds(timeout))
        return f"{choice.path}: {choice.reason}"

    def subgroup(self, ranks: Sequence[int], name: str) -> Communicator:
        """Make a group of some ranks without asking the others.

        Only its members call it, at any time, each with the same arguments. Nothing is sent.

        Args:
            ranks: Of this communicator, in the order of their new ranks.
            name: What no other group made from this communicator is or was called.

        Returns:
            The group's communicator, to be closed by itself.

        Raises:
            InvalidArgument: A rank is none of ours or listed twice, or this one is not listed; or a
                group of this name was made before, be it open or closed.
            Closed: This communicator has failed or was closed.

        Where the ranks do not give the same ranks in the same order, the group's first call in
        which two of them meet raises `Mismatch`.
        """
        try:
            name.encode()
        except (AttributeError, UnicodeEncodeError):
            raise InvalidArgument(f"subgroup: name is UTF-8 text, got {name!r}") from None
        members = calling.whole_numbers("subgroup: ranks", ranks)
        return Communicator(self._core.subgroup(members, name))

    def shrink(self, *, timeout: float | None = None) -> Communicator:
        """Go on without the ranks that died or closed this; every surviving rank calls it.

        This communicator is closed by it. The new one has the survivors, in their old order. Where
        this one is what `init` made, the new one takes its place in calls without ``comm=``.
        Operations that wait for a rank which has called it raise `Closed`, after a second where
        nothing had failed.

        Args:
            timeout: Seconds until all survivors must have called it.

        Raises:
            InvalidArgument: This is a world of one, or ``timeout`` is not positive.
            PeerLost: Names this rank: the others had given it up and have gone on without it.
            TimedOut: Some survivors did not call it in time; names them. It may be called again.
        """
        is_kept = memberships.is_kept(self)
        smaller = Communicator(self._core.shrink(milliseconds(timeout)))
        if is_kept:
            memberships.keep(smaller, self)
        # This rank would be in the job as long as somebody holds it, with the new one closed.
        self.close(linger=False)
        return smaller

    def grow(self, *, timeout: float | None = None) -> Communicator:
        """Take in the processes that wait in `gradring.join`; a collective call between two steps.

        Where nobody waits it returns this communicator after one small broadcast, so it may be
        called every few steps. Else the new one has the ranks of this one in their order, then the
        newcomers in the order in which they came, and this one is closed; what was split from it
        stays open. Where this one is what `init` made, the new one takes its place in calls without
        ``comm=``. A newcomer that dies or freezes on the way is left out.

        Args:
            timeout: As for `all_reduce`, and how long tries go on where newcomers fail.

        Returns:
            This communicator or the larger one.

        Raises:
            InvalidArgument: This is a part of the ranks, made by `split` or `subgroup`.
            TimedOut: Not all ranks met in time; names those that did not. This communicator stays
                as it was, unless some did not call it at all.
            DeviceError: A rank has no descriptors or memory left, raised on all, as InvalidArgument
                is where it has no free port; this communicator stays as it was.
            PeerLost: As `all_reduce`, and so for Mismatch and Closed.
        """
        is_kept = memberships.is_kept(self)
        core = self._core.grow(milliseconds(timeout))
        if core is self._core:
            return self
        larger = Communicator(core)
        if is_kept:
            memberships.keep(larger, self)
        self.close(linger=False)
        return larger

    @property
    def meeting_point(self) -> str:
        """``HOST:PORT`` where newcomers find this job; empty where it cannot `grow`.

        It stays the same when the job grows, and is another one after a `shrink` without rank 0. A
        world of one has one where `init` was given a ``rendezvous`` and a ``secret``.
        """
        return self._core.meeting_point

    def close(self, *, linger: bool = True) -> None:
        """Leave. Operations that run or wait raise `Closed`; calling it again does nothing.

        Args:
            linger: What ``send(..., async_op=True)`` was given and nobody waited for still goes for
                as long as the receiver takes it: until a second passes without progress, or ten in
                all. ``False`` drops it.
        """
        self._core.close(linger)
        self._devices.clear()
        _open.discard(self)
        memberships.let_go(self)


@atexit.register
def _close_all() -> None:
    # The others learn that this rank left in good order, rather than that it died.
    for communicator in list(_open):
        communicator.close()


@functools.cache
def _close_at_the_end_of_a_worker(_pid: int) -> None:
    # Once a process. Workers of multiprocessing (torch.multiprocessing too) end without atexit.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _close_all, exitpriority=0)


# What a forked child inherits is its parent's to close.
os.register_at_fork(after_in_child=_open.clear)
