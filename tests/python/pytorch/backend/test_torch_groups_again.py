"""Groups of torch.distributed made again: what each rank did before does not matter."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradring.prometheus import endpoint
from gradring.torch.c10d import rendezvous
from ps_servers import together
from thread_ranks import free_ports
from torch_ranks import on_ranks

pytestmark = [pytest.mark.timeout(120)]

SOON = timedelta(seconds=5)


def total(members: list[int]) -> float:
    """What a new group of Gradring's adds up; 0 outside of it."""
    group = dist.new_group(members, backend="gradring", timeout=SOON)
    x = torch.ones(1)
    if dist.get_rank() not in members:
        return 0.0
    dist.all_reduce(x, group=group)
    return float(x)


def again(backend: str, rank: int, size: int, store: Any) -> None:
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=SOON)


def other_members(backend: str, folder: Path) -> list[float]:
    rank = dist.get_rank()
    totals = [total([0, 1])]
    dist.barrier()
    dist.destroy_process_group()
    again(backend, rank, 3, dist.FileStore(str(folder / "next"), 3))
    return [*totals, total([1, 2])]


def in_one_store(folder: Path) -> list[float]:
    rank, store = dist.get_rank(), dist.FileStore(str(folder / "kept"), 3)
    dist.destroy_process_group()
    totals = []
    for size in (3, 2, 2, 3):
        if rank < size:
            again("gradring", rank, size, store)
            totals.append(total(list(range(size))))
            dist.barrier()
            dist.destroy_process_group()
    again("gradring", rank, 3, store)
    return totals


@pytest.mark.parametrize("backend", ["gradring", "gloo"])
def test_after_a_new_init_groups_may_have_other_members(backend: str, tmp_path: Path) -> None:
    assert on_ranks(3, other_members, backend, tmp_path, backend=backend) == [
        [2, 0], [2, 2], [0, 2],
    ]  # fmt: skip


def test_a_store_that_outlives_its_groups_may_be_used_again_by_some(tmp_path: Path) -> None:
    assert on_ranks(3, in_one_store, tmp_path) == [[3, 2, 2, 3], [3, 2, 2, 3], [3, 3]]


def one_was_alone(folder: Path) -> float:
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        again("gradring", 0, 1, dist.HashStore())
        dist.destroy_process_group()
    again("gradring", rank, 2, dist.FileStore(str(folder / "both"), 2))
    return total([0, 1])


def test_a_rank_that_had_a_group_of_its_own_before_meets_the_others(tmp_path: Path) -> None:
    assert on_ranks(2, one_was_alone, tmp_path) == [2, 2]


def groups_of_one_name() -> list[float]:
    totals = []
    for _ in range(3):  # torch names each of them alike.
        group = dist.new_group([0, 1], use_local_synchronization=True)
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        totals.append(float(x))
        dist.destroy_process_group(group)
    return totals


def test_a_name_that_torch_uses_again_in_one_default_group_is_another_group() -> None:
    assert on_ranks(2, groups_of_one_name) == [[2, 2, 2]] * 2


def test_rank_0_of_a_group_listens_in_the_range_of_ports_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = dist.HashStore()
    with free_ports(2) as (first, last):
        monkeypatch.setenv("GRADRING_PORTS", f"{first}-{last}")
        ranks = [partial(rendezvous.meet, store, "ports", [0, 1], rank, 20.0) for rank in (0, 1)]
        comms = together(ranks)
        taken = [comms[0].describe(rank).rpartition(":")[2] for rank in (0, 1)]
        assert sorted(taken) == [f"{first})", f"{last})"]
        together([comm.close for comm in comms])


def test_ranks_of_any_group_tell_metrics_at_the_port_of_their_rank_in_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(endpoint, "serve_job", lambda *where: told.append(where[:2]))
    monkeypatch.setenv("GRADRING_METRICS", "9400")
    store = dist.HashStore()
    pair = [partial(rendezvous.meet, store, "told", [2, 5], rank, 20.0) for rank in (0, 1)]
    alone = partial(rendezvous.meet, store, "alone", [7], 0, 20.0)
    comms = together([*pair, alone])
    assert sorted(told) == [("127.0.0.1:9400", number) for number in (2, 5, 7)]
    together([comm.close for comm in comms])
