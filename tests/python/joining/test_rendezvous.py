"""Joining: who fits comes in, who does not is told why, and who is missing is named."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from typing import Any

import numpy as np
import pytest

import gradring as gr
from rank_job import StartJob
from thread_ranks import ThreadWorld, listening_socket

pytestmark = pytest.mark.timeout(60)


def join_all(*roles: dict[str, Any]) -> list[Any]:
    """Call init with each of these on a thread of its own; a communicator or the error of each."""
    listen_fd, address = listening_socket()
    secret = secrets.token_hex(16)
    results: list[Any] = [None] * len(roles)

    def join(index: int) -> None:
        options = {"rendezvous": address, "secret": secret, "timeout": 2.0, **roles[index]}
        if options["rank"] == 0:
            options["listen_fd"] = listen_fd
        try:
            results[index] = gr.init(**options)
        except gr.Error as error:
            results[index] = error

    threads = [threading.Thread(target=join, args=(index,)) for index in range(len(roles))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if all(role["rank"] != 0 for role in roles):
        os.close(listen_fd)
    for result in results:
        if isinstance(result, gr.Communicator):
            result.close()
    return results


def test_a_missing_rank_is_named_by_rank_0_and_the_others_hear_that_it_gave_up() -> None:
    first, second = join_all(
        {"rank": 0, "world_size": 4}, {"rank": 2, "world_size": 4, "timeout": 8.0}
    )
    assert type(first) is gr.TimedOut
    assert "rank 1, 3 of a world of 4" in str(first)
    assert type(second) is gr.PeerLost
    assert second.rank == 0
    assert "before all ranks had joined" in str(second)


def test_a_rank_gives_up_by_itself_when_the_others_do_not_come() -> None:
    _, second = join_all({"rank": 0, "world_size": 4, "timeout": 4.0}, {"rank": 2, "world_size": 4})
    assert type(second) is gr.TimedOut
    assert "rank 2: joined at" in str(second)


def test_without_rank_0_the_others_ask_whether_it_was_started() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(gr.TimedOut, match="is rank 0 started") as error:
            gr.init(rank=1, world_size=2, rendezvous=address, secret="s" * 16, timeout=0.5)
    assert address in str(error.value)


def test_a_rank_with_the_wrong_secret_gets_auth_error_and_is_missing_for_rank_0() -> None:
    first, second = join_all(
        {"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2, "secret": "another one"}
    )
    assert type(second) is gr.AuthError
    assert "GRADRING_SECRET" in str(second)
    assert type(first) is gr.TimedOut
    assert "rank 1" in str(first)


def test_two_processes_with_one_rank_are_told_so() -> None:
    results = join_all(
        {"rank": 0, "world_size": 3}, *[{"rank": 1, "world_size": 3, "timeout": 8.0}] * 2
    )
    refused = [result for result in results if type(result) is gr.InvalidArgument]
    assert len(refused) == 1
    assert "two processes were started as rank 1" in str(refused[0])
    assert type(results[0]) is gr.TimedOut
    assert "rank 2" in str(results[0])


def test_a_rank_of_another_world_size_is_told_both_sizes() -> None:
    first, second = join_all({"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 3})
    assert type(second) is gr.InvalidArgument
    assert "world size 3" in str(second)
    assert "2" in str(second)
    assert type(first) is gr.TimedOut


def test_strangers_at_the_rendezvous_do_not_keep_ranks_out() -> None:
    listen_fd, address = listening_socket()
    host, _, port = address.rpartition(":")
    held = [socket.create_connection((host, int(port))) for _ in range(60)]
    for connection in held[::2]:
        connection.sendall(os.urandom(1000))
    results: list[Any] = [None, None]

    def join(rank: int) -> None:
        with gr.init(
            rank=rank, world_size=2, rendezvous=address, secret="s" * 16, timeout=20,
            listen_fd=listen_fd if rank == 0 else None,
        ) as comm:  # fmt: skip
            results[rank] = comm.all_reduce(np.ones(3)).tolist()

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in held:
        connection.close()
    assert results == [[2.0] * 3] * 2


def test_a_rank_that_dies_before_everybody_is_there_may_come_again(job: StartJob) -> None:
    listen_fd, address = listening_socket()
    settings = {"world_size": 3, "rendezvous": address, "secret": "s" * 16, "timeout": 30.0}
    ranks = job(0)
    first = ranks.spawn(0, listen_fd)
    first.begin(f"say('joining'); join(rank=0, listen_fd={listen_fd}, **{settings})")
    os.close(listen_fd)
    dying = ranks.spawn(1)
    dying.begin(f"say('joining'); join(rank=1, **{settings})")
    for rank in (first, dying):
        rank.expect("joining")
    dying.wait_until_it_sleeps()
    dying.kill()
    again, last = ranks.spawn(1), ranks.spawn(2)
    again.begin(f"join(rank=1, **{settings})")
    last.begin(f"join(rank=2, **{settings})")
    for rank in (first, again, last):
        assert rank.outcome().error is None
    for rank in (first, again, last):
        rank.begin("result = comm.all_reduce(np.ones(2)).tolist()")
    for rank in (first, again, last):
        assert rank.outcome().result == [3.0, 3.0]


def test_a_rank_that_gave_up_and_comes_again_at_once_is_let_in() -> None:
    listen_fd, address = listening_socket()
    settings = {"world_size": 3, "rendezvous": address, "secret": "s" * 16}
    sums: list[Any] = [None] * 3

    def join(rank: int) -> None:
        with gr.init(
            rank=rank, timeout=20, listen_fd=listen_fd if rank == 0 else None, **settings
        ) as comm:
            sums[rank] = comm.all_reduce(np.ones(1)).tolist()

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    threads[0].start()
    for _ in range(3):
        with pytest.raises(gr.TimedOut):
            gr.init(rank=1, timeout=0.25, **settings)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [[3.0]] * 3


def test_rank_0_waits_for_its_port_while_a_world_that_met_there_is_going(job: StartJob) -> None:
    taken, address = listening_socket()
    settings = {"world_size": 2, "rendezvous": address, "secret": "s" * 16, "timeout": 30.0}
    ranks = job(0)
    first, second = ranks.spawn(0), ranks.spawn(1)
    first.begin(f"say('joining'); join(rank=0, **{settings})")
    first.expect("joining")
    first.wait_until_it_sleeps()
    os.close(taken)
    second.begin(f"join(rank=1, **{settings})")
    for rank in (first, second):
        assert rank.outcome().error is None
    assert ranks.call("result = comm.all_reduce(np.ones(2)).tolist()") == [[2.0, 2.0]] * 2


def test_a_port_that_stays_taken_is_named(job: StartJob) -> None:
    taken, address = listening_socket()
    rank = job(0).spawn(0)
    rank.begin(f"join(rank=0, world_size=2, rendezvous='{address}', secret='{'s' * 16}')")
    outcome = rank.outcome()
    os.close(taken)
    assert outcome.error == "InvalidArgument"
    assert outcome.text == (
        f"cannot listen on {address}: Address already in use; "
        "end what listens there, or have the ranks meet at another port"
    )


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_ranks_meet_over_ipv6(job: StartJob, transport: str) -> None:
    try:
        os.close(listening_socket("::1")[0])
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    ranks = job(3, host="::1", transport=transport)
    total = "result = [comm.describe(2), int(comm.all_reduce(np.ones(300_000, int))[0])]"
    for text, value in ranks.call(total):
        assert text.startswith("rank 2 ([::1]:")
        assert value == 3


def test_a_world_of_one_needs_nobody() -> None:
    with gr.init(rank=0, world_size=1) as comm:
        x = np.arange(3.0)
        assert comm.all_reduce(x, "avg") is x
        assert comm.all_gather(x).tolist() == [[0, 1, 2]]
        assert comm.split(0).all_reduce(x).tolist() == [0, 1, 2]
        comm.barrier()
        assert (comm.local_rank, comm.local_world_size) == (0, 1)
        assert comm.describe(0) == "rank 0"  # It has no address.


def test_ctrl_c_ends_the_wait_for_the_others(job: StartJob) -> None:
    ranks = job(0)
    for rank in range(2):
        listen_fd, address = listening_socket()
        process = ranks.spawn(rank, listen_fd)
        role = f"rank={rank}, listen_fd={listen_fd if rank == 0 else None}"
        process.begin(
            f"say('joining'); join({role}, world_size=2, secret='s', rendezvous='{address}')"
        )
        os.close(listen_fd)
        process.expect("joining")
        process.wait_until_it_sleeps()
        interrupted = process.interrupt()
        outcome = process.outcome()
        assert outcome.error == "KeyboardInterrupt", outcome
        assert outcome.at - interrupted < 8.0


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_ranks_know_who_shares_their_host(transport: str) -> None:
    world = ThreadWorld(3, transport)
    assert world.run(lambda comm: (comm.local_rank, comm.local_world_size)) == [
        (0, 3), (1, 3), (2, 3),
    ]  # fmt: skip
    world.close()


def test_a_launchers_socket_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    of_pipe, other_end = os.pipe()
    with socket.socket() as deaf:
        for listen_fd in (of_pipe, deaf.fileno()):
            for name, value in {
                "RANK": 0, "WORLD_SIZE": 2, "RENDEZVOUS": "127.0.0.1:7", "SECRET": "s" * 16,
                "LISTEN_FD": listen_fd,
            }.items():  # fmt: skip
                monkeypatch.setenv(f"GRADRING_{name}", str(value))
            words = f"GRADRING_LISTEN_FD={listen_fd} is not a listening socket"
            with pytest.raises(gr.InvalidArgument, match=words):
                gr.init(timeout=2)
    os.close(of_pipe)
    os.close(other_end)
