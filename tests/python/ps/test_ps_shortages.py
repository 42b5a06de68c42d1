"""Servers without the memory for what they are asked to take."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gradring as gr
from ps_servers import SECRET, connected, join

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


@contextlib.contextmanager
def limited(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Run a server with little memory; it is ended, where it has not ended by itself."""
    with subprocess.Popen(
        [sys.executable, "-c", LIMITED, "serve", *options],
        env={**os.environ, "GRADRING_SECRET": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split(" at ")[1].split()[0].rstrip(",")


def save_many_blocks(url: Path) -> None:
    """Save tables of a row each, which are few bytes, but take 96 MiB of address space apiece."""
    with connected() as ps:
        for number in range(10):
            table = ps.sparse_table(f"rows {number}", DIM, gr.optim.Sum())
            table.push([1], np.ones((1, DIM), np.float32))
        ps.save(url)


def test_a_checkpoint_that_does_not_fit_is_refused_and_the_server_keeps_what_it_has(
    tmp_path: Path,
) -> None:
    save_many_blocks(tmp_path / "saved")
    with limited() as process, join([address_of(process)]) as ps:
        table = ps.sparse_table("kept", DIM, gr.optim.Sum())
        table.push([1], np.ones((1, DIM), np.float32))
        refusal = "shard 0: this server has not the memory for the checkpoint beside what it holds"
        with pytest.raises(gr.InvalidArgument, match=refusal):
            ps.load(tmp_path / "saved")
        assert (table.pull([1]) == 1).all()
        assert process.poll() is None


def test_a_server_that_has_not_the_memory_to_begin_with_a_checkpoint_says_so(
    tmp_path: Path,
) -> None:
    save_many_blocks(tmp_path / "saved")
    with limited("--load", str(tmp_path / "saved")) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.startswith("gradring: this server has not the memory for the checkpoint"), said


def test_a_push_that_does_not_fit_is_refused_and_the_server_goes_on() -> None:
    with limited() as process:
        with join([address_of(process)]) as ps:
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
