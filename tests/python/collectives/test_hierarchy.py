"""Several hosts with several ranks each: host labels set the ranks of this machine apart."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring import _core
from thread_ranks import listening_socket, on_workers

pytestmark = pytest.mark.timeout(60)

LAYOUTS = ["aabb", "abab", "aab", "abacb", "aaabbb"]
COUNT = 300_001  # Above the size from which hosts are reduced first.


class Hosts:
    """Ranks as threads, rank r on the host that the r-th letter names."""

    def __init__(self, layout: str, transport: str = "auto") -> None:
        self.size = len(layout)
        self.comms: list[Any] = [None] * self.size
        listen_fd, address = listening_socket()
        secret = secrets.token_bytes(32)

        def join(rank: int) -> None:
            core = _core.join(
                rank=rank, world_size=self.size, rendezvous=address, secret=secret,
                transport=transport, timeout_ms=20_000, heartbeat_timeout_ms=20_000, interface="",
                listen_fd=listen_fd if rank == 0 else -1, host_label=layout[rank],
            )  # fmt: skip
            self.comms[rank] = gr.Communicator(core)

        on_workers(self.size, join)

    def run(self, function: Callable[[Any], Any]) -> list[Any]:
        return on_workers(self.size, lambda rank: function(self.comms[rank]))


@pytest.fixture
def hosts() -> Iterator[Callable[..., Hosts]]:
    made: list[Hosts] = []

    def make(layout: str, transport: str = "auto") -> Hosts:
        made.append(Hosts(layout, transport))
        return made[-1]

    yield make
    for group in made:
        group.run(lambda comm: comm.close())


def floats(rank: int) -> Any:
    return np.random.default_rng(rank).standard_normal(COUNT).astype(np.float32)


def sum_of(values: Sequence[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_gets_the_exact_sum(hosts: Callable[..., Hosts], layout: str) -> None:
    group = hosts(layout)
    results = group.run(lambda comm: comm.all_reduce(np.arange(COUNT) * (comm.rank + 1)))
    factor = group.size * (group.size + 1) // 2
    for result in results:
        assert np.array_equal(result, np.arange(COUNT) * factor)


@pytest.mark.parametrize("layout", ["aabb", "abab"])
def test_each_host_is_added_up_before_the_hosts_are(
    hosts: Callable[..., Hosts], layout: str
) -> None:
    results = hosts(layout).run(lambda comm: comm.all_reduce(floats(comm.rank), "avg"))
    each = [
        sum_of([floats(rank) for rank in range(4) if layout[rank] == host])
        for host in sorted(set(layout))
    ]
    expected = sum_of(each) / np.float32(4)
    for result in results:
        assert result.tobytes() == expected.tobytes()


def test_rank_order_does_not_depend_on_the_hosts(hosts: Callable[..., Hosts]) -> None:
    def reduce(comm: Any) -> Any:
        return comm.all_reduce(floats(comm.rank), deterministic="rank_order")

    expected = sum_of([floats(rank) for rank in range(4)])
    for layout in ("aabb", "abab", "abcd"):
        for result in hosts(layout).run(reduce):
            assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_broadcast_reaches_every_host_from_every_root(
    hosts: Callable[..., Hosts], layout: str
) -> None:
    group = hosts(layout)
    for root in range(group.size):
        results = group.run(lambda comm, root=root: comm.broadcast(floats(comm.rank), root))
        assert all(result.tobytes() == floats(root).tobytes() for result in results)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "aaaa", "abcd"])
def test_a_small_broadcast_reaches_every_host_from_every_root(
    hosts: Callable[..., Hosts], layout: str, transport: str
) -> None:
    group = hosts(layout, transport)
    for root in range(group.size):
        for count in (0, 1, 1000):

            def send(comm: Any, root: int = root, count: int = count) -> None:
                for algorithm in ("auto", "doubling"):
                    x = np.arange(count) * 10 + comm.rank
                    comm.broadcast(x, root, algorithm=algorithm)
                    assert np.array_equal(x, np.arange(count) * 10 + root)

            group.run(send)


def test_a_rank_knows_its_place_on_its_host(hosts: Callable[..., Hosts]) -> None:
    places = hosts("abacb").run(lambda comm: (comm.local_rank, comm.local_world_size))
    assert places == [(0, 2), (0, 2), (1, 2), (0, 1), (1, 2)]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "aaaa", "abcd", "abcdabcded"])
def test_the_ranks_of_each_host_form_a_group(
    hosts: Callable[..., Hosts], layout: str, transport: str
) -> None:
    def split(comm: Any) -> list[Any]:
        with comm.split_by_host() as group, comm.split_by_host(key=-comm.rank) as turned:
            assert (group.rank, group.world_size) == (comm.local_rank, comm.local_world_size)
            return [each.all_gather(np.array([comm.rank])).ravel().tolist() for each in
                    (group, turned)]  # fmt: skip

    for rank, found in enumerate(hosts(layout, transport).run(split)):
        here = [other for other, host in enumerate(layout) if host == layout[rank]]
        assert found == [here, here[::-1]]


def test_a_group_is_divided_by_hosts_too(hosts: Callable[..., Hosts]) -> None:
    def split(comm: Any) -> Any:
        with comm.split(comm.rank % 2) as half, half.split_by_host() as group:
            return group.all_gather(np.array([comm.rank])).ravel().tolist()

    assert hosts("aabbaabb").run(split) == [[0, 4], [1, 5], [2, 6], [3, 7]] * 2


def test_a_mismatch_between_hosts_is_found_before_anything_is_added(
    hosts: Callable[..., Hosts],
) -> None:
    arrays = [floats(rank) for rank in range(4)]

    def reduce(comm: Any) -> Any:
        with pytest.raises(gr.Mismatch):
            comm.all_reduce(arrays[comm.rank], "max" if comm.rank == 3 else "sum")

    hosts("aabb").run(reduce)
    for rank in range(4):
        assert arrays[rank].tobytes() == floats(rank).tobytes()


def test_shared_memory_between_hosts_is_refused_by_name() -> None:
    with pytest.raises(gr.InvalidArgument, match=r"rank \d .* is on another host"):
        Hosts("ab", "shm")
