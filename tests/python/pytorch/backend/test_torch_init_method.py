"""``init_method="gradring://"``: torch's ranks meet wherever those of `gradring.init` do."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import gradring as gr
import gradring.torch
from conftest import GetWorld
from gradring.torch.c10d import init_method
from torch_ranks import script_on_our_ranks

pytestmark = pytest.mark.timeout(90)

# Backends one after the other, in groups of their own; and rank 0's store is in the port range.
GROUPS = """
import torch, torch.distributed as dist
import gradring as gr, gradring.torch

for backend in ("gradring", "gloo", "gradring"):
    dist.init_process_group(backend, init_method="gradring://")
    x = torch.ones(3) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    pair = dist.new_group([0, dist.get_world_size() - 1])
    y = torch.ones(1)
    dist.all_reduce(y, group=pair)
    print(backend, dist.get_rank(), dist.get_world_size(), x.tolist(), y.item())
    dist.destroy_process_group()
comm = gr.init()  # What has met is the script's, too.
print(comm.rank, comm.world_size)
"""
# Rank 0 finds every port of the range taken.
TAKEN = """
import socket, torch.distributed as dist
import gradring as gr, gradring.torch

comm = gr.init()
with socket.create_server(("ADDRESS", 0), family=socket.FAMILY) as taken:
    import os
    port = taken.getsockname()[1]
    os.environ["GRADRING_PORTS"] = f"{port}-{port}"
    try:
        dist.init_process_group("gradring", init_method="gradring://")
    except gr.DeviceError as error:
        print(error)
    comm.barrier()
"""

# What torch is given is not what the launcher says.
WRONG = """
import torch.distributed as dist
import gradring as gr, gradring.torch

for given in ({"rank": 1, "world_size": 1}, {"rank": 0, "world_size": 2}):
    try:
        dist.init_process_group("gradring", init_method="gradring://", **given)
    except gr.InvalidArgument as error:
        print(error)
"""


@pytest.mark.parametrize("size", [1, 3])
def test_groups_of_any_backend_meet_as_the_launcher_says(tmp_path: Path, size: int) -> None:
    script = tmp_path / "groups.py"
    script.write_text(GROUPS.replace("[0, dist.get_world_size() - 1]", str([0, size - 1][:size])))
    total, pair = float(sum(range(1, size + 1))), float(min(size, 2))
    for rank, (said, _) in enumerate(script_on_our_ranks(size, script)):
        groups = [
            f"{backend} {rank} {size} {[total] * 3} {pair if rank in (0, size - 1) else 1.0}"
            for backend in ("gradring", "gloo", "gradring")
        ]
        assert said.splitlines() == [*groups, f"{rank} {size}"]


@pytest.mark.parametrize(("address", "family"), [("", "AF_INET"), ("::1", "AF_INET6")])
def test_a_rank_0_without_a_port_for_the_store_is_told_to_all(
    tmp_path: Path, address: str, family: str
) -> None:
    try:
        socket.create_server((address, 0), family=getattr(socket, family)).close()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    script = tmp_path / "taken.py"
    script.write_text(TAKEN.replace("ADDRESS", address).replace("FAMILY", family))
    (first, _), (other, _) = script_on_our_ranks(2, script)
    assert "rank 0 has no port for torch's store: cannot listen on 127.0.0.1: all 1 ports" in first
    assert other == "rank 0 has no port for torch's store: its error says why\n"


def test_ranks_wait_for_rank_0_as_long_as_torch_is_told(world: GetWorld) -> None:
    is_over = threading.Event()

    def meet(comm: Any) -> None:
        if comm.rank == 0:
            assert is_over.wait(30)
            return
        try:
            init_method._shared(comm, "127.0.0.1", timedelta(seconds=0.25))
        finally:
            is_over.set()

    _, error = world(2, "shm").errors(meet)
    assert isinstance(error, gr.TimedOut)
    assert "within its timeout of 0.25 s" in str(error)


def test_a_rank_that_the_launcher_does_not_say_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(WRONG)
    [(said, _)] = script_on_our_ranks(1, script)
    method = "with init_method='gradring://': the launcher says"
    assert said.splitlines() == [
        f"init_process_group(rank=1) {method} 0; leave rank and world_size out",
        f"init_process_group(world_size=2) {method} 1; leave rank and world_size out",
    ]
