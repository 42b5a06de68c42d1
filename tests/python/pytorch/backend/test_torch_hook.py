"""The hook that compresses the gradients of PyTorch's own DistributedDataParallel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

import gradring as gr
import gradring.torch as gt
from torch_models import batch, mlp, values
from torch_ranks import GROUP_SECONDS, on_ranks

STEPS = 40


def train(codec: Any) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = mlp()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.0002)
    state = None
    if codec is not None:
        state = gt.CompressedGradients(codec)
        ddp.register_comm_hook(state, gt.compressed_gradients)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    x, y = (t[rank * 4 : rank * 4 + 4] for t in batch(0, 4 * size))
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(ddp(x), y).backward()
        optimizer.step()
    ratio = 1.0
    if state is not None:
        ratio = state.uncompressed_bytes / state.sent_bytes
        state.close()
    return values(model), ratio


@pytest.mark.parametrize("backend", ["gloo", "gradring"])
def test_ddp_trains_with_every_codec_and_ranks_agree_in_bits(backend: str) -> None:
    (expected, _), _ = on_ranks(2, train, None, backend=backend)
    for codec, tolerance in (("bf16", 0.01), ("fp16", 0.01), ("int8", 0.03), (gr.TopK(0.5), 0.3)):
        (ours, ratio), (others, _) = on_ranks(2, train, codec, backend=backend)
        for mine, theirs, wanted in zip(ours, others, expected, strict=True):
            assert np.array_equal(mine, theirs)
            assert np.abs(mine - wanted).max() < tolerance
        assert isinstance(codec, gr.TopK) or ratio > 1


def steps_with_doubles_as_default() -> Any:
    torch.set_default_dtype(torch.float64)
    model = nn.Linear(4, 1, bias=False, dtype=torch.float32)
    ddp = DistributedDataParallel(model)
    state = gt.CompressedGradients("bf16")
    ddp.register_comm_hook(state, gt.compressed_gradients)
    for _ in range(2):
        ddp(torch.ones(1, 4, dtype=torch.float32)).sum().backward()
    state.close()
    return model.weight.grad


def test_the_default_dtype_may_be_another_one() -> None:
    for grad in on_ranks(2, steps_with_doubles_as_default):
        np.testing.assert_array_equal(grad, np.full((1, 4), 2, np.float32))


def timeouts(seconds: str) -> float:
    os.environ["GRADRING_TIMEOUT"] = seconds
    state = gt.CompressedGradients("bf16")
    timeout: float = state._comm.timeout
    state.close()
    return timeout


def test_a_hook_waits_as_long_as_the_group_or_where_that_is_another_s_as_variables_say() -> None:
    assert on_ranks(2, timeouts, "77", backend="gloo") == [77, 77]
    assert on_ranks(2, timeouts, "", backend="gloo") == [1800, 1800]
    assert on_ranks(2, timeouts, "77") == [GROUP_SECONDS] * 2


def after_one_alone(store: Path) -> None:
    os.environ["GRADRING_TIMEOUT"] = "5"
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        gt.CompressedGradients("bf16").close()
        dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    gt.CompressedGradients("bf16").close()


def test_a_rank_that_had_a_hook_in_a_job_of_its_own_meets_the_others(tmp_path: Path) -> None:
    on_ranks(2, after_one_alone, tmp_path / "store", backend="gloo")


def once_more(too_early: int) -> str:
    text = ""
    if dist.get_rank() == too_early:
        os.environ["GRADRING_TIMEOUT"] = "0.3"
        with pytest.raises(gr.TimedOut) as caught:
            gt.CompressedGradients("bf16")
        text = str(caught.value)
    os.environ["GRADRING_TIMEOUT"] = "5"
    dist.barrier()
    gt.CompressedGradients("bf16").close()
    return text


def test_a_rank_that_nobody_joined_in_time_may_try_again() -> None:
    assert "rank 1" in on_ranks(2, once_more, 0, backend="gloo")[0]
    assert "rank 0 left no address" in on_ranks(2, once_more, 1, backend="gloo")[1]


def refuse() -> str:
    model = DistributedDataParallel(mlp(dtype=torch.float64))
    state = gt.CompressedGradients("bf16")
    model.register_comm_hook(state, gt.compressed_gradients)
    try:
        model(batch(0, 2, torch.float64)[0]).sum().backward()
    except gr.InvalidArgument as error:
        return str(error)
    finally:
        state.close()
    return ""


def test_other_dtypes_are_refused() -> None:
    for text in on_ranks(2, refuse):
        assert "float64 cannot be compressed" in text
