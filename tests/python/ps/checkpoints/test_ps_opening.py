"""A server that is to load a checkpoint lets clients in when it has."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gradring as gr
from gradring.errors import Mismatch, PeerLost
from gradring.ps import checkpoint
from gradring.ps.saved.load_note import UNKNOWN
from gradring.ps.serving import Serving
from ps_servers import connected, join, start_server

IDS = np.arange(50)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_whoever_comes_during_the_load_waits_for_it_and_finds_what_was_loaded(
    tmp_path: Path,
) -> None:
    with connected(1) as ps:
        ps.sparse_table("t", 2, gr.optim.Sum()).push(IDS, np.full((50, 2), 3.0))
        ps.save(str(tmp_path / "step"))
    with start_server(waits_to_open=True) as server:
        before = open_files()
        found = []

        def pull() -> None:
            with join([server.address], client=2) as ps:
                found.append(ps.sparse_table("t", 2, gr.optim.Sum()).pull(IDS))

        for _ in range(50):  # Whoever gives up leaves nothing behind.
            with pytest.raises(PeerLost, match="no answer"):
                join([server.address], client=1, timeout=0.02)
        assert open_files() < before + 10
        early = threading.Thread(target=pull)
        early.start()
        checkpoint.load_server(server.core, str(tmp_path / "step"), 1)
        server.core.open()
        early.join()
        np.testing.assert_array_equal(found[0], 3)


@contextlib.contextmanager
def begun(index: int, url: Path) -> Iterator[Serving]:
    with start_server(index, 2, waits_to_open=True) as server:
        checkpoint.load_server(server.core, str(url), 2)
        server.core.open()
        yield server


def test_servers_that_began_with_different_checkpoints_are_refused_by_name(tmp_path: Path) -> None:
    one, other = tmp_path / "1", tmp_path / "2"
    with connected() as ps:
        ps.sparse_table("t", 2, gr.optim.Sum()).push(IDS, np.full((50, 2), 3.0))
        ps.save(one)
        ps.save(other)
    shutil.copytree(one, tmp_path / "copy")
    with begun(0, one) as first, begun(1, other) as second, start_server(1, 2) as empty:
        told = rf"{first.address} began with the checkpoint {re.escape(str(one))} \(cut"
        with pytest.raises(Mismatch, match=rf"{told}.*{second.address} with .*{other} \(cut"):
            join([first.address, second.address])
        with pytest.raises(Mismatch, match=rf"{told}.*{empty.address} with no checkpoint"):
            join([first.address, empty.address])
        # Where each has found it does not matter.
        with begun(1, tmp_path / "copy") as same, join([first.address, same.address]) as ps:
            assert (ps.sparse_table("t", 2, gr.optim.Sum()).pull(IDS) == 3).all()


def test_a_server_that_does_not_know_what_it_began_with_is_compared_with_none() -> None:
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(start_server(index, 3, waits_to_open=True)) for index in range(3)
        ]
        for server, beginning in zip(servers, ((UNKNOWN, "/a"), (5, "/b"), (0, "")), strict=True):
            server.core.tell_beginning(*beginning)
            server.core.open()
        told = rf"^the .* at {servers[1].address} began with the checkpoint /b .cut 5.*"
        with pytest.raises(Mismatch, match=rf"{told}{servers[2].address} with no checkpoint"):
            join([server.address for server in servers])
