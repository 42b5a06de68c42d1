"""GEO's compiled arithmetic on rows is NumPy's, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradring import _core
from gradring.errors import InvalidArgument

ROWS = 50


def replica(dim: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Weights, a base that is the weights in some places, and some distinct slots."""
    random = np.random.default_rng(seed)
    weights = random.standard_normal((ROWS, dim)).astype(np.float32)
    moved = random.standard_normal((ROWS, dim)).astype(np.float32)
    base = np.where(random.random((ROWS, dim)) < 0.5, weights, weights + moved)
    return weights, base, random.permutation(ROWS)[:20].astype(np.int64)


@pytest.mark.parametrize("dim", [1, 3, 16, 100, 1500])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_offer_is_a_share_of_the_progress(dim: int, workers: int) -> None:
    weights, base, slots = replica(dim)
    expected = weights[slots] - base[slots]
    if workers > 1:
        expected /= np.float32(workers)
    expected_base = base.copy()
    expected_base[slots] += expected
    kept, delta = weights.copy(), np.full((len(slots), dim), 7, np.float32)
    _core.offer_rows(weights, base, slots, workers, delta)
    np.testing.assert_array_equal(delta, expected, strict=True)
    np.testing.assert_array_equal(base, expected_base)
    np.testing.assert_array_equal(weights, kept)


