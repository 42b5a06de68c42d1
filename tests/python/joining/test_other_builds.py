"""Two builds of Gradring that do not understand each other say so, at both ends."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator

import pytest

import gradring as gr
from gradring import _core
from thread_ranks import listening_socket

pytestmark = pytest.mark.timeout(60)

HERE = f"version {_core.wire_version} of the wire (Gradring {_core.version})"
LATER = b"GRAD" + bytes([200, 1, 20, 3])  # How it begins, at either end of a connection.
LATER_TEXT = "version 200 of the wire (Gradring 1.20.3)"


@pytest.fixture
def later_host() -> Iterator[str]:
    """Yield where something of a later version listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(40, socket.MSG_WAITALL)
                connection.sendall(LATER.ljust(64, b"\0"))

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_rank_that_meets_a_rank_0_of_another_version_names_both_at_once(later_host: str) -> None:
    with pytest.raises(gr.ProtocolError) as raised:
        gr.init(rank=1, world_size=2, rendezvous=later_host, secret="s", timeout=60)
    text = str(raised.value)
    assert f"rank 1 and rank 0 at {later_host} do not understand each other" in text
    assert f"it speaks {LATER_TEXT}, this process {HERE}" in text
    assert "install the same Gradring everywhere" in text


def test_a_client_names_a_parameter_server_of_another_version_at_once(later_host: str) -> None:
    with pytest.raises(gr.ProtocolError) as raised:
        gr.ps.connect([later_host], secret="s", timeout=60)
    text = str(raised.value)
    assert f"the parameter server at {later_host} do not understand each other" in text
    assert f"it speaks {LATER_TEXT}, this process {HERE}" in text


def test_rank_0_names_who_came_with_another_version_where_it_names_who_is_missing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    listen_fd, address = listening_socket()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as later:
        came_from = "127.0.0.1:" + str(later.getsockname()[1])
        later.sendall(LATER + os.urandom(32))
        with pytest.raises(gr.TimedOut) as raised:
            gr.init(
                rank=0, world_size=2, rendezvous=address, secret=secrets.token_hex(16),
                timeout=0.5, listen_fd=listen_fd,
            )  # fmt: skip
        # It was told in turn.
        said = later.recv(64, socket.MSG_WAITALL)
        assert (said[:5], said[8:]) == (b"GRAD" + bytes([_core.wire_version]), bytes(56))
    said_here = f"{came_from}: it speaks {LATER_TEXT}, this process {HERE}"
    assert f"a process that may be one of them was refused, {said_here}" in str(raised.value)
    assert f"refused a connection from {said_here}" in capfd.readouterr().err


def test_a_stranger_that_comes_with_ever_other_versions_is_told_of_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    listen_fd, address = listening_socket()
    host, port = address.rsplit(":", 1)
    source = f"127.0.{secrets.randbelow(250)}.{secrets.randbelow(250) + 2}"  # Nobody's before.
    strangers = []
    for release in range(5):
        stranger = socket.create_connection((host, int(port)), source_address=(source, 0))
        stranger.sendall(b"GRAD" + bytes([200, 1, 0, release]) + bytes(32))
        strangers.append(stranger)
    with pytest.raises(gr.TimedOut):
        gr.init(
            rank=0, world_size=2, rendezvous=address, secret=secrets.token_hex(16),
            timeout=0.3, listen_fd=listen_fd,
        )  # fmt: skip
    for stranger in strangers:
        assert len(stranger.recv(64, socket.MSG_WAITALL)) == 64  # All were told in turn.
        stranger.close()
    assert capfd.readouterr().err.count(f"refused a connection from {source}:") == 1
