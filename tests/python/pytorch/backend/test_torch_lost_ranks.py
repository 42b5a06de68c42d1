"""Losing a rank under DDP: every other rank gets an exception naming it, out of backward too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rank_job import Job

pytestmark = [pytest.mark.timeout(120)]

SECONDS = 8.0  # A kill shows in about one; the machine may be busy.
HEARTBEAT = 2.0

SETUP = """
import datetime, torch, torch.distributed as dist, gradring.torch
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
os.environ["GRADRING_HEARTBEAT_TIMEOUT"] = "{heartbeat}"
dist.init_process_group(
    "gradring", init_method="file://{store}", rank={rank}, world_size=3,
    timeout=datetime.timedelta(seconds=60),
)
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 64) for _ in range(6)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.ones(4, 64)
def train_step():
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
train_step()
"""

# A hook in the middle of the model: some buckets have been sent, others have not.
END_IN_BACKWARD = """
layers[3].weight.register_hook(lambda _: (say("ends"), os.kill(os.getpid(), signal.{signal})))
train_step()
"""


@pytest.fixture
def ranks(torch_job: Callable[..., Job], tmp_path: Path) -> Job:
    """Start three ranks of a DDP training that have taken a step."""
    started = torch_job(0)
    for rank in range(3):
        code = SETUP.format(store=tmp_path / "store", rank=rank, heartbeat=HEARTBEAT)
        started.spawn(rank).begin(code)
    for outcome in started.outcomes():
        assert outcome.error is None, outcome
    return started


@pytest.mark.parametrize(("signal", "seconds"), [("SIGKILL", 0.0), ("SIGSTOP", HEARTBEAT)])
def test_a_rank_that_ends_in_backward_is_named_by_every_other_rank(
    ranks: Job, signal: str, seconds: float
) -> None:
    survivors = ranks.others(1)
    for rank in survivors:
        rank.begin("for _ in range(10000): train_step()")
    ranks.ranks[1].begin(END_IN_BACKWARD.format(signal=signal))
    ended = ranks.ranks[1].expect("ends")
    for outcome in ranks.outcomes(survivors):
        assert outcome.error in {"PeerLost", "RuntimeError"}, outcome
        assert "rank 1" in outcome.text
        assert outcome.at - ended < seconds + SECONDS, outcome
    # And from then on every call says why.
    for rank in survivors:
        rank.begin("dist.all_reduce(x)")
        outcome = rank.outcome()
        assert outcome.error in {"Closed", "PeerLost"}
        assert "rank 1" in outcome.text


def test_a_rank_that_ends_in_backward_is_named_where_gradients_travel_compressed(
    ranks: Job,
) -> None:
    ranks.call(
        """
state = gradring.torch.CompressedGradients("bf16")
model.register_comm_hook(state, gradring.torch.compressed_gradients)
train_step()
"""
    )
    survivors = ranks.others(1)
    for rank in survivors:
        rank.begin("for _ in range(10000): train_step()")
    ranks.ranks[1].begin(END_IN_BACKWARD.format(signal="SIGKILL"))
    ranks.ranks[1].expect("ends")
    for outcome in ranks.outcomes(survivors):
        assert outcome.error == "RuntimeError", outcome
        assert "PeerLost" in outcome.text
        assert "rank 1" in outcome.text


def test_a_lost_rank_fails_the_groups_it_is_in_and_no_other(ranks: Job) -> None:
    ranks.call("pairs = [dist.new_group([0, 2]), dist.new_group([0, 1])]")
    ranks.ranks[1].kill()
    survivors = ranks.others(1)
    for rank in survivors:
        rank.begin("y = torch.ones(2); dist.all_reduce(y, group=pairs[0]); result = y.tolist()")
    assert [outcome.result for outcome in ranks.outcomes(survivors)] == [[2.0, 2.0]] * 2
    call = "dist.all_reduce(torch.ones(2), group=pairs[1])"
    ranks.ranks[0].begin(call)
    outcome = ranks.ranks[0].outcome()
    assert (outcome.error, outcome.lost) == ("PeerLost", 1), outcome
