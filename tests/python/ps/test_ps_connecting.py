"""Finding and reaching parameter servers: alone, under a launcher, wrong secret, nobody there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gradring as gr
from gradring import _core
from gradring.errors import AuthError, Closed, Error, InvalidArgument, Mismatch
from gradring.ps import connecting
from gradring.ps.connecting import current
from ps_servers import SECRET, join, serving, start_server, together
from telling_lock import Telling


def test_alone_a_server_lives_inside_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADRING_SERVERS", raising=False)
    with gr.ps.connect() as ps:
        host, port = ps.servers[0].rsplit(":", 1)
        assert (host, ps.client) == ("127.0.0.1", 0)
        table = ps.sparse_table("t", 2, gr.optim.Sum())
        table.push([1], [[1.0, 2.0]])
        assert table.pull([1]).tolist() == [[1, 2]]
        socket.create_connection((host, int(port))).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_servers_and_secret_are_found_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(2) as addresses:
        monkeypatch.setenv("GRADRING_SERVERS", ",".join(addresses))
        with pytest.raises(InvalidArgument, match="the secret of the parameter servers"):
            gr.ps.connect()
        monkeypatch.setenv("GRADRING_SECRET", SECRET)
        with gr.ps.connect() as ps:
            assert list(ps.servers) == addresses
            assert ps.client >= 1 << 31  # No rank of a job.
            assert len(ps.stats()) == 2
            assert current() is ps


def test_a_ranks_first_connection_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    role = {"RANK": "3", "WORLD_SIZE": "4", "RENDEZVOUS": "127.0.0.1:1"}
    for name, value in role.items():
        monkeypatch.setenv(f"GRADRING_{name}", value)
    with serving() as addresses:
        with join(addresses) as first, join(addresses) as second:
            assert first.client == 3
            assert second.client >= 1 << 31
            with pytest.raises(InvalidArgument, match="this process has 2 connections"):
                current()
        with join(addresses) as again:
            assert again.client == 3
        with join(addresses, client=7) as chosen:
            assert chosen.client == 7


class Meeting:
    """A `_core.PsClient` that is made only when so many are being made at once."""

    def __init__(self, parties: int) -> None:
        self._barrier = threading.Barrier(parties)
        self._make = _core.PsClient

    def __call__(self, **options: Any) -> Any:
        self._barrier.wait(20)
        return self._make(**options)


def test_of_connections_made_at_once_one_has_the_ranks_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    role = {"RANK": "3", "WORLD_SIZE": "4", "RENDEZVOUS": "127.0.0.1:1"}
    for name, value in role.items():
        monkeypatch.setenv(f"GRADRING_{name}", value)
    with serving() as addresses:
        monkeypatch.setattr(_core, "PsClient", Meeting(3))
        made = together([lambda: join(addresses)] * 3)
        with contextlib.ExitStack() as stack:
            for ps in made:
                stack.enter_context(ps)
            first, *others = sorted(ps.client for ps in made)
            assert first == 3
            assert all(number >= 1 << 31 for number in others)
            for ps in made:
                ps.stats()


def test_a_number_whose_connection_failed_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    role = {"RANK": "3", "WORLD_SIZE": "4", "RENDEZVOUS": "127.0.0.1:1"}
    for name, value in role.items():
        monkeypatch.setenv(f"GRADRING_{name}", value)
    with serving() as addresses:
        with pytest.raises(AuthError):
            join(addresses, secret="another one, just as long")
        with join(addresses) as ps:
            assert ps.client == 3


def test_threads_that_ask_for_the_connection_at_once_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRADRING_SERVERS", raising=False)
    begun, goes_on = threading.Event(), threading.Event()
    make, made = _core.PsClient, []

    def make_slowly(**options: Any) -> Any:
        made.append(options["client"])
        begun.set()
        assert goes_on.wait(20)
        return make(**options)

    def ask_second() -> Any:
        assert begun.wait(20)
        return current()

    monkeypatch.setattr(_core, "PsClient", make_slowly)
    monkeypatch.setattr(connecting._locks, "current", Telling(goes_on))
    first, second = together([current, ask_second])
    with first:
        assert first is second
        assert made == [0]


def test_several_ranks_without_servers_are_told_how_to_start_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "RENDEZVOUS": "127.0.0.1:1"}.items():
        monkeypatch.setenv(f"GRADRING_{name}", value)
    with pytest.raises(InvalidArgument, match=r"rank 1 of 2 .*gradring run --servers S"):
        gr.ps.connect()


@pytest.mark.parametrize(
    "options", [{"client": -1}, {"client": 1 << 32}, {"timeout": 0}, {"transport": "rdma"}]
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        gr.ps.connect("127.0.0.1:1", secret="s", **options)  # type: ignore[arg-type]


def test_a_wrong_secret_opens_no_door() -> None:
    with serving() as addresses:
        with pytest.raises(AuthError):
            join(addresses, secret="another one, just as long")
        with join(addresses) as ps:
            assert len(ps.stats()) == 1


def test_a_server_that_is_not_there_is_named_by_the_deadline() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(Error, match=address):
            join([address], timeout=0.5)
        assert time.monotonic() - begin < 10


def test_servers_in_another_order_or_number_are_refused() -> None:
    with serving(2) as addresses:
        with pytest.raises(Mismatch):
            join(addresses[::-1])
        with pytest.raises(Mismatch):
            join(addresses[:1])


def test_servers_of_different_numbers_of_threads_are_told_apart_before_anything_is_sent() -> None:
    with start_server(0, 2, threads=2) as first, start_server(1, 2, threads=1) as second:
        with pytest.raises(
            Mismatch, match=r"has 1 threads, .* has 2: .* the same --threads"
        ) as told:
            join([first.address, second.address])
        assert first.address in str(told.value)
        assert second.address in str(told.value)


def test_a_client_with_the_same_number_takes_the_place() -> None:
    with serving() as addresses:
        old = join(addresses, client=4)
        table = old.sparse_table("t", 1, gr.optim.Sum())
        table.push([1], [[1.0]])
        with join(addresses, client=4) as new:
            assert new.sparse_table("t", 1, gr.optim.Sum()).pull([1]).tolist() == [[1]]
            with pytest.raises(Closed):
                table.push([1], [[1.0]])
            assert new.sparse_table("t", 1, gr.optim.Sum()).pull([1]).tolist() == [[1]]
        old.close()


@pytest.mark.parametrize("before", ["", "table.pull([1], async_op=True).wait()"])
def test_a_forked_child_leaves_the_connection_to_its_parent(before: str) -> None:
    program = (
        "import os, sys\n"
        "import gradring as gr\n"
        "ps = gr.ps.connect()\n"
        "table = ps.sparse_table('t', 1, gr.optim.Sum())\n"
        f"{before}\n"  # The connection's thread then sleeps in the parent.
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "table.push([1], [[2.0]])\n"
        "print(table.pull([1]).tolist())\n"
    )
    done = subprocess.run(
        # Later versions of Python warn of forks beside threads.
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "[[2.0]]\n", "")


def test_pushes_that_nobody_waited_for_are_done_at_exit(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np\n"
        "import gradring as gr\n"
        "ps = gr.ps.connect(sys.argv[1], secret=sys.argv[2])\n"
        "table = ps.sparse_table('t', 1, gr.optim.Sum())\n"
        "for _ in range(100): table.push([1], [[1.0]], async_op=True)\n"
    )
    with serving() as addresses:
        command = [sys.executable, "-c", program, addresses[0], SECRET]
        subprocess.run(command, timeout=60, check=True, env={**os.environ, "TMPDIR": str(tmp_path)})
        with join(addresses) as ps:
            assert ps.sparse_table("t", 1, gr.optim.Sum()).pull([1]).tolist() == [[100]]


def test_a_server_that_lost_its_rows_is_told_as_such() -> None:
    server = start_server()
    port = int(server.address.rsplit(":", 1)[1])
    ps = join([server.address], timeout=5)
    table = ps.sparse_table("t", 1, gr.optim.Sum())
    table.push([1], [[1.0]])
    server.stop()
    with start_server(port=port), pytest.raises(Error, match="state"):
        table.push([1], [[1.0]])
    ps.close()


def test_stats_are_plain_values() -> None:
    with serving(threads=2) as addresses, join(addresses, client=1) as ps:
        ps.sparse_table("t", 1, gr.optim.Sum()).push([1], [[1.0]])
        found = ps.stats()
        assert json.loads(json.dumps(found)) == found
        assert [shard["shard"] for shard in found] == [0, 1]
        assert {client["client"] for shard in found for client in shard["clients"]} == {1}


def test_a_failure_that_nobody_has_taken_is_one_line_at_the_end_of_the_process() -> None:
    program = """
import numpy as np, gradring as gr
ps = gr.ps.connect()
table = ps.sparse_table("t", 2, gr.optim.Sum())
def fail(timeout):
    raise gr.TimedOut("a push was not acknowledged")
ps.close = fail
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("gradring: closing the connection to the parameter servers at 127.0.0.1")
    assert "a push was not acknowledged" in line
