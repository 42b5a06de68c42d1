"""Shards: every example once, and the same global batches whatever the number of ranks."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradring as gr


def shards(count: int, world_size: int, **options: Any) -> list[list[int]]:
    comms: list[Any] = [SimpleNamespace(rank=r, world_size=world_size) for r in range(world_size)]
    return [gr.shard(count, comm, **options).tolist() for comm in comms]


@given(st.integers(0, 200), st.integers(1, 8), st.integers(0, 3), st.booleans())
def test_every_example_is_used_exactly_once(
    count: int, world_size: int, epoch: int, shuffle: bool
) -> None:
    parts = shards(count, world_size, epoch=epoch, shuffle=shuffle)
    assert sorted([*chain(*parts)]) == list(range(count))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@given(st.integers(1, 200), st.integers(1, 8))
def test_drop_last_and_pad_give_every_rank_equally_many(count: int, world_size: int) -> None:
    dropped = shards(count, world_size, drop_last=True)
    assert {len(part) for part in dropped} == {count // world_size}
    assert len({*chain(*dropped)}) == count // world_size * world_size
    padded = shards(count, world_size, pad=True)
    assert {len(part) for part in padded} == {-(-count // world_size)}
    assert {*chain(*padded)} == set(range(count))


@pytest.mark.parametrize("world_size", [2, 4, 5])
def test_global_batches_do_not_depend_on_the_number_of_ranks(world_size: int) -> None:
    count, global_batch = 103, 20
    (alone,) = shards(count, 1, seed=5, epoch=2)
    parts = shards(count, world_size, seed=5, epoch=2)
    each = global_batch // world_size
    for step in range(-(-count // global_batch)):
        together = [i for part in parts for i in part[step * each : (step + 1) * each]]
        assert set(together) == set(alone[step * global_batch : (step + 1) * global_batch])


# Of one rank each, how many examples it takes at a time, and how often.
SPELLS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 6)), max_size=5)


def trained_by_turns(
    count: int, spells: list[tuple[int, int, int]], last: int, **options: Any
) -> tuple[list[int], list[list[int]]]:
    """What ranks that come and go have had of an epoch, and what `last` ranks have in the end."""
    seen: list[int] = []
    done = 0
    for world_size, batch, steps in spells:
        for part in shards(count, world_size, first=done, **options):
            seen += part[: steps * batch]
        done += steps * batch * world_size
    return seen, shards(count, last, first=done, **options)


@given(st.integers(0, 120), SPELLS, st.integers(1, 6), st.booleans())
def test_every_example_is_used_once_by_whatever_ranks_come_and_go_within_an_epoch(
    count: int, spells: list[tuple[int, int, int]], last: int, shuffle: bool
) -> None:
    seen, rest = trained_by_turns(count, spells, last, epoch=3, shuffle=shuffle)
    assert sorted([*seen, *chain(*rest)]) == list(range(count))
    lengths = [len(part) for part in rest]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 120), SPELLS, st.integers(1, 6))
def test_ends_of_an_epoch_are_dropped_or_padded_by_the_ranks_that_come_to_it(
    count: int, spells: list[tuple[int, int, int]], last: int
) -> None:
    done = min(count, sum(world * batch * steps for world, batch, steps in spells))
    seen, rest = trained_by_turns(count, spells, last, drop_last=True)
    assert len({len(part) for part in rest}) == 1
    had = [*seen, *chain(*rest)]
    assert len(had) == len({*had})
    assert done < count or not any(rest)
    seen, rest = trained_by_turns(count, spells, last, pad=True)
    assert {len(part) for part in rest} == {-(-(count - done) // last)}
    assert {*seen, *chain(*rest)} == set(range(count))


@pytest.mark.parametrize("first", [7, 8, 2**62])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"pad": True}], ids=str)
def test_beyond_the_end_of_an_epoch_nobody_has_anything(
    first: int, options: dict[str, Any]
) -> None:
    assert shards(7, 3, first=first, **options) == [[], [], []]


def test_epochs_and_seeds_give_other_orders_and_no_shuffle_keeps_it() -> None:
    orders = {tuple(shards(50, 1, seed=s, epoch=e)[0]) for s in range(3) for e in range(3)}
    assert len(orders) == 9
    assert shards(7, 2, shuffle=False) == [[0, 2, 4, 6], [1, 3, 5]]
    assert gr.shard(0, SimpleNamespace(rank=0, world_size=1)).dtype == np.int64


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(gr.InvalidArgument):
        shards(5, 2, drop_last=True, pad=True)
    with pytest.raises(gr.InvalidArgument):
        shards(-1, 2)


@pytest.mark.parametrize("first", [-1, 0.5, "a", None, 2**64])
def test_what_is_no_place_in_an_epoch_is_refused(first: Any) -> None:
    with pytest.raises(gr.InvalidArgument, match="shard: first"):
        shards(5, 2, first=first)
