"""Arrays of more than 4 GiB: counts, offsets and lengths are 64 bits wide everywhere."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from thread_ranks import TRANSPORTS, ThreadWorld

COUNT = (1 << 32) + 12_345


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_array_of_more_than_4_gib_is_reduced_and_sent(transport: str) -> None:
    world = ThreadWorld(2, transport, timeout=120.0)

    def run(comm: Any) -> None:
        x = np.full(COUNT, comm.rank + 1, np.uint8)
        x[-1] = 100 + comm.rank
        x[1 << 31] = 50 + comm.rank
        comm.all_reduce(x)
        assert x[0] == 3
        assert x[1 << 31] == 101
        assert x[-1] == 201
        x[1 << 31] = x[-1] = 3
        assert all((x[begin : begin + (1 << 26)] == 3).all() for begin in range(0, COUNT, 1 << 26))
        x[-1] = 7 + comm.rank
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            comm.recv(x, 0)
            assert x[-1] == 7
        x[-2] = comm.rank
        comm.broadcast(x, 1)
        assert x[-2] == 1

    world.run(run)
    world.close()
    gc.collect()
