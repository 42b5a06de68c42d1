"""What the torch side does for CUDA tensors: its logic on CPU tensors, the rest marked gpu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from gradring.torch.gradients import layout
from gradring.torch.gradients.buckets import bytes_of
from gradring.torch.gradients.device_buckets import DeviceBucket
from torch_models import mlp

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]


def params_of(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    return [
        torch.nn.Parameter(torch.full(shape, 2.0).to(dtype)) for shape in ((3, 4), (5,), (), (2, 1))
    ]


def bucket_of(params: list[torch.nn.Parameter]) -> DeviceBucket:
    members = list(range(len(params)))
    return DeviceBucket(members, params, torch.zeros(bytes_of(members, params), dtype=torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_gradients_come_into_the_bucket_together(dtype: torch.dtype, weight: float) -> None:
    params = params_of(dtype)
    bucket = bucket_of(params)
    for index, param in enumerate(params):
        param.grad = torch.full_like(param, index + 1)
        bucket.put(index, param, weight)
    sizes = [torch.view_as_real(p).numel() if p.is_complex() else p.numel() for p in params]
    real = [np.full(size, (index + 1) * weight) for index, size in enumerate(sizes)]
    expected = np.concatenate(real)
    if dtype.is_complex:
        expected = expected * np.tile([1.0, 0.0], len(expected) // 2)
    np.testing.assert_array_equal(bucket.values.numpy(), expected)
    assert bucket.missing == 0
    bucket.give(params, 1)
    for index, param in enumerate(params):
        assert param.grad is not None
        assert (param.grad == (index + 1) * weight).all()


def test_absent_gradients_stay_absent_and_count_as_zero() -> None:
    params = params_of(torch.float32)
    bucket = bucket_of(params)
    bucket.values.fill_(99)
    for index, param in enumerate(params):
        param.grad = torch.ones_like(param) if index == 1 else None
        bucket.put(index, param, 1.0)
    assert bucket.marks.tolist() == [0, 1, 0, 0]
    assert bucket.values.sum() == params[1].numel()
    bucket.give(params, 1)
    assert [param.grad is None for param in params] == [True, False, True, True]


def test_gradients_that_lie_in_the_bucket_are_not_copied_again() -> None:
    params = params_of(torch.float32)
    bucket = bucket_of(params)
    for _ in range(2):
        for index, param in enumerate(params):
            if param.grad is None:
                param.grad = torch.ones_like(param)
            bucket.put(index, param, 1.0)
        for index, param in enumerate(params):
            assert param.grad is not None
            assert param.grad.data_ptr() == bucket._slots[index].data_ptr()
        assert not bucket._late
        bucket.reset()


def train(comm: Any, dtype: torch.dtype, **options: Any) -> list[torch.Tensor]:
    model = mlp(dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    distributed = gt.distributed(optimizer, model=model, comm=comm, **options)
    for step in range(4):
        generator = torch.Generator().manual_seed(10 * step + comm.rank)
        x = torch.randn(5, next(model.parameters()).shape[1], generator=generator, dtype=dtype)
        distributed.zero_grad()
        (model(x) ** 2).mean().backward()
        distributed.step(weight=None)
    return [param.detach().clone() for param in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"bucket_bytes": 256}], ids=str)
def test_training_with_device_buckets_is_training_with_those_of_the_host(
    world: GetWorld, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, options: Any
) -> None:
    expected = world(2, "shm").run(lambda comm: train(comm, dtype, **options))

    def on_device(groups: Any, params: Any, _comm: Any) -> list[DeviceBucket]:
        sizes = [bytes_of(members, params) for members in groups]
        memory = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        pairs = zip(groups, memory, strict=True)
        return [DeviceBucket(members, params, room) for members, room in pairs]

    monkeypatch.setattr(layout, "make_buckets", on_device)
    found = world(2, "shm").run(lambda comm: train(comm, dtype, **options))
    for mine, theirs in zip(expected, found, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            # The divisor is 2: exact however it is done.
            assert torch.equal(one, other)


def on_cuda(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give every rank's thread a stream of its own."""

    def run(comm: Any) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            return function(comm)

    return run


@pytest.mark.gpu
@pytest.mark.usefixtures("_cuda")
def test_collectives_of_cuda_tensors_have_the_bits_of_the_cpu(world: GetWorld) -> None:
    def run(comm: Any) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            host = (torch.arange(10_000) % 97 + comm.rank).to(dtype)
            device = host.cuda()
            comm.all_reduce(host)
            work = comm.all_reduce(device, async_op=True)
            work.wait(stream=torch.cuda.current_stream())
            assert torch.equal(device.cpu(), host)
            gathered = comm.all_gather(device)
            assert gathered.is_cuda
            assert torch.equal(gathered.cpu(), comm.all_gather(host))

    world(2, "shm").run(on_cuda(run))


@pytest.mark.gpu
@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_on_cuda_is_the_same_on_all_ranks(world: GetWorld, dtype: torch.dtype) -> None:
    def run(comm: Any) -> list[torch.Tensor]:
        model = mlp(dtype=dtype).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        distributed = gt.distributed(optimizer, model=model, comm=comm)
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + comm.rank)
            x = torch.randn(5, next(model.parameters()).shape[1], generator=generator)
            distributed.zero_grad()
            (model(x.to(dtype).cuda()) ** 2).mean().backward()
            distributed.step()
        torch.cuda.current_stream().synchronize()
        return [param.detach().cpu() for param in model.parameters()]

    first, second = world(2, "shm").run(on_cuda(run))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()


@pytest.mark.gpu
@pytest.mark.usefixtures("_cuda")
def test_strided_cuda_tensors_are_refused_by_name(world: GetWorld) -> None:
    comm = world(1, "tcp").comms[0]
    with pytest.raises(gr.InvalidArgument, match=r"x\.contiguous\(\)"):
        comm.all_reduce(torch.ones(4, 4, device="cuda").t())
