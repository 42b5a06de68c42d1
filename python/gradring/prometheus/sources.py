"""Who has something to tell, and how it is asked: rooms add a source, a scrape reads them all.

Adding one costs nothing until somebody scrapes. A source is read in a thread of its own, under a
deadline: what it asks may hang, and a scrape must not.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

# Scrapes are given up by Prometheus after 10 s unless told otherwise.
LONGEST_SECONDS = 2.0

_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

Item = TypeVar("Item")


class Buckets(NamedTuple):
    """A histogram: for each upper bound, how many values are not above it.

    Attributes:
        counts: By bound, the last one infinite.
        total: Sum of the values.
    """

    counts: tuple[tuple[str, int], ...]
    total: float


class Reading(NamedTuple):
    """One value.

    Attributes:
        metric: Its name in the catalogue.
        labels: Their values, in the catalogue's order.
        value: Of a counter or a gauge; or a histogram's.
    """

    metric: str
    labels: tuple[str, ...]
    value: float | Buckets


Read = Callable[[], Iterable[Reading]]


class Source:
    """One of those who have something to tell."""

    def __init__(self, name: str, read: Read) -> None:
        """Take how it is read: from a thread of ours, at any time."""
        self.name = name
        self._read = read
        self._asked = threading.Lock()  # Held by whoever reads, however long that takes.

    def readings(self, seconds: float) -> list[Reading] | None:
        """Return what it says; ``None`` where it fails, or does not say it within ``seconds``."""
        ends = time.monotonic() + seconds
        if not self._asked.acquire(timeout=seconds):
            return None
        said: list[list[Reading]] = []
        is_done = threading.Event()

        def read() -> None:
            try:
                said.append(list(self._read()))
            except Exception:  # noqa: BLE001 - told as `gradring_up`: others have something to say
                pass
            finally:
                self._asked.release()
                is_done.set()

        thread = threading.Thread(target=read, name=f"gradring metrics of {self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # None can be had now; there may be one for the next scrape.
            self._asked.release()
            return None
        is_done.wait(max(0.0, ends - time.monotonic()))
        return said[0] if said else None

    def begin_anew(self) -> None:
        """Forget in a forked child that a thread of its parent was reading."""
        self._asked = threading.Lock()


_sources: dict[str, Source] = {}


def add(name: str, read: Read) -> None:
    """Have a source read by every scrape from now on; one of the same name is replaced."""
    _sources[name] = Source(name, read)


def remove(name: str) -> None:
    """Read it no more."""
    _sources.pop(name, None)


def everybody() -> list[Source]:
    """Return all of them."""
    return list(_sources.values())


def members(some: weakref.WeakSet[Item]) -> list[Item]:
    """Return what is in a set that other threads add to meanwhile."""
    while True:
        try:
            return list(some)
        except RuntimeError:  # It grew.
            continue


def buckets(counted: Sequence[tuple[int, int]]) -> Buckets:
    """Return the histogram of whole numbers, each given with how often it was seen."""
    within = [0] * (len(_BOUNDS) + 1)
    for value, times in counted:
        place = next((at for at, bound in enumerate(_BOUNDS) if value <= bound), len(_BOUNDS))
        within[place] += times
    names = [*(f"{bound}.0" for bound in _BOUNDS), "+Inf"]
    counts = tuple(zip(names, accumulate(within), strict=True))
    return Buckets(counts, float(sum(value * times for value, times in counted)))


def _begin_anew() -> None:
    for source in everybody():
        source.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
