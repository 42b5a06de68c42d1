"""Pinned memory is lent again only when no device is at it any more, whatever came in between."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import pytest

from gpu_places import PLACES, use_place
from gradring import gpu
from gradring.arrays.device_arrays import find
from gradring.gpu.copied import Cargo, Landing, Road
from gradring.gpu.memory import pinned
from gradring.gpu.runtime import is_emulated

COUNT = 1 << 18
BYTES = 4 * COUNT


@pytest.fixture(params=PLACES)
def _place(request: pytest.FixtureRequest) -> None:
    use_place(request)


class Interrupted(gpu.Stream):
    """One whose user presses Ctrl-C while he waits for it."""

    def synchronize(self) -> None:
        raise KeyboardInterrupt


def busy_array(stream: gpu.Stream) -> Any:
    """Make an array that is ready when its stream has done a lot of other work."""
    ballast = gpu.empty(1 << 23), gpu.empty(1 << 23)
    x = gpu.empty(COUNT)
    for _ in range(20 if is_emulated() else 2000):
        ballast[0].copy_on_device(ballast[1], stream)
    return x, ballast


@pytest.mark.usefixtures("_place")
def test_memory_of_a_copy_that_was_interrupted_is_lent_when_it_has_ended() -> None:
    road, stream = Road(0), gpu.Stream()
    road._stream = Interrupted()
    x, _ballast = busy_array(stream)
    view = find(x, "x", writes=False, stream=stream)
    assert view is not None
    address = pinned.take(BYTES).address  # And back.
    with contextlib.suppress(KeyboardInterrupt):
        road.down([view])
    assert pinned.take(BYTES).address != address
    gpu.Stream.synchronize(road._stream)
    kept = [pinned.take(BYTES) for _ in range(2)]
    assert address in {block.address for block in kept}


@pytest.mark.usefixtures("_place")
def test_memory_that_goes_up_is_lent_when_it_has_come() -> None:
    road, stream = Road(0), gpu.Stream()
    x, _ballast = busy_array(stream)
    view = find(x, "x", writes=True, stream=stream)
    assert view is not None
    cargo = Cargo([view])
    address = cargo.block.address
    road.follow([view])
    came = road.up(cargo)
    del cargo
    assert not came.is_done()
    assert pinned.take(BYTES).address != address
    came.synchronize()


@pytest.mark.usefixtures("_place")
def test_an_array_that_its_result_is_on_the_way_to_outlives_its_handle() -> None:
    road, stream = Road(0), gpu.Stream()
    x, _ballast = busy_array(stream)
    view = find(x, "x", writes=True, stream=stream)
    assert view is not None
    road.follow([view])
    landing = Landing(None, road, Cargo([view]))
    assert not landing.done()
    is_alive = weakref.ref(x)
    del x, view, landing
    assert is_alive() is not None
    road._stream.synchronize()
    Landing(None, road, None)  # Any later call.
    assert is_alive() is None
