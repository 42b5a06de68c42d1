"""A host whose own name means loopback to itself (127.0.1.1 on Debian) is reached by the others."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from typing import Any

import pytest

from gradring.machine import host_facts

pytestmark = [pytest.mark.timeout(60)]

# In a network and with a table of hosts of its own: 10.9.9.9 stands for the way in from elsewhere.
ON_NODE1 = """
import ctypes, fcntl, json, os, socket, struct, subprocess, sys, tempfile

SET_ADDRESS, SET_FLAGS, UP, BIND = 0x8916, 0x8914, 0x1, 4096

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    for name, address in (("lo", "127.0.0.1"), ("lo:1", "10.9.9.9")):
        family, number = struct.pack("=HH", socket.AF_INET, 0), socket.inet_aton(address)
        fcntl.ioctl(control, SET_ADDRESS, struct.pack("16s24s", name.encode(), family + number))
        fcntl.ioctl(control, SET_FLAGS, struct.pack("16sh22x", name.encode(), UP))
with tempfile.NamedTemporaryFile("w") as hosts:
    hosts.write("127.0.0.1 localhost\\n127.0.1.1 node1\\n")
    hosts.flush()
    assert ctypes.CDLL(None).mount(hosts.name.encode(), b"/etc/hosts", None, BIND, None) == 0

RANK = '''
import json, gradring as gr, numpy as np
with gr.init(transport="tcp", timeout=20) as comm:
    x = np.full(100_000, comm.rank + 1.0)
    comm.all_reduce(x, algorithm="direct")
    assert (x == 6).all()
    comm.barrier()
    print(json.dumps([comm.describe(rank) for rank in range(3)]))
'''
meeting = {0: "node1:4000", 1: "10.9.9.9:4000", 2: "node1:4000"}
ranks = []
for rank, place in meeting.items():
    said = {"RANK": str(rank), "WORLD_SIZE": "3", "RENDEZVOUS": place, "SECRET": "s" * 32}
    environ = {**os.environ, **{f"GRADRING_{name}": value for name, value in said.items()}}
    ranks.append(
        subprocess.Popen([sys.executable, "-c", RANK], env=environ, stdout=subprocess.PIPE)
    )
print(json.dumps([json.loads(rank.communicate(timeout=40)[0]) for rank in ranks]))
"""


def alone_in_a_network(program: str, *namespaces: str) -> str:
    """Run a program there and return what it has printed."""
    alone = ["unshare", *namespaces, "--"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this process may not have a network of its own: {error}")
    run = subprocess.run(
        [*alone, sys.executable, "-c", program],
        capture_output=True, text=True, timeout=50, env=dict(os.environ), check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


def on_node1() -> list[list[str]]:
    """Return what the ranks on two hosts call one another: 0 and 2 are on node1."""
    names: list[list[str]] = json.loads(alone_in_a_network(ON_NODE1, "--mount", "--net"))
    return names


def test_ranks_beside_rank_0_are_told_to_others_by_the_address_that_leads_there() -> None:
    at = on_node1()
    assert at[0][0] == at[2][0] == "rank 0 (node1:4000)"
    assert at[1][0] == "rank 0 (10.9.9.9:4000)"
    for rank in range(3):  # Nobody says loopback.
        assert at[rank][1].startswith("rank 1 (10.9.9.9:")
        assert at[rank][2].startswith("rank 2 (10.9.9.9:")


# In a network that has ::1 alone.
ON_SIX = """
import os, subprocess, sys
for words in (["link", "set", "lo", "up"], ["address", "delete", "127.0.0.1/8", "dev", "lo"]):
    subprocess.run(["ip", *words], check=True)
RANK = '''
import gradring as gr
comm = gr.init()
print(comm.describe(1))
with gr.ps.connect() as ps:
    print(ps.servers[0])
'''
run = [sys.executable, "-m", "gradring", "run", "--no-prefix", "-n"]
subprocess.run([*run, "2", "--servers", "1", sys.executable, "-c", RANK], check=True)
subprocess.run([*run, "1", sys.executable, "-c", RANK.replace("comm.", "0 and comm.")], check=True)
"""

# There as well: two ranks of mpirun's, where metrics are told, and where torch's rank 0 listens.
ON_SIX_WITHOUT_US = (
    ON_SIX.split("RANK =", maxsplit=1)[0]
    + """
SHOW = "import gradring as gr; comm = gr.init(); comm.barrier(); print(comm.describe(0))"
OURS = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job"}
ranks = [
    subprocess.Popen(
        [sys.executable, "-c", SHOW],
        env={**os.environ, **OURS, "OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_LOCAL_RANK": r},
    )
    for r in "01"
]
assert [rank.wait(40) for rank in ranks] == [0, 0]
from gradring.settings.address import metrics_address
print(metrics_address("9400", "--metrics"))
try:
    import gradring as gr
    with gr.prometheus.serve() as served:
        assert served.address.startswith("[::1]:")
except gr.InvalidArgument as error:
    assert "prometheus-client" in str(error)
try:
    from gradring.torch.c10d import rendezvous
except ImportError:
    raise SystemExit
store = type("Store", (), {"host": "::1"})
assert rendezvous._listen_host(store, None, 2) == "::1"
"""
)


def test_a_host_without_127_0_0_1_meets_at_the_other_loopback() -> None:
    if shutil.which("ip") is None:
        pytest.skip("no ip here (iproute2)")
    said = alone_in_a_network(ON_SIX, "--net")
    assert said.count("rank 1 ([::1]:") == 2
    assert said.splitlines()[-1].startswith("[::1]:")  # A server inside of the process.


def test_other_launchers_ranks_torch_and_metrics_find_that_loopback_too() -> None:
    if shutil.which("ip") is None:
        pytest.skip("no ip here (iproute2)")
    said = alone_in_a_network(ON_SIX_WITHOUT_US, "--net")
    assert said.count("rank 0 ([::1]:") == 2
    assert said.splitlines()[-1] == "[::1]:9400"


class Store:
    """As torch's: the host that it was asked for."""

    host = "node1"


def test_a_torch_job_whose_store_is_on_such_a_host_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from gradring.torch.c10d import rendezvous as met

    listen_host: Any = met._listen_host
    for route, expected in (("127.0.0.1", "node1"), ("10.0.0.5", "10.0.0.5")):
        monkeypatch.setattr(host_facts, "route_source", lambda *_, route=route: route)
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        assert listen_host(Store(), None, 2) == expected
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert listen_host(Store(), None, 2) == "127.0.0.1"
    with met.listening("node1", 0) as everywhere:
        socket.create_connection(("127.0.0.1", everywhere.getsockname()[1]), 10).close()
        assert everywhere.getsockname()[0] in ("::", "0.0.0.0")
