"""The methods of torch's ProcessGroup, called directly and in short: as on Gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gradring as gr
from torch_ranks import on_ranks

pytestmark = [pytest.mark.timeout(120)]

SECONDS = timedelta(seconds=20)


def mine() -> torch.Tensor:
    """As many rows as ranks: what takes it for a list of tensors does not fail."""
    return torch.arange(4.0).reshape(2, 2) + 10 * dist.get_rank()


def parts() -> list[torch.Tensor]:
    return [torch.zeros(2, 2), torch.zeros(2, 2)]


def in_place() -> list[torch.Tensor]:
    group: Any = dist.group.WORLD
    x = [mine() for _ in range(12)]
    group.allreduce(x[0]).wait()
    group.allreduce(x[1], dist.ReduceOp.MAX).wait()
    group.allreduce([x[2]], dist.ReduceOp.MIN, SECONDS).wait()
    group.allreduce(tensor=x[3], op=dist.ReduceOp.MAX, timeout=SECONDS).wait()
    group.allreduce([x[4]]).wait()
    group.broadcast(x[5], 1).wait()
    group.broadcast(x[6], root=1, timeout=SECONDS).wait()
    group.broadcast([x[7]]).wait()
    group.reduce(x[8], 1).wait()
    group.reduce(x[9], root=1, op=dist.ReduceOp.MAX).wait()
    group.allreduce(scalar := torch.tensor(dist.get_rank() + 1.0)).wait()
    group.barrier(timeout=SECONDS).wait()
    group.barrier(SECONDS).wait()
    group.barrier().wait()
    # What Gloo leaves of a reduce on other ranks is not defined.
    return [*x[: 10 if dist.get_rank() == 1 else 8], scalar]


def into_others() -> list[Any]:
    group: Any = dist.group.WORLD
    x, root = mine(), dist.get_rank() == 1
    gathered = [parts() for _ in range(5)]
    group.allgather(gathered[0], x).wait()
    group.allgather(output_tensors=gathered[1], input_tensor=x, timeout=SECONDS).wait()
    group.allgather([gathered[2]], [x]).wait()
    group.gather(gathered[3] if root else [], x, 1).wait()
    group.gather(gathered[4] if root else [], input_tensor=x, root=1, timeout=SECONDS).wait()
    out = [torch.zeros(2, 2) for _ in range(6)]
    group.scatter(out[0], [x, x + 1] if root else [], 1).wait()
    group.scatter(output_tensor=out[1], input_tensors=[x, x + 1] if root else [], root=1).wait()
    group.reduce_scatter(out[2], [x, x + 100]).wait()
    group.reduce_scatter(out[3], [x, x + 100], dist.ReduceOp.MAX, SECONDS).wait()
    group.reduce_scatter(output=out[4], input=[x, x + 100], op=dist.ReduceOp.MIN).wait()
    group.alltoall_base(out[5], x, [], [], timeout=SECONDS).wait()
    return [*gathered, *out]


@pytest.mark.parametrize("calls", [in_place, into_others])
def test_short_forms_are_what_they_are_on_gloo(calls: Any) -> None:
    gloo = on_ranks(2, calls, backend="gloo")
    for ours, theirs in zip(on_ranks(2, calls), gloo, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(np.array(mine), np.array(other))


def wrong() -> None:
    group: Any = dist.group.WORLD
    x = mine()
    with pytest.raises(gr.InvalidArgument, match="allreduce: 'max' is no op"):
        group.allreduce(x, "max")
    with pytest.raises(gr.InvalidArgument, match=r"broadcast: 1\.5 is no root"):
        group.broadcast(x, 1.5)
    with pytest.raises(gr.InvalidArgument, match="barrier: 5 is no timeout"):
        group.barrier(timeout=5)
    with pytest.raises(gr.InvalidArgument, match="allgather: output_tensors is a tensor; pass a"):
        group.allgather(x, x)
    with pytest.raises(TypeError, match="too many"):
        group.allreduce(x, dist.AllreduceOptions(), SECONDS, 1)
    with pytest.raises(TypeError, match="axis"):
        group.allreduce(x, axis=1)
    group.allreduce(x).wait()


def test_short_forms_that_make_no_sense_are_refused_before_anything_is_sent() -> None:
    on_ranks(2, wrong)


def with_a_timeout() -> str:
    group: Any = dist.new_group()
    text = ""
    if dist.get_rank() == 0:
        with pytest.raises(gr.TimedOut) as caught:
            group.allreduce(mine(), timeout=timedelta(seconds=0.2)).wait()
        text = str(caught.value)
    dist.barrier()
    return text


def test_a_timeout_in_short_counts() -> None:
    assert "timeout of 0.2 s" in on_ranks(2, with_a_timeout)[0]


def into_one(out: torch.Tensor | None, x: torch.Tensor, root: int) -> None:
    """What `torch.distributed.gather_single` asks of a group; torch has it from 2.14 on."""
    if hasattr(dist, "gather_single"):
        dist.gather_single(x, out, dst=root)
        return
    options = dist.GatherOptions()
    options.rootRank = root
    group: Any = dist.group.WORLD
    group.gather_single(x.new_empty(0) if out is None else out, x, options).wait()


def gathered_into_one() -> list[torch.Tensor]:
    outs = [torch.zeros(4, 2), torch.zeros(8), torch.zeros(2, 2, 2)]
    root = dist.get_rank() == 1
    for out in outs:
        into_one(out if root else None, mine(), 1)
    both = torch.cat([mine(), mine()])
    into_one(both if root else None, both[2:] if root else mine(), 1)  # In place.
    if root:
        with pytest.raises(gr.InvalidArgument, match="gather: the whole tensor has 7 elements"):
            into_one(torch.zeros(7), mine(), 1)
    return [*outs, both]


def test_tensors_are_gathered_into_one() -> None:
    on_other, on_root = on_ranks(2, gathered_into_one)
    whole = np.array([0.0, 1, 2, 3, 10, 11, 12, 13])
    for ours in on_root:
        np.testing.assert_array_equal(np.array(ours).reshape(-1), whole)
    assert not any(np.any(np.array(untouched)) for untouched in on_other[:3])


def backend_of_a_device() -> list[Any]:
    group: Any = dist.new_group(timeout=SECONDS)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=7), group)  # type: ignore[attr-defined]
    by_torch = group.timeout
    backend = group._get_backend(torch.device("cpu"))
    backend._set_default_timeout(timedelta(seconds=5))
    return [by_torch, group.timeout], [group.supports_reconfigure, group.supports_window]


def test_what_asks_a_group_for_its_backend_gets_one() -> None:
    [[timeouts, abilities]] = on_ranks(1, backend_of_a_device)
    # torch before 2.14 sets the timeout of groups of its own alone.
    assert timeouts == [7 if hasattr(dist, "set_timeout") else 20, 5]
    assert abilities == [False, False]
