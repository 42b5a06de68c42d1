"""GRADRING_PORTS: who listens at a free port takes one of the range, or says that none is left."""

from __future__ import annotations

import random
import re
import socket
from typing import Any

import pytest

import gradring as gr
from gradring.bench.peers.link import RawLink
from gradring.settings import port_range
from gradring.settings.config import Settings
from ps_servers import SECRET, start_server
from test_rendezvous import join_all
from thread_ranks import ThreadWorld, free_ports

pytestmark = pytest.mark.timeout(60)


def test_ranks_of_one_host_that_start_at_once_take_a_port_of_the_range_each() -> None:
    with free_ports(4) as (first, last):
        world = ThreadWorld(5, "tcp", ports=f"{first}-{last}")
        try:
            told = world.run(lambda comm: [comm.describe(rank) for rank in range(1, 5)])
        finally:
            world.run(lambda comm: comm.close())
    for each in told:
        ports = [int(re.findall(r":(\d+)\)", text)[0]) for text in each]
        assert sorted(ports) == list(range(first, last + 1))


def test_a_range_without_a_free_port_is_named_with_how_many_were_tried() -> None:
    with free_ports(2) as (first, last):
        ports = f"{first}-{last}"
        with socket.create_server(("127.0.0.1", first)), socket.create_server(("127.0.0.1", last)):
            _, second = join_all(
                {"rank": 0, "world_size": 2, "timeout": 1.0},
                {"rank": 1, "world_size": 2, "ports": ports},
            )
            with pytest.raises(gr.InvalidArgument) as refused:
                start_server(ports=(first, last))
    assert type(second) is gr.InvalidArgument
    assert str(second) == str(refused.value)
    assert f"127.0.0.1: all 2 ports of GRADRING_PORTS={ports} are taken; end what" in str(second)


def test_a_server_takes_a_port_of_the_range_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with free_ports(2) as (first, last):
        with start_server(ports=(first, first)) as server:
            assert server.address == f"127.0.0.1:{first}"
        with start_server(ports=(first, first), port=last) as server:
            assert server.address == f"127.0.0.1:{last}"
        monkeypatch.setenv("GRADRING_PORTS", f"{last}-{last}")
        with gr.ps.connect() as ps:
            assert ps.servers == (f"127.0.0.1:{last}",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("20000", "is no range of ports: write FIRST-LAST, as 20000-20099"),
        ("a-b", "is no range of ports"),
        ("20000-", "is no range of ports"),
        ("-1-5", "is no range of ports"),
        ("20000-20099-20100", "is no range of ports"),
        (20000, "is no range of ports"),
        ("0-10", "a port is a number from 1 to 65535"),
        ("60000-70000", "a port is a number from 1 to 65535"),
        ("20099-20000", "its last port is below its first"),
    ],
)
def test_what_is_no_range_is_refused_by_argument_and_by_variable(text: Any, words: str) -> None:
    with pytest.raises(gr.InvalidArgument, match=re.escape(f"ports={text!r}")) as refused:
        gr.init(ports=text)
    assert words in str(refused.value)
    if isinstance(text, str):
        with pytest.raises(gr.InvalidArgument, match="GRADRING_PORTS=") as refused:
            Settings.from_environ({"GRADRING_PORTS": text})
        assert words in str(refused.value)


def test_an_argument_wins_over_the_variable_and_no_text_is_no_range() -> None:
    environ = {"GRADRING_PORTS": "20000-20099"}
    assert Settings.from_environ(environ).ports == "20000-20099"
    assert Settings.from_environ(environ, ports="1-2").ports == "1-2"
    assert Settings.from_environ({"GRADRING_PORTS": ""}).ports is None


def test_a_server_of_the_command_line_knows_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradring.cli import main

    monkeypatch.setenv("GRADRING_SECRET", SECRET)
    with free_ports(1) as (port, _), socket.create_server(("127.0.0.1", port)):
        assert main(["serve", "--ports", f"{port}-{port}"]) == 2


def test_metrics_take_their_free_port_from_the_same_range(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    from gradring.cli import main

    monkeypatch.setenv("GRADRING_SECRET", SECRET)
    with free_ports(2) as (taken, free), socket.create_server(("127.0.0.1", taken)):
        range_of_one = f"{taken}-{taken}"
        options = ["--port", str(free), "--ports", range_of_one, "--metrics", "0"]
        assert main(["serve", *options]) == 2
        assert f"GRADRING_PORTS={range_of_one} are taken" in capsys.readouterr().err
        monkeypatch.setenv("GRADRING_METRICS", "0")
        with pytest.raises(gr.InvalidArgument, match=f"GRADRING_PORTS={range_of_one} are taken"):
            gr.init(rank=0, world_size=1, ports=range_of_one)


def test_a_bench_of_the_bare_link_listens_in_the_range_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with free_ports(3) as (first, last):  # Rank 1 of the world has one.
        monkeypatch.setenv("GRADRING_PORTS", f"{first}-{last}")
        world = ThreadWorld(2, "tcp")
        links = [RawLink(comm) for comm in world.comms]
        world.run(lambda comm: links[comm.rank].stream(1 << 10, 1, together=True))
        for link in links:
            assert link._next is not None
            assert link._previous is not None
            with link._next, link._previous:
                assert first <= link._next.getpeername()[1] <= last
        world.run(lambda comm: comm.close())


def test_what_a_program_draws_by_its_own_seed_stays_the_same() -> None:
    before = random.getstate()
    port_range.listen_at_free_port("here", "20000-20099", lambda port: port)
    assert random.getstate() == before
