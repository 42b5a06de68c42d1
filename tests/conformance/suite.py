"""PyTorch's own tests of a torch.distributed backend, made to run under our backend's name.

They come with PyTorch's wheel (torch/testing/_internal/distributed/distributed_test.py) and are not
changed. They ask for the backend's name before they run, so a process loads one of three sets:

- ``any``: what a backend may run whose name PyTorch does not know.
- ``gloo``: what PyTorch runs for its own CPU backend.
- ``mpi``: what it runs for MPI: all_to_all, and subgroups in a small world.

For the last two, the variable in which the tests keep the name is equal to that name as well as to
ours. Every group that a test makes is ours.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import unittest
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

WORLD_SIZE = 3
GATES = ("any", "gloo", "mpi")


class Name(str):
    """The backend's name, also equal to the one whose tests are run."""

    gate = ""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == self.gate

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def load(backend: str, gates: str) -> type[unittest.TestCase]:
    """Load the tests.

    Args:
        backend: Under whose name the groups are made.
        gates: Which set.
    """
    gate = backend if gates == "any" else gates
    os.environ["BACKEND"] = gate
    os.environ["INIT_METHOD"] = "file://"  # Of each test's own, see below.
    os.environ["WORLD_SIZE"] = str(WORLD_SIZE)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    if importlib.util.find_spec("torchvision") is None:
        sys.path.append(str(Path(__file__).with_name("standin")))
    from torch.testing._internal.distributed import distributed_test as tests

    if gate != backend:
        tests.BACKEND = Name(backend)
        tests.BACKEND.gate = gate
        _open_gates(tests, backend, gate)
    return _forking(tests)


def _open_gates(tests: ModuleType, backend: str, gate: str) -> None:
    # What asks for the name while a test runs.
    import torch.distributed as dist

    for names in tests.DistTestCases.backend_feature.values():
        if gate in names:
            names.add(backend)

    # torch refuses all names but gloo here; the method behind it is ours.
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> None:
        if dist.distributed_c10d._rank_not_in_group(group):
            return
        if isinstance(timeout, float):
            timeout = timedelta(seconds=timeout)
        (group or dist.group.WORLD).monitored_barrier(timeout, wait_all_ranks)

    dist.monitored_barrier = monitored_barrier


def _forking(tests: ModuleType) -> type[unittest.TestCase]:
    import torch

    class Conformance(tests.TestDistBackend, tests.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
        """One test is `WORLD_SIZE` processes, forked so that none has to import PyTorch again."""

        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **options: Any) -> None:
            torch.set_num_threads(1)
            tests.INIT_METHOD = f"file://{file_name}.second"
            super()._run(rank, test_name, file_name, pipe, **options)

    return Conformance
