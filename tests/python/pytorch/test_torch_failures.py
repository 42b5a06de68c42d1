"""Losing a rank in the middle of backward: the others get PeerLost, out of backward or step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from subprocess import PIPE, run

import pytest

from rank_job import Job

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


def test_without_pytorch_the_import_names_the_extra() -> None:
    script = "import sys; sys.modules['torch'] = None; import gradring.torch"
    result = run([sys.executable, "-c", script], stderr=PIPE, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "pip install 'gradring[torch]'" in result.stderr