@pytest.mark.parametrize("dim", [1, 3, 16, 100, 1500])
def test_rows_with_progress_are_found_unless_their_base_is_not_finite(dim: int) -> None:
    weights, _, slots = replica(dim)
    slots = np.append(slots, slots[:2])  # Twice: they are looked at twice.
    base = weights.copy()
    base[slots[1], 0] = -weights[slots[1], 0]
    base[slots[4], -1] = np.nextafter(weights[slots[4], -1], np.float32(np.inf))
    weights[slots[5], -1] = np.nan  # Once: its base is not finite after that.
    weights[slots[6], 0], base[slots[6], 0] = 0.0, -0.0
    for at, wrong in ((7, np.nan), (8, np.inf), (9, -np.inf)):
        base[slots[at], dim // 2] = wrong
    found = np.full(len(slots), 77, np.int64)
    count = _core.find_progress(weights, base, dim, slots, found)
    assert found[:count].tolist() == slots[[1, 4, 5, len(slots) - 1]].tolist()
    with np.errstate(invalid="ignore"):
        expected = (weights[slots] != base[slots]).any(1) & np.isfinite(base[slots]).all(1)
    assert found[:count].tolist() == slots[expected].tolist()


@pytest.mark.parametrize("dim", [1, 3, 16, 100, 1500])
def test_progress_stays_on_top_of_what_servers_say(dim: int) -> None:
    weights, base, slots = replica(dim)
    server = base[slots] + replica(dim, seed=1)[0][slots]
    server[::3] = base[slots][::3]  # Rows that nobody else changed.
    moved = server - base[slots]
    expected, expected_base = weights.copy(), base.copy()
    untrained = (weights[slots] == base[slots]) & (moved != 0)
    expected[slots] = np.where(untrained, server, weights[slots] + moved)
    expected_base[slots] = server
    squared = _core.accept_rows(weights, base, slots, server)
    np.testing.assert_array_equal(weights, expected)
    np.testing.assert_array_equal(base, expected_base)
    assert squared == pytest.approx((moved.astype(np.float64) ** 2).sum(), rel=1e-12)


def test_a_row_that_nobody_moved_stays_as_it_is_to_the_last_bit() -> None:
    weights, base, slots = replica(16)
    weights[:, 0] = base[:, 0] = -0.0
    kept, kept_base = weights.copy(), base.copy()
    assert _core.accept_rows(weights, base, slots, base[slots]) == 0
    assert weights.tobytes() == kept.tobytes()
    assert base.tobytes() == kept_base.tobytes()


def test_a_mark_counts_a_slot_once_however_often_it_is_there() -> None:
    touches = np.array([0, 5, 0, 2**31 - 1], np.int32)
    _core.mark_rows(np.array([1, 3, 1, 0, 1], np.int64), touches)
    assert touches.tolist() == [1, 6, 0, 2**31 - 1]  # As many as there are numbers for.
    with pytest.raises(InvalidArgument, match="slot 4 of a replica with 4 rows"):
        _core.mark_rows(np.array([0, 4], np.int64), touches)
    with pytest.raises(InvalidArgument, match="slot -1"):
        _core.mark_rows(np.array([-1], np.int64), touches)
    assert touches.tolist() == [1, 6, 0, 2**31 - 1]


def test_a_slot_that_is_none_is_refused_before_anything_is_written() -> None:
    weights, base, slots = replica(4)
    kept = base.copy()
    delta = np.zeros((len(slots), 4), np.float32)
    for wrong in (-1, ROWS):
        slots[-1] = wrong
        with pytest.raises(InvalidArgument, match=f"slot {wrong} of a replica with {ROWS} rows"):
            _core.offer_rows(weights, base, slots, 1, delta)
        with pytest.raises(InvalidArgument, match="slot"):
            _core.accept_rows(weights, base, slots, delta)
        with pytest.raises(InvalidArgument, match=f"slot {wrong} of a replica with {ROWS} rows"):
            _core.find_progress(weights, base, 4, slots, slots.copy())
    with pytest.raises(InvalidArgument, match="do not fit"):
        _core.find_progress(weights, base, 4, slots, slots[:-1].copy())
    with pytest.raises(InvalidArgument, match="with 0 rows"):
        _core.find_progress(weights, base, 0, slots, slots.copy())
    with pytest.raises(InvalidArgument, match="do not fit"):
        _core.offer_rows(weights, base[:-1], slots, 1, delta)
    np.testing.assert_array_equal(base, kept)


def test_no_rows_are_nothing_to_do() -> None:
    weights, base, _ = replica(4)
    none = np.zeros(0, np.int64), np.zeros((0, 4), np.float32)
    _core.offer_rows(weights, base, none[0], 2, none[1])
    assert _core.accept_rows(weights, base, *none) == 0
    assert _core.find_progress(weights, base, 4, none[0], none[0].copy()) == 0


@pytest.mark.parametrize("dim", [1, 3, 16, 100])
def test_rows_of_equal_slots_are_added_in_the_order_given(dim: int) -> None:
    random = np.random.default_rng(0)
    slots = random.integers(0, ROWS, 300)
    rows = (random.standard_normal((300, dim)) * 10.0 ** random.integers(-3, 8, (300, 1))).astype(
        np.float32
    )
    _, first = np.unique(slots, return_index=True)
    expected = slots[np.sort(first)]
    expected_sums = np.zeros((len(expected), dim), np.float32)
    for place, slot in enumerate(expected):
        for row in rows[slots == slot]:
            expected_sums[place] += row
    places = np.zeros(ROWS, np.int32)
    distinct, sums = np.empty_like(slots), np.empty_like(rows)
    for _ in range(2):  # The second time shows that `places` is as it was.
        count = _core.merge_rows(slots, rows, places, distinct, sums)
        np.testing.assert_array_equal(distinct[:count], expected)
        np.testing.assert_array_equal(sums[:count], expected_sums)
    assert not places.any()


def test_merging_refuses_slots_beyond_the_replica_and_too_little_room() -> None:
    places, rows = np.zeros(ROWS, np.int32), np.ones((2, 4), np.float32)
    slots, sums = np.array([3, ROWS]), np.empty((2, 4), np.float32)
    with pytest.raises(InvalidArgument, match=f"slot {ROWS} of a replica with {ROWS} rows"):
        _core.merge_rows(slots, rows, places, np.empty(2, np.int64), sums)
    assert not places.any()
    with pytest.raises(InvalidArgument, match="room for"):
        _core.merge_rows(slots, rows, places, np.empty(1, np.int64), sums)
    assert _core.merge_rows(slots[:0], rows[:0], places, slots[:0].copy(), sums[:0]) == 0


def test_a_map_of_ids_that_is_damaged_is_refused_rather_than_searched_for_ever() -> None:
    known, found = np.arange(4, dtype=np.uint64), np.empty(1, np.int64)
    other = np.array([9], np.uint64)
    with pytest.raises(InvalidArgument, match="full"):
        _core.find_ids(np.arange(4), known, other, found)
    with pytest.raises(InvalidArgument, match="full or knows slots without an id"):
        _core.find_ids(np.full(4, 7), known, other, found)
    with pytest.raises(InvalidArgument, match="3 places"):
        _core.find_ids(np.full(3, -1), known, other, found)
    with pytest.raises(InvalidArgument, match="room for 1 slots of 2 ids"):
        _core.find_ids(np.full(4, -1), known, known[:2], found)


def test_ids_are_found_at_the_slots_at_which_they_were_placed_however_they_collide() -> None:
    places = np.full(1024, -1, np.int64)
    # The product's bits 32 to 41 say where a search begins: these begin at four places.
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    homes = [(i << 42) + (i % 4 << 32) for i in range(500)]
    ids = np.array([home * inverse % (1 << 64) for home in homes], np.uint64)
    found = np.empty(len(ids), np.int64)
    _core.place_ids(places, ids, 0, 300)
    _core.find_ids(places, ids, ids, found)
    np.testing.assert_array_equal(found, [*range(300), *[-1] * 200])
    _core.place_ids(places, ids, 300, 500)
    _core.find_ids(places, ids, ids, found)
    np.testing.assert_array_equal(found, np.arange(500))


def test_a_map_without_room_for_its_ids_takes_none() -> None:
    ids, places = np.arange(8, dtype=np.uint64), np.full(8, -1, np.int64)
    for first, end, many in ((0, 8, 8), (2, 1, 8), (0, 4, 6), (0, 7, 8)):
        with pytest.raises(InvalidArgument, match="a map"):
            _core.place_ids(places[:many], ids[:6], first, end)
    assert (places == -1).all()
    with pytest.raises(InvalidArgument, match="full"):
        _core.place_ids(np.arange(8), ids, 0, 1)
