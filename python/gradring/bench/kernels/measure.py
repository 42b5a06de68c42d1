"""How long a kernel takes, and how fast the device copies.

A time is the median over rounds of the time between two events, divided by the launches between
them. A large copy goes before, so that the device never waits for the host; inputs rotate, so that
no round finds its own in the cache.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gradring import _core, gpu
from gradring.gpu.memory import Array, pinned
from gradring.gpu.runtime import Event, Stream, device_facts, is_emulated

Launch = Callable[[int], object]

_WARMUP = 3
_LAUNCHES = 5  # Between two events.
_CACHES = 4  # Inputs are as many times larger than the cache, together.


@dataclass
class Case:
    """One kernel on one size.

    Attributes:
        name: Of the kernel, and of what it works on where that matters.
        floor_bytes: What has to be read and written at the least.
        launch: Puts it on the stream; takes the number of the set of inputs.
        sets: How many sets of inputs there are.
        peers: What else does the same, by name; or why not, as a text.
        keep: What has to live as long.
    """

    name: str
    floor_bytes: int
    launch: Launch
    sets: int = 1
    peers: dict[str, Launch | str] = field(default_factory=dict)
    keep: list[Any] = field(default_factory=list)


class Bench:
    """A device, a stream on it, and the clock.

    Attributes:
        device: Number of the device.
        stream: Where everything is measured.
    """

    def __init__(self, device: int, rounds: int) -> None:
        """Make the stream.

        Raises:
            DeviceError: There is no such device.
        """
        self.device = device
        self.stream = Stream(device)
        self._rounds = rounds
        facts = device_facts(device)
        self._cache_bytes = int(facts["l2_bytes"])
        self._is_emulated = is_emulated()
        head = 1 << 20 if self._is_emulated else 256 << 20
        self._head = (gpu.empty(head // 4, device=device), gpu.empty(head // 4, device=device))

    def sets_of(self, nbytes: int) -> int:
        """Return how many sets of inputs of so many bytes make the cache useless."""
        if self._is_emulated:
            return 1
        return max(1, min(8, -(-_CACHES * self._cache_bytes // max(1, nbytes))))

    def seconds(self, launch: Launch, sets: int) -> float:
        """Return the median time of one launch."""
        for index in range(_WARMUP):
            launch(index % sets)
        times = []
        begin = Event(self.device, is_timed=True)
        end = Event(self.device, is_timed=True)
        for turn in range(self._rounds):
            self._head[0].copy_on_device(self._head[1], self.stream)
            begin.record(self.stream)
            for index in range(_LAUNCHES):
                launch((turn * _LAUNCHES + index) % sets)
            end.record(self.stream)
            end.synchronize()
            times.append(begin.seconds_until(end) / _LAUNCHES)
        return statistics.median(times)

    def copy_bandwidth(self) -> float:
        """Return the bytes per second, read and written, of copies within the device."""
        nbytes = 4 << 20 if self._is_emulated else 1 << 30
        to, source = [gpu.empty(nbytes // 4, device=self.device) for _ in range(2)]
        seconds = self.seconds(lambda _: to.copy_on_device(source, self.stream), 1)
        return 2 * nbytes / seconds

    def staging_rates(self) -> dict[str, float]:
        """Return the bytes per second between pinned memory and the device, each way and both."""
        nbytes = 1 << 20 if self._is_emulated else 256 << 20
        here = [pinned.take(nbytes), pinned.take(nbytes)]
        there = [gpu.empty(nbytes // 4, device=self.device) for _ in range(2)]
        other = Stream(self.device)

        def down(_: int) -> None:
            self._copy(here[0].address, there[0].pointer, nbytes, self.stream)

        def up(_: int) -> None:
            self._copy(there[1].pointer, here[1].address, nbytes, self.stream)

        def both(_: int) -> None:
            other.wait_for(Event(self.device).record(self.stream))
            self._copy(there[1].pointer, here[1].address, nbytes, other)
            down(0)
            self.stream.wait_for(Event(self.device).record(other))

        return {
            "down": nbytes / self.seconds(down, 1),
            "up": nbytes / self.seconds(up, 1),
            "both": 2 * nbytes / self.seconds(both, 1),
        }

    def _copy(self, to: int, source: int, nbytes: int, stream: Stream) -> None:
        _core.gpu_copy(self.device, to, source, nbytes, stream.ptr)

    def array(self, count: int, dtype: Any = "float32", fill: int = 0) -> Array:
        """Allocate an array of bytes that are all alike: numbers that are no NaN."""
        made = Array(count, dtype, self.device)
        if made.nbytes:
            _core.gpu_fill(self.device, made.pointer, fill, made.nbytes, self.stream.ptr)
        return made
