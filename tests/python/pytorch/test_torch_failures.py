"""Losing a rank in the middle of backward: the others get PeerLost, out of backward or step."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from subprocess import PIPE, run
from typing import Any

import pytest
import torch

import gradring as gr
from rank_job import Job
from source_tree import ROOT
from thread_ranks import listening_socket, on_workers

SETUP = """
import torch, gradring.torch as gt
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gt.distributed(optimizer, comm=comm, bucket_bytes=4096)
x = torch.ones(4, 64)
def train_step():
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
train_step()
"""

# A hook in the middle of the model: some buckets have been sent, others have not.
DIE_IN_BACKWARD = """
model[3].weight.register_post_accumulate_grad_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
train_step()
"""


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_losing_a_rank_in_backward_fails_every_other_rank_with_peer_lost(
    torch_job: Callable[..., Job], transport: str
) -> None:
    ranks = torch_job(3, transport=transport)
    ranks.call(SETUP)
    victim, survivors = ranks.ranks[1], ranks.others(1)
    for rank in survivors:
        rank.begin("for _ in range(1000): train_step()")
    victim.begin(DIE_IN_BACKWARD)
    for outcome in ranks.outcomes(survivors):
        assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome


SPARSE_SETUP = SETUP.replace(
    "torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])",
    "torch.nn.Embedding(64, 2, sparse=True)",
).replace("torch.ones(4, 64)", "torch.arange(4)")


def test_losing_a_rank_between_two_exchanges_of_sparse_gradients_is_peer_lost(
    torch_job: Callable[..., Job],
) -> None:
    ranks = torch_job(3)
    ranks.call(SPARSE_SETUP)
    victim, survivors = ranks.ranks[1], ranks.others(1)
    for rank in survivors:
        rank.begin("for _ in range(1000): train_step()")
    victim.begin("train_step()\nos.kill(os.getpid(), signal.SIGKILL)")
    for outcome in ranks.outcomes(survivors):
        assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome


# The others say whether it came out of backward itself.
STEP_AND_TELL = """
def train_and_tell():
    while True:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        try:
            loss.backward()
        except gr.Error:
            say("in backward")
            raise
        optimizer.step()
train_and_tell()
"""

FREEZE_IN_BACKWARD = DIE_IN_BACKWARD.replace("SIGKILL", "SIGSTOP")


@pytest.mark.parametrize(("code", "options"), [
    (DIE_IN_BACKWARD, {}), (FREEZE_IN_BACKWARD, {"heartbeat_timeout": 2.0}),
], ids=["killed", "frozen"])  # fmt: skip
def test_a_rank_killed_or_frozen_in_backward_is_named_out_of_the_others_backward(
    torch_job: Callable[..., Job], code: str, options: dict[str, float]
) -> None:
    ranks = torch_job(3, **options)
    ranks.call(SETUP)
    victim, survivors = ranks.ranks[2], ranks.others(2)
    for rank in survivors:
        rank.begin(STEP_AND_TELL)
    victim.begin(code)
    for rank in survivors:
        rank.expect("in backward")
    for outcome in ranks.outcomes(survivors):
        assert (outcome.error, outcome.lost) == ("PeerLost", 2), outcome
        assert "rank 2" in outcome.text


def test_losing_a_rank_between_steps_fails_the_next_backward_with_peer_lost(
    torch_job: Callable[..., Job],
) -> None:
    ranks = torch_job(2)
    ranks.call(SETUP)
    ranks.ranks[1].kill()
    # The loss is noticed by another call first, so backward finds a closed communicator.
    survivor = ranks.ranks[0]
    survivor.begin("comm.barrier()")
    assert survivor.outcome().error in {"PeerLost", "Closed"}
    survivor.begin("train_step()")
    outcome = survivor.outcome()
    assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome


class EndedError(Exception):
    """Ends a rank that is a thread."""


def train_as_documented(
    comm: gr.Communicator, loop: str, trained: dict[int, list[int]], *, is_victim: bool
) -> list[object]:
    """Run the loop, with one rank less in the middle of two epochs; size and weights at the end."""
    found: dict[str, Any] = {"torch": torch, "model": torch.nn.Linear(4, 1), "comm": comm}

    class Data:
        def __len__(self) -> int:
            return 66

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if is_victim and found["place"] == (1, 40):
                found["optimizer"].abandon()  # Its communicator is one of its own.
                raise EndedError
            return torch.full((4,), float(index % 7)), index

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found["batch"] = y.tolist()
        return x.pow(2).mean()

    def grown() -> gr.Communicator:
        trained[found["place"][0]] += found["batch"]
        comm: gr.Communicator = found["comm"].grow()
        while found["place"] == (3, 20) and comm.world_size < 2:
            comm = comm.grow()
        return comm

    found |= {"dataset": Data(), "loss_of": loss_of, "grown": grown}
    with contextlib.closing(comm):
        exec(loop, found)
        with found["comm"] as last:
            return [last.world_size, *found["model"].weight.tolist()[0]]


def test_the_loop_of_the_documentation_makes_a_loss_good_and_trains_each_example_once() -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (loop,) = (block for block in blocks if "comm.grow()" in block and "gt." in block)
    listen_fd, address = listening_socket()
    place: dict[str, Any] = {"rendezvous": address, "secret": b"of the loop", "timeout": 30}
    is_lost = threading.Event()
    trained: dict[int, list[int]] = defaultdict(list)

    def train(worker: int) -> list[object]:
        if worker == 2:
            is_lost.wait()
            return train_as_documented(gr.join(**place), as_given, trained, is_victim=False)
        listens = {"listen_fd": listen_fd} if worker == 0 else {}
        comm = gr.init(rank=worker, world_size=2, **place, **listens)
        try:
            return train_as_documented(comm, as_given, trained, is_victim=worker == 1)
        except EndedError:
            is_lost.set()
            return []

    as_given = loop.replace("comm = gr.init()\n", "").replace("comm.grow()", "grown()")
    assert as_given.count("grown()") == 1
    survivor, lost, newcomer = on_workers(3, train)
    assert (survivor, lost) == (newcomer, [])
    assert survivor[0] == 2
    assert [*trained] == [*range(10)]
    assert [sorted(indices) for indices in trained.values()] == 10 * [[*range(66)]]


def test_without_pytorch_the_import_names_the_extra() -> None:
    script = "import sys; sys.modules['torch'] = None; import gradring.torch"
    result = run([sys.executable, "-c", script], stderr=PIPE, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "pip install 'gradring[torch]'" in result.stderr
