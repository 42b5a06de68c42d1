"""Ranks tell each other what GPUs they have, whatever things are called, and choose alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradring as gr
from conftest import GetWorld
from gpu_places import PLACES, use_place
from gradring.gpu import agreement
from thread_ranks import ThreadWorld

SIZE = 3


@pytest.fixture(params=PLACES)
def _place(request: pytest.FixtureRequest) -> None:
    use_place(request)


on_each_transport = pytest.mark.parametrize("transport", ["tcp", "shm"])


@pytest.mark.usefixtures("_place")
@on_each_transport
def test_a_rank_that_is_told_a_device_that_is_not_there_is_named_on_every_rank(
    world: GetWorld, transport: str
) -> None:
    for wrong in (99, -1):
        with pytest.raises(gr.DeviceError, match=f"there is no CUDA device {wrong};"):
            gr.gpu.device_facts(wrong)
        errors = world(SIZE, transport).errors(
            lambda comm, wrong=wrong: comm.use_gpu(wrong if comm.rank == 1 else None)
        )
        for error in errors:
            assert isinstance(error, gr.DeviceError)
            assert f"rank 1: there is no CUDA device {wrong};" in str(error)


@pytest.mark.usefixtures("_place")
@on_each_transport
@pytest.mark.parametrize("variable", ["NCCL_HOSTID", "GRADRING_NCCL_LIB"])
def test_names_of_any_length_and_alphabet_do_not_keep_ranks_from_agreeing(
    world: GetWorld, transport: str, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "/\udcff\x01" + "ü" * 300)

    def agree(comm: Any) -> None:
        choice = comm.use_gpu(0)
        assert choice.startswith("staged: ranks 0 and 1 share one GPU")

    world(SIZE, transport).run(agree)


@pytest.mark.usefixtures("_place")
@on_each_transport
def test_agreeing_on_gpus_ends_with_its_own_timeout(
    fresh_world: Callable[..., ThreadWorld], transport: str
) -> None:
    def agree(comm: Any) -> None:
        if comm.rank == 0:
            with pytest.raises(gr.TimedOut, match=r"within its timeout of 0\.3 s"):
                comm.use_gpu(timeout=0.3)

    fresh_world(2, transport, timeout=5).run(agree)


def test_hosts_with_long_names_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for host in ("a", "b"):
        monkeypatch.setenv("NCCL_HOSTID", "rack " * 100 + host)
        names.append(agreement._facts(None)[1])
    assert len(set(names)) == 2
    assert all(len(name) <= 200 for name in names)
