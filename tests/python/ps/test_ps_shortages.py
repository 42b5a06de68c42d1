"""Servers without the memory for what they are asked to take."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gradring as gr
from ps_servers import SECRET, join

ROWS, DIM = 50_000, 64  # Of one push: 12.8 MB.
LIMITED = """
import resource, sys
from gradring.cli import main
with open("/proc/self/statm") as statm:
    mapped = int(statm.read().split()[0]) * resource.getpagesize()
limit = mapped + (700 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(main())
"""

NO_DESCRIPTORS = """
import os, resource, sys
import gradring as gr
gr.ps.ParameterServer
used = max(map(int, os.listdir("/proc/self/fd")))  # One of these is closed by now.
resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
try:
    gr.ps.connect(sys.argv[1:2], client=0, timeout=0.2)
except gr.PeerLost as error:
    print(error)
"""


def test_a_worker_without_descriptors_is_told_which_limit_it_has_reached() -> None:
    told = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTORS, "127.0.0.1:9"],
        env={**os.environ, "GRADRING_SECRET": SECRET},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Too many open files; see this process's ulimit -n" in told.stdout, told


def test_a_push_that_does_not_fit_is_refused_and_the_server_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LIMITED, "serve"],
        env={**os.environ, "GRADRING_SECRET": SECRET},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split(" at ")[1].split()[0].rstrip(",")
        with join([address]) as ps:
            table = ps.sparse_table("rows", DIM, gr.optim.Sum())
            ones, firsts = np.ones((ROWS, DIM), np.float32), iter(range(0, 100 * ROWS, ROWS))
            pushed = 0

            def push_more() -> None:
                nonlocal pushed
                for pushed in firsts:
                    table.push(np.arange(pushed, pushed + ROWS), ones)

            refusal = r"push to table 'rows', shard 0 .* not the memory for a request of \d+ rows"
            with pytest.raises(gr.InvalidArgument, match=refusal):
                push_more()
            assert pushed > 0
            # Parts of the last one may have found room.
            last = table.pull(np.arange(pushed, pushed + ROWS))
            assert set(np.unique(last)) <= {0, 1}
            assert (last == last[:, :1]).all()
            assert (last == 0).any()
            for first in range(0, pushed, ROWS):
                table.push(np.arange(first, first + ROWS), ones)
            for first in range(0, pushed, ROWS):
                assert (table.pull(np.arange(first, first + ROWS)) == 2).all()
        assert process.poll() is None
        process.terminate()
