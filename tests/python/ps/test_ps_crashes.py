"""Servers that are killed at random points: with the log on, nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from ps_servers import SECRET, join

IDS = 500
AT_ONCE = 40


class Server:
    """`gradring serve` with a log, which can be killed and started again at the same address."""

    def __init__(self, log: Path, fsync: str, index: int, servers: int) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._command = [
            sys.executable, "-m", "gradring", "serve", "--listen-fd", str(self._socket.fileno()),
            "--log", str(log), "--fsync", fsync, "--index", str(index), "--servers", str(servers),
        ]  # fmt: skip
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, "GRADRING_SECRET": SECRET},
            pass_fds=[self._socket.fileno()],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert b"log in" in self._process.stdout.readline()

    def kill_and_start(self) -> None:
        self.kill()
        self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def close(self) -> None:
        self.kill()
        self._socket.close()


@contextlib.contextmanager
def started(log: Path, fsync: str, count: int) -> Iterator[list[Server]]:
    servers: list[Server] = []
    try:
        for index in range(count):
            servers.append(Server(log, fsync, index, count))  # noqa: PERF401 - for the clean-up
        yield servers
    finally:
        for server in servers:
            server.close()


class Worker:
    """Pushes ones to random ids for as long as it may, and counts what was acknowledged."""

    def __init__(self, addresses: list[str], number: int) -> None:
        self.acknowledged = np.zeros(IDS, np.float32)
        self.pushes = 0
        self.error: BaseException | None = None
        self._stops = threading.Event()
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(addresses, number))
        self._thread.start()

    def _run(self, addresses: list[str], number: int) -> None:
        try:
            with join(addresses, client=number, timeout=60) as ps:
                table = ps.sparse_table("counts", 2, gr.optim.Sum())
                dice = np.random.default_rng(number)
                while not self._stops.is_set():
                    self._push_some(table, dice)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            with self._moved:
                self._moved.notify_all()

    def _push_some(self, table: Any, dice: np.random.Generator) -> None:
        # Several under way at once: a kill comes between them.
        batches = [dice.choice(IDS, AT_ONCE, replace=False) for _ in range(4)]
        ones = np.ones((AT_ONCE, 2), np.float32)
        for batch, push in [(b, table.push(b, ones, async_op=True)) for b in batches]:
            push.wait()
            self.acknowledged[batch] += 1
            with self._moved:
                self.pushes += 1
                self._moved.notify_all()

    def wait_for(self, more: int) -> None:
        with self._moved:
            until = self.pushes + more
            self._moved.wait_for(lambda: self.pushes >= until or self.error is not None, 60)
        assert self.error is None, self.error

    def stop(self) -> None:
        self._stops.set()
        self._thread.join(90)


def kill_again_and_again(log: Path, fsync: str, kills: int) -> None:
    dice = random.Random(kills)
    with started(log, fsync, 2) as servers:
        addresses = [server.address for server in servers]
        workers = [Worker(addresses, number) for number in range(2)]
        try:
            for _ in range(kills):
                workers[0].wait_for(dice.randrange(1, 40))
                dice.choice(servers).kill_and_start()
            for worker in workers:
                worker.wait_for(1)
        finally:
            for worker in workers:
                worker.stop()
        assert [worker.error for worker in workers] == [None, None]
        with join(addresses, client=7) as ps:
            table = ps.sparse_table("counts", 2, gr.optim.Sum())
            expected = sum(worker.acknowledged for worker in workers)
            assert expected.sum() == AT_ONCE * sum(worker.pushes for worker in workers)
            for column in table.pull(np.arange(IDS)).T:
                assert (column == expected).all()


def test_nothing_acknowledged_is_lost_when_servers_are_killed(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, "none", 5)


@pytest.mark.slow  # Fifty starts of a server take a minute or two.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fsync", ["none", "always", "20"])
def test_nothing_acknowledged_is_lost_at_fifty_random_points(tmp_path: Path, fsync: str) -> None:
    kill_again_and_again(tmp_path, fsync, 50)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_client_that_computes_meanwhile_comes_back_to_a_server_started_again(
    tmp_path: Path, transport: str
) -> None:
    with (
        started(tmp_path, "none", 1) as [server],
        join([server.address], client=1, transport=transport) as idle,
    ):
        table = idle.sparse_table("counts", 2, gr.optim.Sum())
        table.push([1], np.ones((1, 2), np.float32))
        server.kill_and_start()
        with join([server.address], client=2) as ps:
            until = time.monotonic() + 20
            while not knows(ps, client=1):
                assert time.monotonic() < until, "the idle client has not come back"
        np.testing.assert_array_equal(table.pull([1]), 1)


def knows(ps: Any, client: int) -> bool:
    """Whether the server has a connection to this client."""
    [shard] = ps.stats()
    return any(one["client"] == client and one["connected"] for one in shard["clients"])


def test_a_server_does_not_start_with_a_damaged_log_and_names_it(tmp_path: Path) -> None:
    with started(tmp_path, "none", 1) as [server], join([server.address]) as ps:
        table = ps.sparse_table("counts", 2, gr.optim.Sum())
        for _ in range(3):
            table.push([1, 2], np.ones((2, 2), np.float32))
    segment = tmp_path / "shard-00000-of-00001" / "segment-000000000001.log"
    data = bytearray(segment.read_bytes())
    data[150] ^= 1
    segment.write_bytes(data)
    command = [sys.executable, "-m", "gradring", "serve", "--log", str(tmp_path)]
    failed = subprocess.run(
        command,
        env={**os.environ, "GRADRING_SECRET": SECRET},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert failed.returncode == 1
    assert f"{segment} is damaged at byte " in failed.stderr


def test_a_server_whose_disk_is_full_stops_and_comes_back_with_what_it_acknowledged(
    tmp_path: Path,
) -> None:
    pushed = 0
    limit = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); "
    limit += "from gradring.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", limit, "serve", "--log", str(tmp_path)]
    with subprocess.Popen(
        command,
        env={**os.environ, "GRADRING_SECRET": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().split(" at ")[1].split(",")[0]
        with join([address], timeout=3) as ps:
            table = ps.sparse_table("counts", 2, gr.optim.Sum())
            ones = np.ones((IDS, 2), np.float32)
            with contextlib.suppress(gr.Error):
                while True:
                    table.push(np.arange(IDS), ones)
                    pushed += 1
        assert process.wait(30) == 1
        complaint = process.stderr.read()
    assert "segment-000000000001.log cannot be written: File too large" in complaint
    assert pushed > 0
    with started(tmp_path, "none", 1) as [server], join([server.address]) as ps:
        rows = ps.sparse_table("counts", 2, gr.optim.Sum()).pull(np.arange(IDS))
        assert (rows == pushed).all()
