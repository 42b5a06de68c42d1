"""What goes over TCP is encrypted where that is asked for: nobody on the way reads a gradient."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gradring import AuthError, InvalidArgument, _core, optim
from gradring.doctor.jobs import reports_of
from gradring.settings.config import Settings
from ps_servers import join, serving
from rank_job import StartJob

pytestmark = pytest.mark.timeout(90)

EVERYTHING = """
n = 300_000
total = comm.all_reduce(np.full(n, comm.rank + 1.0, np.float32))
assert (total == 6).all()
parts = comm.all_gather(np.full(5, comm.rank))
assert parts.ravel().tolist() == [0] * 5 + [1] * 5 + [2] * 5
big = np.arange(3_000_000, dtype=np.float32)  # More than both ends' kernels hold, both ways.
peer = (comm.rank + 1) % 3
sent = comm.send(big + comm.rank, peer, async_op=True)
got = np.empty_like(big)
comm.recv(got, (comm.rank + 2) % 3)
sent.wait()
assert (got == big + (comm.rank + 2) % 3).all()
with comm.split(comm.rank % 2) as half:
    assert int(half.all_reduce(np.array([1]))[0]) == (1 if comm.rank == 1 else 2)
result = [float(comm.broadcast(np.full(1000, comm.rank + 7.0), root=2)[-1])]
"""


class Listener:
    """Stands before a server and keeps what it is sent."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self.heard = bytearray()
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for end in (self._door, *self._ends):
            end.close()

    def _start(self, work: Callable[..., None], *ends: socket.socket) -> None:
        self._threads.append(threading.Thread(target=work, args=ends, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(self._target)
                self._ends += [near, far]
                self._start(self._pump, near, far)
                self._start(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.heard += data
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def overheard(tls: str) -> Iterator[Listener]:
    with serving(tls=tls) as (address,), contextlib.closing(Listener(address)) as listener:
        yield listener


def test_every_operation_works_encrypted(job: StartJob) -> None:
    ranks = job(3, transport="tcp", tls="on")
    assert ranks.call(EVERYTHING) == [[9.0]] * 3
    ranks.call("comm.close()")


def test_who_listens_in_reads_rows_only_where_nothing_is_encrypted() -> None:
    gradient = np.random.default_rng(3).standard_normal((50, 16)).astype(np.float32)
    ids = np.arange(50)
    for tls, is_read in (("off", True), ("on", False)):
        with (
            overheard(tls) as listener,
            join([listener.address], tls=tls, transport="tcp") as ps,
        ):
            table = ps.sparse_table("t", dim=16, optimizer=optim.Sum())
            table.push(ids, gradient)
            pulled = table.pull(ids)
            for row in (gradient, pulled):
                assert (row[7].tobytes() in listener.heard) == is_read, tls
            assert pulled.shape == gradient.shape


def test_a_rank_that_dies_is_named_over_encrypted_links_too(job: StartJob) -> None:
    ranks = job(3, transport="tcp", tls="on")
    for rank in ranks.others(1):
        rank.begin("say('in'); comm.all_reduce(np.ones(3_000_000))")
        rank.expect("in")
    ranks.ranks[1].kill()
    for outcome in ranks.outcomes(ranks.others(1)):
        assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome
    left = "comm = comm.shrink(); result = float(comm.all_reduce(np.ones(4))[0])"
    for rank in ranks.others(1):
        rank.begin(left)
    assert [outcome.result for outcome in ranks.outcomes(ranks.others(1))] == [2.0, 2.0]


def test_servers_that_want_it_refuse_a_client_that_does_not_and_say_so() -> None:
    with serving(tls="on") as addresses:
        with pytest.raises(AuthError, match="GRADRING_TLS is off here"):
            join(addresses, tls="off", transport="tcp", timeout=5)
        with join(addresses, tls="on", transport="tcp") as ps:
            assert ps.sparse_table("t", dim=4, optimizer=optim.Sum()).pull([1, 2]).shape == (2, 4)
    with serving(tls="off") as addresses, join(addresses, tls="on", transport="tcp") as ps:
        assert len(ps.sparse_table("t", dim=4, optimizer=optim.Sum())) == 0


def test_another_secret_is_an_auth_error_over_tls_too() -> None:
    with serving(tls="on") as addresses:
        with pytest.raises(AuthError, match="GRADRING_SECRET"):
            join(addresses, tls="on", transport="tcp", secret="another secret", timeout=5)
        with join(addresses, tls="on", transport="tcp") as ps:  # Nobody else is disturbed.
            assert len(ps.sparse_table("t", dim=4, optimizer=optim.Sum())) == 0


def test_a_stranger_that_speaks_tls_gets_nothing(job: StartJob) -> None:
    ranks = job(2, transport="tcp", tls="on")
    found = re.search(r"\((.*):(\d+)\)", ranks.ranks[0].call("result = comm.describe(0)"))
    assert found is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((found[1], int(found[2]))) as connection,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(connection).recv(1)
    with socket.create_connection((found[1], int(found[2]))) as connection:
        connection.sendall(b"\x16\x03\x01\x40\x00" + os.urandom(1 << 16))
        connection.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass
    assert ranks.call("result = int(comm.split(0).all_reduce(np.array([1]))[0])") == [2, 2]
    assert "secret" in ranks.ranks[0].log


def test_a_job_that_encrypts_all_tells_its_state_to_who_does_too(job: StartJob) -> None:
    ranks = job(0)
    ranks.start(2, transport="tcp", tls="on", secret="a secret of this test")
    found = re.search(r"\((.*)\)", ranks.ranks[0].call("result = comm.describe(0)"))
    assert found is not None
    environ = {"GRADRING_SECRET": "a secret of this test", "GRADRING_TLS": "on"}
    assert [report.rank for report in reports_of(found[1], environ) if report.record] == [0, 1]
    # Not by reports_of, which would go on to knock at the doors of other tests' jobs.
    with pytest.raises(AuthError, match="GRADRING_TLS is off here"):
        _core.inspect(found[1], b"a secret of this test", 3000, "off")


def test_a_value_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="GRADRING_TLS='yes' is not one of auto, on, off"):
        Settings.from_environ({"GRADRING_TLS": "yes"})
    with pytest.raises(InvalidArgument, match="tls='yes'"):
        Settings.from_environ({}, tls="yes")
