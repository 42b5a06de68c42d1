"""A script that ends while its threads, or its destructors, still call the core ends well."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOOPS = {
    "collective": "x = np.ones(1 << 18); f = lambda: comm.all_reduce(x)",
    "message": "group = comm.split(0); x = np.ones(4); f = lambda: group.recv(x, 0)",
    "rule": (
        "w = np.ones(1 << 20, np.float32); rule = {'kind': 'sgd', 'lr': 0.1};"
        " f = lambda: _core.update_dense(rule, 1, w.size, w, [], w)"
    ),
    "table": (
        "ps = gr.ps.connect(); t = ps.sparse_table('t', 4, gr.optim.Sum());"
        " ids = np.arange(1000); f = lambda: t.pull(ids)"
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_daemon_threads_in_the_core_do_not_abort_the_process(loop: str) -> None:
    program = f"""
import threading
import numpy as np
import gradring as gr
from gradring import _core
comm = gr.init()
{loop}
first = threading.Barrier(4)
def work():
    first.wait()
    try:
        while True: f()
    except gr.Error: pass
for _ in range(3): threading.Thread(target=work, daemon=True).start()
first.wait()
for _ in range(20): comm.barrier()
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "call",
    [
        "comm.all_reduce(np.ones(4))",
        "comm.recv(np.ones(4), 0)",
        "comm.barrier()",
        "comm.all_reduce(np.ones(4)[::2])",
        "comm.all_reduce(np.ones(4), async_op=True)",
        "comm.split(0)",
    ],
)
def test_a_destructor_that_runs_last_is_told_that_the_communicator_is_closed(call: str) -> None:
    program = f"""
import numpy as np
import gradring as gr
comm = gr.init()
class Last:
    def __del__(self):
        try: {call}
        except gr.Closed as error: print(type(error).__name__, error)
last = Last()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    closed = "Closed this communicator is closed: close() was called\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, closed, "")
