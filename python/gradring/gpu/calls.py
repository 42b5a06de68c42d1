"""`DeviceCalls`: which way a call on device arrays goes, and its way there.

Owned by a communicator from its first device array on. Collectives are staged through the host's
memory until `agree` has found that every rank has a GPU and NCCL, which then takes what it has;
compressed sums are encoded on the device; messages, and what the pipeline has not got, are copied.
Each way puts the call into the order of the communicator's calls before it returns, so that order
is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradring import _core
from gradring.arrays.buffers import Operand, View
from gradring.arrays.device_arrays import LEGACY_STREAM, UNKNOWN_DEVICE, DeviceView
from gradring.dtypes import DTYPE_CODES
from gradring.errors import DeviceError, InvalidArgument
from gradring.gpu.copied import CopiedCalls
from gradring.gpu.flights import Flight, LaunchedFlight, StagedFlight
from gradring.gpu.packed import Packer
from gradring.gpu.runtime import Stream, device_of, order
from gradring.operations import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER

if TYPE_CHECKING:
    from gradring.gpu.agreement import Choice

_FLOAT32 = DTYPE_CODES["float32"]
_FOR_GOOD_MS = 365 * 24 * 3600 * 1000  # A call has a deadline of its own.


class DeviceCalls:
    """The calls of one communicator on arrays of devices.

    Attributes:
        nccl: The ranks as NCCL has them; ``None``: NCCL does not take their collectives.
        hosts: The same of each host's ranks; ``None``: all_reduce does not go by hosts.
    """

    def __init__(self, core: _core.Communicator, *, streams_may_wait: bool = False) -> None:
        """Belong to a communicator; nothing is loaded yet.

        Args:
            core: The communicator.
            streams_may_wait: For what the network brings; else the host feeds them part by part.
        """
        self._core = core
        self._streams_may_wait = streams_may_wait
        self._copied = CopiedCalls(core)
        self._staged: _core.Staged | None = None
        self._compressed: _core.GpuCompressed | None = None
        self._packers: dict[int, Packer] = {}  # By device, and so the next.
        self._meetings: dict[int, Stream] = {}
        self.nccl: _core.NcclRanks | None = None
        self.hosts: _core.GpuHosts | None = None

    def take(self, choice: Choice, timeout_ms: int) -> None:
        """Go the way that the ranks have agreed on; a collective call.

        Raises:
            DeviceError: NCCL does not let them meet.
            PeerLost: As every collective, and so for its other errors.
        """
        self.nccl, self.hosts = None, None
        if choice.device is None:
            return
        if choice.path == "nccl":
            self.nccl = _core.NcclRanks.join(self._core, choice.device, timeout_ms)
        elif choice.path == "nccl_in_hosts":
            self.hosts = _core.GpuHosts.join(self._core, choice.device, choice.hosts, timeout_ms)

    @property
    def staged(self) -> _core.Staged:
        """The pipeline through pinned memory."""
        if self._staged is None:
            may_wait = self._streams_may_wait
            self._staged = _core.Staged(self._core, streams_may_wait=may_wait)
        return self._staged

    @property
    def compressed(self) -> _core.GpuCompressed:
        """What encodes on the device."""
        if self._compressed is None:
            self._compressed = _core.GpuCompressed(self._core)
        return self._compressed

    def run(
        self,
        op: int,
        source: DeviceView | None,
        target: DeviceView | None,
        *,
        in_background: bool,
        **options: Any,
    ) -> Flight | None:
        """Do a collective on one array a rank.

        Args:
            op: Code of the operation.
            source: What this rank gives.
            target: Where the result goes; ``source`` itself where it is in place.
            in_background: Return at once.
            **options: Of `_core.Communicator.run`.

        Returns:
            What waits for it; ``None``: done, and the result is there.

        Raises:
            DeviceError: No GPU, no plugin, or the driver fails.
            PeerLost: As the CPU's call, and so for its other errors.
        """
        source = self._after_both(source, target)
        flight: Flight | None = None
        if self.nccl is not None:
            flight = self._run_by_nccl(self.nccl, op, source, target, **options)
        elif self.hosts is not None and op == ALL_REDUCE:
            flight = self._run_by_hosts(self.hosts, source, target, **options)
        if flight is None:
            flight = self._run_staged(op, source, target, **options)
        return _landed(flight, in_background)

    def all_reduce_many(self, views: Sequence[DeviceView], **options: Any) -> None:
        """Add up several arrays of one dtype and device in place, as if they were one.

        Side by side on the device where that has a way of its own among these ranks.

        Args:
            views: The arrays.
            **options: Of `_core.Communicator.run`.

        Raises:
            DeviceError: The driver fails.
            PeerLost: As the CPU's call, and so for its other errors.
        """
        if self.nccl is None and self.hosts is None:
            landing = self._copied.run(ALL_REDUCE, views, views, in_background=True, **options)
            return landing.wait(_FOR_GOOD_MS)
        device = _device(views[0])
        if device not in self._packers:
            self._packers[device] = Packer(device)

        def start(whole: DeviceView) -> Flight:
            flight = self.run(ALL_REDUCE, whole, whole, in_background=True, **options)
            assert flight is not None
            return flight

        return self._packers[device].run(views, start, _FOR_GOOD_MS)

    def all_reduce_compressed(
        self,
        values: DeviceView,
        residual: Operand | None,
        codec: tuple[int, float],
        total: Any,
        timeout_ms: int,
    ) -> Flight:
        """Start a compressed sum in place.

        It is encoded on the device, unless the residual is on the CPU or this rank's plugin lacks
        the codec's kernels: then on the CPU, to the same bytes.

        Args:
            values: float32.
            residual: As many; ``None``: what is left out is lost.
            codec: Its number and ratio.
            total: One float64 on the CPU, to be divided by; 0, or ``None`` on all ranks: not.
            timeout_ms: -1 is the communicator's.

        Raises:
            InvalidArgument: Something is not float32, or of another size.
            DeviceError: No GPU, no plugin, or two devices.
        """
        views = [values]
        if isinstance(residual, DeviceView):
            views.append(residual)
        for view in views:
            if view.dtype != _FLOAT32 or view.count != values.count:
                raise InvalidArgument(
                    f"compressed arrays and residuals must be float32, and as many: {values.count}"
                )
            if view.pointer and _device(view) != _device(values):
                raise DeviceError(
                    f"x is on device {_device(values)}, residual on device {_device(view)}"
                )
        if residual is None or isinstance(residual, DeviceView):
            work = self.compressed.submit(
                values.pointer,
                0 if residual is None else residual.pointer,
                values.count,
                codec,
                _device(values),
                sorted({view.stream or LEGACY_STREAM for view in views}),
                total,
                timeout_ms,
            )
            if work is not None:
                return LaunchedFlight(work, (values, residual), self._core.timeout_ms)

        def start(host: Any, rest: Any = None) -> _core.Work:
            kept = residual.buffer if isinstance(residual, View) else rest
            return self._core.all_reduce_compressed(host, *codec, kept, total, timeout_ms)

        return self._copied.run_in_place(views, start)

    def transfer(
        self, view: DeviceView, peer: int, tag: int, *, async_op: bool, **options: Any
    ) -> Flight | None:
        """Send or receive one array; see `CopiedCalls.transfer`."""
        landing = self._copied.transfer(view, peer, tag, async_op=async_op, **options)
        return _landed(landing, async_op)

    def _after_both(
        self, source: DeviceView | None, target: DeviceView | None
    ) -> DeviceView | None:
        """Return ``source`` on a stream that comes after those of both arrays.

        What a call follows is one stream. It is none of the user's: his go on as they were.
        """
        if source is None or target is None or source.stream == target.stream:
            return source
        view = source if source.pointer else target
        if not view.pointer:
            return source
        device = _device(view)
        if device not in self._meetings:
            self._meetings.setdefault(device, Stream(device))
        meeting = self._meetings[device].ptr
        for stream in (source.stream, target.stream):
            if stream:
                order(device, meeting, stream)
        return replace(source, stream=meeting)

    def _run_staged(
        self, op: int, source: DeviceView | None, target: DeviceView | None, **options: Any
    ) -> Flight:
        view = source or target
        assert view is not None
        ends: dict[str, Any] = {}
        if source is not None:
            ends |= {"source": source.pointer, "source_count": source.count}
        if target is not None:
            ends |= {"target": target.pointer, "target_count": target.count}
        elif op == BROADCAST:  # The root's array is in place, though nothing writes it.
            ends |= {"target": view.pointer, "target_count": view.count}
        work = self.staged.submit(
            op, **ends, **options, device=_device(view), stream=view.stream or LEGACY_STREAM,
            keep=(source, target),
        )  # fmt: skip
        return StagedFlight(work)

    def _run_by_nccl(
        self,
        nccl: _core.NcclRanks,
        op: int,
        source: DeviceView | None,
        target: DeviceView | None,
        **options: Any,
    ) -> Flight | None:
        view = source or target
        assert view is not None
        # Another device's array would be read before it is written, or not at all.
        for each in (source, target):
            if each is not None:
                _require_device(each, nccl.device)
        if options.get("algorithm", 0) or options.get("is_rank_ordered", False):
            return None
        # Asked before, as a call that is refused for what it is now may be refused on this rank
        # alone: then the others are in NCCL, and the pipeline is no way to join them.
        if not nccl.knows(op, view.dtype, options.get("reduce_op", 0)):
            return None
        count = options.get("count", 0)
        parts = options.get("counts")
        if parts is None and op in (REDUCE_SCATTER, ALL_GATHER):
            ranks = self._core.world_size
            edges = [rank * count // ranks for rank in range(ranks + 1)]
            parts = [edges[rank + 1] - edges[rank] for rank in range(ranks)]
        work = nccl.submit(
            op,
            0 if source is None else source.pointer,
            0 if target is None else target.pointer,
            view.dtype,
            count,
            view.stream or LEGACY_STREAM,
            reduce_op=options.get("reduce_op", 0),
            root=options.get("root", 0),
            parts=parts,
            recv_parts=options.get("recv_counts") if op == ALL_TO_ALL else None,
            timeout_ms=options["timeout_ms"],
        )
        return LaunchedFlight(work, (source, target), self._core.timeout_ms)

    def _run_by_hosts(
        self,
        hosts: _core.GpuHosts,
        source: DeviceView | None,
        target: DeviceView | None,
        **options: Any,
    ) -> Flight | None:
        assert source is not None
        assert target is not None
        _require_device(source, hosts.device)
        work = hosts.submit(
            ALL_REDUCE,
            source.pointer,
            target.pointer,
            source.dtype,
            options["count"],
            source.stream or LEGACY_STREAM,
            reduce_op=options.get("reduce_op", 0),
            algorithm=options.get("algorithm", 0),
            is_rank_ordered=options.get("is_rank_ordered", False),
            timeout_ms=options["timeout_ms"],
        )
        if work is None:  # Not an operation of theirs, on any rank: the pipeline has it.
            return None
        return LaunchedFlight(work, (source, target), self._core.timeout_ms)


def _device(view: DeviceView) -> int:
    if view.device != UNKNOWN_DEVICE:
        return view.device
    return device_of(view.pointer) if view.pointer else 0


def _require_device(view: DeviceView, device: int) -> None:
    if view.pointer and _device(view) != device:
        raise DeviceError(
            f"the array is on device {_device(view)}, but use_gpu() was told device {device}"
        )


def _landed(flight: Flight, in_background: bool) -> Flight | None:
    if in_background:
        return flight
    flight.wait(_FOR_GOOD_MS)
    return None
