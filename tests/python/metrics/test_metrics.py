"""Metrics for Prometheus: a scrape over HTTP tells what workers and servers do, and never hangs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from geo_steps import exchange, geo
from gradring.cli import main
from gradring.collectives import communicator, joining, measured
from gradring.doctor import machine_doctor
from gradring.prometheus import endpoint, sources
from gradring.prometheus.catalogue import METRICS
from gradring.prometheus.sources import Reading
from gradring.settings.config import Settings
from launcher_runs import LIVE, launching
from ps_servers import SECRET, connected, join
from source_tree import ROOT
from thread_ranks import ThreadWorld, free_ports

pytestmark = pytest.mark.timeout(60)

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def client() -> Any:
    return pytest.importorskip(
        "prometheus_client", reason="prometheus-client (gradring[metrics]) is not installed"
    )


@pytest.fixture
def served(client: Any) -> Iterator[endpoint.Endpoint]:
    with gr.prometheus.serve(registry=client.CollectorRegistry()) as served:
        yield served


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def scrape(url: str) -> Values:
    """Every sample, by its name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text_of(url))
        for sample in family.samples
    }


def value_of(values: Values, name: str, **labels: str) -> float:
    """The one sample that has these labels, among others."""
    (found,) = [
        value
        for (of, given), value in values.items()
        if of == name and labels.items() <= dict(given).items()
    ]
    return found


@pytest.fixture
def world() -> Iterator[ThreadWorld]:
    """Two ranks, who alone are told of."""
    world = ThreadWorld(2, "tcp")
    measured.begin(weakref.WeakSet(world.comms))
    yield world
    measured.begin(communicator._open)
    world.run(lambda comm: comm.close())


def test_a_scrape_tells_what_each_communicator_has_begun_and_sent(
    served: endpoint.Endpoint, world: ThreadWorld
) -> None:
    assert served.address.startswith("127.0.0.1:")
    before = scrape(served.url)
    world.run(lambda comm: [comm.all_reduce(np.ones(1 << 16)) for _ in range(3)])
    sent = np.ones(4)
    world.run(lambda comm: comm.send(sent, 1) if comm.rank == 0 else comm.recv(sent.copy(), 0))
    after = scrape(served.url)
    for rank in ("0", "1"):
        labels = {"rank": rank, "communicator": "0000000000000001"}
        assert value_of(after, "gradring_collectives_total", **labels) == 3
        assert value_of(after, "gradring_messages_total", **labels) == 1
        assert value_of(after, "gradring_communicator_ranks", **labels) == 2
        assert value_of(after, "gradring_collective_under_way_seconds", **labels) == 0
    for way in ("sent", "received"):
        metric = f"gradring_{way}_bytes_total"
        moved = value_of(after, metric, transport="tcp") - value_of(before, metric, transport="tcp")
        assert moved > 3 * (1 << 16) * 8
    assert value_of(after, "gradring_up", source="communicators") == 1


def test_a_collective_that_waits_for_a_rank_is_seen_while_it_does(
    served: endpoint.Endpoint, world: ThreadWorld
) -> None:
    seen: list[Values] = []

    def come_late(comm: gr.Communicator) -> None:
        labels = {"rank": "0"}
        while comm.rank == 1:
            values = scrape(served.url)
            if value_of(values, "gradring_collective_under_way_seconds", **labels) > 0:
                seen.append(values)
                break
        comm.all_reduce(np.ones(1 << 10))

    world.run(come_late)
    assert value_of(seen[0], "gradring_collective_under_way_seconds", rank="1") == 0
    assert value_of(seen[0], "gradring_collectives_total", rank="0") == 1


def test_a_closed_communicator_is_told_no_more(
    served: endpoint.Endpoint, world: ThreadWorld
) -> None:
    parts = world.run(lambda comm: comm.split(0))
    measured.begin(weakref.WeakSet(parts))
    metric = "gradring_communicator_ranks"
    assert value_of(scrape(served.url), metric, rank="0") == 2
    world.run(lambda comm: parts[comm.rank].close())
    assert metric not in {name for name, _ in scrape(served.url)}


def test_worlds_of_one_rank_and_id_are_told_apart_and_keep_their_names(
    served: endpoint.Endpoint,
) -> None:
    worlds = [joining.join(joining.Place(0, 1, "", "secret"), Settings()) for _ in range(2)]
    measured.begin(weakref.WeakSet(worlds))
    try:
        worlds[1].barrier()
        told = {
            labels: value
            for (name, labels), value in scrape(served.url).items()
            if name == "gradring_collectives_total"
        }
        assert sorted(told.values()) == [0, 1]
        worlds[0].close()
        (second,) = (labels for labels, value in told.items() if value == 1)
        assert scrape(served.url)["gradring_collectives_total", second] == 1
    finally:
        measured.begin(communicator._open)
        for each in worlds:
            each.close()


