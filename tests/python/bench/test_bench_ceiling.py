"""What the plain link is measured with: a slow one is not measured for minutes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gradring.bench.ceiling import Ceiling
from gradring.bench.groups import Group

ROUNDS = 7


class SlowRanks:
    """Two ranks on a link of so many bytes a second, and of so long a way."""

    size = 2

    def __init__(self, rate: float, way: float) -> None:
        self.rate = rate
        self.way = way
        self.seconds = 0.0

    def ask(self, do: str, repeats: int, nbytes: int = 0, **_: Any) -> list[dict[str, Any]]:
        took = self.way if do == "half_trip" else self.way + nbytes / self.rate
        self.seconds += repeats * took * (2 if do == "half_trip" else 1)
        return [{"ns": [round(took * 1e9)] * repeats, "cpu_ns": 1}] * self.size


@pytest.mark.parametrize(("rate", "way"), [(1.25e6, 0.001), (1e9, 0.1)])
def test_a_slow_link_is_looked_at_once_and_not_in_every_round(rate: float, way: float) -> None:
    ranks = SlowRanks(rate, way)
    ceiling = Ceiling(cast("Group", ranks), is_tcp=True)
    sizes = [1 << 10, 1 << 20, 4 << 20]
    ceiling.measure(sizes[0])
    once = ranks.seconds
    for size in sizes:
        for _ in range(ROUNDS):
            ceiling.measure(size)
    assert ranks.seconds < 2 * once
    link = ceiling.link(sizes[-1])
    assert link is not None
    assert link.together == pytest.approx((4 << 20) / ((4 << 20) / rate + way))
    assert link.half_trip == pytest.approx(way)


def test_a_fast_link_is_looked_at_in_every_round() -> None:
    ranks = SlowRanks(1e9, 1e-5)
    ceiling = Ceiling(cast("Group", ranks), is_tcp=True)
    ceiling.measure(64 << 20)
    once = ranks.seconds
    for _ in range(ROUNDS - 1):
        ceiling.measure(64 << 20)
    assert ranks.seconds == pytest.approx(ROUNDS * once)
