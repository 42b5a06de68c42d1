"""Rules that are the same are no difference, whatever their module or their last bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld


def test_a_rule_of_the_program_s_own_is_one_in_processes_that_it_has_spawned(
    world: GetWorld,
) -> None:
    def step(_self: Any, param: Any, grad: Any, _state: Any) -> None:
        param -= grad

    def train(comm: Any) -> float:
        # As Python calls the program's module, there and here.
        module = "__mp_main__" if comm.rank else "__main__"
        rule = type("Own", (), {"update": step, "__module__": module})()
        param = np.zeros(1, np.float32)
        gr.SyncOptimizer([param], rule, comm).step([np.ones(1, np.float32)])
        return float(param[0])

    assert world(2, "shm").run(train) == [-1, -1]


def test_schedules_that_differ_in_the_last_bit_between_hosts_step_together(
    world: GetWorld,
) -> None:
    def train(comm: Any) -> None:
        param, one = np.zeros(1, np.float32), np.ones(1, np.float32)
        rate = 0.07
        optimizer = gr.SyncOptimizer([param], gr.optim.SGD(lr=rate), comm)
        optimizer.rule = gr.optim.SGD(lr=math.nextafter(rate, 1) if comm.rank else rate)
        optimizer.step([one])
        optimizer.rule = gr.optim.SGD(lr=rate, nesterov=comm.rank == 1, momentum=0.5)
        with pytest.raises(gr.Mismatch, match="nesterov=False, and rank 1 has nesterov=True"):
            optimizer.step([one])

    world(2, "shm").run(train)


def test_numbers_beyond_float32_are_compared_without_a_warning(world: GetWorld) -> None:
    rule = gr.optim.SGD(lr=1e300)
    world(2, "shm").run(lambda comm: gr.SyncOptimizer([np.zeros(1)], rule, comm))
