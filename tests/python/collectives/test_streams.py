"""Links between hosts that are made of several connections; host labels set ranks here apart."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring import _core
from gradring.settings import config, cost_profile
from gradring.settings.cost_profile import Costs, Measured, Profile
from rank_job import Job
from thread_ranks import listening_socket, on_workers

pytestmark = pytest.mark.timeout(60)


def hosts_of(layout: str, streams: int, tls: str = "auto") -> list[gr.Communicator]:
    """Join as threads, rank r on the host that the r-th letter names; only rank 0 says how many."""
    comms: list[Any] = [None] * len(layout)
    listen_fd, address = listening_socket()
    secret = secrets.token_bytes(32)

    def join(rank: int) -> None:
        core = _core.join(
            rank=rank, world_size=len(layout), rendezvous=address, secret=secret, tls=tls,
            transport="auto", timeout_ms=20_000, heartbeat_timeout_ms=20_000, interface="",
            listen_fd=listen_fd if rank == 0 else -1, host_label=layout[rank],
            streams=streams if rank == 0 else 1,
        )  # fmt: skip
        comms[rank] = gr.Communicator(core)

    on_workers(len(layout), join)
    return comms


def on_all(comms: list[gr.Communicator], function: Callable[[Any], Any]) -> list[Any]:
    return on_workers(len(comms), lambda rank: function(comms[rank]))


def sockets_open() -> int:
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # That of the listing itself.
            targets.append(str(entry.readlink()))
    return sum(target.startswith("socket:") for target in targets)


@pytest.mark.parametrize("tls", ["auto", "off"])
def test_results_have_the_same_bits_over_one_connection_and_over_several(tls: str) -> None:
    def bits(comm: gr.Communicator) -> list[bytes]:
        random = np.random.default_rng(comm.rank)
        found = []
        for count in (3, 5_000, 1_000_003):
            x = random.standard_normal(count).astype(np.float32)
            found.append(comm.all_reduce(x).tobytes())
            found.append(comm.all_gather(x[: count // 2]).tobytes())
        return found

    seen = []
    for streams in (1, 3):
        comms = hosts_of("abcc", streams, tls)
        assert [comm._core.streams for comm in comms] == [streams] * 4
        seen.append(on_all(comms, bits))
        on_all(comms, lambda comm: comm.close())
    assert seen[0] == seen[1]


def test_messages_between_two_ranks_come_in_order_over_several_connections() -> None:
    comms = hosts_of("ab", 4)
    sizes = [1, 300_000, 7, 2_000_000, 0, 70_000] * 3

    def talk(comm: gr.Communicator) -> None:
        for turn, size in enumerate(sizes):
            if comm.rank == turn % 2:
                comm.send(np.full(size, turn, np.uint8), 1 - comm.rank, tag=turn)
            else:
                got = comm.recv(np.empty(size, np.uint8), 1 - comm.rank, tag=turn)
                assert np.all(got == turn)

    on_all(comms, talk)
    on_all(comms, lambda comm: comm.close())


def test_only_links_between_hosts_have_several() -> None:
    def opened(layout: str, streams: int) -> int:
        comms = hosts_of(layout, streams)
        before = sockets_open()
        on_all(comms, lambda comm: comm.all_gather(np.ones(100_000)))
        count = sockets_open() - before
        on_all(comms, lambda comm: comm.close())
        return count

    one = opened("ab", 1)
    for streams in (4, config.MOST_STREAMS):
        assert opened("ab", streams) - one == 2 * (streams - 1)
    assert opened("aa", 4) == opened("aa", 1)


def test_a_rank_that_is_killed_is_lost_at_once_to_who_hears_it_over_several(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path / "job")
    listen_fd, address = listening_socket()
    try:
        settings = {
            "world_size": 3, "rendezvous": address, "secret": secrets.token_bytes(32),
            "transport": "auto", "timeout_ms": 60_000, "heartbeat_timeout_ms": 20_000,
            "interface": "", "streams": 4,
        }  # fmt: skip
        for number in range(3):
            job.spawn(number, *([listen_fd] if number == 0 else []))
            fd = listen_fd if number == 0 else -1
            job.ranks[number].begin(
                f"from gradring import _core\ncomm = gr.Communicator(_core.join(rank={number}, "
                f"listen_fd={fd}, host_label='{number}', **{settings!r}))"
            )
        assert [outcome.error for outcome in job.outcomes()] == [None] * 3
        job.begin("while True: comm.all_reduce(np.ones(3_000_000, 'f4'))")
        killed = job.ranks[2].kill()
        for outcome in job.outcomes(job.others(2)):
            assert (outcome.error, outcome.lost) == ("PeerLost", 2)
            assert outcome.at - killed < 5
    finally:
        os.close(listen_fd)
        job.clean_up()


def test_rank_0s_profile_says_how_many_unless_its_variable_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profile.json"
    measured = Measured(Costs(20_000.0, 0.5, 10.0, 0.1), 2, 2, 0.1, streams=6)
    cost_profile.save(Profile({"tcp": measured}), path)
    assert cost_profile.load(path).transports["tcp"] == measured

    def joined(profile: Path | None) -> list[int]:
        listen_fd, address = listening_socket()
        secret = secrets.token_hex(16)

        def join(rank: int) -> gr.Communicator:
            return gr.init(
                rank=rank, world_size=2, rendezvous=address, secret=secret, timeout=30,
                listen_fd=listen_fd if rank == 0 else None, profile=profile,
            )  # fmt: skip

        with ThreadPoolExecutor(2) as pool:
            comms = list(pool.map(join, range(2)))
        found = [comm._core.streams for comm in comms]
        for comm in comms:
            comm.close()
        return found

    assert joined(None) == [1, 1]
    assert joined(path) == [6, 6]
    monkeypatch.setenv("GRADRING_STREAMS", "2")
    assert joined(path) == [2, 2]


@pytest.mark.parametrize("text", ["many", "-1", "1.5", "33"])
def test_a_number_of_connections_that_makes_no_sense_is_refused_by_name(text: str) -> None:
    with pytest.raises(gr.InvalidArgument, match="GRADRING_STREAMS"):
        config.Settings.from_environ({"GRADRING_STREAMS": text})


def test_the_core_knows_the_same_limit() -> None:
    with pytest.raises(gr.InvalidArgument, match=f"from 1 to {config.MOST_STREAMS}$"):
        _core.join(
            rank=0, world_size=1, rendezvous="", secret=b"s", transport="auto", timeout_ms=1000,
            heartbeat_timeout_ms=1000, interface="", listen_fd=-1, streams=config.MOST_STREAMS + 1,
        )  # fmt: skip
