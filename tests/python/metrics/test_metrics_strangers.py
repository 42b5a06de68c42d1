"""Metrics under stress: strangers at their port, forks, threads that cannot be had."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import gradring as gr
from gradring.prometheus import endpoint, sources
from gradring.prometheus.sources import Reading, Source

pytestmark = pytest.mark.timeout(60)

prometheus_client = pytest.importorskip(
    "prometheus_client", reason="prometheus-client (gradring[metrics]) is not installed"
)

RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of the servers that are made from here on, to be changed."""
    from gradring.prometheus import web_server

    monkeypatch.setattr(web_server, "MOST_AT_ONCE", 2)
    return web_server


@pytest.fixture
def served(limits: Any) -> Iterator[endpoint.Endpoint]:
    with gr.prometheus.serve(registry=prometheus_client.CollectorRegistry()) as served:
        yield served


def visit(served: endpoint.Endpoint, said: bytes = b"") -> socket.socket:
    host, _, port = served.address.rpartition(":")
    stranger = socket.create_connection((host, int(port)), timeout=20)
    stranger.sendall(said)
    return stranger


def scrape(served: endpoint.Endpoint) -> None:
    with urllib.request.urlopen(served.url, timeout=20) as answer:
        assert answer.status == 200


def test_connections_that_say_nothing_make_room_for_a_scrape(served: endpoint.Endpoint) -> None:
    threads = threading.active_count()
    silent = [visit(served, b"GET /metr") for _ in range(5)]
    scrape(served)
    for stranger in silent[:3]:
        assert stranger.recv(1) == b""
    assert threading.active_count() <= threads + 2
    for stranger in silent:
        stranger.close()


def test_a_connection_that_goes_on_and_on_is_ended(
    served: endpoint.Endpoint, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LONGEST_SECONDS", 0.1)
    with visit(served, b"GET /metr") as stranger:
        assert stranger.recv(1) == b""


def test_who_hangs_up_leaves_nothing_in_the_programs_output(
    served: endpoint.Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    threads = threading.active_count()
    for said in (b"", b"GET /metr", b"\x16\x03\x01"):
        stranger = visit(served, said)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        stranger.close()
    scrape(served)
    while threading.active_count() > threads:
        pass
    assert capfd.readouterr() == ("", "")


def test_no_name_server_is_asked_who_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_: str = "") -> str:
        raise AssertionError("asked")

    monkeypatch.setattr(socket, "getfqdn", ask)
    with gr.prometheus.serve(registry=prometheus_client.CollectorRegistry()) as served:
        scrape(served)


FORKED = """
import os, sys, threading
import gradring as gr
from gradring.prometheus import sources

parent = os.getpid()
asked = threading.Event()
def read():
    if os.getpid() == parent:
        asked.set()
        threading.Event().wait()
    return []
sources.add("hangs", read)
source = sources.everybody()[-1]
with gr.prometheus.serve(0) as served:
    assert source.readings(0.01) is None and asked.wait()
    child = os.fork()
    if child == 0:
        os.write(1, b"%r %r|" % (source.readings(5.0), served._server.socket.fileno()))
        sys.exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def test_a_forked_child_ends_and_holds_neither_the_port_nor_what_a_thread_was_reading() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("[] -1|0\n", "")


def test_a_scrape_waits_for_a_source_once_though_another_is_reading_it() -> None:
    goes_on = threading.Event()

    def hang() -> list[Reading]:
        goes_on.wait()
        return []

    source = Source("hanging", hang)
    begun = time.monotonic()
    with source._asked:
        waiting = threading.Thread(target=source.readings, args=(1.5,))
        waiting.start()
        goes_on.wait(1.0)
    waiting.join()
    assert time.monotonic() - begun < 2.3
    goes_on.set()


def test_a_source_is_read_again_after_no_thread_could_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    source = Source("short", list)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert source.readings(0.1) is None
    assert source.readings(sources.LONGEST_SECONDS) == []