def test_clients_and_optimizers_tell_what_they_count_anyway(served: endpoint.Endpoint) -> None:
    param = np.ones(4, np.float32)
    with connected() as ps:
        with gr.AsyncOptimizer(
            [param], gr.optim.SGD(lr=0.1), ps, name="apart", workers=1
        ) as optimizer:
            for _ in range(3):
                optimizer.step([np.ones(4)])
            optimizer.flush()
            values = scrape(served.url)
            assert value_of(values, "gradring_optimizer_staleness_count", optimizer="apart") == 3
            last = {"optimizer": "apart", "le": "+Inf"}
            assert value_of(values, "gradring_optimizer_staleness_bucket", **last) == 3
            assert value_of(values, "gradring_optimizer_refused_total", optimizer="apart") == 0
        with geo([param], ps, 1, name="replicas") as replicas:
            exchange(replicas, 1.0)
            values = scrape(served.url)
            labels = {"optimizer": "replicas"}
            assert value_of(values, "gradring_geo_exchanges_total", **labels) >= 1
            assert value_of(values, "gradring_geo_workers", **labels) == 1
            exposed = value_of(values, "gradring_geo_exposed_seconds_total", **labels)
            assert 0 < exposed <= replicas.report.exposed_seconds
        assert value_of(values, "gradring_client_sent_bytes_total", client="0") > 0
        assert "apart" not in text_of(served.url)


