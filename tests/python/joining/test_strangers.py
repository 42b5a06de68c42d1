"""Whoever does not know the secret gets nothing, is logged once, and disturbs nobody."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from gradring import _core
from rank_job import Job, RankProcess, StartJob
from thread_ranks import TRANSPORTS

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.parametrize("transport", TRANSPORTS),
]

MAGIC = b"GRAD" + bytes([_core.wire_version, 0, 1, 0])
REDUCE_OFTEN = """
say("running")
for turn in range(200):
    x = np.full(1000 if turn % 10 else 300_000, comm.rank + turn, np.int64)
    assert (comm.all_reduce(x) == 3 * turn + 3).all(), turn
"""


def doors(ranks: Job) -> list[tuple[str, int]]:
    """Return where each rank listens."""
    texts = [ranks.ranks[0].call(f"result = comm.describe({rank})") for rank in range(3)]
    found = [re.search(r"\((.*):(\d+)\)", text) for text in texts]
    return [(match[1], int(match[2])) for match in found if match]


def wait_for_end_of_file(connection: socket.socket) -> None:
    connection.settimeout(30)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass


def send_and_wait(text: bytes) -> Callable[[socket.socket], None]:
    def attack(connection: socket.socket) -> None:
        try:
            connection.sendall(text)
        except (BrokenPipeError, ConnectionResetError):
            return  # Cut off in the middle, which is just as well.
        wait_for_end_of_file(connection)

    return attack


def prove_nothing(connection: socket.socket) -> None:
    """Speak the protocol, but without the secret."""
    connection.sendall(MAGIC + os.urandom(32))
    assert connection.recv(64, socket.MSG_WAITALL)
    send_and_wait(os.urandom(4096))(connection)


ATTACKS: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    "random bytes": (send_and_wait(os.urandom(4096)), "handshake"),
    "bytes that begin as TLS does": (send_and_wait(b"\x16" + os.urandom(4096)), "handshake"),
    "an HTTP request": (
        send_and_wait(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"),
        "handshake",
    ),
    "a length of 4 GiB": (send_and_wait(b"\xff" * 100_000), "handshake"),
    "our magic and a megabyte": (send_and_wait(MAGIC + os.urandom(1 << 20)), "secret"),
    "a wrong proof": (prove_nothing, "secret"),
    "connect and close": (socket.socket.close, "without a word"),
}


def expect_one_line(rank: RankProcess, what: str) -> None:
    lines = [line for line in rank.log.splitlines() if "refused" in line]
    assert len(lines) == 1, rank.log
    assert what in lines[0], lines


@pytest.mark.parametrize("name", ATTACKS)
def test_a_stranger_is_refused_logged_once_and_the_job_runs_on(
    job: StartJob, transport: str, name: str
) -> None:
    attack, logged = ATTACKS[name]
    ranks = job(3, transport=transport)
    addresses = doors(ranks)
    ranks.begin(REDUCE_OFTEN)
    ranks.expect("running")
    for _ in range(5):
        for address in addresses:
            with socket.create_connection(address) as connection:
                attack(connection)
    assert [outcome.error for outcome in ranks.outcomes()] == [None] * 3
    # New connections are let in as before.
    assert ranks.call("result = int(comm.split(0).all_reduce(np.array([1]))[0])") == [3] * 3
    ranks.call("comm.close()")
    for rank in ranks.ranks:
        expect_one_line(rank, logged)


def test_three_hundred_held_connections_keep_nobody_out(job: StartJob, transport: str) -> None:
    ranks = job(3, transport=transport)
    with ExitStack() as held:
        for address in doors(ranks):
            for _ in range(300):
                held.enter_context(socket.create_connection(address))
        # A new communicator makes new connections through the same doors.
        total = "sub = comm.split(0); result = int(sub.all_reduce(np.ones(300_000, int))[-1])"
        assert ranks.call(total) == [3] * 3
        assert ranks.call("result = int(comm.all_reduce(np.array([1]))[0])") == [3] * 3
    ranks.call("sub.close(); comm.close()")


def local_doors(rank: RankProcess) -> list[bytes]:
    """Return the names of its Unix sockets in the abstract name space."""
    own = set()
    for entry in Path(f"/proc/{rank.pid}/fd").iterdir():
        match = re.match(r"socket:\[(\d+)\]", str(entry.readlink()))
        if match:
            own.add(match[1])
    listed = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return sorted(
        {
            fields[7].replace("@", "\0").encode()
            for fields in listed
            if len(fields) == 8 and fields[6] in own and fields[7].startswith("@")
        }
    )


def test_a_stranger_at_the_local_socket_is_refused_as_well(job: StartJob, transport: str) -> None:
    ranks = job(3, transport=transport)
    names = [name for rank in ranks.ranks for name in local_doors(rank)]
    assert len(names) == (3 if transport == "shm" else 0)
    ranks.begin(REDUCE_OFTEN)
    ranks.expect("running")
    for name in names:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(name)
            send_and_wait(os.urandom(4096))(connection)
    assert [outcome.error for outcome in ranks.outcomes()] == [None] * 3
    ranks.call("comm.close()")
    for rank in ranks.ranks:
        if transport == "shm":
            expect_one_line(rank, "handshake")


def test_the_secret_is_never_written_to_the_log(job: StartJob, transport: str) -> None:
    secret = "a-secret-that-nobody-should-see"
    ranks = job(3, transport=transport, secret=secret)
    for address in doors(ranks):
        with socket.create_connection(address) as connection:
            prove_nothing(connection)
    ranks.ranks[1].kill()
    ranks.ranks[0].begin("comm.barrier()")
    outcome = ranks.ranks[0].outcome()
    assert secret not in outcome.text
    ranks.ranks[0].call("comm.close()")
    assert secret not in "".join(rank.log for rank in ranks.ranks)
