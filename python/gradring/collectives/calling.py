"""What every call of a communicator needs: checked options, buffers, and the way into the core."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gradring import _core
from gradring.arrays import buffers
from gradring.arrays.device_arrays import DeviceView, require_same_device
from gradring.collectives.work import Work
from gradring.errors import InvalidArgument
from gradring.operations import BROADCAST
from gradring.settings.config import gpu_streams_wait
from gradring.timeouts import milliseconds

if TYPE_CHECKING:
    from gradring.gpu.calls import DeviceCalls
    from gradring.gpu.flights import Flight

REDUCE_OPS = {
    "sum": 0, "avg": 1, "prod": 2, "min": 3, "max": 4, "band": 5, "bor": 6, "bxor": 7,
}  # fmt: skip
ALGORITHMS = {
    "auto": 0, "ring": 1, "doubling": 2, "halving": 3, "direct": 4, "gather": 5, "flat": 6,
    "hierarchical": 7,
}  # fmt: skip


class Caller:
    """A compiled communicator and the plumbing to call it; see `gradring.Communicator`."""

    _core: _core.Communicator
    _devices: list[DeviceCalls]  # One once there was a call with an array on a device.
    rank: int
    world_size: int

    def describe(self, rank: int) -> str:
        """Return ``rank N (address)`` as errors show it.

        Raises:
            InvalidArgument: There is no such rank.
        """
        rank = whole_number("rank", rank)
        if not 0 <= rank < self.world_size:
            raise InvalidArgument(f"rank {rank} is not one of 0..{self.world_size - 1}")
        return self._core.describe(rank)

    def _elementwise(
        self,
        op: int,
        x: Any,
        out: Any,
        *,
        async_op: bool,
        timeout: float | None,
        stream: Any,
        **options: Any,
    ) -> Any:
        is_source = op == BROADCAST and options["root"] == self.rank
        target: buffers.Operand | None
        if out is None:
            source = buffers.operand(x, "x", writes=not is_source, stream=stream)
            target, result = source, x
        else:
            source = buffers.operand(x, "x", writes=False, stream=stream)
            target, result = buffers.operand(out, "out", writes=True, stream=stream), out
        if is_source:
            target = None
        count = source.count
        if target is not None and target.count != count:
            raise InvalidArgument(f"out has {target.count} elements, x has {count}")
        return self._start(
            op, source, target, result, async_op=async_op, timeout=timeout, count=count, **options
        )

    def _start(
        self,
        op: int,
        source: buffers.Operand | None,
        target: buffers.Operand | None,
        result: Any,
        *,
        async_op: bool,
        timeout: float | None,
        **options: Any,
    ) -> Any:
        either = source or target
        dtype = -1 if either is None else either.dtype
        if source is not None and target is not None and source.dtype != target.dtype:
            raise InvalidArgument("x and out have different dtypes")
        options |= {
            "dtype": dtype, "timeout_ms": milliseconds(timeout),
            "in_background": truth("async_op", async_op),
        }  # fmt: skip
        pending: _core.Work | Flight | None
        if isinstance(source, DeviceView) or isinstance(target, DeviceView):
            require_same_device({"x": source, "out": target})
            assert not isinstance(source, buffers.View)
            assert not isinstance(target, buffers.View)
            pending = self._device_calls().run(op, source, target, **options)
        else:
            if source is not None and source.memory is not None:
                options["packed_from"] = source.memory
            if target is not None and target.memory is not None:
                options["unpacked_to"] = target.memory
            pending = self._core.run(
                op,
                None if source is None else source.buffer,
                None if target is None else target.buffer,
                **options,
            )
        return finish(pending, result)

    def _device_calls(self) -> DeviceCalls:
        if not self._devices:
            from gradring.gpu.calls import DeviceCalls

            may_wait = gpu_streams_wait(os.environ)
            self._devices.append(DeviceCalls(self._core, streams_may_wait=may_wait))
        return self._devices[0]

    def _parts(self, name: str, counts: Iterable[int] | None, total: int | None) -> list[int]:
        if counts is None:
            size = total or 0
            edges = [rank * size // self.world_size for rank in range(self.world_size + 1)]
            return [end - begin for begin, end in itertools.pairwise(edges)]
        parts = whole_numbers(f"{name}: counts", counts)
        if len(parts) != self.world_size or any(count < 0 for count in parts):
            raise InvalidArgument(
                f"{name}: counts must be {self.world_size} non-negative numbers, got {parts}"
            )
        if total is not None and sum(parts) != total:
            raise InvalidArgument(f"{name}: counts add up to {sum(parts)}, x has {total} elements")
        if sum(parts) >= 1 << 63:  # The core would begin at 0 again.
            raise InvalidArgument(f"{name}: counts add up to {sum(parts)}, which no array has")
        return parts


def result_array(
    out: Any, like: Any, shape: tuple[int, ...], stream: Any
) -> tuple[Any, buffers.Operand]:
    """Return where a result goes, and that as the core takes it.

    Args:
        out: The user's; ``None`` allocates.
        like: Of whose library and dtype to allocate.
        shape: What to allocate.
        stream: The user's, for his ``out`` on a device.

    Raises:
        InvalidArgument: As `buffers.empty_like` and `buffers.operand`.
        DeviceError: As `buffers.operand`.
    """
    if out is None:
        # Its memory comes from the stream that its library has for it: who had it before may still
        # use it there.
        out, stream = buffers.empty_like(like, shape), None
    return out, buffers.operand(out, "out", writes=True, stream=stream)


def reduction(op: str, algorithm: str, deterministic: str | None) -> dict[str, Any]:
    """Check what belongs to a reduction and turn it into codes."""
    if op not in list(REDUCE_OPS):  # Of a dict it would raise where it is a list.
        raise InvalidArgument(f"op '{op}' is none of {', '.join(REDUCE_OPS)}")
    if deterministic not in (None, "rank_order"):
        raise InvalidArgument(f"deterministic '{deterministic}' is neither None nor 'rank_order'")
    return {
        "reduce_op": REDUCE_OPS[op],
        "algorithm": algorithm_code(algorithm),
        "is_rank_ordered": deterministic == "rank_order",
    }


def algorithm_code(name: str) -> int:
    """Return the code of an algorithm's name."""
    if name not in list(ALGORITHMS):
        raise InvalidArgument(f"algorithm '{name}' is none of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def truth(name: str, given: Any) -> bool:
    """Return what counts as true or false: of Python or NumPy, or 1 and 0.

    Raises:
        InvalidArgument: It is neither.
    """
    if given is True or given is False:
        return given
    if not isinstance(given, (int, np.bool_)) or given not in (0, 1):
        raise InvalidArgument(f"{name} must be True or False, got {given!r}")
    return bool(given)


def whole_number(name: str, given: Any, bits: int = 32) -> int:
    """Return what counts as a whole number: of Python, NumPy or torch, no float.

    Args:
        name: What to call it in errors.
        given: The argument.
        bits: That the core takes, sign included.

    Raises:
        InvalidArgument: It is none, or has more bits.
    """
    try:
        number = operator.index(given)
    except TypeError:
        raise InvalidArgument(f"{name} is {given!r}, not a whole number") from None
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise InvalidArgument(f"{name} {number} does not fit into {bits} bits")
    return number


def whole_numbers(name: str, given: Iterable[Any]) -> list[int]:
    """Return a list of them.

    Raises:
        InvalidArgument: It is no list, or something in it no whole number.
    """
    try:
        listed = list(given)
    except TypeError:
        raise InvalidArgument(f"{name}: {given!r} is not a list of whole numbers") from None
    return [whole_number(f"{name}[{i}]", one, bits=64) for i, one in enumerate(listed)]


def finish(pending: _core.Work | Flight | None, result: Any) -> Any:
    """Return the result of a blocking call, or the handle of one in flight."""
    return result if pending is None else Work(pending, result)
