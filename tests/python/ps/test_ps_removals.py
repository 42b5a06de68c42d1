"""Rows that `shrink` drops, also when it fails half way: replicas of rows hear of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.errors import TimedOut
from gradring.ps import ParameterServer
from ps_servers import connected, join, serving

IDS = np.arange(6)
RULE = gr.optim.SGD(lr=1.0)


class Failing:
    """A compiled client that fails as a server's silence makes it fail."""

    def __init__(self, core: Any, *, before_dropping: bool = False, after: bool = False) -> None:
        self._core = core
        self._before_dropping = before_dropping
        self._after = after
        self._has_dropped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def shrink(self, *args: Any) -> int:
        self._core.shrink(*args)
        self._has_dropped = True
        raise TimedOut("one of the servers has not answered")

    def push_dense(self, *args: Any, **options: Any) -> Any:
        if self._before_dropping or (self._after and self._has_dropped):
            raise TimedOut("the server that counts has not answered")
        return self._core.push_dense(*args, **options)


class Interrupted:
    """A compiled client: something happens between what `shrink` does first and the dropping."""

    def __init__(self, core: Any, between: Callable[[], None], *, fails: bool) -> None:
        self._core = core
        self._between = between
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def shrink(self, *args: Any) -> int:
        self._between()
        dropped: int = self._core.shrink(*args)
        if self._fails:
            raise TimedOut("one of the servers has not answered")
        return dropped


def trained(ps: ParameterServer) -> tuple[gr.GeoOptimizer, Any]:
    optimizer = gr.GeoOptimizer([], None, ps, k_steps=1, workers=1)
    table = optimizer.sparse_table("t", 2, RULE)
    optimizer.step(rows=[(table, IDS, np.ones((len(IDS), 2)))])
    optimizer.flush()
    return optimizer, table


@pytest.mark.parametrize("after", [False, True])
def test_replicas_hear_of_a_shrink_that_failed(after: bool) -> None:
    with serving(2) as servers, join(servers, client=0) as ps, join(servers) as other:
        optimizer, table = trained(ps)
        assert (table.pull(IDS) == -1).all()
        other.calls.core = Failing(other.calls.core, after=after)
        with pytest.raises(TimedOut, match="one of the servers"):
            other.shrink(least_score=100)
        optimizer.flush()
        assert (table.pull(IDS) == 0).all(), "the rows are gone, and read as they began"
        optimizer.close()


@pytest.mark.parametrize("fails", [False, True])
def test_replicas_that_look_just_before_rows_go_hear_of_it_too(fails: bool) -> None:
    with serving(2) as servers, join(servers, client=0) as ps, join(servers) as other:
        optimizer, table = trained(ps)
        other.calls.core = Interrupted(other.calls.core, optimizer.flush, fails=fails)
        with contextlib.suppress(TimedOut):
            assert other.shrink(least_score=100) == len(IDS)
        other.flush()
        optimizer.flush()
        assert (table.pull(IDS) == 0).all()
        optimizer.close()


def test_nothing_is_dropped_that_replicas_cannot_be_told_of() -> None:
    with connected(2) as ps:
        table = ps.sparse_table("t", 2, RULE)
        table.push(IDS, np.ones((len(IDS), 2)))
        ps.calls.core = Failing(ps.calls.core, before_dropping=True)
        with pytest.raises(TimedOut, match="the server that counts"):
            ps.shrink(least_score=100)
        assert len(table) == len(IDS)