def test_a_server_tells_of_its_tables_clients_and_staleness(client: Any) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gradring", "serve", "--threads", "2", "--metrics", "0"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "GRADRING_SECRET": SECRET},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"at (\S+), .*, metrics at (http://127\.0\.0\.1:\d+/metrics)$", line)
        assert found, line
        with join([found[1]]) as ps:
            table = ps.sparse_table("words", 4, gr.optim.Sum())
            for _ in range(2):
                table.push(np.arange(10), np.ones((10, 4), np.float32))
            table.pull(np.arange(5))
            values = scrape(found[2])
            shards = [{"server": "0", "shard": shard, "table": "words"} for shard in ("0", "1")]

            def total(metric: str, **more: str) -> float:
                return sum(value_of(values, metric, **shard, **more) for shard in shards)

            assert total("gradring_table_rows") == 10
            assert total("gradring_table_pushed_rows_total") == 20
            assert total("gradring_table_pulled_rows_total") == 5
            assert total("gradring_table_refused_rows_total") == 0
            assert total("gradring_table_memory_bytes") > 0
            counted = total("gradring_table_staleness_updates_count")
            assert counted == total("gradring_table_staleness_updates_bucket", le="+Inf") > 0
            here = {"server": "0", "shard": "0", "state": "connected"}
            assert value_of(values, "gradring_server_clients", **here) == 1
            assert value_of(values, "gradring_up", source="server") == 1
    finally:
        process.terminate()
        assert process.wait(30) == 0
        process.communicate()


def test_a_source_that_hangs_or_fails_holds_no_scrape_up(
    served: endpoint.Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LONGEST_SECONDS", 0.1)
    goes_on = threading.Event()
    asked: list[int] = []

    def hang() -> list[Reading]:
        asked.append(1)
        goes_on.wait()
        return [Reading("gradring_geo_workers", ("late",), 1)]

    sources.add("hanging", hang)

    def fail() -> list[Reading]:
        raise KeyError("what it asks for")

    sources.add("failing", fail)
    try:
        for _ in range(2):
            values = scrape(served.url)
            assert value_of(values, "gradring_up", source="hanging") == 0
            assert value_of(values, "gradring_up", source="failing") == 0
            assert value_of(values, "gradring_up", source="communicators") == 1
        assert len(asked) == 1  # Threads do not pile up.
        goes_on.set()
        while value_of(scrape(served.url), "gradring_up", source="hanging") == 0:
            pass
    finally:
        goes_on.set()
        sources.remove("hanging")
        sources.remove("failing")


RANK = (
    LIVE
    + """
import socket, urllib.request
import gradring as gr
comm = gr.init()
gr.ps.connect()
host, port = os.environ["GRADRING_METRICS"].rsplit(":", 1)
def up(number, source):
    text = urllib.request.urlopen(f"http://{host}:{int(port) + number}/metrics").read().decode()
    return f'gradring_up{{source="{source}"}} 1.0' in text
comm.barrier()
print(all(up(n, "communicators") for n in range(2)), up(2, "server"))
comm.barrier()
"""
)


def test_ranks_and_servers_of_a_job_answer_at_ports_behind_each_other(
    client: Any, tmp_path: Path
) -> None:
    with launching(tmp_path) as start, free_ports(3) as (first, _):
        options = ("-n", "2", "--servers", "1", "--no-prefix")
        code, lines, err = start(RANK, "--metrics", f"127.0.0.1:{first}", *options).finish()
    assert (code, err) == (0, "")
    assert lines.count("True True") == 2


GROWN = (
    LIVE
    + '''
import subprocess, sys, urllib.request
import gradring as gr
host, port = os.environ["GRADRING_METRICS"].rsplit(":", 1)
comm = gr.init(rank=0, world_size=1, rendezvous="127.0.0.1:0", secret="the job")
come = f"""
import gradring as gr
comm = gr.join({comm.meeting_point!r}, secret="the job")
comm.barrier()
comm.recv(bytearray(1), 0)
"""
with subprocess.Popen([sys.executable, "-c", come]) as newcomer:
    while comm.world_size < 2: comm = comm.grow()
    comm.barrier()
    for number in range(2):
        with urllib.request.urlopen(f"http://{host}:{int(port) + number}/metrics") as page:
            print(b'gradring_up{source="communicators"} 1.0' in page.read())
    newcomer.kill()
'''
)


def test_a_newcomer_answers_at_the_first_port_that_the_ranks_of_its_host_have_left_free(
    client: Any, tmp_path: Path
) -> None:
    with launching(tmp_path) as start, free_ports(2) as (first, _):
        options = ("-n", "1", "--no-prefix", "--metrics", f"127.0.0.1:{first}")
        code, lines, err = start(GROWN, *options).finish()
    assert (code, lines, err) == (0, ["True"] * 2, "")


def test_several_registries_may_tell_and_each_has_one_collector(client: Any) -> None:
    registry = client.CollectorRegistry()
    gr.prometheus.register(registry)
    gr.prometheus.register(registry)
    with gr.prometheus.serve(registry=registry) as first, gr.prometheus.serve() as second:
        for url in (first.url, second.url):
            assert value_of(scrape(url), "gradring_up", source="communicators") == 1
    assert "python_info" in client.generate_latest().decode()  # A program's own stay.


def test_without_prometheus_client_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for call in (gr.prometheus.serve, gr.prometheus.register):
        with pytest.raises(gr.InvalidArgument, match=r"pip install 'gradring\[metrics\]'"):
            call()
    monkeypatch.setenv("GRADRING_METRICS", "0")
    with pytest.raises(gr.InvalidArgument, match=r"gradring\[metrics\]"):
        gr.init(rank=0, world_size=1)
    monkeypatch.setenv("GRADRING_SECRET", SECRET)
    assert main(["serve", "--metrics", "0"]) == 2
    assert "gradring[metrics]" in capsys.readouterr().err


def test_the_doctor_tells_which_prometheus_client_there_is() -> None:
    assert "prometheus-client" in machine_doctor.versions()


def test_what_cannot_be_listened_at_is_told_with_its_address(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            gr.InvalidArgument, match=f"at 127.0.0.1:{port}: Address al.*name another"
        ):
            gr.prometheus.serve(port)
        with free_ports(1) as (first, _):
            monkeypatch.setenv("GRADRING_PORTS", f"{first}-{first}")
            with gr.prometheus.serve(registry=client.CollectorRegistry()) as served:
                assert served.address == f"127.0.0.1:{first}"
    with pytest.raises(gr.InvalidArgument, match="70000"):
        gr.prometheus.serve(70000)
    with pytest.raises(gr.InvalidArgument, match="rank 9 would serve at port 65539, which is none"):
        endpoint.serve_job("127.0.0.1:65530", 9, None)
    for text in ("here", "a:b", "1:2:3"):
        monkeypatch.setenv("GRADRING_METRICS", text)
        with pytest.raises(gr.InvalidArgument, match=f"GRADRING_METRICS='{text}"):
            gr.init()


def test_the_page_lists_every_metric_and_names_are_prometheus() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(gradring_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (name, metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.text)
        for name, metric in METRICS.items()
    ]
    for name, metric in METRICS.items():
        assert (metric.kind == "counter") == name.endswith("_total")
        for unit in ("seconds", "bytes"):
            assert name.removesuffix("_total").endswith(f"_{unit}") == (f"_{unit}" in name)
            assert unit in metric.text or f"_{unit}" not in name
